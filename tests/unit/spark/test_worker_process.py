"""Processes that Spark keeps from task to task, each in a process of its own."""

import subprocess
import sys

PROGRAM = """
import gc, weakref
from penstock.spark.tasks import begin_task

class Ring:
    def __init__(self):
        self.me = self

gc.disable()
before = gc.get_freeze_count()  # Python 3.12 freezes objects of its own
kept = []
frozen = []
for _ in range(3):
    begin_task()
    frozen.append(gc.get_freeze_count() - before)
    gone = weakref.ref(Ring())
    gc.collect()
    assert gone() is None, "garbage of a task was kept"
    kept.append(Ring())
later = weakref.ref(kept.pop())
gc.collect()
assert later() is None, "what a later task left was kept"
print(*frozen)
"""


def test_what_the_first_task_left_is_kept_out_of_collections_once() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    first, second, third = map(int, ran.stdout.split())
    assert first == 0
    assert second > 1_000  # the modules of Python alone are more
    assert second - 10 < third <= second  # some have gone since
