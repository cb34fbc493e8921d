"""Entries of secondary indexes, byte by byte."""

import json
from dataclasses import replace
from typing import Any

import pytest

from penstock.errors import Corrupt, Invalid
from penstock.tables import indexes
from penstock.tables.codec import rows
from penstock.tables.define import Index, define_table
from penstock.tables.keys import index_prefix
from penstock.tables.records import handle_of, to_record
from penstock.tables.schema import TableInfo


def entry(table: TableInfo, row: dict[str, Any], handle: Any = None, nth: int = -1) -> indexes.IndexEntry:
    record = to_record(table, row, start_ts=0)
    index = table.indexes[nth]
    return indexes.entry(table, index, record, handle_of(table, record) if handle is None else handle)


def with_index(column: str, *, unique: bool) -> TableInfo:
    return define_table(
        "t", [("id", "bigint primary key"), ("a", column)], indexes=[Index("i", ["a"], unique=unique)]
    )


def test_a_unique_entry_keeps_the_handle_in_its_value():
    made = entry(with_index("int", unique=True), {"id": 7, "a": 1})
    assert made.key == index_prefix(0, 1) + bytes.fromhex("038000000000000001")
    assert made.value.hex() == "0000000000000007"
    assert made.distinct


def test_a_negative_handle_is_kept_as_its_bits():
    table = with_index("int", unique=True)
    made = entry(table, {"id": -1, "a": 1})
    assert made.value.hex() == "ffffffffffffffff"
    assert indexes.handle_in(table.indexes[0], made.key, made.value) == -1


def test_any_other_entry_ends_its_key_with_the_handle():
    expected = bytes.fromhex("038000000000000001038000000000000007")
    made = entry(with_index("int", unique=False), {"id": 7, "a": 1})
    assert (made.key, made.value, made.distinct) == (index_prefix(0, 1) + expected, b"0", False)


def test_null_is_never_unique():
    made = entry(with_index("int", unique=True), {"id": 7, "a": None})
    assert made.key == index_prefix(0, 1) + bytes.fromhex("00038000000000000007")
    assert (made.value, made.distinct) == (b"0", False)


def test_a_string_that_loses_its_trailing_spaces_is_kept_in_the_value():
    table = with_index("varchar(9)", unique=True)
    made = entry(table, {"id": 7, "a": "x "})
    assert made.key == index_prefix(0, 1) + bytes.fromhex("017800000000000000f8")
    assert made.value == bytes([8]) + rows.encode({2: b"x "}) + bytes.fromhex("0000000000000007")
    segments = indexes.split_value(made.value)
    assert (segments.int_handle, segments.restored) == (7, rows.encode({2: b"x "}))


def test_bytes_are_kept_in_the_key_as_they_are():
    made = entry(with_index("varbinary(9)", unique=True), {"id": 7, "a": b"x "})
    assert made.key == index_prefix(0, 1) + bytes.fromhex("017820000000000000f9")
    assert made.value.hex() == "0000000000000007"


def test_an_entry_of_a_clustered_table_keeps_the_common_handle():
    table = define_table(
        "t",
        [("k", "varbinary(9)"), ("a", "varchar(9)")],
        primary_key=["k"],
        indexes=[Index("u", ["a"], unique=True), Index("n", ["a"])],
    )
    handle = bytes.fromhex("016b00000000000000f8")
    restored = rows.encode({2: b"\x01"})
    unique = entry(table, {"k": b"k", "a": "x "}, nth=1)
    assert unique.value == bytes((0, 125, 1, 127, 0, 10)) + handle + restored
    assert indexes.handle_in(table.indexes[1], unique.key, unique.value) == handle
    plain = entry(table, {"k": b"k", "a": "x "}, nth=2)
    assert plain.value == bytes((0, 125, 1)) + restored
    assert plain.key.endswith(handle)
    assert indexes.handle_in(table.indexes[2], plain.key, plain.value) == handle


@pytest.mark.parametrize(
    ("spaces", "in_primary_key", "in_index"),
    [(127, "7f", "7f"), (128, "8000", "80"), (255, "ff00", "ff"), (256, "0001", "0001")],
)
def test_trailing_spaces_are_counted_with_the_integers_of_tidb(
    spaces: int, in_primary_key: str, in_index: str
):
    """ConvertDatumToTailSpaceCount makes an IntDatum, GenIndexValueForClusteredIndexVersion1 a UintDatum."""
    table = define_table(
        "t",
        [("k", "varchar(300)"), ("a", "varchar(300)")],
        primary_key=["k"],
        indexes=[Index("n", ["a"])],
    )
    text = "x" + " " * spaces
    first, second = bytes.fromhex(in_primary_key), bytes.fromhex(in_index)
    head = bytes((128, 0, 2, 0, 0, 0, 1, 2)) + bytes((len(first), 0, len(first) + len(second), 0))
    assert entry(table, {"k": text, "a": text}).value == bytes((0, 125, 1)) + head + first + second


def test_null_in_an_entry_of_a_clustered_table_has_no_trailing_spaces():
    table = define_table(
        "t",
        [
            ("k", "bigint"),
            ("l", "bigint"),
            ("a", "varchar(9)"),
            ("b", "varchar(9) collate utf8mb4_general_ci"),
        ],
        primary_key=["k", "l"],
        indexes=[Index("n", ["a", "b"])],
    )
    made = entry(table, {"k": 1, "l": 1, "a": None, "b": None})
    assert made.value == bytes((0, 125, 1)) + rows.encode({3: b"\x00", 4: None})


def test_the_first_format_of_common_handles_is_padded_to_ten_bytes():
    segments = indexes.split_value(bytes((0, 127, 0, 9)) + b"123456789")
    assert segments.common_handle == b"123456789"
    padded = indexes.split_value(bytes((7, 127, 0, 0)) + bytes(7))
    assert padded.common_handle == b""


def test_a_global_index_names_the_partition():
    value = bytes((8, 126)) + (5 + (1 << 63)).to_bytes(8, "big") + (7).to_bytes(8, "big")
    segments = indexes.split_value(value)
    assert (segments.partition_id, segments.int_handle) == (5, 7)


def test_a_prefix_index_holds_the_first_characters():
    table = define_table(
        "t", [("id", "bigint primary key"), ("a", "varchar(9)")], indexes=[Index("i", ["a(2)"], unique=True)]
    )
    assert entry(table, {"id": 1, "a": "éèx"}).key == entry(table, {"id": 1, "a": "éèy"}).key


def test_a_collation_without_weights_here_cannot_be_written_and_says_so():
    with pytest.raises(Invalid, match="gb18030_chinese_ci"):
        with_index("varchar(9) collate gb18030_chinese_ci", unique=True)
    table = with_index("varchar(9)", unique=True)
    made_elsewhere = json.loads(json.dumps(table.to_json()).replace("utf8mb4_bin", "gb18030_chinese_ci"))
    with pytest.raises(Invalid, match="gb18030_chinese_ci"):
        entry(TableInfo.from_json(made_elsewhere), {"id": 1, "a": "x"})


def test_a_collation_that_ignores_case_keeps_the_string_in_the_value():
    table = with_index("varchar(9) collate utf8mb4_general_ci", unique=True)
    made = entry(table, {"id": 7, "a": "Né "})
    assert made.key == entry(table, {"id": 8, "a": "nE"}).key
    assert made.key == index_prefix(0, 1) + bytes.fromhex("01004e004500000000fb")
    assert indexes.split_value(made.value).restored == rows.encode({2: "Né ".encode()})


def with_condition(column: str, condition: str) -> TableInfo:
    table = with_index(column, unique=False)
    index = replace(table.indexes[0], extra={"condition_expr_string": condition})
    return replace(table, indexes=(index,))


@pytest.mark.parametrize(
    ("column", "condition", "inside", "outside"),
    [
        ("int", "`a` IS NULL", [None], [0]),
        ("int", "`a` IS NOT NULL", [0], [None]),
        ("int", "`a`>10", [11], [10, None]),
        ("int", "a <= -1", [-1, -2], [0, None]),
        ("bigint unsigned", "`t`.`a` >= 18446744073709551615", [(1 << 64) - 1], [(1 << 64) - 2]),
        ("tinyint", "`a` < 300", [127], [None]),
        ("decimal(9,2)", "`a`=1.50", ["1.5"], ["1.51"]),
        ("double", "`a`!=1e2", [99.5], [100.0]),
        ("varchar(9)", "`a`=_UTF8MB4'x''y'", ["x'y", "x'y "], ["x''y", "X'Y"]),
        ("varchar(9) collate utf8mb4_general_ci", "(`a`='x')", ["x", "X "], ["y"]),
        ("datetime", "`a` >= '2024-02-03'", ["2024-02-03 00:00:00"], ["2024-02-02 23:59:59"]),
        ("date", "`a` <> '2024-02-03'", ["2024-02-02"], ["2024-02-03"]),
        ("int", "`a`>1 AND `a`<5", [2, 4], [1, 5, None]),
        ("int", "`a`<1 OR `a`>5 OR `a` IS NULL", [0, 6, None], [1, 5]),
        ("int", "10<`a`", [11], [10, None]),
        ("int", "NOT(`a` BETWEEN -1 AND 5)", [-2, 6], [-1, 5, None]),
        ("int", "`a` IN (1,2,NULL)", [1, 2], [3, None]),
        ("int", "`a` NOT IN (1,2,NULL)", [], [1, 3, None]),
        ("varchar(9)", "`a` IN (_UTF8MB4'x',_UTF8MB4'y')", ["x", "y "], ["z", None]),
        ("datetime", "`a` BETWEEN '2024-02-03' AND '2024-02-04'", ["2024-02-04"], ["2024-02-04 00:00:01"]),
    ],
)
def test_a_partial_index_has_entries_of_rows_that_fulfil_its_condition(
    column: str, condition: str, inside: list[Any], outside: list[Any]
):
    table = with_condition(column, condition)
    indexes.check_condition(table, table.indexes[0])
    expected = [(value, True) for value in inside] + [(value, False) for value in outside]
    records = [to_record(table, {"id": 1, "a": value}, start_ts=0) for value, _ in expected]
    assert [indexes.has_entry(table, table.indexes[0], record) for record in records] == [
        has for _, has in expected
    ]


@pytest.mark.parametrize(
    ("column", "condition"),
    [
        ("int", "`a`>1 XOR `a`<5"),
        ("int", "`a`>`id`"),
        ("int", "`a`+1>5"),
        ("int", "`a` IN (1, 'x')"),
        ("int", "`a` IN (SELECT 1)"),
        ("int", "`a` IS TRUE"),
        ("int", "(`a`>1)=1"),
        ("int", "!(`a`=1)"),
        ("int", "NOT `a`"),
        ("varchar(9)", "`a`=_BINARY'x'"),
        ("varchar(9)", "`a` LIKE 'x%'"),
        ("int", "`a`='5'"),
        ("int", "abs(`a`)=1"),
        ("varchar(9)", r"`a`='x\n'"),
        ("varchar(9)", "`a`=1"),
        ("varchar(9) collate gb18030_bin", "`a`='x'"),
        ("timestamp", "`a`>'2024-02-03'"),
        ("date", "`a`>'soon'"),
        ("enum('x')", "`a`='x'"),
        ("int", "`b`>1"),
    ],
)
def test_a_condition_that_cannot_be_evaluated_is_refused(column: str, condition: str):
    table = with_condition("int", condition)
    kind = define_table("t", [("id", "bigint primary key"), ("a", column)]).columns[1].type
    table = replace(table, columns=(table.columns[0], replace(table.columns[1], type=kind)))
    with pytest.raises(Invalid):
        indexes.check_condition(table, table.indexes[0])


def test_a_global_entry_whose_key_names_the_partition_gives_its_handle():
    table = with_index("int", unique=False)
    index = replace(table.indexes[0], is_global=True, extra={"global_index_version": 1})
    record = to_record(table, {"id": 7, "a": 1}, start_ts=0)
    made = indexes.entry(table, index, record, 7, partition_id=300)
    assert indexes.handle_in(index, made.key, made.value) == 7
    assert indexes.split_value(made.value).partition_id == 300


def test_a_damaged_entry_is_corrupt():
    table = with_index("int", unique=True)
    made = entry(table, {"id": 7, "a": 1})
    with pytest.raises(Corrupt):
        indexes.handle_in(table.indexes[0], made.key, b"0")
    with pytest.raises(Corrupt):
        indexes.split_value(bytes((200,)) + bytes(10))
