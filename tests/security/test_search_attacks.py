"""Hostile searches: what they name does not run, what they take is bounded, and the API survives them."""

import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from penstock.clock import SYSTEM
from penstock.control.search_workers import SearchWorkers
from penstock.errors import Invalid, Unavailable
from penstock.settings import Settings
from penstock.tables.define import define_table
from penstock.testing.clock import ManualClock
from support.hostilerequests import hostile_filters
from support.indexworld import IndexWorld

BOOKS = define_table("books", [("id", "int primary key"), ("title", "varchar(99)"), ("body", "longtext")])
HOSTILE = hostile_filters("title")
_WAIT_S = 30.0


def _settings(**api: Any) -> Settings:
    return Settings.model_validate({"api": api})


def _index(folder: Path, *rows: dict[str, Any]) -> IndexWorld:
    world = IndexWorld(folder, "fulltext", BOOKS, {"text_columns": "title"})
    world.source.commit(*rows)
    world.catch_up()
    return world


def _await_running(count: int) -> None:
    """Wait until so many searches are in the hands of processes."""
    deadline = SYSTEM.monotonic() + _WAIT_S
    while REGISTRY.get_sample_value("penstock_api_searches_running") != count:
        assert SYSTEM.monotonic() < deadline, "the search has not reached its process"
        SYSTEM.pause(0.01)


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> IndexWorld:
    return _index(
        tmp_path_factory.mktemp("books"),
        *({"id": number, "title": f"green book {number}", "body": None} for number in range(9)),
    )


@pytest.fixture
def workers() -> Iterator[SearchWorkers]:
    made = SearchWorkers(_settings(search_s=20), count=2)
    yield made
    made.close()


def test_hostile_filters_are_refused_and_harm_nobody(books: IndexWorld, workers: SearchWorkers) -> None:
    assert workers.search(books.job(), "green", filter="id IN (1, 2)").rows.num_rows == 2
    before = workers.pids
    for condition in HOSTILE:
        with pytest.raises(Invalid):
            workers.search(books.job(), "green", filter=condition)
    assert workers.pids == before, "the same process has answered all of them"
    many = ", ".join(str(number) for number in range(2500))
    assert workers.search(books.job(), "green", filter=f"id IN ({many})").rows.num_rows == 9


def test_a_search_whose_process_is_killed_fails_alone(books: IndexWorld, workers: SearchWorkers) -> None:
    assert workers.search(books.job(), "green").rows.num_rows == 9
    (pid,) = workers.pids
    os.kill(pid, signal.SIGSTOP)  # so that the search is certainly in the middle
    with ThreadPoolExecutor(2) as threads:
        killed = threads.submit(workers.search, books.job(), "green")
        try:
            _await_running(1)
            beside = threads.submit(workers.search, books.job(), "green")
            assert beside.result(_WAIT_S).rows.num_rows == 9, "another search goes on beside it"
        finally:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(Unavailable, match="process of the search ended"):
            killed.result(_WAIT_S)
    assert workers.search(books.job(), "green").rows.num_rows == 9
    assert pid not in workers.pids


def test_a_search_that_takes_too_long_is_ended(books: IndexWorld) -> None:
    workers = SearchWorkers(_settings(search_s=1), count=1)
    try:
        _warm_up(workers, books)
        (pid,) = workers.pids
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(Unavailable, match=r"more than 1 s \(api.search_s\)"):
            workers.search(books.job(), "green")
        assert not Path(f"/proc/{pid}").exists(), "its process was killed"
        _warm_up(workers, books)
    finally:
        workers.close()


def _warm_up(workers: SearchWorkers, books: IndexWorld) -> None:
    """Search until an answer comes within the second: the first search of a process is its slowest."""
    deadline = SYSTEM.monotonic() + _WAIT_S
    while True:
        try:
            assert workers.search(books.job(), "green").rows.num_rows == 9
        except Unavailable:
            assert SYSTEM.monotonic() < deadline, "no search is answered"
        else:
            return


def _private_bytes(pid: int) -> int:
    """Return the memory that only this process has; none when it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    return 0


def test_a_search_that_needs_too_much_memory_is_ended(tmp_path: Path) -> None:
    large = "x" * (1 << 20)
    world = _index(tmp_path, *({"id": number, "title": "green", "body": large} for number in range(200)))
    limit = 96 << 20
    workers = SearchWorkers(_settings(search_bytes=limit), count=1)
    try:
        assert workers.search(world.job(), "green", columns=["id"], k=200).rows.num_rows == 200
        (pid,) = workers.pids
        began = _private_bytes(pid)
        with ThreadPoolExecutor(1) as pool:
            hostile = pool.submit(workers.search, world.job(), "green", k=200)
            most = began
            while not hostile.done():
                most = max(most, _private_bytes(pid))
                SYSTEM.pause(0.001)
            with pytest.raises(Unavailable, match=r"api\.search_bytes"):
                hostile.result()
        assert most <= began + limit, "also what the answer is made of counts, not only the answer"
        assert workers.search(world.job(), "green", columns=["id"], k=200).rows.num_rows == 200
    finally:
        workers.close()


def test_a_burst_of_searches_leaves_one_process_for_those_that_follow(books: IndexWorld) -> None:
    clock = ManualClock()
    workers = SearchWorkers(_settings(), count=3, clock=clock)
    try:
        with ThreadPoolExecutor(3) as threads:
            found = list(threads.map(lambda _: workers.search(books.job(), "green"), range(12)))
        assert {result.rows.num_rows for result in found} == {9}
        clock.advance(61)
        workers.search(books.job(), "green")
        assert len(workers.pids) == 1
    finally:
        workers.close()


def test_processes_of_searches_end_with_the_process_that_asks(books: IndexWorld) -> None:
    workers = SearchWorkers(_settings(), count=1)
    workers.search(books.job(), "green")
    (pid,) = workers.pids
    workers.close()
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(Unavailable):
        workers.search(books.job(), "green")
