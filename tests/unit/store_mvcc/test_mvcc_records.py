import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import TS_MAX
from penstock.errors import Corrupt
from penstock.store.bounds import KeyBounds
from penstock.store.mvcc import records
from penstock.store.mvcc.records import LockKind, LockRecord, Write, WriteKind

raw_keys = st.binary(max_size=24) | st.text("\0\x01\xff", max_size=12).map(lambda text: text.encode("latin1"))
timestamps = st.integers(0, TS_MAX)


@given(raw_keys, timestamps)
def test_a_versioned_key_gives_back_its_parts(key: bytes, ts: int) -> None:
    versioned = records.version_key(key, ts)
    assert records.unescape(versioned) == key
    assert records.ts_of(versioned) == ts
    assert versioned.startswith(records.escape(key))


@given(raw_keys, timestamps, raw_keys, timestamps)
def test_versions_sort_by_key_then_newest_first(key: bytes, ts: int, other_key: bytes, other_ts: int) -> None:
    expected = (key, -ts) < (other_key, -other_ts)
    assert (records.version_key(key, ts) < records.version_key(other_key, other_ts)) == expected


@given(raw_keys, timestamps, raw_keys, raw_keys)
def test_a_span_holds_the_versions_of_its_keys_and_no_others(
    key: bytes, ts: int, start: bytes, end: bytes
) -> None:
    lower, upper = records.span(KeyBounds(start, end))
    versioned = records.version_key(key, ts)
    assert KeyBounds(start, end).contains(key) == (lower <= versioned and (not upper or versioned < upper))


@given(
    st.builds(
        Write,
        st.sampled_from(WriteKind),
        timestamps,
        st.none() | st.binary(max_size=40),
        st.booleans(),
        st.booleans(),
        timestamps,
    )
)
def test_a_version_is_read_as_it_was_written(write: Write) -> None:
    assert Write.decode(write.encode()) == write


@given(
    st.builds(
        LockRecord,
        st.sampled_from(LockKind),
        timestamps,
        raw_keys,
        timestamps,
        timestamps,
        timestamps,
        timestamps,
        st.none() | st.binary(max_size=40),
        rollbacks=st.lists(timestamps, max_size=3).map(tuple),
        with_conflict=st.booleans(),
        txn_source=timestamps,
    ),
    st.none() | st.lists(raw_keys, max_size=4).map(tuple),
)
def test_a_lock_is_read_as_it_was_written(lock: LockRecord, secondaries: tuple[bytes, ...] | None) -> None:
    if secondaries is not None:
        lock.use_async_commit, lock.secondaries = True, secondaries
    assert LockRecord.decode(lock.encode()) == lock


@pytest.mark.parametrize("stored", [b"", b"\x04", b"\x00" * 8])
def test_a_version_cut_short_is_reported(stored: bytes) -> None:
    with pytest.raises(Corrupt):
        Write.decode(stored)


def test_a_damaged_lock_is_reported() -> None:
    stored = LockRecord(
        LockKind.PUT, 10, b"primary", 3000, use_async_commit=True, secondaries=(b"key",)
    ).encode()
    for damaged in (stored[:20], stored[:-5], b"\x63" + stored[1:]):
        with pytest.raises(Corrupt):
            LockRecord.decode(damaged)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (b"", b"", KeyBounds(b"b", b"m")),
        (b"c", b"", KeyBounds(b"c", b"m")),
        (b"", b"d", KeyBounds(b"b", b"d")),
        (b"a", b"z", KeyBounds(b"b", b"m")),
        (b"m", b"", None),
        (b"", b"b", None),
        (b"e", b"d", None),
    ],
)
def test_a_range_is_clamped_to_its_bounds(start: bytes, end: bytes, expected: KeyBounds | None) -> None:
    assert KeyBounds(b"b", b"m").clamp(start, end) == expected


def test_an_open_end_reaches_to_the_end() -> None:
    assert KeyBounds().clamp(b"a", b"") == KeyBounds(b"a", b"")
    assert KeyBounds(b"b").clamp(b"", b"c") == KeyBounds(b"b", b"c")
    assert KeyBounds(b"b").contains(b"\xff" * 9)
