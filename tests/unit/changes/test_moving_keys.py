"""Rows whose primary key may change while their handle does not: a reader knows them by the key alone."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.changes.options import ChangeOptions, ReadColumns
from penstock.changes.tail import Tail
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import side_schema
from penstock.tables.define import define_table

TABLE = replace(
    define_table("items", [("id", "bigint"), ("name", "text")], primary_key=["id"], clustered=False), id=1
)
VERSION = SchemaVersion(0, 1, TABLE)

Event = tuple[int, int, int | None, int | None]  # commit-ts, handle, key before, key after

HISTORY: list[Event] = [
    (1, 1, None, 5),
    (2, 1, 5, 6),  # the row gets another key,
    (3, 2, None, 5),  # which another row takes
    (4, 1, 6, None),
    (5, 2, 5, 7),
    (6, 3, None, 6),
    (7, 2, 7, 5),
]


def batch(rows: list[dict[str, Any]], schema: pa.Schema, names: list[str]) -> pa.RecordBatch:
    full = [{name: row.get(name) for name in schema.names} for row in rows]
    return pa.RecordBatch.from_pylist(full, schema).select(names)


def steps(from_ts: int, to_ts: int, **options: Any) -> list[tuple[int, int, int]]:
    """(commit-ts, 0 for an end and 1 for a beginning, key), in the order in which they take effect."""
    chosen = ChangeOptions(**options)
    columns = ReadColumns.of(TABLE, chosen)
    data, ends = [], []
    for ts, handle, before, after in HISTORY:
        row = {
            "_handle": handle.to_bytes(8, "big"),
            "_commit_ts": ts,
            "_start_ts": ts - 1,
            "_update": before is not None and after is not None,
        }
        if from_ts < ts <= to_ts:
            data += [{**row, "id": after, "name": "x"}] if after is not None else []
            ends += [{**row, "id": before}] if before is not None else []
    tail = Tail(
        iter([batch(data, side_schema(TABLE, "data"), columns.data.read.names)]),
        iter([batch(ends, side_schema(TABLE, "tombstone"), columns.tombstone.read.names)]),
        schema=VERSION,
        columns=columns,
        options=chosen,
        to_ts=to_ts,
    )
    return sorted(
        (row["_commit_ts"], order, row["id"])
        for found in tail.batches()
        for order, side in enumerate((found.tombstones, found.data))
        for row in side.to_pylist()
    )


def keys_at(ts: int) -> set[int]:
    now = {handle: after for at, handle, _, after in HISTORY if at <= ts}
    return {key for key in now.values() if key is not None}


@pytest.mark.parametrize("skip_deletes", [False, True])
@pytest.mark.parametrize("by_time", [False, True])
def test_net_changes_lead_from_any_moment_to_any_other(skip_deletes: bool, by_time: bool) -> None:
    for from_ts in range(8):
        for to_ts in range(from_ts + 1, 8):
            keys = keys_at(from_ts)
            found = steps(from_ts, to_ts, skip_deletes=skip_deletes)
            for _, order, key in found if by_time else sorted(found, key=lambda step: step[1]):
                if order:
                    keys.add(key)
                else:
                    keys.remove(key)
            assert keys == keys_at(to_ts)


def test_a_reader_that_goes_back_gets_every_key_that_it_may_have() -> None:
    for to_ts in range(1, 8):
        for applied_to in range(to_ts + 1):
            keys = keys_at(applied_to)
            for _, order, key in steps(0, to_ts, replay=True):
                if order:
                    keys.add(key)
                else:
                    keys.discard(key)
            assert keys == keys_at(to_ts)


def test_few_changes_stay_when_nothing_is_replayed() -> None:
    assert steps(1, 4) == [(2, 0, 5), (3, 1, 5)]
    assert steps(0, 4) == [(3, 1, 5)]
