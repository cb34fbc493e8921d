"""Rows of a change stream: what becomes a change, what is skipped, what breaks a promise."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from penstock.errors import Corrupt
from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.sources.raw_batch import BATCH_BYTES_MAX, RawColumns
from penstock.sources.tikv.entries import EntryReader
from penstock.sources.tikv.matcher import Matcher
from penstock.sources.tikv.prewrite_spill import PrewriteMemory, PrewriteSpill
from penstock.tables.raw import RAW_SCHEMA

Row = cdcpb.Event.Row
PREWRITE, COMMIT, ROLLBACK = cdcpb.Event.PREWRITE, cdcpb.Event.COMMIT, cdcpb.Event.ROLLBACK
COMMITTED, INITIALIZED = cdcpb.Event.COMMITTED, cdcpb.Event.INITIALIZED
PUT, DELETE = Row.PUT, Row.DELETE


def row(kind: int, start_ts: int = 0, commit_ts: int = 0, key: bytes = b"k", **more: object) -> Row:
    return Row(
        type=kind, start_ts=start_ts, commit_ts=commit_ts, key=key, op_type=more.pop("op", PUT), **more
    )


class Reading:
    """A reader whose changes are kept as dictionaries."""

    def __init__(self, **options: object) -> None:
        self.batches: list[pa.RecordBatch] = []
        matcher = Matcher(PrewriteMemory(1 << 30), PrewriteSpill())
        self.reader = EntryReader(3, matcher, **{"span_start_ts": 0, **options})
        self.columns = RawColumns(lambda batch, weight: self.batches.append(batch))

    def read(self, *rows: Row, resolved_ts: int = 0) -> list[tuple[int, ...]]:
        self.batches.clear()
        self.reader.read(rows, resolved_ts, self.columns)
        self.columns.flush()
        assert all(batch.schema.equals(RAW_SCHEMA) for batch in self.batches)
        return [tuple(each.values()) for batch in self.batches for each in batch.to_pylist()]


def initialized(**options: object) -> Reading:
    reading = Reading(**options)
    assert reading.reader.read([row(INITIALIZED)], 0, reading.columns)
    return reading


def test_rows_out_of_order_come_out_after_the_scan_with_the_real_value() -> None:
    reading = Reading()
    assert reading.read(row(PREWRITE, 1)) == []
    assert reading.read(row(COMMIT, 1, 2)) == []
    assert reading.read(row(PREWRITE, 1, value=b"new", old_value=b"old")) == []
    assert reading.read(row(INITIALIZED)) == [(PUT, 1, 2, b"k", b"new", b"old")]


def test_a_row_of_the_scan_is_a_change_at_once() -> None:
    assert Reading().read(row(COMMITTED, 1, 2, value=b"v")) == [(PUT, 1, 2, b"k", b"v", None)]


def test_a_delete_has_no_value() -> None:
    prewrite = row(PREWRITE, 1, op=DELETE, old_value=b"old")
    assert initialized().read(prewrite, row(COMMIT, 1, 2, op=DELETE)) == [(DELETE, 1, 2, b"k", None, b"old")]


def test_a_delete_of_a_key_without_a_value_is_no_change() -> None:
    assert initialized().read(row(PREWRITE, 1, op=DELETE), row(COMMIT, 1, 2, op=DELETE)) == []
    assert Reading().read(row(COMMITTED, 1, 2, op=DELETE)) == []


def test_a_commit_without_prewrite_after_the_scan_is_a_broken_promise() -> None:
    with pytest.raises(Corrupt, match="without its prewrite"):
        initialized().read(row(COMMIT, 1, 2))


@pytest.mark.parametrize(
    "rows",
    [
        [row(COMMITTED, 1, 10, value=b"v")],
        [row(PREWRITE, 1, value=b"v"), row(COMMIT, 1, 10)],
        [row(COMMIT, 1, 10), row(PREWRITE, 1, value=b"v"), row(INITIALIZED)],
    ],
    ids=["from the scan", "live", "cached"],
)
def test_a_change_at_or_below_the_resolved_timestamp_is_a_broken_promise(rows: list[Row]) -> None:
    assert len(Reading().read(*rows, resolved_ts=9)) == 1
    with pytest.raises(Corrupt, match="after it had resolved"):
        Reading().read(*rows, resolved_ts=10)


def test_a_commit_that_nobody_asked_for_is_skipped() -> None:
    reading = Reading(span_start_ts=10)
    rows = [row(PREWRITE, 1, value=b"v"), row(COMMIT, 1, 10), row(COMMIT, 2, 9), row(PREWRITE, 2, value=b"v")]
    assert reading.read(*rows, row(INITIALIZED), resolved_ts=10) == []
    assert len(reading.reader.matcher) == 0


def test_a_rollback_before_the_end_of_the_scan_waits_for_its_prewrite() -> None:
    reading = Reading()
    assert reading.read(row(ROLLBACK, 1), row(PREWRITE, 1, value=b"v"), row(INITIALIZED)) == []
    assert len(reading.reader.matcher) == 0


def test_a_rollback_after_the_scan_is_applied_at_once() -> None:
    reading = initialized()
    reading.read(row(PREWRITE, 1, value=b"v"), row(ROLLBACK, 1))
    with pytest.raises(Corrupt):
        reading.read(row(COMMIT, 1, 2))


def test_keys_outside_the_range_asked_for_are_skipped() -> None:
    reading = Reading(start=b"b", end=b"d", whole=False)
    rows = [row(COMMITTED, 1, 2, key, value=b"v") for key in (b"a", b"b", b"c\xff", b"d")]
    assert [each[3] for each in reading.read(*rows)] == [b"b", b"c\xff"]
    assert reading.read(row(COMMIT, 1, 2, b"z"), row(INITIALIZED)) == []


def test_a_range_without_an_end_goes_to_the_end_of_keys() -> None:
    reading = Reading(start=b"b", end=b"", whole=False)
    assert len(reading.read(row(COMMITTED, 1, 2, b"\xff\xff", value=b"v"))) == 1


def test_a_row_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(Corrupt, match="unknown kind 0"):
        Reading().read(row(cdcpb.Event.UNKNOWN))


def test_rows_are_handed_over_in_batches_of_a_bounded_size() -> None:
    handed: list[tuple[int, int]] = []
    columns = RawColumns(lambda batch, weight: handed.append((batch.num_rows, weight)))
    for number in range(30):
        columns.add(PUT, 1, 2, b"%d" % number, b"v" * (BATCH_BYTES_MAX // 10), b"")
    columns.flush()
    columns.flush()
    assert sum(count for count, _ in handed) == 30
    assert len(handed) >= 3
    assert all(weight <= BATCH_BYTES_MAX * 1.2 for _, weight in handed)


def test_a_consumer_that_refuses_a_batch_is_heard_where_rows_are_read() -> None:
    def refuse(batch: pa.RecordBatch, weight: int) -> None:
        raise RuntimeError("no")

    add: Callable[..., None] = RawColumns(refuse).add
    with pytest.raises(RuntimeError):
        add(PUT, 1, 2, b"k", b"v" * BATCH_BYTES_MAX, b"")
