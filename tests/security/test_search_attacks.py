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
from support.apiworld import TOKENS
from support.indexworld import IndexWorld
from support.upworld import UpWorld, up_world

BOOKS = define_table("books", [("id", "int primary key"), ("title", "varchar(99)"), ("body", "longtext")])
HOSTILE = (
    "title = repeat('x', 2000000000)",
    "length(repeat(title, 2000000000)) > 1",
    "regexp_like(title, '(a+)+(a+)+(a+)+$')",
    "(" * 5000 + "id = 1" + ")" * 5000,
    "not " * 200 + "id = 1",
    "id IN (SELECT id FROM books)",
    "id IN (" + ", ".join(["repeat('x', 9)"] * 200) + ")",
    "`*` = 1",
    "* = 1",
    "іd = 1",  # noqa: RUF001 - a Cyrillic letter
    "_penstock IS NULL",
    "id BETWEEN SYMMETRIC 2 AND 1",  # a part that is not listed is refused, not passed over
)
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


@pytest.fixture
def served(tmp_path: Path) -> Iterator[UpWorld]:
    """An API that is a process, with an account, and an index of three rows that the account may ask."""
    accounts = {"root": {"token": TOKENS["root"], "admin": True}}
    with up_world(tmp_path, api={"accounts": accounts}, up={"changefeeds": False}) as world:
        world.db.create_database("shop")
        world.db.create_table("shop.books", [("id", "bigint primary key"), ("title", "varchar(64)")])
        world.db.table("shop.books").insert(
            [{"id": number, "title": f"green {number}"} for number in range(3)]
        )
        options = {"uri": f"file://{tmp_path}/index", "text_columns": "title"}
        spec = {
            "trigger": {"job_type": "greedy"},
            "detail": {"consumer": {"consumer": "fulltext", "options": options}},
        }
        client = world.client("root")
        made = client.post("/api/v1/jobs", json={"job": "shop.books/words", "spec": spec})
        assert made.status_code == 201, made.text
        asked = {"q": "green"}
        world.until(
            lambda: client.get("/api/v1/search/shop.books/words", params=asked).status_code == 200,
            "the index is not built",
        )
        yield world


def test_the_api_answers_after_every_hostile_search_and_after_the_death_of_its_process(
    served: UpWorld,
) -> None:
    client, path = served.client("root"), "/api/v1/search/shop.books/words"
    for condition in HOSTILE:
        answer = client.post(path, json={"words": "green", "filter": condition})
        assert answer.status_code == 400, answer.text
        assert "\n" not in answer.json()["detail"]
    api = served.part("api").pid
    (pid,) = _children(api)
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        hit = threads.submit(client.get, path, params={"q": "green"})
        served.until(lambda: _searches(client.get("/metrics").text) == 1, "the search has not begun")
        os.kill(pid, signal.SIGKILL)
        answer = hit.result(_WAIT_S)
    assert (answer.status_code, answer.json()["status"]) == (503, 503)
    assert "process of the search ended" in answer.json()["detail"]
    assert client.get(path, params={"q": "green", "filter": "id > 1"}).status_code == 200
    assert (served.part("api").pid, served.restarts()["api"]) == (api, 0), "the API is the same process"


def _searches(scraped: str) -> float:
    """Return how many searches the parts of a deployment run."""
    lines = [line for line in scraped.splitlines() if line.startswith("penstock_api_searches_running")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def _children(parent_pid: int | None) -> list[int]:
    """Return the processes of searches that a process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if b"penstock.worker_processes" in command and int(parent) == parent_pid:
            found.append(int(folder.name))
    return found
