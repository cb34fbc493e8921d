"""Schema files: the JSON that TiCDC's consumers read, and the checksum in its name."""

import json
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.changefeeds.sinks.storage import schema_file
from penstock.changefeeds.sinks.storage.layout import SchemaPath
from penstock.changefeeds.sinks.storage.schema_file import (
    SchemaColumn,
    SchemaFile,
    VersionChoice,
    check_path,
    choose_version,
)
from penstock.errors import Corrupt
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.columns import NO_FLAGS, UNSPECIFIED, ColumnFlag, ColumnInfo, FieldType, SchemaState, Tp
from penstock.tables.define import define_table
from penstock.tables.schema import TableInfo

TEXT = ("utf8mb4", "utf8mb4_bin")
KEY = ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL


def four_columns() -> SchemaVersion:
    """The table that TiCDC's own tests take checksums of."""
    columns = (
        ColumnInfo(1, "Id", 0, FieldType(Tp.LONG, KEY), default=10),
        ColumnInfo(
            2,
            "LastName",
            1,
            FieldType(Tp.VARCHAR, ColumnFlag.NOT_NULL, 128, UNSPECIFIED, *TEXT),
            default="Default LastName",
        ),
        ColumnInfo(
            3,
            "FirstName",
            2,
            FieldType(Tp.VARCHAR, NO_FLAGS, 64, UNSPECIFIED, *TEXT),
            default="Default FirstName",
        ),
        ColumnInfo(4, "Birthday", 3, FieldType(Tp.DATETIME), default=12_345_678),
    )
    return SchemaVersion(100, 1, TableInfo(20, "table1", columns), "schema1")


def test_the_checksum_of_a_database_is_that_of_ticdc() -> None:
    file = SchemaFile(schema="schema1", version=100)
    assert file.checksum == 3_233_644_819
    assert file.path() == "schema1/meta/schema_100_3233644819.json"


def test_the_checksum_of_a_table_is_that_of_ticdc() -> None:
    file = SchemaFile.of(four_columns(), 100)
    assert file.checksum == 3_752_767_265
    assert file.path() == "schema1/table1/meta/schema_100_3752767265.json"
    assert file.path(12_345) == "12345/meta/schema_100_3752767265.json"


def test_the_checksum_does_not_depend_on_the_order_of_columns_the_version_or_the_ddl() -> None:
    file = SchemaFile.of(four_columns(), 100)
    mixed = replace(file, columns=file.columns[::-1], version=7, query="ALTER TABLE", type=5)
    assert mixed.checksum == file.checksum
    assert replace(file, columns=file.columns[1:]).checksum != file.checksum
    assert replace(file, table="table2").checksum != file.checksum


def test_the_file_has_members_in_order_and_leaves_out_what_is_empty() -> None:
    query = "alter table schema1.table1 add Birthday date"
    file = SchemaFile.of(four_columns(), 100, query=query, type=5)
    assert (
        file.to_json().decode()
        == """{
    "Table": "table1",
    "Schema": "schema1",
    "Version": 1,
    "TableVersion": 100,
    "Query": "alter table schema1.table1 add Birthday date",
    "Type": 5,
    "TableColumns": [
        {
            "ColumnName": "Id",
            "ColumnType": "INT",
            "ColumnDefault": 10,
            "ColumnPrecision": "11",
            "ColumnNullable": "false",
            "ColumnIsPk": "true"
        },
        {
            "ColumnName": "LastName",
            "ColumnType": "VARCHAR",
            "ColumnDefault": "Default LastName",
            "ColumnPrecision": "128",
            "ColumnNullable": "false"
        },
        {
            "ColumnName": "FirstName",
            "ColumnType": "VARCHAR",
            "ColumnDefault": "Default FirstName",
            "ColumnPrecision": "64"
        },
        {
            "ColumnName": "Birthday",
            "ColumnType": "DATETIME",
            "ColumnDefault": 12345678
        }
    ],
    "TableColumnsTotal": 4
}"""
    )


def test_a_database_has_null_for_columns_in_its_file() -> None:
    tree = json.loads(SchemaFile(schema="s", version=1, query="CREATE DATABASE s", type=1).to_json())
    assert tree["TableColumns"] is None
    assert (tree["Table"], tree["TableColumnsTotal"], tree["Type"]) == ("", 0, 1)


U = ColumnFlag.UNSIGNED
NONE = UNSPECIFIED


@pytest.mark.parametrize(
    ("kind", "described"),
    [
        (FieldType(Tp.DURATION, NO_FLAGS, NONE, 5), ("TIME", "", "5")),
        (FieldType(Tp.DURATION, NO_FLAGS, 10, 0), ("TIME", "", "")),
        (FieldType(Tp.LONG, U, 5), ("INT UNSIGNED", "5", "")),
        (FieldType(Tp.FLOAT, NO_FLAGS, 12, 3), ("FLOAT", "12", "3")),
        (FieldType(Tp.FLOAT, NO_FLAGS, 12, -1), ("FLOAT", "12", "")),
        (FieldType(Tp.FLOAT, NO_FLAGS, 5, -1), ("FLOAT", "5", "")),
        (FieldType(Tp.FLOAT, NO_FLAGS, 7, 3), ("FLOAT", "7", "3")),
        (FieldType(Tp.FLOAT), ("FLOAT", "12", "")),
        (FieldType(Tp.DOUBLE, NO_FLAGS, 12, 3), ("DOUBLE", "12", "3")),
        (FieldType(Tp.DOUBLE, NO_FLAGS, 12, -1), ("DOUBLE", "12", "")),
        (FieldType(Tp.DOUBLE, NO_FLAGS, 5, -1), ("DOUBLE", "5", "")),
        (FieldType(Tp.DOUBLE, NO_FLAGS, 7, 3), ("DOUBLE", "7", "3")),
        (FieldType(Tp.DOUBLE), ("DOUBLE", "22", "")),
        (FieldType(Tp.NEW_DECIMAL, NO_FLAGS, 10, 0), ("DECIMAL", "10", "0")),
        (FieldType(Tp.NEW_DECIMAL, NO_FLAGS, 20, 5), ("DECIMAL", "20", "5")),
        (FieldType(Tp.NEW_DECIMAL), ("DECIMAL", "10", "0")),
        (FieldType(Tp.TINY, NO_FLAGS, 5), ("TINYINT", "5", "")),
        (FieldType(Tp.SHORT, NO_FLAGS, 5), ("SMALLINT", "5", "")),
        (FieldType(Tp.INT24, NO_FLAGS, 10), ("MEDIUMINT", "10", "")),
        (FieldType(Tp.LONG), ("INT", "11", "")),
        (FieldType(Tp.LONGLONG, NO_FLAGS, 20), ("BIGINT", "20", "")),
        (FieldType(Tp.BIT, NO_FLAGS, 5), ("BIT", "5", "")),
        (FieldType(Tp.VARCHAR, NO_FLAGS, 128, NONE, *TEXT), ("VARCHAR", "128", "")),
        (FieldType(Tp.VARCHAR, NO_FLAGS, 128), ("VARBINARY", "128", "")),
        (FieldType(Tp.STRING, NO_FLAGS, 32, NONE, *TEXT), ("CHAR", "32", "")),
        (FieldType(Tp.STRING, NO_FLAGS, 32), ("BINARY", "32", "")),
        (FieldType(Tp.VAR_STRING, NO_FLAGS, 64, NONE, *TEXT), ("VAR_STRING", "64", "")),
        (FieldType(Tp.BLOB, NO_FLAGS, 100), ("BLOB", "100", "")),
        (FieldType(Tp.BLOB, NO_FLAGS, 100, NONE, *TEXT), ("TEXT", "100", "")),
        (FieldType(Tp.TINY_BLOB, NO_FLAGS, 120), ("TINYBLOB", "120", "")),
        (FieldType(Tp.MEDIUM_BLOB, NO_FLAGS, 100), ("MEDIUMBLOB", "100", "")),
        (FieldType(Tp.LONG_BLOB, NO_FLAGS, 5), ("LONGBLOB", "5", "")),
        (FieldType(Tp.LONG_BLOB, NO_FLAGS, NONE, NONE, *TEXT), ("LONGTEXT", "4294967295", "")),
        (FieldType(Tp.TIMESTAMP, NO_FLAGS, 8, 2), ("TIMESTAMP", "", "2")),
        (FieldType(Tp.TIMESTAMP, NO_FLAGS, 8, 0), ("TIMESTAMP", "", "")),
        (FieldType(Tp.DATETIME, NO_FLAGS, 8, 2), ("DATETIME", "", "2")),
        (FieldType(Tp.DATETIME, NO_FLAGS, 8, 0), ("DATETIME", "", "")),
        (FieldType(Tp.DATE, NO_FLAGS, 8, 2), ("DATE", "", "")),
        (FieldType(Tp.DATE, NO_FLAGS, 8, 0), ("DATE", "", "")),
        (FieldType(Tp.YEAR, NO_FLAGS, 4, 0), ("YEAR", "4", "")),
        (FieldType(Tp.YEAR, NO_FLAGS, 2, 2), ("YEAR", "2", "")),
        (FieldType(Tp.JSON, NO_FLAGS, 4_294_967_295, 0), ("JSON", "", "")),
        (FieldType(Tp.ENUM, NO_FLAGS, 1, 0, *TEXT), ("ENUM", "", "")),
        (FieldType(Tp.SET, NO_FLAGS, 1, 0, *TEXT), ("SET", "", "")),
        (FieldType(Tp.VECTOR_FLOAT32, NO_FLAGS, 3), ("VECTOR", "", "")),
    ],
)
def test_types_have_the_names_and_sizes_of_ticdc(kind: FieldType, described: tuple[str, str, str]) -> None:
    column = SchemaColumn.of(ColumnInfo(7, "c", 0, kind), with_id=False)
    assert (column.type, column.precision, column.scale) == described
    back = column.column_info(0, 100).type
    assert (back.tp, back.unsigned, back.is_binary) == (kind.tp, kind.unsigned, kind.is_binary)
    assert SchemaColumn.of(ColumnInfo(7, "c", 0, back), with_id=False).to_json() == column.to_json()


def test_every_type_there_is_has_a_name() -> None:
    for tp in Tp:
        assert SchemaColumn.of(ColumnInfo(1, "c", 0, FieldType(tp)), with_id=False).type


def test_columns_say_their_ids_elements_and_keys_where_they_have_them() -> None:
    kind = FieldType(Tp.ENUM, KEY, 1, 0, *TEXT, ("a", "b"))
    column = SchemaColumn.of(ColumnInfo(7, "c", 0, kind), with_id=True, ticdc_elems=True)
    assert column.to_json() == {
        "ColumnId": "7",
        "ColumnName": "c",
        "ColumnType": "ENUM",
        "ColumnNullable": "false",
        "ColumnIsPk": "true",
        "ColumnElems": ["a", "b"],
    }


def test_elements_stand_outside_of_the_checksum_for_readers_that_do_not_know_them() -> None:
    kind = FieldType(Tp.SET, NO_FLAGS, 1, 0, *TEXT, ("a", "b"))
    made = SchemaColumn.of(ColumnInfo(7, "c", 0, kind), with_id=False)
    assert made.to_json() == {"ColumnName": "c", "ColumnType": "SET", "ColumnElements": ["a", "b"]}
    file = SchemaFile(schema="shop", table="t", version=5, columns=(made,))
    assert file.checksum == replace(file, columns=(replace(made, elems=()),)).checksum
    ticdc = replace(file, columns=(replace(made, ticdc_elems=True),))
    assert ticdc.checksum != file.checksum
    for written in (file, ticdc):
        again = SchemaFile.from_json(written.to_json())
        assert (again, again.checksum) == (written, written.checksum)
        assert again.table_info().columns[0].type.elems == ("a", "b")


def test_an_empty_default_is_not_a_missing_one() -> None:
    kind = FieldType(Tp.VARCHAR, NO_FLAGS, 5, NONE, *TEXT)
    assert (
        SchemaColumn.of(ColumnInfo(1, "c", 0, kind, default=""), with_id=False).to_json()["ColumnDefault"]
        == ""
    )
    assert "ColumnDefault" not in SchemaColumn.of(ColumnInfo(1, "c", 0, kind), with_id=False).to_json()


@pytest.mark.parametrize(
    ("bits", "flen", "written"),
    [
        (1, 1, b'"\\u0001"'),
        (65, 8, b'"A"'),
        (0x80, 8, '"\ufffd"'.encode()),
        (0xE282, 16, '"\ufffd\ufffd"'.encode()),
    ],
)
def test_a_default_of_bits_is_the_text_of_its_bytes(bits: int, flen: int, written: bytes) -> None:
    column = ColumnInfo(1, "c", 0, FieldType(Tp.BIT, NO_FLAGS, flen), default=bits)
    described = SchemaColumn.of(column, with_id=False).to_json()
    assert schema_file.dump_go_json(described["ColumnDefault"]) == written
    known = None if "\ufffd".encode() in written else bits
    assert SchemaColumn.from_json(described).column_info(0, mock_id=1).default == known


def test_a_default_of_any_bits_leaves_a_file_with_its_checksum() -> None:
    column = ColumnInfo(1, "c", 0, FieldType(Tp.BIT, NO_FLAGS, 64), default=0xFFFF_FFFF_FFFF_FFFF)
    file = SchemaFile(schema="s", table="t", version=1, columns=(SchemaColumn.of(column, with_id=False),))
    schema_file.check_path(file.path(), SchemaFile.from_json(file.to_json()))


def test_json_is_escaped_as_go_does_it() -> None:
    assert schema_file.dump_go_json({"a<b>&c": '\u2028é\x01\n"\\\x7f/'}) == (
        b'{\n    "a\\u003cb\\u003e\\u0026c": "\\u2028\xc3\xa9\\u0001\\n\\"\\\\\x7f/"\n}'
    )
    html = SchemaFile(schema="s", table="t", version=1, columns=(SchemaColumn(name="a<b", type="INT"),))
    assert b'"ColumnName": "a\\u003cb"' in html.to_json()
    escaped = (
        '{\n    "Table": "t",\n    "Schema": "s",\n    "Version": 0,\n    "TableColumns": [\n        {\n'
        '            "ColumnName": "a\\u003cb",\n            "ColumnType": "INT"\n        }\n    ],\n'
        '    "TableColumnsTotal": 1\n}'
    )
    assert html.checksum == zlib.crc32(escaped.encode())


def test_hidden_virtual_and_unfinished_columns_are_left_out() -> None:
    table = define_table("t", [("id", "bigint primary key"), ("a", "int"), ("b", "int"), ("c", "int")])
    columns = list(table.columns)
    columns[1] = replace(columns[1], hidden=True)
    columns[2] = replace(columns[2], generated_expr="id + 1")
    columns[3] = replace(columns[3], state=SchemaState.WRITE_ONLY)
    schema = SchemaVersion(1, 1, replace(table, columns=tuple(columns)), "db")
    assert [column.name for column in SchemaFile.of(schema, 1).columns] == ["id"]


def test_a_file_lists_the_columns_that_are_sent() -> None:
    file = SchemaFile.of(four_columns(), 100, columns=("Id", "FirstName"))
    assert [column.name for column in file.columns] == ["Id", "FirstName"]
    assert json.loads(file.to_json())["TableColumnsTotal"] == 2


def test_a_file_is_read_back_whole() -> None:
    file = SchemaFile.of(four_columns(), 100, query="ALTER", type=5, with_ids=True)
    assert SchemaFile.from_json(file.to_json()) == file
    database = SchemaFile(schema="s", version=4, query="DROP DATABASE s", type=2)
    assert SchemaFile.from_json(database.to_json()) == database


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"Schema":"s","Table":"t","TableVersion":"x","TableColumns":null,"TableColumnsTotal":0}',
        b'{"Schema":"s","Table":"t","TableVersion":1,"TableColumns":[{}],"TableColumnsTotal":1}',
        b'{"Schema":"s","Table":"t","TableVersion":1,"TableColumns":null,"TableColumnsTotal":3}',
    ],
)
def test_a_damaged_file_is_told(data: bytes) -> None:
    with pytest.raises(Corrupt, match="schema file"):
        SchemaFile.from_json(data)


def test_a_file_must_hold_what_its_name_promises() -> None:
    file = SchemaFile.of(four_columns(), 100)
    check_path(file.path(), file)
    check_path(file.path(12), file, table_id_as_path=True)
    with pytest.raises(Corrupt, match="holds version 101"):
        check_path(file.path(), replace(file, version=101))
    with pytest.raises(Corrupt, match="checksum"):
        check_path(file.path(), replace(file, columns=file.columns[1:]))


def test_a_reader_gets_a_table_with_its_key() -> None:
    table = SchemaFile.of(four_columns(), 100).table_info(20)
    assert [column.name for column in table.stored_columns] == ["Id", "LastName", "FirstName", "Birthday"]
    assert [column.name for column in table.primary_key] == ["Id"]
    assert [column.id for column in table.columns] == [100, 101, 102, 103]
    assert [column.id for column in SchemaFile.of(four_columns(), 1, with_ids=True).table_info().columns] == [
        1,
        2,
        3,
        4,
    ]
    with pytest.raises(Corrupt, match="unknown type"):
        SchemaFile(
            schema="s", table="t", version=1, columns=(SchemaColumn(name="a", type="HUGEINT"),)
        ).table_info()


WANTED = SchemaPath(schema="a", table="b", version=100, checksum=7)


@pytest.mark.parametrize(
    ("found", "choice"),
    [
        ([], VersionChoice(None)),
        (["schema_99_0000000008.json"], VersionChoice(None)),
        (["schema_99_0000000007.json"], VersionChoice(99)),
        (["schema_9_0000000007.json", "schema_98_0000000007.json"], VersionChoice(98)),
        (["schema_101_0000000007.json"], VersionChoice(101, stale=True)),
        (["schema_99_0000000007.json", "schema_101_0000000007.json"], VersionChoice(101, stale=True)),
        (["schema_101_0000000008.json"], VersionChoice(None)),
        (["schema_101_0000000007.json.tmp.1f"], VersionChoice(None)),
    ],
)
def test_a_version_without_a_file_of_its_own(found: list[str], choice: VersionChoice) -> None:
    assert choose_version([f"a/b/meta/{name}" for name in found], WANTED) == choice


@given(st.permutations(range(6)))
def test_no_order_of_columns_changes_the_checksum(order: list[int]) -> None:
    columns = [SchemaColumn(name=f"c{at}", type="INT", precision=str(at)) for at in range(6)]
    expected = SchemaFile(schema="s", table="t", version=1, columns=tuple(columns)).checksum
    mixed = tuple(columns[at] for at in order)
    assert SchemaFile(schema="s", table="t", version=9, columns=mixed).checksum == expected
