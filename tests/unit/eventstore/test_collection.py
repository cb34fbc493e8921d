"""Garbage collection: what goes, what stays, and what a reader is told."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock import metrics
from penstock.clock import SYSTEM, compose_ts
from penstock.errors import Corrupt, Fenced, Invalid, StaleRead, Unavailable
from penstock.eventstore import manifest_log, paths
from penstock.eventstore.history_holds import HistoryHolds
from penstock.eventstore.manifest import Archive, ManifestState, ObjectInfo
from penstock.eventstore.manifest_log import ManifestLog, Ownership, load
from penstock.eventstore.read.snapshot import plan_snapshot
from penstock.eventstore.upkeep import merge_policy
from penstock.eventstore.upkeep.gc import CollectPolicy
from penstock.object_storage import STAGING, ObjectStorage, StoredObject, open_storage
from penstock.testing.clock import ManualClock
from penstock.testing.versions import CopiedTable
from support.itemtables import item, item_table
from support.tableworld import TableWorld

NTH = count()
ROOT = paths.table_root(1)
HOUR_MS = 3_600_000
DAY_S = 24 * 3600


def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **upkeep: Any) -> TableWorld:
    monkeypatch.setattr(merge_policy, "_FANOUT", 2)
    url = f"memory:///collection-{next(NTH)}"
    return TableWorld(tmp_path, item_table(), url=url, upkeep={"history_ttl_s": 0, **upkeep})


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TableWorld]:
    """A table that keeps no history unless it is asked to."""
    with make(tmp_path, monkeypatch) as made:
        yield made


def merged(world: TableWorld) -> int:
    """Some changes, merged; returns when the last of them was committed."""
    for name in ("first", "second"):
        world.commit(*(item("integer", number, name) for number in range(4)))
        world.flush()
    assert world.store.merge(1)
    return world.ts


def files(world: TableWorld, folder: str = "") -> list[str]:
    return world.storage.open().names(f"{ROOT}/{folder}")


def check(world: TableWorld, from_ts: int) -> None:
    target = CopiedTable(world.versions.at(from_ts), from_ts, in_order=True, coalesced=False)
    target.take_all(world.changes(from_ts, world.ts, coalesce=False))
    assert target.rows == world.versions.at(world.ts) == world.snapshot(world.ts)


def test_history_without_a_watermark_goes_and_older_reads_are_stale(world: TableWorld) -> None:
    start = world.ts
    ts = merged(world)
    objects = len(files(world, "data/"))
    assert world.store.collect(1) > 0
    assert len(files(world, "data/")) == 1 < objects
    assert files(world, "tombstone/") == files(world, "archive/") == []
    assert world.manifest().oldest_ts == ts
    assert world.snapshot(ts) == world.versions.at(ts)
    with pytest.raises(StaleRead) as caught:
        world.snapshot(ts - 1)
    assert caught.value.oldest_ts == ts
    with pytest.raises(StaleRead):
        world.changes(start + 1, ts)
    world.commit(item("integer", 1, "third"), delete=[(2,)])
    world.flush()
    check(world, ts)


def test_history_that_a_watermark_needs_is_read_from_archives(world: TableWorld) -> None:
    begin = world.ts + 1
    watermarks = HistoryHolds(world.storage.open(), world.clock)
    watermarks.hold(1, "job/7", begin)
    ts = merged(world)
    assert world.store.collect(1) == 0
    state = world.manifest()
    assert (state.history_ts, state.oldest_ts, len(state.archives)) == (ts, 0, 1)
    assert len(state.objects) == 1
    check(world, begin)
    for moment in world.moments():
        assert world.snapshot(moment) == world.versions.at(moment)
    watermarks.hold(1, "another", ts)
    watermarks.release(1, "job/7")
    assert watermarks.lowest_ts(1) == ts
    assert world.store.collect(1) > 0
    assert world.snapshot(ts) == world.versions.at(ts)
    with pytest.raises(StaleRead):
        world.snapshot(begin)


def test_a_snapshot_planned_above_the_flushed_ts_is_planned_again_when_that_is_gone(
    world: TableWorld,
) -> None:
    world.commit(item("integer", 1, "flushed"))
    world.flush()
    ts = world.commit(item("integer", 2, "not flushed"))
    world.resolve()
    (part,) = plan_snapshot(world.view(), ts)
    world.flush()
    assert world.store.merge(1)
    assert world.store.collect(1) > 0
    with pytest.raises(Unavailable):
        list(part.read())
    assert world.snapshot(ts) == world.versions.at(ts)


def test_a_watermark_that_is_set_while_collection_waits_for_a_flush_holds(
    world: TableWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = world.ts + 1
    watermarks = HistoryHolds(world.storage.open(), world.clock)
    watermarks.hold(1, "first", begin)
    merged(world)
    world.store.collect(1)
    watermarks.release(1, "first")
    settle, calls = Ownership.settle, count()

    def flushed(ownership: Ownership) -> ManifestState:
        if next(calls) == 1:  # the first is for what is archived
            watermarks.hold(1, "second", begin)
        return settle(ownership)

    monkeypatch.setattr(Ownership, "settle", flushed)
    assert world.store.collect(1) == 0
    check(world, begin)


def test_a_watermark_that_expired_holds_nothing_and_goes_after_a_day(world: TableWorld) -> None:
    watermarks = HistoryHolds(world.storage.open(), world.clock)
    watermarks.hold(1, "crashed", 1, ttl_s=60)
    merged(world)
    assert world.store.collect(1) == 0
    world.clock.advance(60)
    assert watermarks.lowest_ts(1) is None
    assert world.store.collect(1) > 0
    assert len(files(world, "watermarks/")) == 1
    world.clock.advance(DAY_S)
    world.store.collect(1)
    assert files(world, "watermarks/") == []


def test_a_damaged_watermark_stops_collection(world: TableWorld) -> None:
    world.storage.open().write(paths.history_hold(ROOT, "job"), b'{"format": 1}')
    merged(world)
    with pytest.raises(Corrupt, match="watermarks/job"):
        world.store.collect(1)
    assert world.manifest().oldest_ts == 0


@pytest.mark.parametrize(("holder", "ts"), [("", 5), ("job", 0)])
def test_a_watermark_needs_a_holder_and_a_time(world: TableWorld, holder: str, ts: int) -> None:
    with pytest.raises(Invalid):
        HistoryHolds(world.storage.open()).hold(1, holder, ts)


def test_what_was_removed_within_the_time_to_live_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(tmp_path, monkeypatch, history_ttl_s=3600) as world:
        ts = merged(world)
        assert world.store.collect(1) == 0
        assert world.manifest().history_ts == 0
        world.tick(compose_ts(HOUR_MS))
        world.flush()
        assert world.store.collect(1) == 0
        assert world.manifest().history_ts == ts
        check(world, ts - 1)


def test_archives_are_kept_for_the_time_to_live_after_they_were_written() -> None:
    policy = CollectPolicy(ttl_ms=100, orphan_ms=1000)
    old, new = Archive(id="old", upto_ts=5, objects=1), Archive(id="new", upto_ts=9, objects=1)
    written = {"old": 50, "new": 100}

    def chosen(lowest_ts: int | None, now_ms: int) -> list[str]:
        return [each.id for each in policy.archives_to_collect([new, old], lowest_ts, written, now_ms)]

    assert chosen(None, 149) == []
    assert chosen(None, 150) == ["old"]
    assert chosen(None, 200) == ["old", "new"]
    assert chosen(8, 200) == ["old"]
    assert chosen(5, 200) == ["old"]
    assert chosen(4, 200) == []


def test_an_archive_that_was_not_there_when_archives_were_listed_is_young() -> None:
    policy = CollectPolicy(ttl_ms=100, orphan_ms=0)
    written_since = Archive(id="since", upto_ts=5, objects=1)
    assert policy.archives_to_collect([written_since], None, {}, 10**9) == []


class _Aged(ObjectStorage):
    """Shows every file as old as it is told."""

    age_ms = 0

    def list_objects(self, folder: str) -> list[StoredObject]:
        now_ms = SYSTEM.wall_ms()
        return [
            StoredObject(each.path, each.size_bytes, now_ms - self.age_ms)
            for each in super().list_objects(folder)
        ]


@pytest.fixture
def aged(world: TableWorld, monkeypatch: pytest.MonkeyPatch) -> _Aged:
    """The world's storage, whose files grow old on demand."""
    storage = world.storage.open()
    made = _Aged(storage.url, storage._store)
    monkeypatch.setattr(storage, "list_objects", made.list_objects)
    monkeypatch.setattr(world.clock, "wall_ms", SYSTEM.wall_ms)
    return made


def test_an_archive_does_not_cost_the_index_of_a_table_that_rested(world: TableWorld) -> None:
    merged(world)
    built = metrics.EVENTSTORE_INDEX_BUILDS_TOTAL._value.get()
    world.tick()
    world.flush()  # nothing but a later timestamp
    assert world.store.collect(1) > 0
    world.commit(item("integer", 1, "third"), delete=[(2,)])
    world.flush()
    assert metrics.EVENTSTORE_INDEX_BUILDS_TOTAL._value.get() == built
    assert world.snapshot(world.ts) == world.versions.at(world.ts)


def test_old_files_that_nothing_names_are_swept(world: TableWorld, aged: _Aged) -> None:
    HistoryHolds(aged).hold(1, "job", 1)
    merged(world)
    world.store.collect(1)
    world.commit(item("integer", 9, "later"))
    world.flush()
    before = set(files(world))
    ids = {name: f"{index:032x}" for index, name in enumerate(("crashed", "loading", "archive"))}
    orphans = {
        paths.object_path(ROOT, "data", ids["crashed"]),
        paths.object_path(ROOT, "tombstone", ids["crashed"]),
        paths.archive(ROOT, ids["archive"]),
        f"{STAGING}{ids['crashed']}",
    }
    spared = {
        paths.object_path(ROOT, "data", ids["loading"]),
        paths.load_range(ROOT, "load", 1),
    }
    for path in orphans | spared:
        aged.write(path, json.dumps({"objects": [{"id": ids["loading"]}]}).encode())
    aged.age_ms = DAY_S * 1000 - 60_000
    assert world.store.collect(1) == 0
    aged.age_ms = DAY_S * 1000 + 60_000
    assert world.store.collect(1) == len(orphans)
    assert set(files(world)) == before | spared
    check(world, 1)


def test_an_owner_that_was_replaced_and_never_told_sweeps_nothing(world: TableWorld, aged: _Aged) -> None:
    """It had nothing to commit since, and does not know what its successor did long ago."""
    merged(world)
    world.store.collect(1)
    successor = Ownership(aged, 1, writer="successor", clock=SYSTEM)
    (info,) = world.manifest().objects.values()
    path = paths.object_path(ROOT, "data", "5" * 32)
    aged.write(path, b"rows")
    successor.commit(add=[replace(info, id="5" * 32)])
    aged.age_ms = DAY_S * 1000 + 60_000
    with pytest.raises(Fenced):
        world.store.collect(1)
    assert path in files(world)


def test_a_missing_archive_stops_the_sweep(world: TableWorld, aged: _Aged) -> None:
    HistoryHolds(aged).hold(1, "job", 1)
    merged(world)
    world.store.collect(1)
    aged.delete(files(world, "archive/")[0])
    aged.age_ms = DAY_S * 1000 + 60_000
    before = files(world)
    with pytest.raises(Corrupt, match="archive"):
        world.store.collect(1)
    assert files(world) == before


def test_folded_manifest_files_go_and_the_manifest_is_read_as_before(
    world: TableWorld, aged: _Aged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_log, "CHECKPOINT_ENTRIES", 4)
    for number in range(8):
        world.commit(item("integer", number, "row"))
        world.flush()
        if number == 3:
            world.crash()
    for number in range(8):
        world.commit(item("integer", number, "other"))
        world.flush()
    state = world.manifest()
    entries = [each for each in files(world, "manifest/") if paths.checkpoint_seq(each) is None]
    assert world.store.collect(1) > 0
    left = files(world, "manifest/")
    checkpoints = [seq for each in left if (seq := paths.checkpoint_seq(each)) is not None]
    assert len(checkpoints) == 2
    kept = {seq for each in left if (seq := paths.entry_seq(each)) is not None}
    opened = {1, 6}
    assert kept == opened | set(range(checkpoints[0] + 1, state.seq + 1))
    assert len(kept) < len(entries)
    assert world.manifest() == state
    world.crash()
    check(world, 1)


def test_young_manifest_files_stay() -> None:
    files_ = [StoredObject(paths.manifest_entry(ROOT, seq), 1, seq) for seq in range(1, 13)]
    files_ += [StoredObject(paths.manifest_checkpoint(ROOT, seq), 1, seq) for seq in (4, 8, 12)]
    policy = CollectPolicy(ttl_ms=10, orphan_ms=1000)
    old = policy.old_manifest(files_, 13)
    assert old is not None
    assert old.base == paths.manifest_checkpoint(ROOT, 8)
    assert old.entries == [paths.manifest_entry(ROOT, seq) for seq in (1, 2, 3)]
    assert old.checkpoints == []
    later = policy.old_manifest(files_, 100)
    assert later is not None
    assert later.entries == [paths.manifest_entry(ROOT, seq) for seq in range(1, 9)]
    assert later.checkpoints == [paths.manifest_checkpoint(ROOT, 4)]
    assert policy.old_manifest([each for each in files_ if "0004" not in each.path][:-1], 100) is None


def test_a_former_owner_is_fenced_after_the_entries_since_are_gone(
    world: TableWorld, aged: _Aged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_log, "CHECKPOINT_ENTRIES", 4)
    sleeper = Ownership(aged, 1, writer="sleeper", clock=SYSTEM)
    world.store.close_table(1, flush=False)
    world.store.open_table(1)
    for number in range(16):
        world.commit(item("integer", number, "row"))
        world.flush()
    assert world.store.collect(1) > 0
    with pytest.raises(Fenced):
        sleeper.commit(flushed_ts=world.ts)


def test_an_owner_who_slept_while_opening_does_not_open_what_was_collected() -> None:
    """It read the log long ago; the number it takes was free, was taken, and is free again."""
    storage = open_storage("memory:///")
    log = ManifestLog.open(storage, ROOT, writer="running")
    asleep = storage.create

    def collected(path: str, data: bytes) -> bool:
        storage.create = asleep  # type: ignore[method-assign] # this is what sleeps
        for ts in range(1, 2 * manifest_log.CHECKPOINT_ENTRIES + 2):
            log.commit(flushed_ts=ts)
        storage.delete(path)
        return storage.create(path, data)

    storage.create = collected  # type: ignore[method-assign] # as above
    opened = ManifestLog.open(storage, ROOT, writer="sleeper")
    assert opened.state.flushed_ts == log.state.flushed_ts
    with pytest.raises(Fenced):
        log.commit(flushed_ts=10_000)


def test_only_an_owner_collects(world: TableWorld) -> None:
    merged(world)
    with pytest.raises(Unavailable):
        world.store.collect(2)
    Ownership(world.storage.open(), 1, writer="another", clock=world.clock)
    before = files(world, "data/")
    with pytest.raises(Fenced):
        world.store.collect(1)
    assert files(world, "data/") == before


def test_an_archive_is_bounded_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.eventstore.upkeep.gc._ARCHIVED_MAX", 2)
    objects = [
        ObjectInfo(
            id=f"{ts}", side="data", kind="merged", schema_version=1, create_ts=1, min_ts=1, max_ts=1, rows=1,
            size_bytes=1, key_min=b"a", key_max=b"b", delete_ts=ts,
        )
        for ts in (0, 9, 7, 8, 30)
    ]  # fmt: skip
    state = ManifestState(flushed_ts=20, objects={each.id: each for each in objects})
    assert [each.id for each in CollectPolicy(ttl_ms=0, orphan_ms=0).objects_to_archive(state)] == ["7", "8"]


def test_watermarks_of_one_table_do_not_hold_another() -> None:
    clock = ManualClock(wall_ms=1000)
    watermarks = HistoryHolds(open_storage("memory:///"), clock)
    watermarks.hold(1, "job", 10)
    watermarks.hold(11, "job", 5)
    watermarks.hold(1, "a/b c", 7, ttl_s=1)
    assert (watermarks.lowest_ts(1), watermarks.lowest_ts(11), watermarks.lowest_ts(2)) == (7, 5, None)
    clock.advance(1)
    assert watermarks.lowest_ts(1) == 10
    watermarks.release(1, "job")
    watermarks.release(1, "job")
    assert watermarks.lowest_ts(1) is None


def test_load_and_trim_do_not_disagree_on_an_empty_log() -> None:
    storage = open_storage("memory:///")
    assert load(storage, ROOT) == ManifestState()
    assert CollectPolicy(ttl_ms=0, orphan_ms=0).old_manifest([], 0) is None
