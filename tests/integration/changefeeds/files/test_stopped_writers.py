"""Writers that are stopped (SIGSTOP) between two steps, and go on after their successor has come further.

Real processes, an S3 server and a local directory: the index and the checkpoint never go back.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.changefeeds.engines.engine import Chunk, FileWork
from penstock.changefeeds.engines.files import write_files
from penstock.changefeeds.model import PendingFile
from penstock.changefeeds.sinks.storage.layout import METADATA_PATH, decode_checkpoint
from penstock.changefeeds.sinks.storage.options import SinkOptions, parse_sink_uri
from penstock.changefeeds.sinks.storage.remote_files import RemoteFiles
from penstock.clock import SYSTEM
from penstock.errors import Unavailable
from penstock.follow.ddl_events import DdlEvent, DdlScope
from penstock.follow.slices import Position
from penstock.object_storage import ObjectStorage
from support.s3server import S3Bucket
from support.stoppedwriter import Moment, Writing

FOLDER = "shop/items/5"
INDEX = f"{FOLDER}/meta/CDC.index"
MOMENTS: tuple[Moment, ...] = ("data written", "index read", "checkpoint read")


@pytest.fixture
def s3_options(s3_bucket: S3Bucket, tmp_path: Path) -> SinkOptions:
    uri = f"{s3_bucket.url}/{tmp_path.name}?protocol=canal-json&{s3_bucket.query}&force-path-style=true"
    return parse_sink_uri(uri)


def work(number: int) -> FileWork:
    chunk = Chunk(0, 0, Position(number), Position(number + 1), 1, 1)
    return FileWork(
        dispatcher_id="1",
        chunks=(chunk,),
        data_path=f"{FOLDER}/CDC{number:06}.json",
        index_path=INDEX,
        header=b"",
    )


def content(file: FileWork) -> bytes:
    return f"rows of {file.data_path}\r\n".encode()


def write(options: SinkOptions, number: int) -> None:
    (result,) = write_files([work(number)], lambda file: [content(file)], options.target, threads=1)
    if result.error:
        raise Unavailable(result.error)


def published(storage: ObjectStorage) -> tuple[bytes | None, int]:
    """Return what readers go by: the index, and the checkpoint."""
    return storage.read(INDEX), decode_checkpoint(storage.read(METADATA_PATH) or b"")


@contextmanager
def stopped(
    folder: Path, options: SinkOptions, moment: Moment, ddl: DdlEvent | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that writes file 2 and checkpoint 30, or a DDL, and has stopped at a moment of that."""
    file = work(2)
    (folder / "work").write_bytes(pickle.dumps(Writing(options, file, content(file), 30, moment, ddl)))
    command = [sys.executable, "-m", "support.stoppedwriter", str(folder / "work")]
    tests = Path(__file__).parents[3]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(tests)}, cwd=folder)
    try:
        deadline = SYSTEM.monotonic() + 60
        while os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED)[0] == 0:
            assert SYSTEM.monotonic() < deadline, "the writer does not come to its moment"
            SYSTEM.pause(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def go_on(process: "subprocess.Popen[bytes]") -> None:
    """Continue a process and let it end."""
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(60) == 0


def take_over(options: SinkOptions) -> None:
    """Do what a successor does: complete file 2, write two more and publish a later checkpoint."""
    file = work(2)
    files = RemoteFiles(options.target.open(), options)
    pending = PendingFile("1", file.data_path, INDEX, Position(2), Position(3), len(content(file)))
    assert files.repair(pending) == Position(3)
    write(options, 3)
    write(options, 4)
    files.write_checkpoint(50)


def check_a_late_writer_takes_nothing_back(
    folder: Path, options: SinkOptions, moment: Moment, *, blocks: pytest.MonkeyPatch | None = None
) -> None:
    """Stop a writer, let another take over, and continue the first; with `blocks` it stops with the lock."""
    storage = options.target.open()
    write(options, 1)
    RemoteFiles(storage, options).write_checkpoint(20)
    with stopped(folder, options, moment) as writer:
        if blocks:  # it stands still with the directory's lock: nothing goes back because nobody goes on
            held = f"process {writer.pid} of .* holds its lock"
            with blocks.context() as patched:
                patched.setattr("penstock.object_storage._LOCK_WAIT_S", 0.3)
                with pytest.raises(Unavailable, match=held):
                    take_over(options)
            go_on(writer)
        take_over(options)
        assert published(storage) == (b"CDC000004.json\n", 50)
        if not blocks:
            go_on(writer)
        assert published(storage) == (b"CDC000004.json\n", 50)
    for number in (1, 2, 3, 4):
        assert storage.read(work(number).data_path) == content(work(number))


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_writer_that_was_stopped_takes_nothing_back_on_object_storage(
    tmp_path: Path, s3_options: SinkOptions, moment: Moment
) -> None:
    check_a_late_writer_takes_nothing_back(tmp_path, s3_options, moment)


@pytest.fixture(params=["s3", "file"])
def any_options(request: pytest.FixtureRequest, tmp_path: Path) -> SinkOptions:
    if request.param == "file":
        return parse_sink_uri(f"file://{tmp_path}/out?protocol=canal-json")
    options: SinkOptions = request.getfixturevalue("s3_options")
    return options


def test_a_writer_that_was_stopped_before_its_file_comes_too_late(
    tmp_path: Path, any_options: SinkOptions
) -> None:
    """Its successor has written the same changes under the same name; no file ever was without rows."""
    storage = any_options.target.open()
    write(any_options, 1)
    with stopped(tmp_path, any_options, "nothing written") as writer:
        file = work(2)
        files = RemoteFiles(storage, any_options)
        begun = PendingFile("1", file.data_path, INDEX, Position(2), Position(3), len(content(file)))
        assert files.repair(begun) is None
        assert storage.names(FOLDER) == [work(1).data_path, INDEX]
        again = b"rows of the same changes, encoded later\r\n"
        (result,) = write_files([replace(file, again=True)], lambda _: [again], any_options.target, threads=1)
        assert result.error == ""
        write(any_options, 3)
        os.kill(writer.pid, signal.SIGCONT)
        assert writer.wait(60) != 0, "it is told that the file is there with other bytes"
        assert storage.read(file.data_path) == again
        assert storage.read(INDEX) == b"CDC000003.json\n"


def test_a_writer_that_was_stopped_before_a_schema_file_does_not_replace_it(
    tmp_path: Path, any_options: SinkOptions
) -> None:
    """Its successor has written the statement in another way, and consumers may have run that."""
    storage = any_options.target.open()
    ddl = DdlEvent(
        commit_ts=9, type=1, query="CREATE DATABASE `shop`", database="shop", scope=DdlScope.DATABASE
    )
    with stopped(
        tmp_path, any_options, "nothing written", replace(ddl, query="create database shop")
    ) as writer:
        RemoteFiles(storage, any_options).write_ddl(ddl)
        [path] = storage.names("shop")
        successors = storage.read(path)
        go_on(writer)
        assert storage.read(path) == successors


def test_a_writer_that_was_stopped_takes_nothing_back_in_a_directory(tmp_path: Path) -> None:
    options = parse_sink_uri(f"file://{tmp_path}/out?protocol=canal-json")
    check_a_late_writer_takes_nothing_back(tmp_path, options, "data written")


def test_a_writer_that_stands_still_with_the_lock_of_a_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = parse_sink_uri(f"file://{tmp_path}/out?protocol=canal-json")
    check_a_late_writer_takes_nothing_back(tmp_path, options, "checkpoint read", blocks=monkeypatch)
