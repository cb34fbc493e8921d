"""A changefeed and tables that cannot be captured: it goes on without them and says so, or it fails."""

from dataclasses import replace

import pytest

from penstock.changefeeds.model import ChangefeedState, LeftOutTable, describe_left_out
from penstock.clock import compose_ts
from penstock.errors import Invalid, Unavailable
from penstock.eventstore.read.partition import Refusal
from penstock.follow.ddl_events import DdlEvent, TableChange
from penstock.follow.slices import Position
from support.ddlevents import alter_table, create_table, drop_table, table_schema, truncate_table

A, B = table_schema(1), table_schema(2)
WHY = "column a: type 200 is unknown; upgrade Penstock to read this table"
UNREAD = replace(B, since_ts=30, table=replace(B.table, unreadable=WHY, columns=(), indexes=()))


def refuse(w, table_id: int, readable_ts: int | None) -> None:
    """Let nobody capture a table beyond a timestamp any more."""
    w.source.lagging[table_id] = readable_ts
    w.source.refusals[table_id] = Refusal(table_id, WHY, (readable_ts or 0) + 1)


def accept(w, table_id: int) -> None:
    w.source.lagging.pop(table_id, None)
    w.source.refusals.pop(table_id, None)


async def test_the_others_go_on_and_the_warning_names_table_reason_and_remedy(world) -> None:
    w = world(A, B)
    w.source.put(1, 20)
    w.source.put(2, 20)
    w.source.put(2, 35)  # it was never captured
    w.source.advance(50)
    refuse(w, 2, 30)
    w.start()
    await w.reached(50)
    w.source.put(1, 60)
    w.source.advance(70)
    await w.reached(70)
    assert sorted(w.rows()) == [(1, 20, b"row"), (1, 60, b"row"), (2, 20, b"row")]
    assert w.feed.state is ChangefeedState.WARNING
    assert "goes on without table shop.t2" in w.feed.warning
    assert WHY in w.feed.warning
    assert "!shop.t2 in its tables" in w.feed.warning
    assert w.feed.error == ""
    assert {record.span.table_id for record in w.progress.kept.values()} == {1}
    assert w.progress.out == (LeftOutTable(table_id=2, name="shop.t2", reason=WHY, since_ts=31),)
    assert 2 not in w.source.held


async def test_a_ddl_without_a_statement_is_a_warning_that_names_it(world) -> None:
    w = world(A)
    w.source.ddl(replace(alter_table(30, A), unknown=True))
    w.source.advance(50)
    w.start()
    await w.reached(50)
    assert w.feed.state is ChangefeedState.WARNING
    assert "the DDL of shop.t1 at 30 has no statement" in w.feed.warning


async def test_everything_that_was_captured_is_sent_before_the_table_is_left_out(world) -> None:
    w = world(A, B)
    for ts in range(20, 40):
        w.source.put(2, ts)
    w.source.advance(100)
    refuse(w, 2, 39)
    w.start()
    await w.reached(100)
    assert w.rows() == [(2, ts, b"row") for ts in range(20, 40)]


async def test_a_cause_that_is_gone_before_the_changefeed_gets_there_costs_nothing(world) -> None:
    w = world(A, B, sink_options={"write": False})
    w.source.put(2, 20)
    w.source.put(2, 25)
    w.source.put(2, 28)
    w.source.put(2, 60)
    w.source.advance(70)
    refuse(w, 2, 30)
    w.start()
    await w.until(lambda: "dml 2 25..30" in w.log)
    await w.settle()
    assert not w.progress.out, "what was captured is not on the remote yet"
    accept(w, 2)
    await w.pause()
    w.sink_options = {}
    w.start()
    await w.reached(70)
    assert w.rows() == [(2, ts, b"row") for ts in (20, 25, 28, 60)]
    assert (w.feed.state, w.feed.warning) == (ChangefeedState.NORMAL, "")


@pytest.mark.parametrize("restart", [False, True])
async def test_a_table_that_can_be_captured_again_stays_out_without_a_silent_gap(
    world, restart: bool
) -> None:
    w = world(A, B)
    w.source.put(2, 20)
    w.source.put(2, 35)
    w.source.advance(50)
    refuse(w, 2, 30)
    w.start()
    await w.reached(50)
    accept(w, 2)
    if restart:
        await w.pause()
    w.source.put(2, 60)
    w.source.put(1, 60)
    w.source.ddl(alter_table(65, B))
    w.source.advance(70)
    if restart:
        w.start()
    await w.reached(70)
    await w.settle()
    assert sorted(w.rows()) == [(1, 60, b"row"), (2, 20, b"row")]
    assert w.feed.state is ChangefeedState.WARNING
    assert [event.commit_ts for event in w.remote.ddls] == [65], "its DDLs go on"


async def test_a_table_that_patterns_exclude_is_forgotten_and_begins_anew_when_they_name_it(world) -> None:
    w = world(A, B)
    w.source.advance(50)
    refuse(w, 2, 30)
    w.start()
    await w.reached(50)
    await w.pause()
    accept(w, 2)
    w.patterns = ("*.*", "!shop.t2")
    w.start()
    w.source.advance(60)
    await w.reached(60)
    assert (w.progress.out, w.feed.state) == ((), ChangefeedState.NORMAL)
    await w.pause()
    w.patterns = ("*.*",)
    w.source.put(2, 55)
    w.source.put(2, 65)
    w.source.advance(70)
    w.start()
    await w.reached(70)
    assert w.rows() == [(2, 65, b"row")]
    assert w.feed.state is ChangefeedState.NORMAL


@pytest.mark.parametrize("ddl", [drop_table(60, B), truncate_table(60, B, 3)], ids=["drop", "truncate"])
async def test_a_table_that_is_dropped_or_truncated_is_not_left_out_any_more(world, ddl: DdlEvent) -> None:
    w = world(A, B)
    w.source.advance(50)
    refuse(w, 2, 30)
    w.start()
    await w.reached(50)
    w.source.ddl(ddl)
    w.source.put(3, 65)
    w.source.advance(70)
    await w.reached(70)
    await w.until(lambda: not w.progress.out)
    await w.until(lambda: w.feed.state is ChangefeedState.NORMAL)
    assert [event.commit_ts for event in w.remote.ddls] == [60]
    if ddl.tables[0].after is not None:
        assert w.rows() == [(3, 65, b"row")]


async def test_a_ddl_of_a_table_that_is_left_out_waits_for_nobody(world) -> None:
    w = world(A, B)
    w.source.ddl(alter_table(40, B))
    w.source.advance(50)
    refuse(w, 2, 30)
    w.start()
    await w.reached(50)
    assert [event.commit_ts for event in w.remote.ddls] == [40]


async def test_one_that_is_to_have_all_tables_fails_and_goes_on_without_a_gap_once_it_can(world) -> None:
    w = world(A, B, feed_options={"ignore_ineligible_table": False})
    w.source.put(2, 20)
    w.source.put(2, 35)
    w.source.advance(50)
    refuse(w, 2, 30)
    w.start()
    with pytest.raises(
        Invalid, match=r"table shop\.t2 cannot be captured: column a: .*ignore_ineligible_table"
    ):
        await w.task
    assert w.feed.state is ChangefeedState.FAILED
    assert w.progress.checkpoints[-1] <= 30
    assert not w.progress.out
    accept(w, 2)
    w.start()
    await w.reached(50)
    assert w.rows() == [(2, 20, b"row"), (2, 35, b"row")]
    assert w.feed.state is ChangefeedState.NORMAL


async def test_a_table_that_no_capture_has_is_waited_for_with_a_warning(world) -> None:
    w = world(A, B)
    w.source.put(2, 40)
    w.source.advance(50)
    w.source.lagging[2] = 30
    w.source.uncaptured.add(2)
    w.start()
    await w.until(lambda: w.feed.state is ChangefeedState.WARNING)
    assert w.feed.warning == (
        "it waits for table shop.t2: no capture has it; start one whose capture.tables name it"
    )
    await w.settle()
    assert w.progress.checkpoints[-1] <= 30
    w.source.uncaptured.clear()
    accept(w, 2)
    await w.reached(50)
    assert w.rows() == [(2, 40, b"row")]
    await w.until(lambda: w.feed.state is ChangefeedState.NORMAL)


async def test_a_table_that_never_could_be_read_is_left_out_and_stays_out(world) -> None:
    w = world(A)
    w.source.unread = [UNREAD]
    w.source.advance(50)
    w.start()
    await w.reached(50)
    await w.until(lambda: WHY in w.feed.warning)
    assert w.feed.state is ChangefeedState.WARNING
    (out,) = w.progress.out
    assert (out.table_id, out.since_ts, out.sent) == (2, 30, False)
    w.source.unread = []
    readable = replace(B, since_ts=60)
    w.source.ddl(replace(create_table(60, B), tables=(TableChange(None, readable, unread_ts=30),)))
    w.source.put(2, 40)
    w.source.put(2, 65)
    w.source.advance(70)
    await w.reached(70)
    assert (w.rows(), w.remote.ddls) == ([], [])
    await w.pause()
    w.source.advance(80)
    w.start()
    await w.reached(80)
    assert (w.rows(), w.remote.ddls) == ([], [])
    assert w.feed.state is ChangefeedState.WARNING
    w.source.ddl(truncate_table(90, readable, 3))
    w.source.put(3, 95)
    w.source.advance(100)
    await w.reached(100)
    assert w.rows() == [(3, 95, b"row")], "a truncated table has nothing from before"
    await w.until(lambda: w.feed.state is ChangefeedState.NORMAL)


async def test_one_that_could_not_be_read_for_a_while_is_left_out_though_nobody_looked_then(world) -> None:
    w = world(A)
    w.source.ddl(replace(create_table(40, B), tables=(TableChange(None, B, unread_ts=30),)))
    w.source.put(2, 35)
    w.source.put(2, 45)
    w.source.advance(50)
    w.start()
    await w.reached(50)
    await w.until(lambda: "shop.t2" in w.feed.warning)
    assert (w.rows(), w.remote.ddls) == ([], [])
    assert [out.since_ts for out in w.progress.out] == [30]


async def test_a_version_that_can_read_the_table_does_not_send_it_with_a_gap(world) -> None:
    w = world(A)
    w.source.unread = [UNREAD]
    w.source.put(2, 40)
    w.source.advance(50)
    w.start()
    await w.reached(50)
    await w.pause()
    upgraded = world(A)
    upgraded.source.ddl(create_table(30, B))
    upgraded.source.put(2, 40)
    upgraded.source.put(2, 60)
    upgraded.source.advance(70)
    upgraded.progress = w.progress
    upgraded.start()
    await upgraded.reached(70)
    assert upgraded.rows() == []
    assert upgraded.feed.state is ChangefeedState.WARNING


async def test_a_table_whose_creation_is_not_written_yet_is_no_table_that_was_never_sent(world) -> None:
    w = world(A)
    w.source.ddl(create_table(20, B))
    w.source.put(2, 25)
    w.source.lagging[1] = 15  # the creation waits for nobody, but the checkpoint does
    w.source.unread = [UNREAD]
    refuse(w, 2, 29)
    w.source.advance(50)
    w.start()
    await w.until(lambda: bool(w.progress.out))
    assert [(out.table_id, out.sent, out.since_ts) for out in w.progress.out] == [(2, True, 30)]
    assert w.rows() == [(2, 25, b"row")]


async def test_the_checkpoint_does_not_pass_a_table_before_it_is_stored_that_it_is_left_out(world) -> None:
    w = world(A, B)
    w.source.advance(50)
    w.source.lagging[2] = 30

    def no_answer(name: str) -> None:
        if name == "change_dispatchers":
            raise Unavailable("the database does not answer")

    w.start()
    await w.reached(30)
    w.progress.fault = no_answer
    refuse(w, 2, 30)
    await w.until(lambda: w.feed.error != "")
    assert w.progress.checkpoints[-1] <= 30
    await w.pause()
    assert w.progress.checkpoints[-1] <= 30
    assert not w.progress.out
    w.progress.fault = lambda _: None
    w.start()
    await w.reached(50)
    assert [out.table_id for out in w.progress.out] == [2]


async def test_large_tables_that_cannot_be_captured_are_left_out_whole(world) -> None:
    w = world(A, B, begin=Position(30, b""), feed_options={"split_rows": 2})
    for handle in (b"a", b"b", b"c", b"d"):
        w.source.put(1, 20, handle)
    w.source.advance(50)
    refuse(w, 2, None)
    w.start()
    await w.reached(50)
    assert {row[0] for row in w.rows()} == {1}
    assert [out.table_id for out in w.progress.out] == [2]


def test_the_warning_names_one_table_and_counts_the_others() -> None:
    def out(name: str, table_id: int, second: int) -> LeftOutTable:
        since_ts = compose_ts(1000 * second)
        return LeftOutTable(table_id=table_id, name=name, reason="it is damaged", since_ts=since_ts)

    assert describe_left_out(()) == ""
    assert describe_left_out([out("shop.b", 1, 90), out("shop.a", 2, 60), out("shop.a", 3, 60)]) == (
        "it goes on without table shop.a and 1 more, whose changes since 1970-01-01T00:01:00.000+00:00 are"
        " not in the files because it cannot be captured: it is damaged. Fix that, then send the table with"
        " another changefeed, and exclude it from this one with !shop.a in its tables"
    )
