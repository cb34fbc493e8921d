"""Schema files, file numbers, indexes and the checkpoint at a target."""

import gc
import gzip
import io
import sys
import threading
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from penstock.changefeeds.codecs.decoder import FileOptions
from penstock.changefeeds.directory.listing import DirectoryLayout
from penstock.changefeeds.directory.reader import DirectoryReader
from penstock.changefeeds.model import PendingFile
from penstock.changefeeds.sinks.storage.layout import (
    decode_checkpoint,
    encode_checkpoint,
    last_number,
    number_in_index,
)
from penstock.changefeeds.sinks.storage.options import parse_sink_uri
from penstock.changefeeds.sinks.storage.remote_files import FilePaths, FileTarget, RemoteFiles
from penstock.changefeeds.sinks.storage.schema_file import SchemaFile
from penstock.clock import compose_ts
from penstock.errors import Corrupt, Invalid, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent, DdlScope, TableChange
from penstock.follow.slices import Position, TableSpan
from penstock.object_storage import ObjectStorage, open_storage
from penstock.tables.define import define_table
from penstock.testing.clock import ManualClock

DAY = 86_400
NOON_MS = 1_678_363_200_000  # 2023-03-09 12:00 UTC
WHOLE = TableSpan("77", 1)


class World:
    """A target in memory that counts how often it is looked at."""

    def __init__(
        self, parameters: str = "file-index-digit=6", *, split: bool = False, protocol: str = "canal-json"
    ) -> None:
        self.clock = ManualClock(wall_ms=NOON_MS)
        self.storage = open_storage("memory:///")
        self.ranges = 0
        self.options = parse_sink_uri(f"memory:///?protocol={protocol}&{parameters}")
        self._exists = self.storage.exists
        self.storage.exists = self._look
        self.split = split
        self.restart()

    def _look(self, path: str) -> bool:
        self.ranges += 1
        return self._exists(path)

    def restart(self) -> None:
        self.files = RemoteFiles(self.storage, self.options, split=self.split, clock=self.clock)

    def place(self, dispatcher: TableSpan = WHOLE, known: SchemaVersion | None = None) -> FileTarget:
        place = self.files.place(dispatcher, known or table())
        assert place is not None
        return place

    def next_file(self, place: FileTarget, end_ms: int | None = None) -> FilePaths:
        """Where the next file goes, of commits up to a moment; by default up to now."""
        return self.files.next_file(place, compose_ts(self.clock.wall_ms() if end_ms is None else end_ms))

    def write(self, place: FileTarget, end_ms: int | None = None, *, index: bool = True) -> FilePaths:
        """What the engine does with a file."""
        paths = self.next_file(place, end_ms)
        assert self.storage.create(paths.data_path, paths.data_path.encode())
        if index:
            self.storage.write(paths.index_path, f"{paths.data_path.rpartition('/')[2]}\n".encode())
        return paths

    def paths(self) -> list[str]:
        return self.storage.names("")


def table(
    name: str = "t", since_ts: int = 5, *, partitions: tuple[int, ...] = (), more: str = "int"
) -> SchemaVersion:
    info = replace(define_table(name, [("id", "bigint primary key"), ("a", more)]), id=1)
    if partitions:
        parts = [{"id": each, "name": {"O": f"p{each}", "L": f"p{each}"}} for each in partitions]
        info = replace(info, extra={"partition": {"enable": True, "definitions": parts}})
    return SchemaVersion(since_ts, 1, info, "db")


def schema_paths(world: World) -> list[str]:
    return [path for path in world.paths() if "/meta/schema_" in path]


def test_the_schema_file_of_a_version_is_there_before_its_first_data_file() -> None:
    world = World()
    place = world.place()
    assert world.paths() == [SchemaFile.of(table(), 5).path()]
    assert world.next_file(place).data_path == "db/t/5/2023-03-09/CDC000001.json"
    assert world.next_file(place).index_path == "db/t/5/2023-03-09/meta/CDC.index"


def test_a_version_that_was_placed_is_not_looked_at_again() -> None:
    world = World()
    place = world.place()
    looks = world.ranges
    assert world.place() is place
    assert world.ranges == looks


def test_the_file_of_the_version_itself_counts_first() -> None:
    world = World()
    for version in (5, 9):
        file = SchemaFile.of(table(), version, query="ALTER", type=5)
        world.storage.write(file.path(), file.to_json())
    assert world.place().folder.version == 5
    assert b"ALTER" in (world.storage.read(SchemaFile.of(table(), 5).path()) or b"")


def test_the_newest_older_file_that_says_the_same_is_used_again() -> None:
    world = World()
    for version in (50, 100):
        file = SchemaFile.of(table(), version)
        world.storage.write(file.path(), file.to_json())
    assert world.place(known=table(since_ts=101)).folder.version == 100
    assert len(schema_paths(world)) == 2


def test_a_later_file_that_says_the_same_makes_a_version_stale() -> None:
    world = World()
    later = SchemaFile.of(table(), 100)
    world.storage.write(later.path(), later.to_json())
    assert world.files.place(WHOLE, table(since_ts=99)) is None
    assert schema_paths(world) == [later.path()]
    world.storage.delete(later.path())
    assert world.files.place(WHOLE, table(since_ts=99)) is not None, "it is not remembered"


def test_a_file_with_other_columns_or_one_that_is_being_written_does_not_count() -> None:
    world = World()
    other = SchemaFile.of(table(more="bigint"), 100)
    world.storage.write(other.path(), other.to_json())
    world.storage.write(f"{SchemaFile.of(table(), 98).path()}.tmp.1", b"")
    assert world.place(known=table(since_ts=99)).folder.version == 99


def test_a_new_version_gets_a_folder_of_its_own_and_numbers_from_one() -> None:
    world = World()
    world.write(world.place())
    changed = table(since_ts=9, more="bigint")
    assert world.write(world.place(known=changed)).data_path == "db/t/9/2023-03-09/CDC000001.json"


def test_numbers_go_on_after_the_last_file_and_start_anew_with_the_date() -> None:
    world = World()
    place = world.place()
    assert [world.write(place).number for _ in range(3)] == [1, 2, 3]
    world.clock.advance(DAY)
    assert world.write(place).data_path == "db/t/5/2023-03-10/CDC000001.json"
    world.restart()
    assert world.write(world.place()).data_path == "db/t/5/2023-03-10/CDC000002.json"


@pytest.mark.parametrize(
    ("separator", "folder"), [("none", ""), ("year", "/2023"), ("month", "/2023-03"), ("day", "/2023-03-09")]
)
def test_folders_by_date(separator: str, folder: str) -> None:
    world = World(f"file-index-digit=6&date-separator={separator}")
    assert world.write(world.place()).data_path == f"db/t/5{folder}/CDC000001.json"


MIDNIGHT_MS = NOON_MS + 12 * 3_600_000


def test_dates_are_those_of_commits_whatever_a_clock_says() -> None:
    """Two machines whose clocks differ run a changefeed around midnight, one after the other."""
    world = World()
    world.clock.advance(DAY)
    first = world.write(world.place(), MIDNIGHT_MS - 1)
    world.restart()
    world.clock.advance(DAY)
    second = world.write(world.place(), MIDNIGHT_MS - 1)
    third = world.write(world.place(), MIDNIGHT_MS)
    assert [each.data_path for each in (first, second, third)] == [
        "db/t/5/2023-03-09/CDC000001.json",
        "db/t/5/2023-03-09/CDC000002.json",
        "db/t/5/2023-03-10/CDC000001.json",
    ]


@pytest.mark.parametrize("names", ["alone", "divided"])
@pytest.mark.parametrize("separator", ["day", "month", "year"])
def test_dates_of_a_dispatcher_never_go_back(separator: str, names: str) -> None:
    """A fence file, or one of a release that took the date from the clock, may be ahead of the commits."""
    world = World(f"file-index-digit=6&date-separator={separator}", split=names == "divided")
    later = NOON_MS + 400 * DAY * 1000
    ahead = world.write(world.place(), later)
    other = TableSpan("78", 1, b"m")
    for again in range(3):
        found = world.write(world.place(), NOON_MS)
        assert found.data_path.rpartition("/")[0] == ahead.data_path.rpartition("/")[0]
        assert found.number == 2 + again
        world.restart()
    if names == "divided":
        path = world.write(world.place(other), NOON_MS).data_path
        assert "/2023" in path, "it has no file that is later"


def test_a_date_folder_without_files_of_the_dispatcher_holds_nobody_back() -> None:
    world = World()
    world.storage.write("db/t/5/2030-01-01/notes.txt", b"")
    world.storage.write("db/t/5/zzz/CDC000001.json", b"")
    assert world.write(world.place()).data_path == "db/t/5/2023-03-09/CDC000001.json"


def test_a_number_that_no_file_has_is_given_out_again() -> None:
    world = World()
    place = world.place()
    assert [world.next_file(place).number for _ in range(3)] == [1, 1, 1]
    world.write(place)
    assert world.next_file(place).number == 2


def test_files_that_follow_each_other_get_numbers_ahead_and_leave_no_hole_when_none_came() -> None:
    world = World()
    place = world.place()
    at = compose_ts(world.clock.wall_ms())
    numbers = [world.files.next_file(place, at, following=number > 0).number for number in range(3)]
    assert numbers == [1, 2, 3]
    assert world.next_file(place).number == 1  # nothing is under way any more, and nothing came


def test_a_file_that_is_known_to_be_there_is_not_looked_for() -> None:
    world = World()
    place = world.place()
    paths = world.write(place)
    world.files.confirm_written(place, paths)
    looks = world.ranges
    assert world.next_file(place).number == 2
    assert world.ranges == looks
    world.files.confirm_written(place, paths)  # not the one that is on its way
    assert world.next_file(place).number == 2


def test_the_index_says_where_to_go_on_after_a_restart() -> None:
    world = World()
    place = world.place()
    world.storage.write("db/t/5/2023-03-09/meta/CDC.index", b"CDC000005.json\n")
    looks = world.ranges
    assert world.next_file(place).number == 6
    assert world.ranges == looks + 1


def test_files_that_no_index_names_are_stepped_over(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    place = world.place()
    world.write(place)
    world.write(place, index=False)
    world.restart()
    assert world.next_file(world.place()).number == 3
    assert "behind its files" in caplog.text


def test_few_looks_find_the_end_of_many_files() -> None:
    world = World()
    for number in range(1, 1001):
        world.storage.write(f"db/t/5/2023-03-09/CDC{number:06d}.json", b"")
    place = world.place()
    looks = world.ranges
    assert world.next_file(place).number == 1001
    assert world.ranges - looks <= 22


@pytest.mark.parametrize("used", range(70))
def test_the_last_number_is_found_wherever_the_index_was_left(used: int) -> None:
    for indexed in range(used + 1):
        assert last_number(indexed, lambda number: number <= used) == used


def test_a_dispatcher_that_comes_back_goes_on_after_what_another_process_wrote() -> None:
    world = World()
    place = world.place()
    world.write(place)
    elsewhere = RemoteFiles(world.storage, world.options, clock=world.clock)
    other = elsewhere.place(WHOLE, table())
    assert other is not None
    for number in (2, 3, 4):
        paths = elsewhere.next_file(other, compose_ts(NOON_MS))
        assert paths.number == number
        world.storage.write(paths.data_path, b"")
        world.storage.write(paths.index_path, f"CDC{number:06d}.json\n".encode())
    world.files.forget(WHOLE.id)
    looks = world.ranges
    assert world.next_file(world.place()).number == 5
    assert world.ranges - looks <= 3


def test_an_index_that_names_no_file_is_damaged() -> None:
    world = World()
    place = world.place()
    world.storage.write("db/t/5/2023-03-09/meta/CDC.index", b"hello\n")
    with pytest.raises(Corrupt, match="names no data file"):
        world.next_file(place)
    assert number_in_index(None, "x") == 0
    assert number_in_index(b"CDC000007.csv", "x") == 7
    assert number_in_index(b"CDC_12_1000007.csv\n", "x") == 1_000_007


def test_partitions_have_folders_of_their_own() -> None:
    world = World()
    known = table(partitions=(55, 56))
    paths = [world.write(world.place(TableSpan(str(each), each), known)) for each in (55, 56)]
    assert [each.data_path for each in paths] == [
        "db/t/5/55/2023-03-09/CDC000001.json",
        "db/t/5/56/2023-03-09/CDC000001.json",
    ]
    assert len(schema_paths(world)) == 1


def test_partitions_that_share_a_folder_have_names_of_their_own() -> None:
    world = World("file-index-digit=6&enable-partition-separator=false")
    known = table(partitions=(55, 56))
    paths = [world.write(world.place(TableSpan(str(each), each), known)) for each in (55, 56)]
    assert [each.data_path for each in paths] == [
        "db/t/5/2023-03-09/CDC_55_000001.json",
        "db/t/5/2023-03-09/CDC_56_000001.json",
    ]
    assert paths[0].index_path == "db/t/5/2023-03-09/meta/CDC_55.index"


@pytest.mark.parametrize(
    ("split", "dispatcher", "parameters"),
    [
        (True, WHOLE, ""),
        (False, TableSpan("77", 1, b"", b"m"), ""),
        (False, WHOLE, "&enable-table-across-nodes=true"),
    ],
)
def test_a_divided_table_has_the_dispatcher_in_its_names(
    split: bool, dispatcher: TableSpan, parameters: str
) -> None:
    world = World(f"file-index-digit=6{parameters}", split=split)
    place = world.place(dispatcher)
    paths = world.write(place)
    assert paths.data_path == "db/t/5/2023-03-09/CDC_77_000001.json"
    assert paths.index_path == "db/t/5/2023-03-09/meta/CDC_77.index"
    world.restart()
    assert world.next_file(world.place(dispatcher)).number == 2


def test_table_ids_can_be_the_paths() -> None:
    world = World("file-index-digit=6&use-table-id-as-path=true")
    paths = world.write(world.place(TableSpan("77", 12345)))
    assert paths.data_path == "12345/5/2023-03-09/CDC000001.json"
    assert world.paths()[-1].startswith("12345/meta/schema_5_")
    later = SchemaFile.of(table(), 9)
    world.storage.write(later.path(99), later.to_json())
    assert world.files.place(TableSpan("78", 99), table()) is None


def test_numbers_have_twenty_digits_unless_told_otherwise() -> None:
    assert World("compression=gzip").place().dispatcher_id == "77"
    world = World("compression=gzip")
    assert world.write(world.place()).data_path.endswith("/CDC00000000000000000001.json.gz")


def pending(paths: FilePaths) -> PendingFile:
    return PendingFile("77", paths.data_path, paths.index_path, Position(5), Position(9))


def test_a_file_that_is_missing_keeps_its_name_and_nothing_else_gets_it() -> None:
    world = World()
    paths = world.next_file(world.place())
    before = world.storage.names("")
    assert world.files.repair(pending(paths)) is None
    assert world.storage.names("") == before, "readers see no file that has no rows"
    world.restart()
    assert world.next_file(world.place()) == paths


def test_a_file_of_somebody_else_is_not_taken_for_ours() -> None:
    world = World()
    paths = world.next_file(world.place())
    world.storage.write(paths.data_path, b"rows of somebody else")
    with pytest.raises(Corrupt, match=r"is not what this changefeed wrote there; .* resume"):
        world.files.repair(replace(pending(paths), nbytes=4))
    assert world.storage.read(paths.index_path) is None, "nobody is told of it"
    assert world.files.repair(replace(pending(paths), nbytes=21)) == Position(9)


@pytest.mark.parametrize(
    ("protocol", "earlier"),
    [
        ("csv", b""),
        ("csv&compression=gzip", gzip.compress(b"", mtime=7)),
        ("csv&compression=zstd", zstandard.ZstdCompressor(write_checksum=True).compress(b"")),
        ("parquet", b""),
    ],
)
def test_a_file_without_rows_of_an_earlier_release_has_none_of_the_changes(
    protocol: str, earlier: bytes
) -> None:
    world = World(protocol=protocol)
    paths = world.next_file(world.place())
    if protocol == "parquet":
        made = io.BytesIO()
        pq.write_table(pa.table({"id": pa.array([], pa.int64())}), made, store_schema=False)
        earlier = made.getvalue()
    world.storage.write(paths.data_path, earlier)
    assert world.files.repair(replace(pending(paths), nbytes=0 if protocol == "parquet" else 40)) == Position(
        5
    )


def test_a_parquet_file_with_rows_counts() -> None:
    world = World(protocol="parquet")
    paths = world.next_file(world.place())
    made = io.BytesIO()
    pq.write_table(pa.table({"id": [1]}), made)
    world.storage.write(paths.data_path, made.getvalue())
    assert world.files.repair(pending(paths)) == Position(9)


def test_a_file_without_its_index_gets_one(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    place = world.place()
    world.write(place)
    paths = world.write(place, index=False)
    world.restart()
    assert world.files.repair(pending(paths)) == Position(9)
    assert world.storage.read(paths.index_path) == b"CDC000002.json\n"
    assert "no index yet" in caplog.text
    assert world.next_file(world.place()).number == 3


def test_an_index_never_goes_back() -> None:
    world = World()
    place = world.place()
    first = world.write(place)
    world.write(place)
    assert world.files.repair(pending(first)) == Position(9)
    assert world.storage.read(first.index_path) == b"CDC000002.json\n"


def test_the_files_of_a_ddl_are_used_by_the_version_it_makes() -> None:
    world = World()
    world.write(world.place())
    after = table(since_ts=9, more="bigint")
    event = DdlEvent(
        commit_ts=9, type=12, query="ALTER", database="db", tables=(TableChange(table(), after),)
    )
    world.files.write_ddl(event)
    world.files.write_ddl(event)
    [_, path] = schema_paths(world)
    written = SchemaFile.from_json(world.storage.read(path) or b"")
    assert (written.version, written.query, written.type) == (9, "ALTER", 12)
    assert world.place(known=after).folder.version == 9
    assert len(schema_paths(world)) == 2


def altered(query: str) -> DdlEvent:
    tables = (TableChange(table(), table(since_ts=9, more="bigint")),)
    return DdlEvent(commit_ts=9, type=12, query=query, database="db", tables=tables)


def test_a_schema_file_that_is_there_keeps_its_statement(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.files.write_ddl(altered("ALTER by this release"))
    [path] = schema_paths(world)
    world.files.write_ddl(altered("ALTER by a former release"))
    assert SchemaFile.from_json(world.storage.read(path) or b"").query == "ALTER by this release"
    assert "already with another statement" in caplog.text
    assert "former" not in caplog.text


def test_a_schema_file_without_a_statement_gets_it_and_keeps_it() -> None:
    world = World()
    after = table(since_ts=9, more="bigint")
    assert world.place(known=after).folder.version == 9
    world.files.write_ddl(altered("ALTER"))
    [path] = schema_paths(world)
    assert SchemaFile.from_json(world.storage.read(path) or b"").query == "ALTER"
    world.files.write_ddl(altered(""))
    assert SchemaFile.from_json(world.storage.read(path) or b"").query == "ALTER"


def test_a_damaged_schema_file_is_named() -> None:
    world = World()
    world.files.write_ddl(altered("ALTER"))
    [path] = schema_paths(world)
    world.storage.write(path, b"{}")
    with pytest.raises(Corrupt, match=f"schema file {path} .* remove it and resume"):
        world.files.write_ddl(altered("ALTER"))


def test_the_checkpoint_is_in_the_metadata_file() -> None:
    world = World()
    world.files.write_checkpoint(100)
    world.files.write_checkpoint(440_000_000_000_000_001)
    assert world.storage.read("metadata") == b'{"checkpoint-ts":440000000000000001}'
    assert decode_checkpoint(encode_checkpoint(7)) == 7
    for damaged in (b"", b"{}", b'{"checkpoint-ts":"x"}', b"[]", b'{"checkpoint-ts":-1}'):
        with pytest.raises(Corrupt, match="metadata"):
            decode_checkpoint(damaged)


def test_a_checkpoint_that_cannot_be_written_says_what_to_look_at(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    options = parse_sink_uri(f"file://{tmp_path}?protocol=csv")
    files = RemoteFiles(options.target.open(), options)
    with pytest.raises(
        Unavailable, match=r"the checkpoint cannot be written for consumers: .* called metadata"
    ):
        files.write_checkpoint(7)


def test_a_database_called_metadata_is_refused_where_it_would_hide_the_checkpoint(tmp_path: Path) -> None:
    named = replace(table(), database="metadata")
    created = DdlEvent(commit_ts=9, type=1, query="CREATE", database="metadata", scope=DdlScope.DATABASE)
    options = parse_sink_uri(f"file://{tmp_path}?protocol=csv")
    files = RemoteFiles(options.target.open(), options)
    for refused in (lambda: files.place(WHOLE, named), lambda: files.write_ddl(created)):
        with pytest.raises(Invalid, match=r"database metadata cannot be written .* exclude the database by"):
            refused()
    files.write_checkpoint(7)
    staging = files.place(WHOLE, replace(table(), database="staging"))
    assert staging is not None, "half-written files are beside its tables"
    by_id = parse_sink_uri(f"file://{tmp_path}/ids?protocol=csv&use-table-id-as-path=true")
    assert RemoteFiles(by_id.target.open(), by_id).place(WHOLE, named) is not None


def test_a_database_called_metadata_is_one_as_any_other_on_object_storage() -> None:
    world = World()
    world.write(world.place(known=replace(table(), database="metadata")))
    world.files.write_checkpoint(compose_ts(NOON_MS))
    reader = DirectoryReader(world.storage, FileOptions(protocol="csv"), DirectoryLayout())
    listing = reader.contents().listing
    assert [each.root for each in (*listing.schemas, *listing.sequences)] == ["metadata/t"] * 2


def test_storage_that_does_not_answer_leaves_nothing_half_known() -> None:
    world = World()
    place = world.place()
    world.write(place)
    world.restart()
    place = world.place()
    works, world.storage.exists = world.storage.exists, _unavailable
    with pytest.raises(Unavailable):
        world.next_file(place)
    with pytest.raises(Unavailable):
        world.files.place(WHOLE, table(since_ts=9, more="bigint"))
    world.storage.exists = works
    assert world.next_file(place).number == 2
    assert world.place(known=table(since_ts=9, more="bigint")).folder.version == 9


def _unavailable(path: str) -> bool:
    raise Unavailable(f"cannot look for {path}; try again")


def test_what_is_kept_of_a_dispatcher_is_given_back() -> None:
    world = World()
    for number in range(4):
        world.place(TableSpan(str(number), number + 1))
        world.clock.advance(10)
    assert world.files.kept_state_count == 4
    world.place(TableSpan("0", 1))
    assert world.files.sweep(25) == 1, "the first was used again, the second was not"
    assert world.files.sweep(25) == 0
    world.files.forget("3")
    world.files.forget("3")
    assert world.files.kept_state_count == 2
    world.clock.advance(DAY)
    assert world.files.sweep(DAY) == 2
    assert world.files.kept_state_count == 0


def test_a_place_outlives_what_was_kept_of_it() -> None:
    world = World()
    place = world.place()
    world.write(place)
    world.clock.advance(60)
    world.files.sweep(0)
    assert world.next_file(place).number == 2


class Nowhere(ObjectStorage):
    """A target that forgets everything."""

    def __init__(self) -> None:
        self.url = "memory:///"

    def exists(self, path: str) -> bool:
        return False

    def read(self, path: str, *, bytes_max: int | None = None) -> bytes | None:
        return None

    def names(self, folder: str, *, after: str = "") -> list[str]:
        return []

    def folders(self, folder: str) -> list[str]:
        return []

    def create(self, path: str, data: bytes) -> bool:
        return True


def test_ten_thousand_tables_leave_no_memory_behind() -> None:
    clock = ManualClock(wall_ms=NOON_MS)
    files = RemoteFiles(Nowhere(), parse_sink_uri("memory:///?protocol=csv"), clock=clock)
    known = table()

    numbers = count()  # never the same table twice

    def churn(tables: int) -> None:
        for number in islice(numbers, tables):
            place = files.place(TableSpan(str(number), number), known)
            assert place is not None
            files.next_file(place, compose_ts(NOON_MS))
        assert files.kept_state_count == tables
        clock.advance(DAY)
        assert files.sweep(3600) == tables

    def grown() -> int:
        """Objects that are left of it."""
        before, size_before = _memory(files)
        churn(10_000)
        assert files.kept_state_count == 0
        objects, size = _memory(files)
        assert size == size_before
        return objects - before

    churn(1)  # what is made once is there
    assert min(grown() for _ in range(3)) < 100, "what else runs in this process does not always make some"


def _memory(files: RemoteFiles) -> tuple[int, int]:
    """Objects of the process, and the size of what is kept."""
    gc.collect()
    return len(gc.get_objects()), sum(map(sys.getsizeof, vars(files).values()))


def test_dispatchers_are_served_at_the_same_time() -> None:
    world = World()
    barrier = threading.Barrier(8)
    found: dict[str, list[int]] = {}

    def work(name: str) -> None:
        dispatcher = TableSpan(name, int(name))
        known = table(f"t{name}")
        barrier.wait()
        found[name] = [world.write(world.place(dispatcher, known)).number for _ in range(20)]

    threads = [threading.Thread(target=work, args=(str(each),)) for each in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {str(each): list(range(1, 21)) for each in range(1, 9)}
