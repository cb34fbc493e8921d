"""The driver's files on an S3 server and in a local directory, with the URI that a user writes."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.changefeeds.model import PendingFile
from penstock.changefeeds.sinks.storage.cleanup import FileCleanup
from penstock.changefeeds.sinks.storage.layout import (
    decode_checkpoint,
    parse_data_path,
    parse_index_path,
    parse_schema_path,
)
from penstock.changefeeds.sinks.storage.options import SinkOptions, parse_sink_uri
from penstock.changefeeds.sinks.storage.remote_files import FilePaths, RemoteFiles
from penstock.changefeeds.sinks.storage.schema_file import SchemaFile, check_path
from penstock.clock import SYSTEM, compose_ts
from penstock.errors import PenstockError
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent, DdlScope, TableChange
from penstock.follow.slices import Position, TableSpan
from penstock.object_storage import ObjectStorage
from penstock.tables.define import define_table
from penstock.testing.clock import ManualClock
from support.s3server import SECRET, S3Bucket

NOON_MS = 1_678_363_200_000  # 2023-03-09 12:00 UTC


@pytest.fixture(params=["s3", "file"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> SinkOptions:
    more = "protocol=canal-json&file-index-digit=6&file-expiration-days=1"
    if request.param == "file":
        return parse_sink_uri(f"file://{tmp_path}/out?{more}")
    bucket: S3Bucket = request.getfixturevalue("s3_bucket")
    return parse_sink_uri(f"{bucket.url}/{tmp_path.name}/out?{more}&{bucket.query}&force-path-style=true")


@pytest.fixture
def storage(options: SinkOptions) -> ObjectStorage:
    return options.target.open()


def table(name: str = "Größen & more", since_ts: int = 5, kind: str = "int") -> SchemaVersion:
    info = replace(define_table(name, [("id", "bigint primary key"), ("a", kind)]), id=1)
    return SchemaVersion(since_ts, 1, info, "shop/eu")


def write(storage: ObjectStorage, paths: FilePaths, *, index: bool = True) -> None:
    assert storage.create(paths.data_path, paths.data_path.encode())
    if index:
        storage.write(paths.index_path, f"{paths.data_path.rpartition('/')[2]}\n".encode())


def test_a_table_lives_through_ddl_crashes_and_expiry(storage: ObjectStorage, options: SinkOptions) -> None:
    clock = ManualClock(wall_ms=NOON_MS)
    files = RemoteFiles(storage, options, clock=clock)
    dispatcher = TableSpan("77", 1)
    assert not storage.exists("metadata")
    first = files.place(dispatcher, table())
    assert first is not None
    write(storage, files.next_file(first, compose_ts(clock.wall_ms())))
    torn = files.next_file(first, compose_ts(clock.wall_ms()))
    write(storage, torn, index=False)

    files = RemoteFiles(storage, options, clock=clock)
    pending = PendingFile("77", torn.data_path, torn.index_path, Position(5), Position(8))
    assert files.repair(pending) == Position(8)
    place = files.place(dispatcher, table())
    assert place == first
    never = files.next_file(first, compose_ts(clock.wall_ms()))
    assert never.number == 3
    assert files.repair(replace(pending, data_path=never.data_path)) is None
    write(storage, never)

    after = table(since_ts=9, kind="bigint")
    change = TableChange(table(), after)
    files.write_ddl(DdlEvent(commit_ts=9, type=12, query="ALTER <x>", database="shop/eu", tables=(change,)))
    created = DdlEvent(commit_ts=10, type=1, query="CREATE", database="other", scope=DdlScope.DATABASE)
    files.write_ddl(created)
    clock.advance(86_400)
    later = files.place(dispatcher, after)
    assert later is not None
    assert later.folder.version == 9
    write(storage, files.next_file(later, compose_ts(clock.wall_ms())))
    files.write_checkpoint(compose_ts(clock.wall_ms() + 86_400_000))

    listed = storage.names("")
    data = [found for path in listed if (found := parse_data_path(path))]
    assert [(each.folder.version, each.folder.date, each.number) for each in data] == [
        (5, "2023-03-09", 1),
        (5, "2023-03-09", 2),
        (5, "2023-03-09", 3),
        (9, "2023-03-10", 1),
    ]
    assert {(each.folder.schema, each.folder.table) for each in data} == {("shop/eu", "Größen & more")}
    assert len([path for path in listed if parse_index_path(path)]) == 2
    schemas = [path for path in listed if parse_schema_path(path)]
    assert len(schemas) == 3
    for path in schemas:
        check_path(path, SchemaFile.from_json(storage.read(path) or b""))

    checkpoint = decode_checkpoint(storage.read("metadata") or b"")
    assert FileCleanup(storage, options, lambda: checkpoint).clean() == 0, "all was written just now"
    days_later = ManualClock(wall_ms=SYSTEM.wall_ms() + 2 * 86_400_000)
    assert FileCleanup(storage, options, lambda: checkpoint, clock=days_later).clean() == 4
    left = [found.folder.version for path in storage.names("") if (found := parse_data_path(path))]
    assert left == [9]


def test_dispatchers_of_one_table_that_begin_together_agree_on_its_schema_file(
    storage: ObjectStorage, options: SinkOptions
) -> None:
    files = RemoteFiles(storage, options, split=True)
    start = threading.Barrier(4)
    found: list[int] = []

    def begin(name: str) -> None:
        start.wait()
        place = files.place(TableSpan(name, 1, name.encode(), b""), table())
        assert place is not None
        write(storage, files.next_file(place, compose_ts(NOON_MS)))
        found.append(place.folder.version)

    threads = [threading.Thread(target=begin, args=(name,)) for name in "1234"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [5, 5, 5, 5]
    assert len([path for path in storage.names("") if parse_schema_path(path)]) == 1
    assert len([path for path in storage.names("") if parse_data_path(path)]) == 4


def test_an_error_of_storage_shows_no_credentials(s3_bucket: S3Bucket) -> None:
    options = parse_sink_uri(
        f"s3://nowhere/p?protocol=csv&access-key={SECRET}&secret-access-key={SECRET}&session-token={SECRET}"
        f"&region=us-east-1&endpoint={s3_bucket.endpoint}"
    )
    files = RemoteFiles(options.target.open(), options)
    with pytest.raises(PenstockError) as caught:
        files.write_checkpoint(1)
    assert SECRET not in str(caught.value) + repr(caught.value) + str(caught.value.__cause__)
