"""A tenant puts a file into its own copy that takes all memory when it is read: nobody else notices."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.clock import SYSTEM
from penstock.consumers.lake import files
from penstock.consumers.lake.files import read_rows
from penstock.errors import Corrupt
from penstock.jobs.job import JobId, JobKey
from penstock.object_storage import open_storage
from penstock.verify.results import LastVerification, VerificationResults
from support.apiworld import TOKENS, ApiWorld, api_world, blocking

COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
MEMORY = 384 << 20
ENDLESS = 64
"""Rows of 16 MiB each that are decoded at once: they do not fit into a process of comparisons."""
ROOM = 200 << 20
"""What this process may need for its own work meanwhile."""
TENANTS = ("ann", "bob")


def write_repeated(path: Path, rows: int, nbytes: int) -> None:
    """A file of about a kilobyte with `rows` times a text of `nbytes`."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * nbytes]))
    numbers = pa.array(range(rows), pa.int64())
    pq.write_table(pa.table({"id": numbers, "name": texts}), path, compression="zstd")
    pa.default_memory_pool().release_unused()


def write_prefixes(path: Path, rows: int, nbytes: int) -> None:
    """A small file of different texts that share a long beginning: Arrow decodes them all at once."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    with pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=False,
        column_encoding={"name": "DELTA_BYTE_ARRAY"},
        write_statistics=False,
        data_page_size=1 << 30,
    ) as writer:
        for number in range(rows):
            writer.write_batch(pa.record_batch([[number], [f"{'x' * nbytes}{number}"]], schema=schema))
    pa.default_memory_pool().release_unused()


def own_bytes() -> int:
    """Return the memory that only this process has."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


@contextmanager
def memory_stays() -> Iterator[None]:
    """Fail when this process, which has the API and the runner, gets much larger meanwhile."""
    began, most, over = own_bytes(), [0], threading.Event()

    def watch() -> None:
        while not over.is_set():
            most[0] = max(most[0], own_bytes())
            SYSTEM.pause(0.005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert most[0] - began < ROOM, f"{(most[0] - began) >> 20} MiB more"


# One file.


def test_a_kilobyte_of_file_does_not_become_a_gigabyte_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.parquet"
    write_repeated(path, 500, 1 << 20)
    assert path.stat().st_size < 4000
    read = 0
    for batch in read_rows(open_storage(tmp_path.as_uri()), path.name, SCHEMA):
        assert batch.nbytes < 16 << 20
        read += batch.num_rows
        del batch
    assert read == 500


def test_small_rows_before_a_large_value_do_not_help(tmp_path: Path) -> None:
    path, rows = tmp_path / "later.parquet", 3000
    texts = pa.DictionaryArray.from_arrays(
        pa.array([0] * (rows - 200) + [1] * 200, pa.int32()), pa.array(["x", "y" * (1 << 20)])
    )
    pq.write_table(pa.table({"id": pa.array(range(rows), pa.int64()), "name": texts}), path)
    found = list(read_rows(open_storage(tmp_path.as_uri()), path.name, SCHEMA))
    assert sum(batch.num_rows for batch in found) == rows
    assert max(batch.nbytes for batch in found) < 16 << 20
    assert found[0].schema == SCHEMA


def test_texts_that_share_their_beginnings_are_read_few_at_a_time(tmp_path: Path) -> None:
    write_prefixes(tmp_path / "shared.parquet", 200, 1 << 20)
    found = [batch.num_rows for batch in read_rows(open_storage(tmp_path.as_uri()), "shared.parquet", SCHEMA)]
    assert sum(found) == 200
    assert max(found) <= 64


def test_a_row_group_of_too_many_bytes_and_a_damaged_file_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(tmp_path.as_uri())
    monkeypatch.setattr(files, "GROUP_BYTES_MAX", 32 << 20)
    write_repeated(tmp_path / "bomb.parquet", 100, 1 << 20)
    with pytest.raises(Corrupt, match=r"bomb\.parquet has rows of more than 32 MiB"):
        list(read_rows(storage, "bomb.parquet", SCHEMA))
    (tmp_path / "no.parquet").write_bytes(b"PAR1" + b"\xff" * 20 + b"\xff\xff\xff\x7fPAR1")
    with pytest.raises(Corrupt, match=r"no\.parquet has no footer"):
        list(read_rows(storage, "no.parquet", SCHEMA))
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "bomb.parquet").read_bytes()[:-40] + b"\0" * 40)
    with pytest.raises(Corrupt, match=r"cut\.parquet"):
        list(read_rows(storage, "cut.parquet", SCHEMA))


# Through the API and a runner.


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    """Two tenants with a copy each, and a runner with the same settings as the API."""
    folder = tmp_path_factory.mktemp("copies")
    accounts: dict[str, Any] = {"root": {"token": TOKENS["root"], "admin": True}} | {
        account: {"token": TOKENS[account], "targets": [f"file://{folder}/{account}"]} for account in TENANTS
    }
    api = {"accounts": accounts, "requests_burst": 100_000, "requests_per_s": 10_000}
    with api_world(folder, api, jobs={"verify_bytes": MEMORY}) as made:
        made.world.settings = made.deployment.settings
        for account in TENANTS:
            made.world.db.create_account(account)
            made.world.db.create_database(f"of_{account}", account=account)
            made.world.db.create_table(f"of_{account}.items", COLUMNS)
            made.run(made.world.insert(f"of_{account}.items", *({"id": n, "name": "x"} for n in range(5))))
        with blocking(made.world.running()):
            for account in TENANTS:
                register(made, account)
            yield made


def register(world: ApiWorld, account: str) -> None:
    options = {"uri": f"file://{world.folder}/{account}/copy"}
    spec = {
        "trigger": {"job_type": "greedy"},
        "detail": {"consumer": {"consumer": "parquet", "options": options}},
    }
    made = world.client(account).post("/api/v1/jobs", json={"job": f"of_{account}.items/copy", "spec": spec})
    assert made.status_code == 201, made.text
    world.until(lambda: bool(copied(world, account)), "the copy is not made")
    world.until(
        lambda: ask(world, account, "verify").json().get("same") is True, "the copy is not that of its table"
    )


def copied(world: ApiWorld, account: str) -> list[Path]:
    return sorted((world.folder / account / "copy").glob("data/**/*.parquet"))


def ask(world: ApiWorld, account: str, what: str) -> httpx.Response:
    client = world.client(account)
    return client.post(f"/api/v1/jobs/of_{account}.items/copy/{what}", timeout=120)


@contextmanager
def bomb(world: ApiWorld, write: Callable[[Path, int, int], None], rows: int, nbytes: int) -> Iterator[None]:
    """Ann puts other rows in the place of hers, and later what was there."""
    (path,) = copied(world, "ann")
    sound = path.read_bytes()
    write(path, rows, nbytes)
    assert path.stat().st_size < 200_000
    assert pq.read_metadata(path).row_group(0).total_byte_size < 64 << 20
    try:
        yield
    finally:
        path.write_bytes(sound)


@contextmanager
def others_are_answered(world: ApiWorld) -> Iterator[None]:
    """Bob asks all the time, and is answered each time."""
    over = threading.Event()

    def go_on() -> int:
        asked = 0
        with httpx.Client(
            base_url=world.url, headers={"Authorization": f"Bearer {TOKENS['bob']}"}, timeout=60
        ) as client:
            while not over.is_set():
                answer = client.get("/api/v1/jobs/of_bob.items/copy")
                assert answer.status_code == 200, answer.text
                asked += 1
        return asked

    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(go_on)
        try:
            yield
        finally:
            over.set()
        assert asking.result(60) > 0
    assert ask(world, "bob", "verify").json()["same"] is True


@pytest.mark.parametrize("what", ["verify", "repair"])
def test_a_comparison_that_needs_too_much_memory_fails_alone(world: ApiWorld, what: str) -> None:
    with bomb(world, write_prefixes, ENDLESS, 16 << 20), memory_stays(), others_are_answered(world):
        answer = ask(world, "ann", what)
    assert answer.status_code == 503, answer.text
    assert "jobs.verify_bytes" in answer.json()["detail"]
    assert ask(world, "ann", "verify").json()["same"] is True


def test_a_small_file_of_many_large_rows_is_compared_in_little_memory(world: ApiWorld) -> None:
    with bomb(world, write_repeated, 200, 1 << 20), memory_stays(), others_are_answered(world):
        answer = ask(world, "ann", "verify")
    assert answer.status_code == 200, answer.text
    assert (answer.json()["target_rows"], answer.json()["same"]) == (200, False)


def test_the_death_of_a_comparison_is_its_own_and_leaves_no_files(
    world: ApiWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert ask(world, "ann", "verify").status_code == 200
    with ThreadPoolExecutor(1) as threads:
        for pid in processes(world):
            os.kill(pid, signal.SIGSTOP)
        asking = threads.submit(ask, world, "ann", "verify")
        world.until(lambda: any(tmp_path.iterdir()), "the comparison does not begin")
        for pid in processes(world):
            os.kill(pid, signal.SIGKILL)
        answer = asking.result(60)
    assert answer.status_code == 503
    assert "the process that compared of_ann.items/copy ended" in answer.json()["detail"]
    assert not list(tmp_path.iterdir())
    assert ask(world, "ann", "verify").json()["same"] is True


def processes(world: ApiWorld) -> list[int]:
    return world.comparisons.pids


def test_what_was_compared_or_read_is_charged(world: ApiWorld) -> None:
    def used(name: str) -> float:
        return sample(f"penstock_jobs_usage_{name}_total", "ann")

    rows, nbytes = used("rows"), used("bytes")
    answer = ask(world, "ann", "verify").json()
    assert used("rows") - rows == answer["source_rows"] + answer["target_rows"] == 10
    assert used("bytes") - nbytes >= 10 * 9
    rows = used("rows")
    for form in ("json", "arrow"):
        read = world.client("ann").get(
            "/api/v1/tables/of_ann.items/changes", params={"format": form, "from_ts": 1}
        )
        assert read.status_code == 200, read.text
    world.until(lambda: used("rows") - rows == 2 * 5, "the changes that were read are not charged")


def sample(name: str, account: str) -> float:
    from prometheus_client import REGISTRY

    return REGISTRY.get_sample_value(name, {"account": account}) or 0.0


def test_a_scheduled_comparison_that_needs_too_much_memory_fails_alone(world: ApiWorld) -> None:
    """The runner goes on: it compares the other tenant's target, and copies the other's rows."""
    with bomb(world, write_prefixes, ENDLESS, 16 << 20), memory_stays(), others_are_answered(world):
        for account in TENANTS:
            schedule(world, account, "1s")
        found = result(world, "ann", lambda last: bool(last.error))
        assert "jobs.verify_bytes" in found.error
        assert result(world, "bob", lambda last: last.ended_ms > found.ended_ms).same is True
        ts = world.run(world.world.insert("of_bob.items", {"id": 77, "name": "later"}))
        world.run(world.world.caught_up("of_bob.items/copy", ts))
    assert result(world, "ann", lambda last: last.same is True)
    for account in TENANTS:
        schedule(world, account, "never")


def schedule(world: ApiWorld, account: str, interval: str) -> None:
    changed = world.client(account).patch(
        f"/api/v1/jobs/of_{account}.items/copy", json={"spec": {"detail": {"verify": interval}}}
    )
    assert changed.status_code == 200, changed.text


def result(world: ApiWorld, account: str, holds: Callable[[LastVerification], bool]) -> LastVerification:
    """Wait for a result of the schedule."""
    key: JobKey = world.world.jobs.get_job(JobId.parse(f"of_{account}.items/copy")).key
    results, found = VerificationResults(world.world.jobs.log), list[LastVerification]()

    def read() -> bool:
        found[:] = [last for last in results.read([key]).values() if holds(last)]
        return bool(found)

    world.until(read, f"{account}'s target is not compared on schedule")
    return found[0]
