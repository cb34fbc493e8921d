"""Slices that go into a file without the spool: those that are due anyway, and those that fill a file."""

import asyncio
import threading

import pytest

from penstock.changefeeds.engines.engine import DirectFile, DirectResult, FileWork
from penstock.changefeeds.filters import RowFilterRule
from penstock.changefeeds.model import PendingFile
from penstock.errors import Corrupt, Invalid, Unavailable
from penstock.follow.slices import Position
from penstock.testing.clock import ManualClock
from support.sinkparts import RowlessEngine, SinkWorld, slice_of


async def test_a_slice_that_is_due_is_in_a_file_at_once() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.add(1, 5, flush=True)
        await world.until(lambda: world.told == ["d1@5 woken", "d1@5 flushed"])
        assert world.engine.encode_jobs == []
        assert [file.data_path for file in world.engine.files] == world.engine.made


async def test_a_slow_file_does_not_keep_those_of_others_waiting() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.engine.slow.add("1")
        world.add(1, 5, flush=True)
        world.add(2, 5, flush=True)
        await world.until(lambda: "d2@5 flushed" in world.told)
        world.add(2, 6, flush=True)
        await world.until(lambda: "d2@6 flushed" in world.told)
        assert "d1@5 flushed" not in world.told
        world.engine.slow.clear()
        await world.until(lambda: "d1@5 flushed" in world.told)


async def test_a_dispatcher_whose_schema_file_hangs_keeps_no_file_of_others_waiting() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        answers = world.files.silent["1"] = threading.Event()
        try:
            for number in range(1, 9):
                world.add(number, 5, flush=True)
            await world.until(lambda: all(f"d{number}@5 flushed" in world.told for number in range(2, 9)))
            assert "d1@5 flushed" not in world.told
            world.add(2, 6, flush=True)
            await world.until(lambda: "d2@6 flushed" in world.told)
        finally:
            answers.set()
        await world.until(lambda: "d1@5 flushed" in world.told)


async def test_a_sink_ends_while_a_schema_file_hangs_and_nothing_of_it_happens_later() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        answers = world.files.silent["1"] = threading.Event()
        world.add(1, 5, flush=True)
        world.add(2, 5, flush=True)
        await world.until(lambda: "d2@5 flushed" in world.told)
        world.files.error = Invalid("the remote refuses the schema file")
        answers.set()
        world.add(3, 5, flush=True)
        with pytest.raises(Invalid):
            await world.run()
        assert "d3@5 flushed" not in world.told


async def test_slices_that_come_while_a_file_is_made_share_the_next_one() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.engine.writing.shut()
        world.add(1, 5, flush=True)
        await world.until(lambda: world.engine.writing.waiting == 1)
        world.add(1, 6, 10, flush=True)
        world.add(1, 7, 10, flush=True)
        await world.until(lambda: "d1@7 woken" in world.told)
        world.engine.writing.open()
        await world.until(lambda: "d1@7 flushed" in world.told)
        assert [len(file.chunks) for file in world.engine.files] == [1, 2]


async def test_a_due_slice_joins_what_its_dispatcher_has_in_the_spool() -> None:
    clock = ManualClock()
    async with SinkWorld(clock=clock) as world:
        world.add(1, 5)
        await world.until(lambda: "d1@5 woken" in world.told)
        world.add(1, 6, flush=True)
        await world.until(lambda: "d1@6 woken" in world.told)
        await world.settle()
        assert not world.engine.files
        await world.until_after(5, lambda: "d1@6 flushed" in world.told)
        assert (len(world.engine.files), world.engine.made) == (1, [])


async def test_a_slice_that_fills_a_file_skips_the_spool_once_its_size_is_known() -> None:
    async with SinkWorld(clock=ManualClock(), spool_disk_quota=1_000_000) as world:
        for ts in range(1, 21):
            world.add(1, ts, 1000)
            await world.until(lambda: f"d1@{ts} flushed" in world.told)  # noqa: B023 - awaited at once
        assert len(world.engine.files) == 20
        assert 0 < len(world.engine.encode_jobs) < 10
        assert world.sink.slice_size(world.span(1)).file_bytes == pytest.approx(1000, rel=0.1)


async def test_one_dispatcher_alone_has_several_files_under_way_on_several_cores() -> None:
    engine = RowlessEngine(cores=2)
    async with SinkWorld(engine=engine, clock=ManualClock(), spool_disk_quota=1_000_000) as world:
        for ts in range(1, 4):
            world.add(1, ts, 1000)
            await world.until(lambda: f"d1@{ts} flushed" in world.told)  # noqa: B023 - awaited at once
        engine.writing.shut()
        for ts in range(4, 24):
            world.add(1, ts, 1000)
        await world.until(lambda: engine.writing.waiting == 8)
        stored = world.progress.pending["1"]
        assert [(file.start.ts, file.end.ts, file.followed) for file in stored] == [
            (ts - 1, ts, True) for ts in range(4, 12)
        ]
        engine.writing.open()
        await world.until(lambda: "d1@23 flushed" in world.told)
        assert engine.made_at_once == 8
        flushed = [told for told in world.told if told.endswith("flushed")]
        assert flushed == [f"d1@{ts} flushed" for ts in range(1, 24)]
        befores = [file.after for file in engine.files[3:]]
        paths = [file.data_path for file in engine.files[2:]]
        assert all(not before or before == path for before, path in zip(befores, paths, strict=False))


async def test_a_marker_waits_for_every_file_that_is_under_way() -> None:
    engine = RowlessEngine(cores=2)
    async with SinkWorld(engine=engine, clock=ManualClock(), spool_disk_quota=1_000_000) as world:
        for ts in range(1, 4):
            world.add(1, ts, 1000)
            await world.until(lambda: f"d1@{ts} flushed" in world.told)  # noqa: B023 - awaited at once
        engine.writing.shut()
        for ts in range(4, 8):
            world.add(1, ts, 1000)
        await world.until(lambda: engine.writing.waiting == 4)
        drained = world.drain(1, 9)
        await world.settle()
        assert not drained.done()
        engine.writing.open()
        await drained
        assert "d1@7 flushed" in world.told


async def test_one_dispatcher_with_a_row_filter_uses_the_spool_where_many_tasks_encode() -> None:
    engine = RowlessEngine(cores=2)
    rules = (RowFilterRule(("shop.other",), "id > 5"),)
    async with SinkWorld(
        engine=engine, clock=ManualClock(), spool_disk_quota=1_000_000, row_filters=rules
    ) as world:
        for ts in range(1, 11):
            world.add(1, ts, 1000)
            await world.until(lambda: f"d1@{ts} flushed" in world.told)  # noqa: B023 - awaited at once
        assert world.engine.made == []
        size = world.sink.slice_size(world.span(1))
        assert (size.file_bytes > 1 << 50, size.tasks) == (True, 2), "many tasks share any slice"
        world.add(2, 11, 10)
        await world.until(lambda: "d2@11 woken" in world.told)
        world.add(1, 11, 1000)
        await world.until(lambda: "d1@11 flushed" in world.told)
        assert len(world.engine.made) == 1


async def test_a_filter_that_leaves_nothing_for_long_does_not_end_the_sink() -> None:
    engine = RowlessEngine(sizes=lambda piece: [piece.nbytes] if piece.end.ts <= 3 else [])
    rules = (RowFilterRule(("shop.items",), "id > 5"),)
    async with SinkWorld(
        engine=engine, clock=ManualClock(), spool_disk_quota=1_000_000, row_filters=rules
    ) as world:
        for ts in range(1, 40):
            world.add(1, ts, 6400)
            await world.until(lambda: f"d1@{ts} woken" in world.told)  # noqa: B023 - awaited at once
        assert world.sink.slice_size(world.span(1)).file_bytes > 1_000_000


async def test_a_slice_without_rows_leaves_no_file_and_no_hole() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.add(1, 5, flush=True, rows=0)
        await world.until(lambda: "d1@5 flushed" in world.told)
        assert not world.engine.files
        world.add(1, 6, flush=True)
        await world.until(lambda: "d1@6 flushed" in world.told)


async def test_the_first_file_of_a_folder_has_rows_also_where_others_are_behind_it() -> None:
    engine = RowlessEngine(cores=2)
    async with SinkWorld(engine=engine, clock=ManualClock(), spool_disk_quota=1_000_000) as world:
        for ts in range(1, 4):
            world.add(1, ts, 1000)
            await world.until(lambda: f"d1@{ts} flushed" in world.told)  # noqa: B023 - awaited at once
        world.files.begin_folder("1")
        begun = len(engine.files)
        for ts in range(4, 24):
            world.add(1, ts, 1000, rows=0 if ts in {4, 5, 9} else 1)
        await world.until(lambda: "d1@23 flushed" in world.told)
        files = engine.files[begun:]
        assert [number_of(file) for file in files] == list(range(1, 19))
        assert [number_of(file) for file in files if not file.chunks] == [4]
        assert [told for told in world.told if told.endswith("flushed")][3:] == [
            f"d1@{ts} flushed" for ts in range(4, 24)
        ]


def number_of(file: FileWork) -> int:
    return int(file.data_path.rpartition("CDC")[2].removesuffix(".json"))


async def test_what_is_coming_is_kept_before_a_file_is_made() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.engine.writing.shut()
        world.add(1, 5, flush=True)
        await world.until(lambda: world.engine.writing.waiting == 1)
        ((pending,),) = world.progress.begun
        assert (pending.start.ts, pending.end.ts, pending.nbytes) == (4, 5, 0)
        world.engine.writing.open()


async def test_a_file_that_cannot_be_made_now_is_made_later_and_nobody_else_waits() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.engine.failing.add("1")
        world.add(1, 5, flush=True)
        await world.until(lambda: "1" in world.sink.failing)
        assert "could not be written: the remote refused it" in str(world.sink.failing["1"].error)
        for ts in (5, 6, 7):
            world.add(2, ts, flush=True)
            await world.until(lambda: f"d2@{ts} flushed" in world.told)  # noqa: B023 - awaited at once
        assert "d1@5 flushed" not in world.told
        world.engine.failing.clear()
        await world.until_after(60, lambda: "d1@5 flushed" in world.told)
        assert not world.sink.failing
        (written,) = [file for file in world.engine.files if file.dispatcher_id == "1"]
        assert [file.data_path for file in world.progress.pending["1"]] == [written.data_path]
        assert len({task.options.encoded_at_ms for task in world.engine.tried["1"]}) == 1, "the same bytes"


async def test_what_comes_after_a_file_that_failed_is_made_after_it() -> None:
    engine = RowlessEngine(cores=2)
    async with SinkWorld(engine=engine, clock=ManualClock(), spool_disk_quota=1_000_000) as world:
        for ts in range(1, 4):
            world.add(1, ts, 1000)
            await world.until(lambda: f"d1@{ts} flushed" in world.told)  # noqa: B023 - awaited at once
        engine.failing.add("1")
        for ts in range(4, 8):
            world.add(1, ts, 1000)
        await world.until(lambda: "1" in world.sink.failing)
        await world.settle()
        engine.failing.clear()
        await world.until_after(60, lambda: "d1@7 flushed" in world.told)
        assert [told for told in world.told if told.endswith("flushed")] == [
            f"d1@{ts} flushed" for ts in range(1, 8)
        ]


async def test_a_failure_that_is_final_ends_the_sink() -> None:
    world = SinkWorld(clock=ManualClock())
    running = world.run()

    async def make_file(_: DirectFile) -> DirectResult:
        return DirectResult(failure=Corrupt("the object exists with other content"))

    world.engine.make_file = make_file
    world.add(1, 5, flush=True)
    with pytest.raises(Corrupt, match="other content"):
        await running
    assert "d1@5 flushed" not in world.told
    await world.sink.close()


async def test_a_sink_that_is_closed_writes_what_it_can_and_tells_what_it_cannot() -> None:
    world = SinkWorld(clock=ManualClock())
    running = world.run()
    world.engine.failing.add("1")
    world.add(1, 5, flush=True)
    await world.until(lambda: "1" in world.sink.failing)
    world.add(2, 5)
    await world.until(lambda: "d2@5 woken" in world.told)
    await world.sink.close()
    with pytest.raises(Unavailable, match="the remote refused it"):
        await running
    assert [told for told in world.told if told.endswith("flushed")] == ["d2@5 flushed"]


async def test_the_spool_counts_what_is_expected_and_wakes_nobody_beyond_its_mark() -> None:
    async with SinkWorld(clock=ManualClock(), spool_disk_quota=10_000) as world:
        world.engine.writing.shut()
        for number in range(1, 15):
            world.add(number, 5, 90, flush=True)  # 900 bytes are expected
        await world.until(lambda: world.engine.writing.waiting >= 8)
        await world.settle()
        woken = [name for name in world.told if name.endswith("woken")]
        assert 8 <= len(woken) < 14
        world.engine.writing.open()
        await world.until(lambda: sum(name.endswith("flushed") for name in world.told) == 14)


def pending(number: int) -> PendingFile:
    return PendingFile(str(number), f"{number}/1", f"{number}/index", Position(4), Position(5))


async def test_files_of_many_dispatchers_are_written_again_by_few_transactions_and_at_once() -> None:
    async with SinkWorld(clock=ManualClock()) as world:
        world.engine.writing.shut()
        written = [
            asyncio.ensure_future(world.sink.write_again([(pending(n), [slice_of(n, 5)])]))
            for n in range(600)
        ]
        await world.until(lambda: world.engine.writing.waiting == 600)
        assert len(world.progress.begun) <= 4
        assert sum(map(len, world.progress.begun)) == 600
        assert max(map(len, world.progress.begun)) <= 512
        world.engine.writing.open()
        await asyncio.gather(*written)
        assert {file.data_path for file in world.engine.files} == {f"{n}/1" for n in range(600)}
