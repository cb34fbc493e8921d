from decimal import Decimal
from typing import Any

import pytest

from penstock.errors import Invalid
from penstock.proto.codec import encode_bytes
from penstock.tables import indexes, keys
from penstock.tables.codec.ordered import encode_int, encode_uint
from penstock.tables.define import Index, define_table
from penstock.tables.records import handle_of, read_record, row_of, to_record, value_of


def test_a_record_key_is_table_and_handle():
    key = keys.record_key(1, 1)
    assert key.hex() == "7480000000000000015f728000000000000001"
    assert keys.decode_record_key(key) == (1, 1)
    assert keys.decode_record_key(keys.record_key(-3, -7)) == (-3, -7)


def test_a_common_handle_is_kept_as_it_is():
    handle = bytes.fromhex("016162630000000000fa")
    assert keys.decode_record_key(keys.record_key(5, handle)) == (5, handle)


def test_records_of_a_table_lie_between_its_index_entries_and_the_next_table():
    start, end = keys.record_range(9)
    assert start < keys.record_key(9, -(1 << 63)) < keys.record_key(9, (1 << 63) - 1) < end
    assert keys.index_prefix(9, 1) < start < end < keys.table_prefix(10)


def test_an_index_key_tells_table_and_index():
    assert keys.index_prefix(2, 3).hex() == "7480000000000000025f698000000000000003"
    assert keys.decode_index_prefix(keys.index_prefix(2, 3) + b"rest") == (2, 3)


def test_other_keys_are_refused_without_showing_them_whole():
    for decode in (keys.decode_record_key, keys.decode_index_prefix):
        with pytest.raises(Invalid) as caught:
            decode(b"m" + b"secret row value")
        assert b"secret row value".hex() not in str(caught.value)


def test_meta_keys():
    assert keys.meta_string_key(b"NextGlobalID").hex() == (
        "6d4e657874476c6f62ff616c494400000000fb0000000000000073"
    )
    key = keys.meta_hash_key(b"DBs", b"DB:1")
    assert keys.decode_meta_key(key) == keys.MetaKey(b"DBs", keys.META_HASH, field=b"DB:1")
    name, last = encode_bytes(b"DDLJobList"), encode_int(-1)
    item = b"m" + name + encode_uint(keys.META_LIST_ITEM) + last
    assert keys.decode_meta_key(item) == keys.MetaKey(b"DDLJobList", keys.META_LIST_ITEM, position=-1)
    assert keys.decode_meta_key(b"m" + name + encode_uint(keys.META_LIST)).type == keys.META_LIST
    with pytest.raises(Invalid):
        keys.decode_meta_key(b"t...")


def test_the_end_of_a_prefix():
    assert keys.prefix_end(b"a\xff\xff") == b"b"
    assert keys.prefix_end(b"\xff") == b""


@pytest.mark.parametrize(
    ("columns", "values", "handle"),
    [
        (["decimal(5,2)"], ["12.34"], "060502800c22000000"),
        (["decimal(10,0)"], [12], "060a00800000000c00"),
        (["decimal(18,9)"], [1], "0612098000000100000000"),
        (["decimal(1,0)", "decimal(2,0)"], [-1, 7], "0601007e0602008700"),
    ],
)
def test_a_short_common_handle_has_nine_bytes(columns: list[str], values: list[Any], handle: str):
    names = [f"k{place}" for place in range(len(columns))]
    table = define_table(
        "t", [*zip(names, columns, strict=True), ("v", "varchar(9)")], primary_key=names,
        indexes=[Index("n", ["v"]), Index("u", ["v"], unique=True)], clustered=True,
    )  # fmt: skip
    row = {**{name: Decimal(value) for name, value in zip(names, values, strict=True)}, "v": "x"}
    record = to_record(table, row, start_ts=0)
    assert handle_of(table, record).hex() == handle
    key = keys.record_key(7, handle_of(table, record))
    assert keys.decode_record_key(key) == (7, bytes.fromhex(handle))
    assert row_of(table, read_record(table, key, value_of(table, record))) == row
    for index in table.indexes[1:]:
        entry = indexes.entry(table, index, record, handle_of(table, record))
        assert indexes.handle_in(index, entry.key, entry.value) == bytes.fromhex(handle)
