"""Random DDLs that end in any order, with restarts in between, against the rules for two DDLs at a time.

The model compares every pair of DDLs by itself: two that share a table, a name or a database are done in
order; whatever shares nothing with an earlier, unfinished one may start.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changefeeds.ddl_barrier import BlockEvent, PendingDdls, block_events, find_done
from penstock.changefeeds.filters import TableFilter
from penstock.changefeeds.model import ChangefeedStatus, DoneDdls
from penstock.follow.ddl_events import DdlEvent, DdlScope
from support.campaign import examples
from support.ddlevents import (
    alter_table,
    create_database,
    create_table,
    drop_database,
    drop_table,
    rename_tables,
    table_schema,
    truncate_table,
)

BEGIN = 10
TABLES = [table_schema(1), table_schema(2), table_schema(3, "other.t3"), table_schema(4, "other.t4")]
TABLE = st.sampled_from(TABLES)
NAME = st.sampled_from(["shop.t1", "shop.x", "other.t3", "other.x"])


@st.composite
def histories(draw: st.DrawFn) -> list[DdlEvent]:
    """Return DDLs in order. They need not follow from each other: only what they touch counts."""
    events = []
    for at in range(draw(st.integers(1, 12))):
        ts = BEGIN + 1 + 2 * at
        kind = draw(st.sampled_from(["alter", "drop", "create", "truncate", "rename", "swap", "database"]))
        if kind == "alter":
            event = alter_table(ts, draw(TABLE))
        elif kind == "drop":
            event = drop_table(ts, draw(TABLE))
        elif kind == "create":
            event = create_table(ts, table_schema(100 + at, draw(NAME)))
        elif kind == "truncate":
            event = truncate_table(ts, draw(TABLE), 100 + at)
        elif kind == "rename":
            event = rename_tables(ts, (draw(TABLE), draw(NAME)))
        elif kind == "swap":
            one, two = draw(st.sampled_from([(TABLES[0], TABLES[1]), (TABLES[1], TABLES[2])]))
            event = rename_tables(ts, (one, two.name), (two, one.name))
        else:
            name = draw(st.sampled_from(["shop", "other"]))
            inside = [table for table in TABLES if table.database == name]
            event = draw(st.sampled_from([create_database(ts, name), drop_database(ts, name, inside)]))
        events.append(event)
    return events


def touches(event: DdlEvent) -> set[tuple[str, object]]:
    sides = [side for change in event.tables for side in (change.before, change.after) if side is not None]
    return {("id", side.table.id) for side in sides} | {("name", side.name) for side in sides}


def inside(event: DdlEvent, database: str) -> bool:
    sides = [side for change in event.tables for side in (change.before, change.after) if side is not None]
    return any(side.database == database for side in sides) or is_of(event, database)


def is_of(event: DdlEvent, database: str) -> bool:
    return event.scope is DdlScope.DATABASE and event.database == database


def overlap(one: DdlEvent, other: DdlEvent) -> bool:
    if touches(one) & touches(other):
        return True
    return any(
        is_of(first, first.database) and inside(second, first.database)
        for first, second in ((one, other), (other, one))
    )


@settings(max_examples=examples(200), deadline=None)
@given(events=histories(), choices=st.data())
def test_overlapping_ddls_are_in_order_and_nothing_else_waits(
    events: list[DdlEvent], choices: st.DataObject
) -> None:
    blocks = {block.commit_ts: block for block in block_events(events, TableFilter())}
    by_ts = {event.commit_ts: event for event in events}
    done: set[int] = set()
    unreleased: list[BlockEvent] = []
    status = ChangefeedStatus(checkpoint_ts=BEGIN, ddl_ts=BEGIN)
    pending = restart(blocks, status.done_ddls)
    while len(done) < len(blocks):
        if choices.draw(st.booleans(), label="restart"):
            assert {ts for ts in blocks if ts in status.done_ddls} == done, "stored is what is done"
            pending, unreleased = restart(blocks, status.done_ddls), []
        unfinished = [ts for ts in blocks if ts not in done]
        busy = {block.commit_ts for block in unreleased}
        expected = [
            ts
            for ts in unfinished
            if not any(overlap(by_ts[other], by_ts[ts]) for other in {*unfinished, *busy} if other < ts)
        ]
        assert [block.commit_ts for block in pending.startable()] == expected
        assert pending.head is not None
        assert pending.head.commit_ts == unfinished[0], "the checkpoint is before the first unfinished one"
        if unreleased and (not expected or choices.draw(st.booleans(), label="release")):
            pending.release(unreleased.pop())
            continue
        block = blocks[choices.draw(st.sampled_from(expected), label="done")]
        status = ChangefeedStatus.from_json("feed", status.with_done_ddls(pending.find_done(block)).to_json())
        pending.finish(block)
        done.add(block.commit_ts)
        unreleased.append(block)
        assert status.done_ddls == pending.done
        assert all(ts > status.ddl_ts for ts in blocks if ts not in done), "a DDL that is not done is skipped"
    assert status.done_ddls == DoneDdls(max(blocks))


def restart(blocks: dict[int, BlockEvent], done: DoneDdls) -> PendingDdls:
    """Return what a new process makes of the stored DDLs."""
    after = [block for ts, block in blocks.items() if ts > done.ts]
    assert [block.commit_ts for block in find_done(after, done)] == sorted(done.later)
    pending = PendingDdls(done)
    for block in after:
        if block.commit_ts not in done:
            pending.add(block)
    return pending
