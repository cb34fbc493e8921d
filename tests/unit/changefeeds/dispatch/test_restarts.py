"""What a changefeed does after it was stopped, killed or failed."""

import asyncio
from dataclasses import replace

import pytest

from penstock.changefeeds.model import ChangefeedState, DoneDdls
from penstock.changefeeds.sinks.sink import FailingDispatcher
from penstock.errors import Corrupt, Denied, Fenced, Invalid, StaleRead, Unavailable
from penstock.follow.slices import Position
from support.ddlevents import alter_table, create_table, drop_table, table_schema, truncate_table
from support.sinkrecorder import RemoteDouble

A, B = table_schema(1), table_schema(2)


class Once:
    """Fails at the first of an operation, and counts how often it came."""

    def __init__(self, name: str, error: Exception) -> None:
        self.name = name
        self.error = error
        self.count = 0

    def __call__(self, name: str) -> None:
        if name == self.name:
            self.count += 1
            if self.count == 1:
                raise self.error


async def test_a_pause_writes_what_was_read_and_a_resume_repeats_nothing(world) -> None:
    w = world(A, sink_options={"write": False})
    for ts in (20, 30, 40):
        w.source.put(1, ts)
    w.source.advance(50)
    w.start()
    await w.until(lambda: "dml 1 30..50" in w.log)
    await w.pause()
    assert w.progress.checkpoints[-1] == w.remote.checkpoints[-1] == 50
    w.source.put(1, 60)
    w.source.advance(70)
    w.start()
    await w.until(lambda: "dml 1 50..70" in w.log)
    await w.pause()
    assert w.rows() == [(1, ts, b"row") for ts in (20, 30, 40, 60)]


async def test_a_pause_while_a_ddl_waits_leaves_it_for_the_resume(world) -> None:
    w = world(A, B)
    w.source.put(1, 20)
    w.source.ddl(alter_table(30, A))
    w.source.lagging[1] = 25
    w.source.advance(50)
    w.start()
    await w.reached(25)
    await w.pause()
    assert not w.remote.ddls
    del w.source.lagging[1]
    w.start()
    await w.reached(50)
    assert len(w.remote.ddls) == 1
    assert w.rows() == [(1, 20, b"row")]


@pytest.mark.parametrize("moment", ["begin_files", "begun_files", "write_file", "wrote_file"])
async def test_a_kill_around_a_file_loses_and_repeats_nothing(world, moment: str) -> None:
    w = world(A, give_up_s=0.0)
    for ts in (20, 30, 40):
        w.source.put(1, ts)
    w.source.advance(50)
    fault = Once(moment, OSError("killed"))
    w.progress.fault = fault
    w.sink_options = {"fault": fault}
    w.start()
    with pytest.raises(OSError, match="killed"):
        await w.task
    assert w.progress.checkpoints[-1] < 40
    w.start()
    await w.reached(50)
    assert fault.count
    assert w.rows() == [(1, ts, b"row") for ts in (20, 30, 40)]


@pytest.mark.parametrize("moment", ["write_block_event", "wrote_block_event", "change_dispatchers"])
async def test_a_crash_before_the_dispatchers_are_kept_writes_the_ddl_again(world, moment: str) -> None:
    w = world(A, give_up_s=0.0)
    w.source.put(1, 20)
    w.source.advance(25)
    w.start()
    await w.reached(25)
    await w.pause()
    w.source.ddl(truncate_table(30, A, 7))
    w.source.put(7, 40)
    w.source.advance(50)
    fault = Once(moment, OSError("killed"))
    w.progress.fault = fault
    w.sink_options = {"fault": fault}
    w.start()
    with pytest.raises(OSError, match="killed"):
        await w.task
    assert [each.span.table_id for each in w.progress.kept.values()] == [1]
    assert (7, 40, b"row") not in w.rows()
    assert w.progress.checkpoints[-1] <= 29
    w.start()
    await w.reached(50)
    assert w.rows() == [(1, 20, b"row"), (7, 40, b"row")]
    assert [each.span.table_id for each in w.progress.kept.values()] == [7]


async def test_a_crash_after_the_dispatchers_are_kept_does_not_write_the_ddl_again(world) -> None:
    w = world(A, give_up_s=0.0)
    w.source.put(1, 20)
    w.source.advance(25)
    w.start()
    await w.reached(25)
    await w.pause()
    w.source.ddl(truncate_table(30, A, 7))
    w.source.put(7, 40)
    w.source.advance(50)
    w.progress.fault = Once("changed_dispatchers", OSError("killed"))
    w.start()
    with pytest.raises(OSError, match="killed"):
        await w.task
    assert w.progress.done_ddl_ts == 30
    w.start()
    await w.reached(50)
    assert [each.commit_ts for each in w.remote.ddls] == [30]
    assert w.rows() == [(1, 20, b"row"), (7, 40, b"row")]


async def test_a_table_that_was_created_and_dropped_does_not_come_to_life_again(world) -> None:
    w = world(B)
    w.source.lagging[2] = 15
    w.source.ddl(create_table(20, A))
    w.source.put(1, 25)
    w.source.ddl(drop_table(30, A))
    w.source.advance(50)
    w.start()
    await w.until(lambda: w.progress.done_ddl_ts == 30)
    await w.kill()
    assert w.progress.checkpoints[-1] == 15
    del w.source.lagging[2]
    w.start()
    await w.reached(50)
    assert w.rows() == [(1, 25, b"row")]
    assert [each.commit_ts for each in w.remote.ddls] == [20, 30]


async def test_a_dispatcher_goes_on_after_the_last_ddl_that_it_passed_although_its_last_file_is_older(
    world,
) -> None:
    w = world(A, B)
    w.source.lagging[2] = 15
    w.source.put(1, 20)
    w.source.advance(25)
    w.start()
    await w.until(lambda: bool(w.remote.files))
    w.source.ddl(alter_table(30, A))
    w.source.advance(35)
    await w.until(lambda: w.progress.done_ddl_ts == 30)
    await w.kill()
    w.source.put(1, 40)
    w.source.advance(50)
    w.start()
    await w.until(lambda: (1, 40, b"row") in w.rows())
    assert w.source.slice_calls[-1][1] == Position(29)
    assert w.rows() == [(1, 20, b"row"), (1, 40, b"row")]


@pytest.mark.parametrize("patterns", [("*.*",), ("shop.*",)])
async def test_ddls_that_were_done_before_earlier_ones_are_not_done_again(world, patterns) -> None:
    c, d, other = table_schema(3), table_schema(5), table_schema(4, "other.t")
    w = world(A, B, c, d, other, patterns=("shop.*",))
    w.source.lagging[1] = 12
    w.source.put(2, 15)
    w.source.ddl(alter_table(20, A))
    w.source.ddl(alter_table(22, d))
    w.source.ddl(truncate_table(25, B, 7))
    w.source.ddl(create_table(30, table_schema(8)))
    w.source.ddl(drop_table(35, c))
    for table_id in (7, 8):
        w.source.put(table_id, 40)
    w.source.advance(50)
    w.start()
    later = frozenset({22, 25, 30, 35})
    await w.until(
        lambda: {(7, 40, b"row"), (8, 40, b"row")} <= set(w.rows()) and w.progress.done.later == later
    )
    await w.kill()
    assert w.progress.done == DoneDdls(10, later)
    assert w.progress.checkpoints[-1] == 12
    w.patterns = patterns
    w.source.put(5, 60)
    w.source.put(7, 60)
    w.source.advance(65)
    w.start()
    await w.until(lambda: {(5, 60, b"row"), (7, 60, b"row")} <= set(w.rows()))
    await w.settle()
    assert w.feed.checkpoint_ts == 12
    del w.source.lagging[1]
    await w.reached(65)
    *before, last = [event.commit_ts for event in w.remote.ddls]
    assert (sorted(before), last) == (sorted(later), 20)
    assert sorted(w.rows()) == [
        (table_id, ts, b"row") for table_id, ts in ((2, 15), (5, 60), (7, 40), (7, 60), (8, 40))
    ]
    assert {record.span.table_id for record in w.progress.kept.values()} - {4} == {1, 5, 7, 8}


async def test_the_same_dispatchers_come_back_after_a_restart(world) -> None:
    w = world(A, B)
    w.source.advance(20)
    w.start()
    await w.reached(20)
    before = dict(w.progress.kept)
    await w.kill()
    w.source.advance(30)
    w.start()
    await w.reached(30)
    assert w.progress.kept == before
    assert len(before) == 2


async def test_other_patterns_bring_tables_in_and_take_tables_out_at_the_next_start(world) -> None:
    w = world(A, B, patterns=("shop.t1",))
    w.source.put(2, 20)
    w.source.advance(30)
    w.start()
    await w.reached(30)
    await w.pause()
    w.patterns = ("shop.t2",)
    w.source.put(1, 40)
    w.source.put(2, 40)
    w.source.advance(50)
    w.start()
    await w.reached(50)
    assert w.rows() == [(2, 40, b"row")]
    assert [each.span.table_id for each in w.progress.kept.values()] == [2]


async def test_a_failed_sink_is_replaced_and_nothing_is_lost_or_repeated(world) -> None:
    w = world(A)
    w.source.put(1, 20)
    w.source.put(1, 30)
    w.source.advance(50)
    fault = Once("write_file", Unavailable("the remote is slow"))
    w.sink_options = {"fault": fault}
    w.start()
    await w.until(lambda: w.feed.state is ChangefeedState.WARNING)
    assert "the remote is slow" in w.feed.error
    await w.reached(50)
    assert len(w.sinks) == 2, "one failed, the other writes its file again and goes on"
    assert w.rows() == [(1, 20, b"row"), (1, 30, b"row")]
    assert w.feed.state is ChangefeedState.NORMAL
    assert not w.feed.error


async def test_a_sink_that_ends_by_itself_is_replaced(world) -> None:
    w = world(A)
    w.source.advance(20)
    w.start()
    await w.reached(20)
    await w.sink.close()
    w.source.put(1, 25)
    w.source.advance(30)
    await w.reached(30)
    assert len(w.sinks) == 2
    assert w.rows() == [(1, 25, b"row")]


async def test_a_source_or_a_store_that_does_not_answer_is_asked_again_without_a_new_sink(world) -> None:
    w = world(A)
    w.source.put(1, 20)
    w.source.ddl(alter_table(30, A))
    w.source.advance(50)
    names = (
        "read_progress",
        "next_slice",
        "hold",
        "kept_checkpoint",
        "changed_dispatchers",
        "wrote_block_event",
    )
    faults = [Once(each, Unavailable(each)) for each in names]

    def fault(name: str) -> None:
        for each in faults:
            each(name)

    await w.source.hold([1], 10)
    w.start()
    await w.until(lambda: bool(w.sinks))
    w.source.fault = w.progress.fault = w.sink.fault = fault
    await w.reached(50)
    assert all(each.count for each in faults)
    assert len(w.sinks) == 1
    assert [each.commit_ts for each in w.remote.ddls] == [30, 30]  # the same file again
    assert w.rows() == [(1, 20, b"row")]


async def test_it_gives_up_after_half_an_hour_without_progress(world) -> None:
    w = world(A)
    w.source.put(1, 20)
    w.source.advance(50)

    def fault(name: str) -> None:
        if name == "write_file":
            raise Unavailable("no bucket")

    w.sink_options = {"fault": fault}
    w.start()
    with pytest.raises(Unavailable, match="no bucket"):
        await w.task
    assert w.feed.state is ChangefeedState.FAILED
    assert 1800 <= w.clock.now < 2000
    assert len(w.sinks) == 2, "the second one tries to write the file again and again"
    assert w.progress.checkpoints[-1] == 10


@pytest.mark.parametrize(
    "error",
    [
        Invalid("no such column"),
        Corrupt("a bad object"),
        Fenced("somebody else runs it"),
        StaleRead("shop.t1", 5, oldest_ts=9),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_it_gives_up_at_once_when_trying_again_cannot_help(world, error: Exception) -> None:
    w = world(A)
    w.source.put(1, 20)
    w.source.advance(50)
    w.source.fault = Once("next_slice", error)
    w.start()
    with pytest.raises(type(error)):
        await w.task
    assert w.feed.state is ChangefeedState.FAILED
    assert type(error).__name__ in w.feed.error
    assert len(w.sinks) == 1
    w.start()
    await w.reached(50)


@pytest.mark.parametrize("moment", ["write_file", "write_block_event", "tell", "hold"])
async def test_credentials_that_are_refused_for_a_while_end_nothing(world, moment: str) -> None:
    w = world(A)
    w.source.put(1, 20)
    w.source.ddl(alter_table(30, A))
    w.source.put(1, 35)
    w.source.advance(50)
    fault = Once(moment, Denied("storage refuses to look for shop/t1 (403); check its credentials"))
    w.sink_options = {"fault": fault}
    w.source.fault = fault
    w.start()
    await w.until(lambda: w.feed.state is ChangefeedState.WARNING)
    assert "check its credentials" in w.feed.error
    await w.reached(50)
    w.source.advance(60)
    await w.until(lambda: w.feed.state is ChangefeedState.NORMAL)
    assert w.rows() == [(1, 20, b"row"), (1, 35, b"row")]


async def test_credentials_that_are_refused_for_good_fail_it_after_half_an_hour(world) -> None:
    w = world(A)
    w.source.put(1, 20)
    w.source.advance(50)

    def fault(name: str) -> None:
        if name == "write_file":
            raise Denied("storage refuses it; check its credentials")

    w.sink_options = {"fault": fault}
    w.start()
    with pytest.raises(Denied):
        await w.task
    assert w.feed.state is ChangefeedState.FAILED
    assert 1800 <= w.clock.now < 2000


async def test_a_pause_gets_through_although_the_sink_cannot_write(world) -> None:
    w = world(A, sink_options={"write": False})
    w.source.put(1, 20)
    w.source.advance(50)
    w.start()
    await w.until(lambda: bool(w.log))
    w.progress.fault = Once("begin_files", Unavailable("gone"))
    await w.pause()
    assert w.progress.checkpoints[-1] == 10
    w.start()
    await w.until(lambda: w.log.count("dml 1 10..50") == 2)
    await w.pause()
    assert w.rows() == [(1, 20, b"row")]


async def test_a_pause_gets_through_whatever_fails_at_its_end(world, monkeypatch) -> None:
    w = world(A)
    w.source.advance(50)
    w.start()
    await w.reached(50)
    monkeypatch.setattr(w.remote, "write_checkpoint", lambda _: 1 / 0)
    await w.pause()
    assert len(w.sinks) == 1


async def test_history_is_held_at_the_kept_checkpoint_and_for_tables_that_are_to_come(world) -> None:
    w = world(B)
    w.source.lagging[2] = 15
    w.source.ddl(alter_table(20, B))
    w.source.ddl(create_table(30, A))
    w.source.advance(50)
    w.start()
    await w.until(lambda: 1 in w.source.held)
    assert not w.remote.ddls
    del w.source.lagging[2]
    await w.reached(50)
    await w.until(lambda: w.source.held == {1: 50, 2: 50})


def moved(w, location: str = "elsewhere"):
    """Give the changefeed another place; return the one that it leaves."""
    left, w.remote = w.remote, RemoteDouble(location)
    return left


async def test_another_place_gets_everything_after_the_checkpoint(world) -> None:
    w = world(A, B)
    w.source.lagging[2] = 15  # it holds the checkpoint
    w.source.put(1, 12)
    w.source.put(1, 20)
    w.source.advance(25)
    w.start()
    await w.until(lambda: (1, 20, b"row") in w.rows())
    w.source.put(1, 30)
    w.source.advance(40)
    await w.until(lambda: (1, 30, b"row") in w.rows())
    await w.kill()
    assert w.progress.checkpoints[-1] == 15
    left = moved(w)
    del w.source.lagging[2]
    w.source.put(1, 50)
    w.source.put(2, 16)
    w.source.advance(60)
    w.start()
    await w.reached(60)
    assert sorted(w.rows()) == [(1, 20, b"row"), (1, 30, b"row"), (1, 50, b"row"), (2, 16, b"row")]
    assert len(left.files) == 2, "it is left as it was"
    assert w.remote.checkpoints[0] >= 15


async def test_ddls_after_the_checkpoint_are_told_at_another_place_too(world) -> None:
    w = world(A, B)
    w.source.lagging[2] = 15
    w.source.put(1, 20)
    w.source.ddl(truncate_table(30, A, 7))
    w.source.put(7, 35)
    w.source.advance(40)
    w.start()
    await w.until(lambda: (7, 35, b"row") in w.rows())
    await w.settle()
    assert w.source.held[1] <= 15, "its rows before the DDL are needed as long as the checkpoint is there"
    await w.kill()
    assert w.progress.done_ddl_ts == 30
    moved(w)
    del w.source.lagging[2]
    w.source.advance(60)
    w.start()
    await w.reached(60)
    assert [each.commit_ts for each in w.remote.ddls] == [30]
    assert sorted(w.rows()) == [(1, 20, b"row"), (7, 35, b"row")]
    await w.until(lambda: 1 not in w.source.held)


async def test_a_snapshot_that_was_not_complete_begins_anew_at_another_place(world) -> None:
    w = world(A, begin=Position(10, b""))
    w.source.put(1, 5, *(b"%03d" % each for each in range(6)))
    w.source.advance(50)
    w.start()
    await w.until(lambda: len(w.rows()) == 4)
    await w.kill()
    moved(w)
    w.start()
    await w.reached(50)
    assert w.rows() == [(1, 10, b"%03d" % each) for each in range(6)]


async def test_the_place_that_was_left_is_not_taken_up_again(world) -> None:
    w = world(A)
    w.source.put(1, 20)
    w.source.advance(25)
    w.start()
    await w.reached(25)
    await w.pause()
    left = moved(w)
    w.source.advance(30)
    w.start()
    await w.reached(30)
    await w.pause()
    w.remote, kept = left, dict(w.progress.kept)
    w.start()
    with pytest.raises(Invalid, match="holds files of a changefeed already"):
        await w.task
    assert w.feed.state is ChangefeedState.FAILED
    assert (w.progress.place, w.progress.kept) == ("elsewhere", kept)


async def test_one_that_an_earlier_release_has_begun_goes_on_where_it_is(world) -> None:
    w = world(A)
    w.source.put(1, 20)
    w.source.advance(25)
    w.start()
    await w.reached(25)
    await w.pause()
    w.progress.place = None  # nobody kept it
    before = dict(w.progress.kept)
    w.source.put(1, 28)
    w.source.advance(30)
    w.start()
    await w.reached(30)
    assert w.progress.place == "remote"
    assert w.progress.kept.keys() == before.keys()
    assert w.rows() == [(1, 20, b"row"), (1, 28, b"row")]


async def test_a_dispatcher_whose_file_hangs_after_a_restart_keeps_no_other_waiting(world) -> None:
    w = world(A, B)
    for table_id in (1, 2):
        w.source.put(table_id, 20)
    w.source.advance(50)
    w.progress.fault = Once("begun_files", OSError("killed"))
    w.sink_options = {"write": False}
    w.start()
    await w.until(lambda: {"dml 1 10..50", "dml 2 10..50"} <= set(w.log))
    (first,) = (key for key, record in w.progress.kept.items() if record.span.table_id == 1)
    with pytest.raises(OSError, match="killed"):
        await w.sink.flush(first)
    await w.kill()
    hanging = w.remote.hanging[1] = asyncio.Event()
    w.sink_options = {}
    w.source.put(2, 60)
    w.source.advance(70)
    w.start()
    await w.until(lambda: {(2, 20, b"row"), (2, 60, b"row")} <= set(w.rows()))
    await w.settle()
    assert w.rows() == [(2, 20, b"row"), (2, 60, b"row")]
    assert w.progress.checkpoints[-1] == 10
    hanging.set()
    await w.reached(70)
    assert sorted(w.rows()) == [(1, 20, b"row"), (2, 20, b"row"), (2, 60, b"row")]


async def test_a_file_may_have_any_size_after_a_try_to_write_it_again_has_failed(world) -> None:
    w = world(A)
    w.source.put(1, 20)
    w.source.advance(50)
    w.progress.fault = Once("begun_files", OSError("killed"))
    w.sink_options = {"write": False}
    w.start()
    await w.until(lambda: "dml 1 10..50" in w.log)
    (dispatcher,) = w.progress.kept
    with pytest.raises(OSError, match="killed"):
        await w.sink.flush(dispatcher)
    await w.kill()
    record = w.progress.kept[dispatcher]
    sized = replace(record.pending[0], nbytes=679)
    w.progress.kept[dispatcher] = replace(record, pending=(sized,))
    w.sink_options = {"fault": Once("write_file", Unavailable("the answer is lost"))}
    w.start()
    await w.reached(50)
    assert [file.nbytes for file in w.remote.repaired] == [679, 0]


async def test_a_file_that_fails_for_long_warns_while_others_move_and_fails_when_nothing_moves(world) -> None:
    w = world(A, B)
    w.source.put(1, 20)
    w.source.advance(50)
    failing = FailingDispatcher(Unavailable("no bucket\nsecond line"), 0.0)
    w.sink_options = {"write": False}
    w.start()
    await w.until(lambda: "dml 1 10..50" in w.log)
    w.sink.failing["1"] = failing
    ts = 50
    while w.clock.now < 3000:
        ts += 10
        w.source.put(2, ts)
        w.source.advance(ts + 5)
        await w.until(lambda: any(line.endswith(f"..{ts + 5}") for line in w.log))  # noqa: B023
        await w.sink.flush(next(key for key in w.sink.events if key != next(iter(w.sink.events))))
        w.clock.now += 600
        await w.settle()
    assert w.feed.state is ChangefeedState.WARNING
    assert w.feed.warning == (
        "files of 1 dispatcher cannot be written now and are tried again, the others go on: no bucket"
    )
    with pytest.raises(Unavailable, match="no bucket"):
        await w.task
    assert w.feed.state is ChangefeedState.FAILED
