"""Tables whose columns have names that changes use."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.changefeeds.codecs.row_changes import Pairing
from penstock.eventstore.read.snapshot import read_snapshot
from penstock.follow.slices import Position, slice_options
from penstock.spark.change_rows import ChangeRows
from penstock.tables.arrow import shown_name
from penstock.tables.define import define_table
from support.tableworld import TableWorld

TABLE = replace(
    define_table("items", [("_handle", "bigint primary key"), ("_old", "int"), ("_commit_ts", "int")]), id=1
)


def a_row(key: int, old: int) -> dict[str, Any]:
    return {"_handle": key, "_old": old, "_commit_ts": 7}


@pytest.fixture(params=[False, True], ids=["unflushed", "flushed"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TableWorld]:
    with TableWorld(tmp_path, TABLE) as made:
        made.commit(a_row(1, 10))
        made.commit(a_row(1, 11), a_row(2, 20))
        made.resolve()
        if request.param:
            made.flush()
        yield made


def shown(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    return batch.rename_columns([shown_name(name) for name in batch.schema.names]).to_pylist()


def test_a_snapshot_has_their_values(world: TableWorld) -> None:
    batches = read_snapshot(world.view(), world.ts, columns=["_old ", "_handle ", "_commit_ts "])
    rows = [row for batch in batches for row in shown(batch)]
    assert sorted(rows, key=lambda row: row["_handle"]) == [a_row(1, 11), a_row(2, 20)]


def test_a_changefeed_writes_them_under_their_names(world: TableWorld) -> None:
    names = [column.name for column in TABLE.stored_columns]
    schema = world.table.schemas[-1]
    batches = world.changes(min(world.moments()), world.ts, **slice_options(schema))
    changes = Pairing(TABLE, names, names).of(batches, Position(min(world.moments())))
    assert sorted(changes.rows.to_pylist(), key=lambda row: row["_handle"]) == [a_row(1, 11), a_row(2, 20)]
    assert a_row(1, 10) in changes.old.to_pylist()


def test_sparks_change_feed_has_them(world: TableWorld) -> None:
    rows = ChangeRows(world.versions.table)
    batches = world.changes(
        min(world.moments()), world.ts, columns=rows.reads([TABLE]), coalesce=False, old_rows=True
    )
    found = [row for batch in batches for row in shown(rows.of(batch))]
    assert [(row["_handle"], row["_old"], row["_change_type"]) for row in found] == [
        (1, 10, "update_preimage"),
        (1, 11, "update_postimage"),
        (2, 20, "insert"),
    ]
