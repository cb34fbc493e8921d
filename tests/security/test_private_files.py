"""Only the user of Penstock can read files with rows, whatever the umask; files for others follow it."""

import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from penstock.cli.doctor import storage
from penstock.cli.doctor.findings import CheckResult
from penstock.clock import SYSTEM
from penstock.columnar.sorted_spill import HashedSpill, SortedSpill, order_by
from penstock.control.deployment import open_deployment
from penstock.durable_files import make_data_directory, open_private, replace_file
from penstock.errors import PenstockError
from penstock.jobs.iteration.iteration_run import Scratch
from penstock.jobs.job import JobId
from penstock.jobs.spec import JobSpec
from penstock.object_storage import StorageRef, open_storage
from penstock.settings import parse
from support.command import ServiceProcess

DEADLINE_S = 90.0


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """The widest umask there is; processes of the test inherit it."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes_below(folder: Path) -> dict[str, str]:
    """The modes of a folder and of everything in it."""
    paths = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): f"{stat.S_IMODE(path.lstat().st_mode):o}" for path in paths}


def widest(folder: Path) -> dict[str, str]:
    """What others can do something with."""
    return {path: mode for path, mode in modes_below(folder).items() if not mode.endswith("00")}


def until(holds: Callable[[], bool], describe: Callable[[], str]) -> None:
    deadline = SYSTEM.monotonic() + DEADLINE_S
    while not holds():
        assert SYSTEM.monotonic() < deadline, describe()
        SYSTEM.pause(0.05)


def test_a_whole_deployment_keeps_its_rows_to_itself(tmp_path: Path) -> None:
    feed, copy = tmp_path / "feed", tmp_path / "copy"
    data = tmp_path / "data"
    tree: dict[str, Any] = {
        "engine": "local",
        "store": {"pd_addr": "127.0.0.1:0", "data": str(data / "store")},
        "capture": {
            "flight_addr": "127.0.0.1:0",
            "data": str(data / "capture"),
            "storage": f"file://{data}/events",
            "flush_interval_s": 1,
            "idle_flush_interval_s": 1,
        },
        "changefeeds": {"feed": {"sink_uri": f"file://{feed}?protocol=csv&flush-interval=2s"}},
        "jobs": {"data": str(data / "jobs"), "interval_s": 1},
        "api": {"addr": "127.0.0.1:0"},
        "up": {"data": str(data / "up")},
    }
    (tmp_path / "penstock.yaml").write_text(yaml.safe_dump(tree))
    with ServiceProcess(tmp_path / "up.log", "up", "--config", "penstock.yaml", cwd=tmp_path) as up:
        with open_deployment(parse({**tree, "pd_addrs": up.ready["pd"]})) as deployment:
            db = deployment.catalog
            db.create_database("shop")
            db.create_table("shop.orders", [("id", "bigint primary key"), ("note", "varchar(20)")])
            detail = {"consumer": {"consumer": "parquet", "options": {"uri": copy.as_uri()}}}
            with deployment.blocking_client.begin() as txn:
                deployment.jobs().register_job(
                    txn, JobId.parse("shop.orders/copy"), JobSpec.parse({"trigger": {}, "detail": detail})
                )
            orders = db.table("shop.orders")
            orders.insert([{"id": number, "note": "secret"} for number in range(100)])
            until(
                lambda: (
                    any(feed.rglob("*.csv"))
                    and any(copy.rglob("*.parquet"))
                    and any((data / "events").rglob("*.parquet"))
                ),
                lambda: up.log,
            )
            found = modes_below(data)
            assert widest(data) == {}
            assert any("wal" in path for path in found)
            assert any(path.startswith("jobs/runner-") for path in found)
            assert any(path.endswith((".sst", "MANIFEST-000005")) for path in found)
        assert up.terminate() == 0
    assert widest(data) == {}
    for output in (feed, copy):  # for whoever reads them
        assert set(modes_below(output).values()) == {"777", "666"}


def test_directories_of_an_older_release_are_narrowed_at_the_start_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = tmp_path / "data"
    (old / "a/b").mkdir(parents=True)
    (old / "a/b/rows").write_text("rows")
    outside = tmp_path / "outside"
    outside.write_text("not ours")
    (old / "link").symlink_to(outside)
    with caplog.at_level(logging.INFO, "penstock.durable_files"):
        make_data_directory(old)
        make_data_directory(old)
    assert {key: mode for key, mode in modes_below(old).items() if key != "link"} == {
        ".": "700",
        "a": "700",
        "a/b": "700",
        "a/b/rows": "600",
    }
    assert stat.S_IMODE(outside.stat().st_mode) == 0o666
    (line,) = caplog.records
    assert line.getMessage() == "other users could read a data directory; narrowed it"
    assert (line.__dict__["mode"], line.__dict__["entries"]) == ("777", 3)


def test_a_store_of_an_older_release_is_narrowed_by_its_process(tmp_path: Path) -> None:
    arguments = ("store", "--pd-addr", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    with ServiceProcess(tmp_path / "log", *arguments) as store:
        assert store.terminate() == 0
        for path in [tmp_path / "data", *(tmp_path / "data").rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        store.start()
        assert widest(tmp_path / "data") == {}
        assert store.log.count("other users could read a data directory; narrowed it") == 1


def test_a_folder_that_everybody_may_write_to_is_not_taken_from_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "of somebody").write_text("theirs")
    make_data_directory(shared)
    assert set(modes_below(shared).values()) == {"1777", "666"}
    assert [line.getMessage() for line in caplog.records] == [
        "other users can list a data directory; give Penstock one of its own"
    ]


def test_scratch_files_are_private(tmp_path: Path) -> None:
    rows = pa.record_batch({"id": list(range(1000))})
    scratch = Scratch(tmp_path / "jobs")
    scratch.open()
    try:
        with SortedSpill(order_by(rows.schema, "id"), memory_bytes=100, scratch=scratch.folder) as spill:
            spill.write(rows)
            assert any(scratch.folder.rglob("*.arrow"))
            assert widest(tmp_path / "jobs") == {}
            ordered = spill.sort()
            next(ordered)
            assert len(list(scratch.folder.rglob("*.arrow"))) > 1
            assert widest(tmp_path / "jobs") == {}
            ordered.close()
        with HashedSpill(rows.schema, scratch.folder / "hash/rows", buffer_bytes=1) as hashed:
            hashed.add(rows, rows.column("id").to_numpy().astype("uint64"))
            assert any((scratch.folder / "hash").iterdir())
            assert widest(tmp_path / "jobs") == {}
    finally:
        scratch.close()


def test_a_small_file_that_is_replaced_does_not_keep_the_mode_of_what_a_killed_process_left(
    tmp_path: Path,
) -> None:
    (tmp_path / "state.new").write_text("half")
    replace_file(tmp_path / "state", b"whole")
    assert modes_below(tmp_path)["state"] == "600"
    with open_private(tmp_path / "log", "a+b") as file:
        file.write(b"line")
    assert modes_below(tmp_path)["log"] == "600"


def test_a_local_directory_is_private_unless_it_is_for_others(tmp_path: Path) -> None:
    for name, shared in (("events", False), ("lake", True)):
        target = StorageRef(f"file://{tmp_path}/deep/{name}/root", shared=shared).open()
        target.write("a/b/object", b"rows")
        target.create("a/new", b"rows")
        target.swap("a/new", b"more", seen=b"rows")
    assert widest(tmp_path / "deep/events") == {}
    assert stat.S_IMODE((tmp_path / "deep/lake/root/a/b/object").stat().st_mode) == 0o666
    assert stat.S_IMODE((tmp_path / "deep/lake/root/a/b").stat().st_mode) == 0o777


def test_doctor_tells_who_can_read_a_data_directory_and_the_command_that_closes_it(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    settings = parse({"capture": {"storage": events.as_uri(), "data": str(tmp_path / "none")}})
    folders = dict(storage.private_folders(settings))
    assert "capture.storage" in folders
    (found,) = storage.check_privacy("capture.storage", folders["capture.storage"])
    assert found.verdict is CheckResult.BAD
    assert "mode 777" in found.what
    assert f"chmod -R go= {events}" in found.remedy
    opened = storage.check_storage("capture.storage", StorageRef(events.as_uri()))
    assert opened.verdict is CheckResult.OK
    assert stat.S_IMODE(events.stat().st_mode) == 0o777, "a check changes nothing"
    events.chmod(0o700)
    assert storage.check_privacy("capture.storage", events) == []
    assert storage.check_privacy("capture.data", folders["capture.data"]) == []


def test_a_directory_that_cannot_be_opened_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PenstockError, match="cannot be opened"):
        open_storage(f"file://{tmp_path}/file/events")
