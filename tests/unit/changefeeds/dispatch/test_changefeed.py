import asyncio

import pytest
from prometheus_client import REGISTRY

from penstock.changefeeds.failures import STALL_S
from penstock.changefeeds.model import ChangefeedState, DoneDdls
from penstock.follow.slices import Position
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

A, B = table_schema(1), table_schema(2)


def _affected() -> float:
    name = "penstock_sink_ddl_affected_dispatchers_sum"
    return REGISTRY.get_sample_value(name, {"changefeed": "feed"}) or 0.0


async def test_changes_come_to_the_remote_in_order_and_the_checkpoint_follows(world) -> None:
    w = world(A, B)
    w.source.put(1, 20)
    w.source.put(2, 25)
    w.source.put(1, 30)
    w.source.put(1, 40)
    w.source.advance(50)
    w.start()
    await w.reached(50)
    assert sorted(w.rows()) == [(1, 20, b"row"), (1, 30, b"row"), (1, 40, b"row"), (2, 25, b"row")]
    assert w.remote.checkpoints[-1] == 50
    assert w.feed.state is ChangefeedState.NORMAL


async def test_an_early_wake_does_not_advance_the_checkpoint(world) -> None:
    w = world(A, sink_options={"write": False})
    for ts in (20, 30, 40):
        w.source.put(1, ts)
    w.source.advance(50)
    w.start()
    await w.until(lambda: w.log[-1:] == ["dml 1 30..50"])
    await w.settle()
    assert w.feed.checkpoint_ts == 10
    (dispatcher_id,) = w.progress.kept
    await w.sink.flush(dispatcher_id, 1)
    await w.reached(30)
    assert w.feed.checkpoint_ts == 30
    await w.sink.flush(dispatcher_id)
    await w.reached(50)


async def test_a_remote_that_takes_nothing_is_told_until_it_does_and_an_idle_one_is_not(world) -> None:
    w = world(A, sink_options={"write": False})
    w.source.advance(50)
    w.start()
    await w.until(lambda: w.clock.now > 2 * STALL_S)
    assert w.feed.state is ChangefeedState.NORMAL, "there was nothing to write"
    w.source.put(1, 60)
    w.source.advance(70)
    asked_at = w.clock.now
    await w.until(lambda: w.feed.state is ChangefeedState.WARNING)
    assert w.clock.now - asked_at >= STALL_S
    assert "its target does not answer" in w.feed.warning
    (dispatcher_id,) = w.progress.kept
    await w.sink.flush(dispatcher_id)
    await w.until(lambda: w.feed.state is ChangefeedState.NORMAL)


async def test_a_target_that_does_not_answer_at_the_start_is_told(world) -> None:
    w = world(A)
    asked = asyncio.Event()

    async def ask() -> None:
        asked.set()
        await asyncio.Event().wait()

    w.source.advance(50)
    w.open_sink = ask
    w.start()
    await w.until(asked.is_set)
    w.clock.now += STALL_S
    assert w.feed.state is ChangefeedState.WARNING
    assert "its target has not answered for 60" in w.feed.warning
    await w.pause()


async def test_a_dispatcher_that_is_not_woken_reads_nothing_more(world) -> None:
    w = world(A, sink_options={"wake": False})
    for ts in (20, 30, 40):
        w.source.put(1, ts)
    w.source.advance(50)
    w.start()
    await w.reached(30)
    await w.settle()
    assert [each for each in w.log if each.startswith("dml")] == ["dml 1 10..30"]
    assert w.feed.checkpoint_ts == 30


async def test_an_alter_is_written_after_everything_before_it_and_before_everything_after_it(world) -> None:
    w = world(A)
    w.source.put(1, 20)
    w.source.ddl(alter_table(30, A))
    w.source.put(1, 30)
    w.source.put(1, 40)
    w.source.advance(50)
    w.sink_options = {"write": False}
    w.start()
    await w.until(lambda: len(w.log) >= 5)
    assert w.log == ["dml 1 10..29", "drain 1 for 30", "file 1 10..29", "ddl 30", "dml 1 29..50"]
    await w.settle()
    assert w.feed.checkpoint_ts == 29


async def test_nothing_is_written_or_read_before_the_drain_returns_and_the_write_does_not_drain_again(
    world,
) -> None:
    w = world(A)
    w.source.put(1, 20)
    w.source.ddl(alter_table(30, A))
    w.source.put(1, 40)
    w.source.advance(50)
    held = asyncio.Event()
    w.prepare = lambda sink: setattr(sink, "drains_held", held)
    w.start()
    await w.until(lambda: "drain 1 for 30" in w.log)
    await w.settle()
    assert not [each for each in w.log if each.startswith("ddl")]
    assert "dml 1 29..50" not in w.log
    held.set()
    await w.reached(50)
    assert w.log.count("drain 1 for 30") == 1
    assert w.log.count("ddl 30") == 1


async def test_a_failed_drain_stops_the_ddl(world) -> None:
    w = world(A, give_up_s=0.0)

    def fault(name: str) -> None:
        if name == "pass_block_event":
            raise OSError("the remote is gone")

    w.sink_options = {"fault": fault}
    w.source.ddl(alter_table(30, A))
    w.source.advance(50)
    w.start()
    with pytest.raises(OSError, match="remote is gone"):
        await w.task
    assert w.feed.state is ChangefeedState.FAILED
    assert "remote is gone" in w.feed.error
    assert not w.remote.ddls
    assert w.progress.checkpoints[-1] < 30


async def test_nothing_is_read_where_a_ddl_may_still_turn_up(world) -> None:
    w = world(A)
    w.source.put(1, 20)
    w.source.put(1, 40)
    w.source.ddl(alter_table(30, A))
    w.source.advance(50)
    w.source.ddl_lag_ts = 25
    w.start()
    await w.reached(25)
    await w.settle()
    assert w.feed.checkpoint_ts == 25
    assert w.rows() == [(1, 20, b"row")]
    w.source.ddl_lag_ts = None
    await w.reached(50)
    assert w.log.index("ddl 30") < w.log.index("dml 1 29..50")


async def test_a_ddl_of_one_table_does_not_hold_the_changes_of_another(world) -> None:
    w = world(A, B)
    w.source.ddl(alter_table(30, A))
    w.source.put(2, 40)
    w.source.advance(50)
    held = asyncio.Event()
    w.prepare = lambda sink: setattr(sink, "drains_held", held)
    w.start()
    await w.until(lambda: (2, 40, b"row") in w.rows())
    await w.settle()
    assert w.feed.checkpoint_ts == 29
    held.set()
    await w.reached(50)


async def test_a_split_table_is_drained_by_every_part_before_its_ddl(world) -> None:
    before = _affected()
    w = world(A, feed_options={"split_rows": 2})
    for at, handle in enumerate((b"a", b"b", b"c", b"d", b"e"), 1):
        w.source.put(1, at, handle)
    w.source.put(1, 20, b"a", b"c", b"e")
    w.source.ddl(alter_table(30, A))
    w.source.advance(50)
    w.start()
    await w.reached(50)
    assert len(w.progress.kept) == 3
    assert _affected() - before == 3
    ddl = w.log.index("ddl 30")
    assert w.log.count("drain 1 for 30") == 3
    assert max(at for at, each in enumerate(w.log) if each.startswith(("drain", "file"))) < ddl
    assert sorted(w.rows()) == [(1, 20, b"a"), (1, 20, b"c"), (1, 20, b"e")]


async def test_a_table_whose_rows_can_change_their_handles_is_not_split(world) -> None:
    w = world(table_schema(1, kind="not clustered"), feed_options={"split_rows": 1})
    w.source.put(1, 5, b"a", b"b", b"c")
    w.source.advance(20)
    w.start()
    await w.reached(20)
    assert len(w.progress.kept) == 1


async def test_a_new_table_begins_at_its_creation(world) -> None:
    w = world()
    w.source.ddl(create_table(30, A))
    w.source.put(1, 40)
    w.source.advance(50)
    w.start()
    await w.reached(50)
    assert w.log == ["ddl 30", "dml 1 30..50", "file 1 30..50"]
    (kept,) = w.progress.kept.values()
    assert kept.begin == Position(30)
    assert w.progress.done_ddl_ts == 30


async def test_a_new_table_that_is_not_captured_yet_holds_the_checkpoint_at_its_creation(world) -> None:
    w = world(B)
    w.source.lagging[1] = None
    w.source.ddl(create_table(30, A))
    w.source.advance(50)
    w.start()
    await w.reached(30)
    await w.settle()
    assert w.feed.checkpoint_ts == 30
    w.source.put(1, 40)
    w.source.lagging[1] = 45
    await w.reached(45)
    assert w.feed.checkpoint_ts == 45
    del w.source.lagging[1]
    await w.reached(50)


async def test_a_dropped_table_ends_its_dispatcher_after_the_last_change(world) -> None:
    w = world(A, B)
    w.source.put(1, 20)
    w.source.ddl(drop_table(30, A))
    w.source.advance(50)
    w.start()
    await w.reached(50)
    await w.until(lambda: 1 not in w.source.held)
    assert [each.span.table_id for each in w.progress.kept.values()] == [2]
    assert w.log[0] == "dml 1 10..29"
    assert set(w.log[1:3]) == {"file 1 10..29", "drain 1 for 30"}
    assert w.log[3:] == ["ddl 30", "removed"]


async def test_a_truncated_table_goes_on_with_another_dispatcher(world) -> None:
    w = world(A)
    w.source.put(1, 20)
    w.source.ddl(truncate_table(30, A, 7))
    w.source.put(7, 40)
    w.source.advance(50)
    w.start()
    await w.reached(50)
    assert [each.span.table_id for each in w.progress.kept.values()] == [7]
    assert w.rows() == [(1, 20, b"row"), (7, 40, b"row")]


async def test_a_rename_of_several_tables_waits_for_all_of_them(world) -> None:
    w = world(A, B)
    w.source.put(1, 20)
    w.source.put(2, 29)
    w.source.ddl(rename_tables(30, (A, "shop.t2"), (B, "shop.t1")))
    w.source.put(1, 31)
    w.source.lagging[2] = 25
    w.source.advance(50)
    w.start()
    await w.until(lambda: "drain 1 for 30" in w.log)
    await w.settle()
    assert "ddl 30" not in w.log
    del w.source.lagging[2]
    await w.reached(50)
    ddl = w.log.index("ddl 30")
    assert w.log.index("drain 2 for 30") < ddl < w.log.index("dml 1 29..50")
    assert len(w.progress.kept) == 2


async def test_a_rename_out_of_the_filter_ends_a_dispatcher_and_one_into_it_begins_one(world) -> None:
    other = table_schema(2, "other.t")
    w = world(A, other, patterns=("shop.*",))
    w.source.put(2, 20)
    w.source.ddl(rename_tables(30, (A, "other.gone"), (other, "shop.new")))
    w.source.put(2, 30, b"at the rename")
    w.source.put(2, 40)
    w.source.put(1, 40)
    w.source.advance(50)
    w.start()
    await w.reached(50)
    assert w.rows() == [(2, 30, b"at the rename"), (2, 40, b"row")]
    (event,) = w.remote.ddls
    assert [(c.before and c.before.name, c.after and c.after.name) for c in event.tables] == [
        ("shop.t1", None),
        (None, "shop.new"),
    ]


async def test_a_table_that_leaves_the_filter_and_comes_back_is_not_let_go_in_between(world) -> None:
    w = world(A, B, patterns=("shop.*",))
    left = w.source.ddl(rename_tables(20, (A, "other.t")))
    w.source.put(1, 25)
    (out,) = (change.after for change in left.tables)
    w.source.ddl(create_database(30, "shop"))  # it blocks what is in the database, and waits for B
    w.source.ddl(rename_tables(40, (out, "shop.t")))
    w.source.put(1, 45)
    w.source.lagging[2] = 28
    w.source.advance(50)
    w.start()
    await w.until(lambda: w.progress.done_ddl_ts == 20)
    await w.settle()
    assert 1 in w.source.held
    del w.source.lagging[2]
    await w.reached(50)
    assert w.rows() == [(1, 45, b"row")]


async def test_ddls_outside_the_filter_are_skipped(world) -> None:
    other = table_schema(2, "other.t")
    w = world(A, other, patterns=("shop.*",))
    w.source.ddl(alter_table(20, other))
    w.source.ddl(create_database(25, "more"))
    w.source.ddl(drop_database(30, "other", [other]))
    w.source.advance(50)
    w.start()
    await w.reached(50)
    assert not w.remote.ddls


async def test_a_dropped_database_waits_for_every_table_in_it(world) -> None:
    other = table_schema(3, "other.t")
    w = world(A, B, other)
    w.source.put(1, 20)
    w.source.put(2, 20)
    w.source.put(3, 40)
    w.source.lagging[2] = 15
    w.source.ddl(drop_database(30, "shop", [A, B]))
    w.source.advance(50)
    w.start()
    await w.until(lambda: (3, 40, b"row") in w.rows())
    await w.settle()
    assert not w.remote.ddls
    del w.source.lagging[2]
    await w.reached(50)
    assert [each.span.table_id for each in w.progress.kept.values()] == [3]
    assert {(1, 20, b"row"), (2, 20, b"row")} <= set(w.rows())


async def test_ddls_of_the_same_commit_are_done_together(world) -> None:
    w = world(A, B)
    w.source.put(1, 29)
    w.source.put(2, 29)
    w.source.ddl(alter_table(30, A))
    w.source.ddl(drop_table(30, B))
    w.source.put(1, 30)
    w.source.advance(50)
    changes = []
    w.progress.fault = lambda name: changes.append(name) if name == "changed_dispatchers" else None
    w.start()
    await w.reached(50)
    assert [each.commit_ts for each in w.remote.ddls] == [30, 30]
    assert len(changes) == 2  # at the start, and for both DDLs
    assert len(w.rows()) == 3
    assert len(w.progress.kept) == 1


def ddl_times(w) -> list[int]:
    return [event.commit_ts for event in w.remote.ddls]


async def test_a_ddl_is_written_while_another_table_drains_and_the_checkpoint_waits_for_both(world) -> None:
    w = world(A, B)
    w.source.put(1, 15)
    w.source.put(2, 15)
    w.source.ddl(alter_table(20, A))
    w.source.ddl(alter_table(30, B))
    w.source.put(2, 40)
    w.source.advance(50)
    held = asyncio.Event()
    w.prepare = lambda sink: sink.drains_held_of.update({1: held})
    w.start()
    await w.until(lambda: (2, 40, b"row") in w.rows())
    await w.settle()
    assert ddl_times(w) == [30]
    assert w.progress.done == DoneDdls(10, frozenset({30}))
    assert w.feed.checkpoint_ts == 19
    held.set()
    await w.reached(50)
    assert ddl_times(w) == [30, 20]
    assert w.progress.done == DoneDdls(30)
    assert sorted(w.rows()) == [(1, 15, b"row"), (2, 15, b"row"), (2, 40, b"row")]


async def test_a_ddl_is_written_while_the_files_of_another_one_hang(world) -> None:
    w = world(A, B)
    w.source.ddl(alter_table(20, A))
    w.source.ddl(truncate_table(30, B, 7))
    w.source.put(7, 40)
    w.source.advance(50)
    held = asyncio.Event()
    w.prepare = lambda sink: sink.ddls_held.update({20: held})
    w.start()
    await w.until(lambda: (7, 40, b"row") in w.rows())
    await w.settle()
    assert ddl_times(w) == [30]
    assert w.feed.checkpoint_ts == 19
    held.set()
    await w.reached(50)
    assert ddl_times(w) == [30, 20]
    assert {record.span.table_id for record in w.progress.kept.values()} == {1, 7}


async def test_ddls_that_overlap_are_done_in_order(world) -> None:
    other = table_schema(3, "other.t")
    w = world(A, B, other)
    w.source.ddl(alter_table(20, A))
    renamed = w.source.ddl(rename_tables(25, (A, "shop.x"), (B, "shop.y")))
    w.source.ddl(create_table(30, table_schema(4, "shop.t1")))  # a name that the rename leaves
    w.source.ddl(alter_table(35, other))
    after = [change.after for change in renamed.tables]
    w.source.ddl(drop_database(40, "shop", [*after, table_schema(4, "shop.t1")]))
    w.source.ddl(create_database(45, "shop"))
    w.source.lagging[1] = 12
    w.source.advance(50)
    w.start()
    await w.until(lambda: bool(w.remote.ddls))
    await w.settle()
    assert ddl_times(w) == [35]
    del w.source.lagging[1]
    await w.reached(50)
    assert ddl_times(w) == [35, 20, 25, 30, 40, 45]


async def test_a_table_that_comes_back_begins_after_nothing_is_left_of_its_dispatcher(world) -> None:
    w = world(A, patterns=("shop.*",))
    left = w.source.ddl(rename_tables(20, (A, "other.t")))
    (out,) = (change.after for change in left.tables)
    w.source.ddl(rename_tables(30, (out, "shop.t")))
    w.source.put(1, 40)
    w.source.advance(50)
    held = asyncio.Event()
    w.prepare = lambda sink: setattr(sink, "removals_held", held)
    w.start()
    await w.until(lambda: w.progress.done_ddl_ts == 20)
    await w.settle()
    assert ddl_times(w) == [20]
    held.set()
    await w.reached(50)
    assert w.rows() == [(1, 40, b"row")]


async def test_partitions_have_dispatchers_of_their_own(world) -> None:
    parts = table_schema(1, partitions=(11, 12))
    w = world(parts)
    w.source.put(11, 20)
    w.source.put(12, 21)
    w.source.ddl(alter_table(30, parts))
    w.source.advance(50)
    w.start()
    await w.reached(50)
    assert {each.span.table_id for each in w.progress.kept.values()} == {11, 12}
    assert sorted(w.rows()) == [(11, 20, b"row"), (12, 21, b"row")]


async def test_a_snapshot_comes_first_in_pieces_and_then_what_follows(world) -> None:
    w = world(A, begin=Position(10, b""))
    for handle in (b"a", b"b", b"c", b"d", b"e"):
        w.source.put(1, 5, handle)
    w.source.put(1, 20, b"a")
    w.source.advance(50)
    w.start()
    await w.until(lambda: bool(w.log))
    await w.reached(50)
    dmls = [each for each in w.log if each.startswith("dml")]
    assert dmls[:2] == ["dml 1 10:..10:c", "dml 1 10:c..10:e"]
    assert sorted(w.rows()) == [(1, 10, each) for each in (b"a", b"b", b"c", b"d", b"e")] + [(1, 20, b"a")]


async def test_an_interrupted_snapshot_goes_on_where_it_was(world) -> None:
    w = world(A, begin=Position(10, b""), sink_options={"write": False})
    for handle in (b"a", b"b", b"c", b"d", b"e"):
        w.source.put(1, 5, handle)
    w.source.advance(50)
    w.start()
    await w.until(lambda: "dml 1 10:c..10:e" in w.log)
    (dispatcher_id,) = w.progress.kept
    await w.sink.flush(dispatcher_id, 1)
    await w.kill()
    w.sink_options = {}
    assert w.progress.checkpoints[-1] == 9
    w.start()
    await w.reached(50)
    assert sorted(w.rows()) == [(1, 10, each) for each in (b"a", b"b", b"c", b"d", b"e")]


async def test_it_finishes_at_its_target_and_carries_nothing_after_it(world) -> None:
    w = world(A, B)
    w.source.put(1, 20)
    w.source.ddl(alter_table(30, A))
    w.source.put(1, 30)
    w.source.put(1, 31)
    w.source.ddl(alter_table(40, A))
    w.source.advance(50)
    w.start(target_ts=30)
    await w.task
    assert w.feed.state is ChangefeedState.FINISHED
    assert w.progress.checkpoints[-1] == w.remote.checkpoints[-1] == 30
    assert w.rows() == [(1, 20, b"row"), (1, 30, b"row")]
    assert [each.commit_ts for each in w.remote.ddls] == [30]
    assert not w.source.held
