"""What the decoder does with rows that are not quite as the schema says."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import Corrupt, Invalid
from penstock.tables import alter
from penstock.tables.arrow import arrow_schema
from penstock.tables.codec import decimals, rows
from penstock.tables.decoding.decoder import TidbRowDecoder, decode_rows, int_handles
from penstock.tables.define import define_table
from penstock.tables.encoding import encode_batch
from penstock.tables.impossible_dates import to_pylist
from penstock.tables.keys import record_key
from penstock.tables.raw import RAW_SCHEMA, Op
from penstock.tables.records import handle_of, read_record, row_of, to_record, value_of
from penstock.tables.schema import TableInfo
from penstock.tables.values import to_cell


def table(**columns: str) -> TableInfo:
    return define_table("t", [("id", "bigint primary key"), *columns.items()])


def decode(info: TableInfo, *values: bytes) -> list[dict[str, Any]]:
    """Decode rows 0, 1, …, without their ids, both ways."""
    keys = [record_key(info.id, nth) for nth in range(len(values))]
    batch = decode_rows(info, pa.array(keys, pa.binary()), pa.array(values, pa.binary()))
    batch.validate(full=True)
    one_by_one = [
        row_of(info, read_record(info, key, value)) for key, value in zip(keys, values, strict=True)
    ]
    columns = [to_pylist(column) for column in batch.columns]
    found = [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]
    assert found == one_by_one
    return [{name: value for name, value in row.items() if name != "id"} for row in found]


def raw(*changes: dict[str, Any]) -> pa.RecordBatch:
    blank = {"start_ts": 1, "commit_ts": 2, "value": None, "old_value": None}
    return pa.RecordBatch.from_pylist([{**blank, **change} for change in changes], schema=RAW_SCHEMA)


def test_a_column_added_later_reads_as_its_default_in_older_rows():
    info = table(a="int")
    info = alter.add_column(info, "b", "varchar(9) not null default 'new'")
    info = alter.add_column(info, "c", "decimal(5,2) not null")
    info = alter.add_column(info, "d", "timestamp(3) default '2024-02-29 01:02:03.5'")
    info = alter.add_column(info, "e", "date not null")
    info = alter.add_column(info, "f", "int")
    info = alter.add_column(info, "g", "bit(9) default 257")
    old, new = decode(info, rows.encode({2: b"\x05"}), rows.encode({2: None, 3: b"", 5: None, 7: b"\x01"}))
    assert (old["a"], old["b"], old["c"], old["e"], old["f"], old["g"]) == (
        *(5, "new", 0, "0000-00-00", None, 257),
    )
    assert old["d"].isoformat() == "2024-02-29T01:02:03.500000+00:00"
    assert (new["a"], new["b"], new["d"], new["f"]) == (None, "", None, 1)


def test_a_null_written_over_a_forgotten_default_stays_null():
    info = alter.add_column(table(a="int"), "b", "varchar(9) default 'old'")
    info = alter.modify_column(info, "b", "varchar(9)")
    row = {"id": 0, "a": 1, "b": None}
    value = value_of(info, to_record(info, row, start_ts=0))
    batch = pa.RecordBatch.from_pylist([row], schema=arrow_schema(info))
    assert encode_batch(info, batch, start_ts=0).values == [value]
    assert decode(info, value, rows.encode({2: b"\x01"})) == [{"a": 1, "b": None}, {"a": 1, "b": "old"}]


def test_a_row_may_be_all_null_or_empty():
    assert decode(table(a="int", b="text"), rows.encode({}), rows.encode({2: None, 3: None})) == [
        {"a": None, "b": None},
        {"a": None, "b": None},
    ]


def test_dates_that_no_calendar_has_are_kept():
    info = table(d="date", t="datetime")
    zero = rows.encode({2: rows.uint_cell(0), 3: rows.uint_cell(0)})
    feb_30 = (2023 * 13 + 2) << 5 | 30
    odd = rows.encode({2: rows.uint_cell(feb_30 << 41), 3: rows.uint_cell((2023 * 13 << 5 | 1) << 41)})
    assert decode(info, zero, odd) == [
        {"d": "0000-00-00", "t": "0000-00-00 00:00:00"},
        {"d": "2023-02-30", "t": "2023-00-01 00:00:00"},
    ]


def test_a_decimal_keeps_its_value_when_its_column_grew():
    info = table(n="decimal(20,4)")
    cells = [decimals.encode(Decimal("-12.34"), 5, 2), decimals.encode(Decimal("9.9999"), 20, 4)]
    assert [row["n"] for row in decode(info, *(rows.encode({2: cell}) for cell in cells))] == [
        Decimal("-12.3400"),
        Decimal("9.9999"),
    ]


def test_a_decimal_with_more_digits_than_its_column_is_rounded():
    info = table(n="decimal(20,1)")
    cell = decimals.encode(Decimal("-2.25"), 5, 2)
    assert decode(info, rows.encode({2: cell})) == [{"n": Decimal("-2.3")}]


def test_a_decimal_too_wide_for_spark_is_text():
    info = table(n="decimal(65,30)")
    value = Decimal("12345678901234567890123456789012345.000000000000000000000000000001")
    cell = decimals.encode(value, 65, 30)
    keys = pa.array([record_key(info.id, 0)], pa.binary())
    batch = decode_rows(info, keys, pa.array([rows.encode({2: cell})], pa.binary()))
    assert batch.column("n").to_pylist() == [str(value)]


def test_text_that_is_no_utf8_is_mended():
    assert decode(table(s="text"), rows.encode({2: b"a\xffb"})) == [{"s": "a�b"}]


def test_an_enum_that_has_no_such_element_is_empty():
    info = table(e="enum('a','b')")
    assert [row["e"] for row in decode(info, *(rows.encode({2: bytes((n,))}) for n in range(4)))] == [
        "",
        "a",
        "b",
        "",
    ]


def test_what_mysql_has_for_no_element_of_an_enum_can_be_written():
    info = table(e="enum('a','b') not null")
    record = to_record(info, {"id": 1, "e": ""}, start_ts=0)
    assert decode(info, value_of(info, record)) == [{"e": ""}]
    assert to_cell(info.column("e").type, "") == b"\x00"
    with pytest.raises(Invalid, match="element"):
        to_record(info, {"id": 1, "e": "c"}, start_ts=0)


def test_a_delete_without_its_old_value_has_its_key():
    info = define_table(
        "t", [("a", "int"), ("b", "varchar(9)"), ("c", "int not null default 3")], primary_key=["b", "a"]
    )
    record = to_record(info, {"a": 1, "b": "x"}, start_ts=0)
    key = record_key(info.id, handle_of(info, record))
    found = TidbRowDecoder().decode(raw({"op": Op.DELETE, "key": key}), info)
    assert found.data.num_rows == 0
    assert found.old.to_pylist() == [{"a": 1, "b": "x", "c": None}]


def test_a_primary_key_with_trailing_spaces_is_read_from_the_row():
    info = define_table("t", [("k", "varchar(9)"), ("n", "int")], primary_key=["k"])
    record = to_record(info, {"k": "x  ", "n": 1}, start_ts=0)
    key, value = record_key(info.id, handle_of(info, record)), value_of(info, record)
    assert key == record_key(info.id, handle_of(info, to_record(info, {"k": "x", "n": 1}, start_ts=0)))
    batch = decode_rows(info, pa.array([key], pa.binary()), pa.array([value], pa.binary()))
    assert batch.to_pylist() == [{"k": "x  ", "n": 1}] == [row_of(info, read_record(info, key, value))]


def test_an_unsigned_primary_key_beyond_the_signed_range():
    info = define_table("t", [("id", "bigint unsigned primary key")])
    record = to_record(info, {"id": (1 << 64) - 2}, start_ts=0)
    key = record_key(info.id, handle_of(info, record))
    batch = decode_rows(info, pa.array([key], pa.binary()), pa.array([value_of(info, record)], pa.binary()))
    assert batch.to_pylist() == [{"id": Decimal((1 << 64) - 2)}]
    assert int_handles(pa.array([key], pa.binary())).to_pylist() == [-2]


def test_partitions_are_the_tables_own():
    info = replace(
        table(a="int"),
        extra={"partition": {"enable": True, "definitions": [{"id": 70}, {"id": 71}]}},
    )
    keys = pa.array([record_key(70, 1), record_key(71, 2)], pa.binary())
    value = rows.encode({2: b"\x05"})
    batch = decode_rows(info, keys, pa.array([value, value], pa.binary()))
    assert batch.to_pylist() == [{"id": 1, "a": 5}, {"id": 2, "a": 5}]
    with pytest.raises(Invalid, match="another table"):
        decode_rows(info, pa.array([record_key(0, 1)], pa.binary()), pa.array([value], pa.binary()))


def test_an_empty_batch_has_the_schema():
    found = TidbRowDecoder().decode(raw(), table(a="int"))
    assert found.data.schema.names == found.old.schema.names == ["id", "a"]
    assert found.data.num_rows == found.old.num_rows == 0


@pytest.mark.parametrize(
    ("columns", "cell"),
    [
        ({"a": "int"}, b"\x01\x02\x03"),
        ({"a": "int"}, b""),
        ({"a": "tinyint"}, b"\x00\x01"),
        ({"a": "double"}, b"\x01"),
        ({"a": "decimal(5,2)"}, b"\x05"),
        ({"a": "decimal(5,2)"}, b"\x05\x02\xff"),
        ({"a": "decimal(5,2)"}, b"\x05\x02\xff\xff\x64"),
        ({"a": "json"}, b"\x01\xff"),
        ({"a": "json"}, b"\x55"),
        ({"a": "vector"}, b"\x02\x00\x00\x00\x00\x00\x00\x00"),
        ({"a": "vector"}, b"\x01"),
    ],
)
def test_damaged_cells_are_corrupt(columns: dict[str, str], cell: bytes):
    info = table(**columns)
    key, value = record_key(info.id, 0), rows.encode({2: cell})
    with pytest.raises(Corrupt):
        decode_rows(info, pa.array([key], pa.binary()), pa.array([value], pa.binary()))


def test_damage_anywhere_is_an_error_or_another_value_but_never_a_crash():
    info = define_table(
        "t",
        [("k", "varchar(9)"), ("n", "decimal(20,3)"), ("j", "json"), ("v", "vector"), ("d", "datetime(6)")],
        primary_key=["k"],
    )
    row = {
        "k": "key",
        "n": Decimal("-5.125"),
        "j": '{"a": [1, "b"]}',
        "v": [1.0, 2.0],
        "d": "2024-01-02 03:04:05",
    }
    record = to_record(info, row, start_ts=0)
    key, value = record_key(info.id, handle_of(info, record)), value_of(info, record)
    chance = np.random.default_rng(5)
    outcomes = set()
    for _ in range(3_000):
        bad_key, bad_value = bytearray(key), bytearray(value)
        target = (bad_key, bad_value)[chance.integers(2)]
        for _ in range(chance.integers(1, 4)):
            target[chance.integers(len(target))] = int(chance.integers(256))
        if chance.random() < 0.3:
            del target[chance.integers(len(target)) :]
        try:
            keys, values = pa.array([bytes(bad_key)], pa.binary()), pa.array([bytes(bad_value)], pa.binary())
            decode_rows(info, keys, values).validate(full=True)
            outcomes.add("read")
        except (Corrupt, Invalid) as error:
            outcomes.add(type(error).__name__)
    assert outcomes == {"read", "Corrupt", "Invalid"}
