"""Paths of a storage sink, and the way back from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.changefeeds.codecs.options import file_extension
from penstock.changefeeds.sinks.storage import layout
from penstock.changefeeds.sinks.storage.layout import (
    DataPath,
    FileName,
    Folder,
    IndexPath,
    SchemaPath,
    parse_data_path,
    parse_file_name,
    parse_index_path,
    parse_schema_path,
)

DISPATCHER = "1234567890123456789"
PLAIN = Folder(schema="schema1", table="table1", version=123456)


@pytest.mark.parametrize(
    ("folder", "name", "digits", "path"),
    [
        (PLAIN, FileName("", 1, ".json"), 6, "schema1/table1/123456/CDC000001.json"),
        (PLAIN, FileName("", 1, ".json"), 20, "schema1/table1/123456/CDC00000000000000000001.json"),
        (PLAIN, FileName("", 1_000_000, ".csv"), 6, "schema1/table1/123456/CDC1000000.csv"),
        (
            Folder(schema="schema1", table="table1", version=123456, date="2023-05-09"),
            FileName(DISPATCHER, 10, ".csv"),
            20,
            f"schema1/table1/123456/2023-05-09/CDC_{DISPATCHER}_00000000000000000010.csv",
        ),
        (
            Folder(schema="schema1", table="table1", version=123456, partition=55, date="2023-05-09"),
            FileName("", 10, ".parquet"),
            6,
            "schema1/table1/123456/55/2023-05-09/CDC000010.parquet",
        ),
        (
            Folder(table_id=12345, version=123456, date="2023-05-09"),
            FileName(DISPATCHER, 10, ".json.gz"),
            6,
            f"12345/123456/2023-05-09/CDC_{DISPATCHER}_000010.json.gz",
        ),
    ],
)
def test_data_paths_there_and_back(folder: Folder, name: FileName, digits: int, path: str) -> None:
    assert layout.data_path(folder, name, digits) == path
    parsed = parse_data_path(path, table_id_as_path=bool(folder.table_id))
    assert parsed == DataPath(folder, name.dispatcher_id, name.number, name.extension)


@pytest.mark.parametrize(
    ("separator", "date"), [("none", ""), ("year", "2023"), ("month", "2023-05"), ("day", "2023-05-09")]
)
def test_dates_are_of_the_moment_of_writing_in_utc(separator: layout.DateSeparator, date: str) -> None:
    evening = 1_683_676_799_999  # 2023-05-09 23:59:59.999 UTC
    assert layout.date_text(separator, evening) == date
    folder = Folder(schema="a", table="b", version=7, partition=2023, date=date)
    path = layout.data_path(folder, FileName("", 3, ".json"), 6)
    assert parse_data_path(path, date_separator=separator) == DataPath(folder, "", 3, ".json")
    assert layout.date_text("day", evening + 1) == "2023-05-10"


def test_a_year_is_not_taken_for_a_partition() -> None:
    found = parse_data_path("a/b/7/2023/CDC000001.json", date_separator="year")
    assert found is not None
    assert (found.folder.partition, found.folder.date) == (0, "2023")
    found = parse_data_path("a/b/7/2023/CDC000001.json")
    assert found is not None
    assert (found.folder.partition, found.folder.date) == (2023, "")


@pytest.mark.parametrize("dispatcher", ["", DISPATCHER])
def test_index_paths_there_and_back(dispatcher: str) -> None:
    folder = Folder(schema="a", table="b", version=7, partition=5, date="2023-05-09")
    path = layout.index_path(folder, dispatcher)
    owner = f"_{dispatcher}" if dispatcher else ""
    assert path == f"a/b/7/5/2023-05-09/meta/CDC{owner}.index"
    assert parse_index_path(path) == IndexPath(folder, dispatcher)
    by_id = Folder(table_id=12, version=7)
    assert parse_index_path("12/7/meta/CDC.index", table_id_as_path=True) == IndexPath(by_id, "")


@pytest.mark.parametrize(
    "path",
    ["a/b/7/meta/CDC.idx", "a/b/7/CDC.index", "a/7/meta/CDC.index", "a/b/x/meta/CDC.index", "metadata"],
)
def test_other_files_are_no_index_files(path: str) -> None:
    assert parse_index_path(path) is None


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("a/meta/schema_123_0123456789.json", SchemaPath(schema="a", version=123, checksum=123_456_789)),
        (
            "a/b/meta/schema_1_3233644819.json",
            SchemaPath(schema="a", table="b", version=1, checksum=3_233_644_819),
        ),
        ("meta/meta/schema_1_0000000002.json", SchemaPath(schema="meta", version=1, checksum=2)),
        ("meta/schema_123_0123456789.json", None),
        ("a/meta/schema_012345678_.json", None),
        ("a/meta/schema_012345678.json", None),
        ("a/meta/schema_123_012345678.json", None),
        ("a/meta/schema_123_012a4567c9.json", None),
        ("a/meta/schema_abc_0123456789.json", None),
        ("a/meta/schema_123_0123456789.txt", None),
        ("a/meta/schema_123_0123456789.json ", None),
        ("a/meta/schema_123_0123456789.json.tmp.7f", None),
        ("a/meta/b/schema_123_0123456789.json", None),
    ],
)
def test_schema_files_are_told_by_their_paths(path: str, known: SchemaPath | None) -> None:
    assert parse_schema_path(path) == known
    if known is not None:
        assert layout.schema_path(known) == path


def test_schema_files_by_table_id() -> None:
    known = SchemaPath(table_id=12345, version=100, checksum=3_752_767_265)
    path = "12345/meta/schema_100_3752767265.json"
    assert parse_schema_path(path, table_id_as_path=True) == known
    assert layout.schema_path(known) == path


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("CDC000005.json", FileName("", 5, ".json")),
        ("CDC_12_000005.csv.zst", FileName("12", 5, ".csv.zst")),
        ("CDC12345.json", None),
        ("CDC.json", None),
        ("CDC000005", None),
        ("CDC__000005.json", None),
        ("CDC_000005.json", None),
        ("ABC000005.json", None),
        ("CDC00000x.json", None),
        ("CDC000005.json.tmp7", None),
    ],
)
def test_numbers_are_read_from_file_names(name: str, known: FileName | None) -> None:
    assert parse_file_name(name) == known


def test_folders_of_a_table_are_read_by_version_then_partition_then_date() -> None:
    folders = [
        Folder(schema="a", table="b", version=9, date="2023-01-01"),
        Folder(schema="a", table="b", version=10, partition=2, date="2022-01-01"),
        Folder(schema="a", table="b", version=10, partition=11, date="2021-01-01"),
        Folder(schema="a", table="b", version=10, partition=11, date="2021-01-02"),
    ]
    mixed = [folders[at] for at in (2, 0, 3, 1)]
    assert sorted(mixed, key=lambda folder: folder.order) == folders


@pytest.mark.parametrize(
    ("protocol", "compression", "extension"),
    [
        ("canal-json", "none", ".json"),
        ("canal-json", "gzip", ".json.gz"),
        ("debezium", "zstd", ".json.zst"),
        ("csv", "gzip", ".csv.gz"),
        ("parquet", "zstd", ".parquet"),
    ],
)
def test_extensions_tell_the_format(protocol: str, compression: str, extension: str) -> None:
    assert file_extension(protocol, compression) == extension


@pytest.mark.parametrize("name", ["a/b", "..", ".", "a%2Fb", "50%", "tab\there", "/"])
def test_a_name_that_no_path_can_have_becomes_one_part_of_a_path(name: str) -> None:
    part = layout.escape(name)
    assert "/" not in part
    assert part not in {".", ".."}
    assert layout.unescape(part) == name


def test_names_stay_as_they_are_where_a_path_can_have_them() -> None:
    for name in ("orders", "Größe", "a b", "表", "a.b", "...", "a'b`c", "x~#?&=+"):
        assert layout.escape(name) == layout.unescape(name) == name


@given(
    st.text(min_size=1, max_size=8),
    st.text(min_size=1, max_size=8),
    st.integers(1, 2**64 - 1),
    st.integers(0, 99),
)
def test_every_table_finds_its_way_back(schema: str, table: str, version: int, partition: int) -> None:
    folder = Folder(schema=schema, table=table, version=version, partition=partition, date="2023-05-09")
    path = layout.data_path(folder, FileName("7", 12, ".json"), 20)
    assert parse_data_path(path) == DataPath(folder, "7", 12, ".json")
    place = SchemaPath(schema=schema, table=table, version=version, checksum=7)
    assert parse_schema_path(layout.schema_path(place)) == place
