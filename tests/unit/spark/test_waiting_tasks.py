"""When executors count as missing."""

from penstock.metrics import SPARK_EXECUTORS_MISSING
from penstock.spark.supervised import TaskWait


def test_executors_are_missing_once_tasks_have_waited_while_none_ran_until_one_runs() -> None:
    wait = TaskWait(30.0)
    told = [
        wait.update(waiting=waiting, running=running, now=now)
        for waiting, running, now in (
            (4, 0, 0.0),
            (3, 1, 20.0),  # one runs: the others wait their turn
            (4, 0, 40.0),
            (4, 0, 69.0),
            (4, 0, 70.0),
            (4, 0, 71.0),
            (3, 1, 72.0),
            (0, 0, 200.0),
        )
    ]
    assert told == [False, False, False, False, True, True, False, False]
    assert SPARK_EXECUTORS_MISSING._value.get() == 0
