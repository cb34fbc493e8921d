"""Data files that are old enough go."""

import asyncio
import logging
import os
from datetime import datetime
from pathlib import Path

import pytest

from penstock.changefeeds.sinks.storage.cleanup import FileCleanup, expired_paths, remove_empty_directories
from penstock.changefeeds.sinks.storage.options import parse_sink_uri
from penstock.clock import SYSTEM, compose_ts
from penstock.errors import Unavailable
from penstock.object_storage import StoredObject, open_storage
from penstock.testing.clock import ManualClock

MIDNIGHT_MS = 4_102_444_800_000  # 2100-01-01 00:00 UTC: files of today are old


def ts(day: str) -> int:
    return compose_ts(int(datetime.fromisoformat(f"{day}+00:00").timestamp() * 1000))


def test_files_of_days_strictly_before_the_oldest_kept_one_go() -> None:
    paths = [f"a/b/7/2021-01-0{day}/CDC000001.json" for day in (1, 2, 3)]
    assert expired_paths(paths, ts("2021-01-03T00:00:00"), 1) == paths[:1]
    assert expired_paths(paths, ts("2021-01-03T23:59:59"), 1) == paths[:1]
    assert expired_paths(paths, ts("2021-01-04T00:00:00"), 1) == paths[:2]
    assert expired_paths(paths, ts("2021-01-03T00:00:00"), 30) == []


@pytest.mark.parametrize("days", [740_000, 10**12])
def test_more_days_than_there_were_keep_everything(days: int) -> None:
    options = parse_sink_uri(f"memory:///?protocol=csv&file-expiration-days={days}")
    assert (
        expired_paths(["a/b/7/1970-01-01/CDC000001.csv"], ts("2021-01-01"), options.file_expiration_days)
        == []
    )


@pytest.mark.parametrize(
    ("path", "goes"),
    [
        ("a/b/7/2020-01-01/CDC000001.json", True),
        ("a/b/7/55/2020-01-01/CDC_12_000001.csv.gz", True),
        ("a/b/7/2020-01-01/meta/CDC.index", True),
        ("12345/7/2020-01-01/meta/CDC_12.index", True),
        ("a/2020-01-01/7/2030-01-01/CDC000001.json", False),
        ("a/2020-01-01/meta/schema_7_0123456789.json", False),
        ("2020-01-01/b/7/CDC000001.json", False),
        ("a/b/7/2020-01-01/notes.txt", False),
        ("a/b/7/2020-01/CDC000001.json", False),
        ("metadata", False),
    ],
)
def test_only_data_and_index_files_in_folders_by_day_go(path: str, goes: bool) -> None:
    assert expired_paths([path], ts("2021-01-01T00:00:00"), 7) == ([path] if goes else [])


def test_empty_directories_go_with_the_files_and_a_second_run_does_the_same(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/out?protocol=csv&file-expiration-days=1"
    options = parse_sink_uri(uri)
    storage = open_storage(options.target.url)
    for path in (
        "a/b/7/2021-01-01/CDC000001.csv",
        "a/b/7/2021-01-01/meta/CDC.index",
        "a/b/9/2021-01-09/CDC000001.csv",
        "a/b/meta/schema_7_0123456789.json",
        "metadata",
    ):
        storage.write(path, b"x")
    job = FileCleanup(storage, options, lambda: ts("2021-01-09T00:00:00"), clock=_in_days(2))
    assert job.clean() == 2
    assert job.clean() == 0
    left = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*"))
    assert "a/b/7" not in left
    assert "a/b/9/2021-01-09/CDC000001.csv" in left
    assert storage.names("") == [
        "a/b/9/2021-01-09/CDC000001.csv",
        "a/b/meta/schema_7_0123456789.json",
        "metadata",
    ]
    storage.write("a/b/9/2021-01-09/CDC000002.csv", b"x")


def _in_days(days: float) -> ManualClock:
    return ManualClock(wall_ms=SYSTEM.wall_ms() + round(days * 86_400_000))


def test_files_stay_for_so_many_days_after_they_were_written_whatever_their_date(tmp_path: Path) -> None:
    """A changefeed that catches up writes files of old commits: consumers have as long to read them."""
    options = parse_sink_uri(f"file://{tmp_path}?protocol=csv&file-expiration-days=3")
    storage = open_storage(options.target.url)
    first, second, index = (
        f"a/b/7/2021-01-01/{name}" for name in ("CDC000001.csv", "CDC000002.csv", "meta/CDC.index")
    )
    for path in (first, second, index):
        storage.write(path, b"x")
    day_ago = SYSTEM.wall_ms() / 1000 - 86_400
    os.utime(tmp_path / first, (day_ago, day_ago))

    def clean(in_days: float) -> int:
        return FileCleanup(storage, options, lambda: ts("2021-01-09"), clock=_in_days(in_days)).clean()

    assert clean(0) == 0
    assert clean(2.5) == 0, "the files of a folder go together: numbers have no holes"
    assert clean(3.5) == 3


def test_the_root_and_directories_in_use_stay(tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    (tmp_path / "staging").mkdir()
    (tmp_path / "empty" / "deep").mkdir(parents=True)
    assert remove_empty_directories(tmp_path) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["staging", "used"]
    assert remove_empty_directories(tmp_path / "used") == 0


async def test_runs_follow_the_cron_spec_and_a_failed_one_is_left_to_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock(wall_ms=MIDNIGHT_MS)
    options = parse_sink_uri("memory:///?protocol=csv&file-expiration-days=1")
    storage = open_storage("memory:///")
    storage.write("a/b/7/2020-01-01/CDC000001.csv", b"x")
    works, calls = storage.list_objects, []
    problems = [Unavailable("cannot list; try again"), OSError("a mistake of ours")]

    def list_objects(folder: str) -> list[StoredObject]:
        calls.append(clock.wall_ms())
        if len(calls) <= len(problems):
            raise problems[len(calls) - 1]
        return works(folder)

    storage.list_objects = list_objects
    job = asyncio.create_task(
        FileCleanup(storage, options, lambda: ts("2021-01-03T00:00:00"), clock=clock).run()
    )
    try:
        with caplog.at_level(logging.INFO, "penstock"):
            for _ in range(50 * 12):
                clock.advance(300)
                await _settle()
            await _until(lambda: "removed expired files" in caplog.text)
    finally:
        job.cancel()
    assert [call - MIDNIGHT_MS for call in calls] == [each * 3_600_000 for each in (2, 26, 50)]
    assert caplog.text.count("could not all be removed") == 2
    assert works("") == []


async def _settle() -> None:
    for _ in range(5):
        await asyncio.to_thread(lambda: None)


async def _until(condition: object) -> None:
    deadline = SYSTEM.monotonic() + 10
    while not condition():
        assert SYSTEM.monotonic() < deadline
        await SYSTEM.sleep(0.01)


async def test_nothing_runs_where_files_do_not_expire() -> None:
    options = parse_sink_uri("memory:///?protocol=csv")
    await asyncio.wait_for(FileCleanup(open_storage("memory:///"), options, lambda: 0).run(), 5)
