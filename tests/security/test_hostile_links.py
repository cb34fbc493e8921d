"""A symbolic link inside a data directory or a sink is not followed out of it to write or to delete.

Nor is a FIFO, a socket or a device opened that lies there: a thread would wait for it for ever.
"""

import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from penstock.changefeeds.sinks.storage.cleanup import remove_empty_directories
from penstock.durable_files import create_private, open_private, replace_file
from penstock.errors import Corrupt, Unavailable
from penstock.eventstore.log.segments import read_segment
from penstock.object_storage import STAGING_LOCK, ObjectStorage, open_storage

WAIT_S = 30.0


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Somebody's folder, with a file under the name of an object."""
    folder = tmp_path / "outside"
    (folder / "sub").mkdir(parents=True)
    (folder / "object").write_bytes(b"precious")
    return folder


@pytest.fixture(params=[False, True], ids=["private", "shared"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStorage:
    return open_storage(f"file://{tmp_path}/data", shared=request.param)


def content(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


Write = Callable[[ObjectStorage], object]
WRITES: list[tuple[str, Write]] = [
    ("write", lambda storage: storage.write("table/object", b"new")),
    ("create", lambda storage: storage.create("table/other", b"new")),
    ("create in a new folder", lambda storage: storage.create("table/deep/other", b"new")),
    ("swap", lambda storage: storage.swap("table/object", b"new", seen=b"precious")),
    ("advance", lambda storage: storage.advance("table/object", b"new", is_older=lambda _: True)),
    ("delete", lambda storage: storage.delete("table/object")),
]


@pytest.mark.parametrize("write", [write for _, write in WRITES], ids=[name for name, _ in WRITES])
def test_a_folder_that_became_a_link_is_not_written_through(
    tmp_path: Path, outside: Path, storage: ObjectStorage, write: Write
) -> None:
    storage.write("table/object", b"precious")  # the folder is known to be there
    (tmp_path / "data" / "table").rename(tmp_path / "moved")
    (tmp_path / "data" / "table").symlink_to(outside)
    before = content(outside)
    with pytest.raises(Unavailable, match="symbolic link"):
        write(storage)
    assert content(outside) == before
    (tmp_path / "data" / "table").unlink()
    (tmp_path / "moved").rename(tmp_path / "data" / "table")
    write(storage)  # it goes on once the link is gone


def test_staging_is_not_a_link(tmp_path: Path, outside: Path, storage: ObjectStorage) -> None:
    (tmp_path / "data" / "staging").symlink_to(outside)
    before = content(outside)
    with pytest.raises(Unavailable, match="symbolic link"):
        storage.write("table/object", b"new")
    assert content(outside) == before


def test_the_lock_is_not_a_link(tmp_path: Path, outside: Path, storage: ObjectStorage) -> None:
    storage.write("table/object", b"old")
    (tmp_path / "data" / STAGING_LOCK).unlink(missing_ok=True)
    (tmp_path / "data" / STAGING_LOCK).symlink_to(outside / "object")
    with pytest.raises(Unavailable):
        storage.swap("table/object", b"new", seen=b"old")
    assert (outside / "object").read_bytes() == b"precious"


def test_an_object_that_is_a_link_is_replaced_itself(
    tmp_path: Path, outside: Path, storage: ObjectStorage
) -> None:
    storage.write("table/object", b"old")
    target = tmp_path / "data" / "table" / "object"
    for change in (lambda: storage.write("table/object", b"new"), lambda: storage.delete("table/object")):
        target.unlink()
        target.symlink_to(outside / "object")
        change()
        assert not target.is_symlink()
        assert (outside / "object").read_bytes() == b"precious"
        target.touch()


def test_the_directory_may_be_a_link_but_not_become_another_one(
    tmp_path: Path, outside: Path, storage: ObjectStorage
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    linked = open_storage(f"file://{tmp_path}/link")
    linked.write("table/object", b"new")
    assert (tmp_path / "disk" / "table" / "object").read_bytes() == b"new"
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(outside)
    before = content(outside)
    with pytest.raises(Unavailable, match="restart Penstock"):
        linked.write("table/object", b"newer")
    assert content(outside) == before
    storage.write("table/object", b"another directory is not concerned")


def test_empty_directories_behind_a_link_stay(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "sink"
    (root / "empty").mkdir(parents=True)
    (root / "link").symlink_to(outside)
    assert remove_empty_directories(root) == 1
    assert (outside / "sub").is_dir()


def test_lock_files_and_state_files_are_not_followed(tmp_path: Path, outside: Path) -> None:
    """The lock of a log is truncated when it is taken, and states are replaced."""
    for name, mode in (("LOCK", "wb"), ("lock", "a+b")):
        (tmp_path / name).symlink_to(outside / "object")
        with pytest.raises(OSError, match="symbolic links"):
            open_private(tmp_path / name, mode)  # type: ignore[arg-type]
    (tmp_path / "state.new").symlink_to(outside / "object")
    replace_file(tmp_path / "state", b"new")
    assert (outside / "object").read_bytes() == b"precious"
    (tmp_path / "spill").symlink_to(outside / "made")
    with pytest.raises(OSError, match="symbolic links"):
        create_private(tmp_path / "spill")
    assert not (outside / "made").exists()


def test_a_log_segment_is_not_a_link(tmp_path: Path, outside: Path) -> None:
    """The torn end of the last segment is cut off, and one without a header is removed."""
    (outside / "object").write_bytes(b"torn")
    path = tmp_path / "00000001.wal"
    path.symlink_to(outside / "object")
    with pytest.raises(Corrupt, match="is a symbolic link"):
        read_segment(path, 1, last=True)
    assert (outside / "object").read_bytes() == b"torn"


@pytest.mark.parametrize("path", ["../outside/object", "table/../../outside/object", "OUTSIDE/object"])
def test_no_path_leads_out_of_a_directory(
    tmp_path: Path, outside: Path, storage: ObjectStorage, path: str
) -> None:
    """Paths come from manifests and logs of tables, which others may have written."""
    hostile = path.replace("OUTSIDE", str(outside))
    changes: list[Callable[[], object]] = [
        lambda: storage.open(hostile),
        lambda: storage.delete(hostile),
        lambda: storage.write(hostile, b"new"),
        lambda: storage.create(f"{hostile}-2", b"new"),
    ]
    before = content(outside)
    for change in changes:
        with pytest.raises(Corrupt, match="outside"):
            change()
    assert content(outside) == before
    assert not (tmp_path / "object-2").exists()


def _make_fifo(path: Path) -> None:
    os.mkfifo(path)


def _make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # a whole path may be too long for a socket


def _link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _call_within(call: Callable[[], object], fifo: Path) -> None:
    """Call in a thread, because a library that waits for a FIFO notices no signal; raise what it raised."""
    called: Future[object] = Future()

    def run() -> None:
        try:
            called.set_result(call())
        except Exception as error:  # noqa: BLE001 - the caller's
            called.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        called.result(WAIT_S)
    except TimeoutError:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))  # lets the thread end
        pytest.fail("it waits for what is no file")


@pytest.mark.parametrize("make", [_make_fifo, _make_socket, _link_to_device])
def test_what_is_no_file_is_refused_and_not_waited_for(
    tmp_path: Path, storage: ObjectStorage, make: Callable[[Path], None]
) -> None:
    storage.write("table/other", b"rows")
    make(tmp_path / "data" / "table" / "object")
    reads: list[Callable[[], object]] = [
        lambda: storage.read("table/object"),
        lambda: storage.holds("table/object", b"rows"),
        lambda: storage.exists("table/object"),
        lambda: storage.open("table/object"),
        lambda: storage.read_range("table/object", 0, 4),
        lambda: storage.swap("table/object", b"new", seen=b"old"),
        lambda: storage.advance("table/object", b"new", is_older=lambda _: False),
    ]
    for read in reads:
        with pytest.raises(Corrupt, match=r"table/object at .* is no regular file; remove it"):
            _call_within(read, tmp_path / "data" / "table" / "object")
    assert storage.read("table/other") == b"rows"
    storage.write("table/object", b"new")  # takes its place
    assert storage.read("table/object") == b"new"


def test_a_lock_or_a_log_that_is_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    for name, mode in (("LOCK", "wb"), ("lock", "a+b")):
        os.mkfifo(tmp_path / name)
        opens = partial(open_private, tmp_path / name, mode)  # type: ignore[arg-type]
        with pytest.raises(OSError, match=r"no regular file|No such device"):
            _call_within(opens, tmp_path / name)
    segment = tmp_path / "00000001.wal"
    os.mkfifo(segment)
    with pytest.raises(Corrupt, match="is no regular file"):
        _call_within(lambda: read_segment(segment, 1, last=True), segment)
