"""Entries of temporary indexes, byte by byte."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.errors import Corrupt
from penstock.tables.columns import SchemaState
from penstock.tables.indexes import IndexEntry
from penstock.tables.keys import index_prefix
from penstock.tables.schema import IndexInfo
from penstock.tables.temp_index import (
    EntryChange,
    decode_changes,
    encode_deletion,
    encode_put,
    find_letter,
    is_known,
    key_of,
)

INDEX = IndexInfo(3, "i", (), state=SchemaState.WRITE_REORG)
UNIQUE = IndexEntry(b"", bytes(7) + b"\5", distinct=True)
SHARED = IndexEntry(b"", b"0", distinct=False)


def in_state(backfill: Any, state: SchemaState = SchemaState.WRITE_REORG) -> IndexInfo:
    return replace(INDEX, state=state, extra={"backfill_state": backfill})


def test_the_key_has_the_bits_of_temporary_indexes():
    key = index_prefix(2, 3) + bytes.fromhex("038000000000000001")
    assert key_of(key).hex() == "7480000000000000025f69ffff000000000003038000000000000001"


def test_changes_have_tidbs_bytes():
    assert encode_put(UNIQUE, b"b").hex() == "000008000000000000000562"
    assert encode_put(SHARED, b"m").hex() == "01306d"
    assert encode_deletion(UNIQUE, -1, b"d").hex() == "020008ffffffffffffffff64"
    assert encode_deletion(UNIQUE, b"123456789", b"b").hex() == "02000931323334353637383962"
    assert encode_deletion(SHARED, 1, b"b").hex() == "0362"


def test_the_changes_of_a_unique_entry_are_read_back_in_their_order():
    changes = (
        encode_put(UNIQUE, b"b") + encode_deletion(UNIQUE, 5, b"b") + encode_deletion(UNIQUE, b"x" * 9, b"m")
    )
    assert decode_changes(changes) == [
        EntryChange(UNIQUE.value, None, b"b"),
        EntryChange(None, 5, b"b"),
        EntryChange(None, b"x" * 9, b"m"),
    ]
    for damaged in (changes[:-1], b"\7", changes + b"\0"):
        with pytest.raises(Corrupt):
            decode_changes(damaged)


@pytest.mark.parametrize(
    ("index", "letter"),
    [
        (INDEX, b""),
        (in_state(0), b""),
        (in_state(1, SchemaState.DELETE_ONLY), b"d"),
        (in_state(1, SchemaState.WRITE_ONLY), b"b"),
        (in_state(1), b"b"),
        (in_state(2), b"m"),
        (in_state(3), b"m"),
        (in_state(3, SchemaState.PUBLIC), b""),
    ],
)
def test_the_state_says_where_changes_go(index: IndexInfo, letter: bytes):
    assert find_letter(index) == letter
    assert is_known(index)


def test_states_of_later_releases_and_global_indexes_are_not_known():
    assert not is_known(in_state(4))
    assert not is_known(replace(in_state(1), is_global=True))
    assert is_known(replace(in_state(1, SchemaState.PUBLIC), is_global=True))
