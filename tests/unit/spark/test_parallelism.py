"""How many tasks run at once, for the driver and for processes that plan reads."""

import pickle
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from penstock.clock import SYSTEM
from penstock.spark import parallelism
from penstock.spark.parallelism import reachable_tasks
from penstock.spark.tasks import Parallelism

GROWING = {"spark.dynamicAllocation.enabled": "true"}


@pytest.mark.parametrize(
    ("conf", "tasks"),
    [
        ({}, 0),
        ({"spark.dynamicAllocation.maxExecutors": "8"}, 0),
        (GROWING, 64),
        (GROWING | {"spark.dynamicAllocation.maxExecutors": "2", "spark.master": "spark://host:7077"}, 64),
        (
            GROWING
            | {
                "spark.dynamicAllocation.maxExecutors": "2",
                "spark.executor.cores": "4",
                "spark.master": "spark://host:7077",
            },
            8,
        ),
        (GROWING | {"spark.dynamicAllocation.maxExecutors": "8"}, 8),
        (GROWING | {"spark.dynamicAllocation.maxExecutors": "8", "spark.executor.cores": "4"}, 32),
        (
            GROWING
            | {
                "spark.dynamicAllocation.maxExecutors": "8",
                "spark.executor.cores": "4",
                "spark.task.cpus": "2",
            },
            16,
        ),
        (GROWING | {"spark.dynamicAllocation.maxExecutors": "2147483647"}, 64),
        (GROWING | {"spark.dynamicAllocation.maxExecutors": "5000"}, 1024),
        (GROWING | {"spark.dynamicAllocation.maxExecutors": "8", "spark.default.parallelism": "3"}, 0),
    ],
)
def test_work_is_divided_for_the_executors_that_dynamic_allocation_can_grow_to(
    conf: dict[str, str], tasks: int
) -> None:
    assert reachable_tasks(conf.get) == tasks


def test_a_planner_reads_what_the_driver_wrote_last_and_knows_a_number_without_it(tmp_path: Path) -> None:
    path = tmp_path / "tasks"
    kept = pickle.loads(pickle.dumps(Parallelism(2, str(path))))
    assert kept.ask() == 2
    path.write_text("")
    assert kept.ask() == 2
    path.write_text("24")
    assert kept.ask() == 24
    assert Parallelism(5).ask() == 5


def test_the_file_follows_the_executors_and_goes_with_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallelism, "_ASK_S", 0.0)
    answers = [2, 16]
    folder = TemporaryDirectory()
    path = Path(folder.name, "tasks")
    kept = Parallelism(2, str(path))
    ended = threading.Event()

    def ask() -> int:
        if ended.is_set():
            raise ConnectionRefusedError("Java has ended")
        return answers[0]

    following = threading.Thread(target=parallelism._follow, args=(ask, path, folder))
    following.start()
    try:
        wait_for(path.exists)
        answers.pop(0)
        wait_for(lambda: kept.ask() == 16)
    finally:
        ended.set()
        following.join(60)
    assert not Path(folder.name).exists()
    assert kept.ask() == 2


def wait_for(condition) -> None:
    deadline = SYSTEM.monotonic() + 60
    while not condition():
        assert SYSTEM.monotonic() < deadline
        SYSTEM.pause(0.01)
