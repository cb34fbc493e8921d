"""Looking at many tables: one call of each capture; objects where there is no capture; holds on storage."""

from pathlib import Path

import pytest

from penstock.clock import SYSTEM
from penstock.errors import Unavailable
from penstock.eventstore.capture.flight_service import FlightService
from penstock.eventstore.history_holds import HistoryHolds
from penstock.eventstore.manifest import BEGUN
from penstock.eventstore.read.partition import Refusal
from penstock.follow import progress
from penstock.follow.progress import OBJECTS_S
from penstock.follow.source import ReadableRange
from penstock.tables.keys import encode_handle
from support.itemtables import item, item_table
from support.metaevents import a_table, put_table, remove_table
from support.sourceworld import SourceWorld


async def test_a_thousand_tables_are_looked_at_in_one_call(tmp_path: Path) -> None:
    ids = tuple(range(1, 1001))
    with SourceWorld(tmp_path, item_table(partitions=ids), partitions=ids, url="memory:///looks") as world:
        first = world.commit(item("integer", 1, "a"), into=3)
        last = world.commit(item("integer", 2, "a"), into=999)
        world.tick(10)
        world.resolve()
        async with world.source() as source:
            looks = await source.read_progress(ids)
            assert world.asked == ["progress"]
            assert looks.keys() == set(ids)
            assert looks[4] == ReadableRange(world.ts, first)
            assert looks[1000] == ReadableRange(world.ts, last)
            assert looks[7] == ReadableRange(world.ts, 0)
            started = SYSTEM.monotonic()
            await source.read_progress(ids)
            assert SYSTEM.monotonic() - started < 1


async def test_a_table_that_was_dropped_before_anybody_captured_it_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "MISSED_S", 0.0)
    with SourceWorld(tmp_path, item_table()) as world:
        world.resolve()
        world.meta += [
            put_table(3, a_table(77, name="u")),
            put_table(3, a_table(78, name="v")),
            remove_table(4, 77),
        ]
        async with world.source() as source:
            found = await source.read_progress([1, 77, 78])
            assert found.keys() == {1, 77, 78}
            assert found[77] == ReadableRange(source.ddl_resolved_ts(), 0)
            assert found[78] == ReadableRange(0, 0, uncaptured=True)
        world.addrs = ["127.0.0.1:1"]  # somebody who does not answer may have it
        async with world.source() as source:
            assert await source.read_progress([77]) == {77: ReadableRange(0, 0, uncaptured=True)}


async def test_a_table_that_its_capture_refuses_is_read_as_far_as_it_was_flushed_and_says_why(
    tmp_path: Path,
) -> None:
    refusals: list[Refusal] = []
    with SourceWorld(tmp_path, item_table()) as world:
        world.flight.close()
        world.flight = FlightService("127.0.0.1:0", world.store, world.reader, refusals=lambda: refusals)
        world.addrs = [world.flight.addr]
        changed = world.commit(item("integer", 1, "a"))
        world.tick(6)
        first = world.flush()
        world.meta.append(put_table(3, a_table(78, name="v")))
        async with world.source() as source:
            assert await source.read_progress([1]) == {1: ReadableRange(world.ts, changed)}
            refusals += [Refusal(1, "somebody else's", 5), Refusal(78, "its type is unknown", 6)]
            found = await source.read_progress([1, 78])
            assert found[1].refusal is None, "whoever captures a table knows better than who does not"
            assert found[78] == ReadableRange(0, 0, refusal=refusals[1])
            with pytest.raises(Unavailable, match="cannot be captured: its type is unknown"):
                await source.split_points(78, world.ts, 10)
        later = world.commit(item("integer", 2, "a"))
        world.resolve()
        last = world.flush()
        assert first < last
        world.store.close_table(1)
        async with world.source() as source:
            assert await source.read_progress([1]) == {1: ReadableRange(last, later, refusal=refusals[0])}


async def test_what_was_flushed_just_before_a_refusal_counts(tmp_path: Path) -> None:
    refusals: list[Refusal] = []
    with SourceWorld(tmp_path, item_table()) as world:
        world.flight.close()
        world.flight = FlightService("127.0.0.1:0", world.store, world.reader, refusals=lambda: refusals)
        world.addrs = [world.flight.addr]
        world.commit(item("integer", 1, "a"))
        world.tick(6)
        first = world.flush()
        later = world.commit(item("integer", 2, "a"))
        world.resolve()
        async with world.source() as source:
            world.addrs = ["127.0.0.1:1"]  # between a capture that gives up a table and its flush
            assert (await source.read_progress([1]))[1].readable_ts == first
            last = world.flush()
            world.store.close_table(1)
            world.addrs = [world.flight.addr]
            refusals.append(Refusal(1, "its type is unknown", later + 1))
            assert await source.read_progress([1]) == {1: ReadableRange(last, later, refusal=refusals[0])}


async def test_the_newest_change_is_known_whatever_happens_to_the_rows(tmp_path: Path) -> None:
    with SourceWorld(tmp_path, item_table()) as world:
        for number in range(20):
            changed = world.commit(item("integer", 1, f"{number}"))
            world.tick(4)
            world.flush()
        async with world.source() as source:
            assert await source.read_progress([1]) == {1: ReadableRange(world.ts, changed)}
            world.tick(4)
            world.flush()
            world.store.merge(1)
            assert await source.read_progress([1]) == {1: ReadableRange(world.ts, changed)}
        world.flight.close()
        world.crash()
        world.resolve()
        world.flight = FlightService("127.0.0.1:0", world.store, world.reader)
        world.addrs = [world.flight.addr]
        changed = world.commit(item("integer", 2, "x"), deliver=False)
        async with world.source() as source:
            before = (await source.read_progress([1]))[1]
            assert before.readable_ts < changed
            assert changed > before.changed_ts >= changed - 20 * 6
            world.deliver()
            world.tick()
            world.resolve()
            assert await source.read_progress([1]) == {1: ReadableRange(world.ts, changed)}


async def test_history_that_was_never_captured_counts_as_changed(tmp_path: Path) -> None:
    with SourceWorld(tmp_path, item_table()) as world:
        changed = world.commit(item("integer", 1, "a"))
        begun = world.tick(10)
        world.resolve()
        async with world.source() as source:
            assert (await source.read_progress([1]))[1].changed_ts == changed
            world.store.record_fact(1, {"kind": BEGUN, "ts": begun})
            assert (await source.read_progress([1]))[1].changed_ts == begun
        world.flush()
        assert world.manifest().changed_ts == begun


async def test_what_a_capture_that_is_away_left_is_told_by_its_objects(tmp_path: Path) -> None:
    with SourceWorld(tmp_path, item_table()) as world:
        changed = world.commit(item("integer", 1, "a"))
        world.tick(6)
        flushed = world.flush()
        world.commit(item("integer", 2, "a"))
        world.resolve()
        async with world.source() as source:
            assert (await source.read_progress([1, 99]))[1].readable_ts == world.ts
            world.flight.close()
            assert await source.read_progress([1, 99]) == {1: ReadableRange(flushed, changed)}
            world.flush()
            assert await source.read_progress([1, 99]) == {1: ReadableRange(flushed, changed)}, (
                f"asked again within {OBJECTS_S}"
            )


async def test_history_is_held_for_the_changefeed_and_released(tmp_path: Path) -> None:
    with SourceWorld(tmp_path, item_table()) as world:
        marks = HistoryHolds(world.storage.open())
        async with world.source() as source:
            await source.hold([1, 2], world.ts)
            assert [marks.lowest_ts(each) for each in (1, 2, 3)] == [world.ts, world.ts, None]
            (held,) = marks.list_holds(1)
            assert "changefeed-feed" in held.path
            assert held.expires_at_ms is not None
            await source.hold([1, 2, 3], world.ts + 1)
            assert [marks.lowest_ts(each) for each in (1, 2, 3)] == [world.ts, world.ts, world.ts + 1]
            await source.release([1, 3])
            assert [marks.lowest_ts(each) for each in (1, 2, 3)] == [None, world.ts, None]
            await source.hold([1], 0)
            assert marks.lowest_ts(1) is None


@pytest.mark.parametrize("rows", [100, 2000])
async def test_a_table_is_divided_by_its_handles(tmp_path: Path, rows: int) -> None:
    with SourceWorld(tmp_path, item_table()) as world:
        for first in range(0, 1000, 250):
            world.commit(*(item("integer", first + each, "a") for each in range(250)))
            world.flush()
        async with world.source() as source:
            cuts = await source.split_points(1, world.ts, rows)
            assert await source.now_ts() == world.ts
    assert cuts == sorted(set(cuts))
    assert len(cuts) == (9 if rows == 100 else 0)
    wanted = [encode_handle(each) for each in range(100, 1000, 100)]
    assert all(
        abs(int.from_bytes(a, "big") - int.from_bytes(b, "big")) < 30
        for a, b in zip(cuts, wanted, strict=False)
    )
