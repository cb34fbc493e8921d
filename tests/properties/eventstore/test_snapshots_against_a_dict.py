"""Snapshots of any history of objects against the dict that the history is."""

import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clock import SYSTEM
from penstock.eventstore.read.snapshot import plan_snapshot, read_snapshot, snapshot_schema
from penstock.object_storage import StorageRef
from penstock.tables.alter import add_column, drop_column, modify_column
from penstock.tables.define import define_table
from penstock.tables.keys import encode_handle
from penstock.tables.schema import TableInfo
from support.campaign import examples
from support.handmade import HandMade, Row

NUMBERS = range(1, 9)
FIRST = replace(define_table("items", [("id", "bigint primary key"), ("name", "varchar(64)")]), id=1)


def renamed(table: TableInfo, old: str, new: str) -> TableInfo:
    return table.with_columns(
        [replace(each, name=new) if each.name == old else each for each in table.columns]
    )


WITH_COUNT = add_column(FIRST, "count", "int not null default 7", after="id")
RENAMED = renamed(WITH_COUNT, "name", "title")
WIDENED = modify_column(RENAMED, "count", "bigint not null")
DROPPED = add_column(drop_column(WIDENED, "title"), "name", "varchar(64)")
SCHEMAS = [FIRST, WITH_COUNT, RENAMED, WIDENED, DROPPED]


def a_row(table: TableInfo, number: int, ts: int) -> Row:
    values = {"id": number, "count": ts * 10 + number}
    return {each.name: values.get(each.name, f"{number} at {ts}") for each in table.stored_columns}


numbers = st.frozensets(st.sampled_from(NUMBERS), max_size=5)
commits = st.tuples(st.just("commit"), numbers, numbers)
flushes = st.tuples(st.just("flush"), st.integers(0, 15), st.sampled_from([0, 0, 1, 3]))
alters = st.tuples(st.just("alter"), st.none(), st.none())
forgets = st.tuples(st.just("forget"), st.none(), st.none())
busy = st.lists(st.one_of(commits, flushes, alters), max_size=5)
merges = st.tuples(st.just("merge"), st.tuples(st.integers(1, (1 << 16) - 1), st.integers(1, 3)), busy)
steps = st.one_of(commits, flushes, merges, forgets, alters, st.tuples(st.just("work"), commits, flushes))


class World(HandMade):
    """A table that takes such steps."""

    def step(self, kind: str, first: Any, second: Any) -> None:
        if kind == "commit":
            self.commit({each: a_row(self.table, each, self.ts + 2) for each in first}, second)
        elif kind == "flush" and self.ts - second > self.state.flushed_ts:
            self.flush([ts for ts in range(self.ts) if first >> (ts // 2) % 4 & 1], upto_ts=self.ts - second)
        elif kind == "work":
            self.step(*first)
            self.step(*second)
        elif kind == "merge":
            self.merge(*first, second)
        elif kind == "forget":
            self.forget(collect=False)
        elif kind == "alter":
            self.alter(SCHEMAS[min(len(self.versions), len(SCHEMAS) - 1)])

    def merge(self, chosen: int, outputs: int, meanwhile: list[tuple[str, Any, Any]]) -> None:
        order = {each: index for index, each in enumerate(sorted(self.state.objects))}
        merge = self.begin_merge(lambda info: bool(chosen >> order[info.id] % 16 & 1))
        for step in meanwhile:
            self.step(*step)
        self.finish_merge(merge, outputs=outputs)


def rows_of(batches: Any) -> dict[int, Row]:
    found = [row for batch in batches for row in batch.to_pylist()]
    made = {row["id"]: row for row in found}
    assert len(made) == len(found), "a row is there twice"
    return made


@settings(max_examples=examples(40, 100), deadline=None)
@given(
    history=st.lists(steps, min_size=4, max_size=20),
    group_rows=st.integers(1, 4),
    choice=st.data(),
)
def test_a_snapshot_is_what_the_table_was_at_every_timestamp(
    history: list[tuple[str, Any, Any]], group_rows: int, choice: st.DataObject
) -> None:
    world = World(StorageRef(f"memory:///{SYSTEM.unique_id()}"), FIRST, group_rows=group_rows)
    start = world.ts
    for step in history:
        world.step(*step)
    view = world.view()
    for ts in range(start, world.ts + 1):
        expected = world.at(ts)
        schema = snapshot_schema(view, ts)
        batches = list(read_snapshot(view, ts))
        assert all(batch.schema == schema for batch in batches)
        assert rows_of(batches) == expected
    ts = choice.draw(st.integers(start, world.ts))
    low, high = sorted(choice.draw(st.tuples(st.integers(0, 9), st.integers(0, 9))))
    wanted = {
        "columns": choice.draw(st.permutations(["id", "_commit_ts", *snapshot_schema(view, ts).names[1:-1]])),
        "handle_from": encode_handle(low) if low else b"",
        "handle_to": encode_handle(high) if high < 9 else b"",
    }
    inside = {each: row for each, row in world.at(ts).items() if low <= each and (each < high or high == 9)}
    found = rows_of(read_snapshot(view, ts, batch_rows=2, **wanted))
    assert found == inside
    plan = plan_snapshot(view, ts, partition_bytes=choice.draw(st.sampled_from([1, 3000, 1 << 20])), **wanted)
    parts: list[pa.RecordBatch] = []
    for part in pickle.loads(pickle.dumps(plan)):
        parts += part.read()
    assert rows_of(parts) == inside
    assert all(batch.schema.names == wanted["columns"] for batch in parts)
