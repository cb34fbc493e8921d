"""Merges and collection that are killed at any step, and that run beside everything else."""

import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import SYSTEM
from penstock.errors import PenstockError, Unavailable
from penstock.eventstore import manifest_log
from penstock.eventstore.history_holds import HistoryHolds
from penstock.eventstore.upkeep import merge_policy
from penstock.object_storage import ObjectStorage
from penstock.testing.versions import CopiedTable, Snapshot
from support.itemtables import item, item_table
from support.tableworld import START, TableWorld

NTH = count()
STEPS_MAX = 100


class _Power:
    """Takes storage away for good at the nth step that changes something, before or after its effect."""

    def __init__(self, storage: ObjectStorage, patched: pytest.MonkeyPatch, nth: int, *, after: bool) -> None:
        self.left = nth
        self.after = after
        self.out = False
        for name in ("create", "write", "delete"):
            patched.setattr(storage, name, self._guarded(getattr(storage, name)))

    def _guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*given: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                self._fail()
            found = call(*given)
            if self.left == 0 and self.after:
                self._fail()
            return found

        return guarded

    def _fail(self) -> None:
        self.out = True
        raise Unavailable("the power is out")


def worked(folder: Path) -> TableWorld:
    """A table with something to merge, to archive and to collect."""
    url = f"memory:///upkeep-faults-{next(NTH)}"
    upkeep = {"history_ttl_s": 0}
    world = TableWorld(folder, item_table(), url=url, upkeep=upkeep)
    for name in ("first", "second"):
        world.commit(*(item("integer", number, name) for number in range(4)))
        world.flush()
        world.commit(delete=[(2,), (3,)])
        world.flush()
    return world


def check(world: TableWorld) -> None:
    """Whatever is not gone is what it was."""
    oldest_ts = max(START, world.manifest().oldest_ts)
    for ts in (oldest_ts, *world.moments(), world.ts):
        if ts >= oldest_ts:
            assert world.snapshot(ts) == world.versions.at(ts)
    if oldest_ts < world.ts:
        target = CopiedTable(world.versions.at(oldest_ts), oldest_ts, in_order=True, coalesced=False)
        target.take_all(world.changes(oldest_ts, world.ts, coalesce=False))
        assert sorted(target.seen, key=lambda step: step[:3]) == world.versions.steps(oldest_ts, world.ts)


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_step_leaves_the_old_state_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    monkeypatch.setattr(merge_policy, "_FANOUT", 2)
    monkeypatch.setattr(manifest_log, "CHECKPOINT_ENTRIES", 3)
    for nth in range(1, STEPS_MAX):
        with worked(tmp_path / str(nth)) as world:
            with monkeypatch.context() as patched:
                power = _Power(world.storage.open(), patched, nth, after=after)
                try:
                    world.store.merge(1)
                    world.commit(item("integer", 2, "later"), delete=[(1,)])
                    world.resolve()
                    world.store.flush(1)
                    world.store.merge(1)
                    world.store.collect(1)
                except PenstockError:
                    assert power.out
            check(world)
            world.crash()
            check(world)
            world.commit(item("integer", 0, "after all"))
            world.flush()
            world.store.merge(1)
            check(world)
            world.store.collect(1)
            check(world)
            assert len(world.manifest().visible_objects("data", world.ts)) <= 1
            if not power.out:
                return
    raise AssertionError("it never came to its end")


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TableWorld]:
    """A table whose whole history is held."""
    monkeypatch.setattr(merge_policy, "_FANOUT", 2)
    monkeypatch.setattr(manifest_log, "CHECKPOINT_ENTRIES", 8)
    upkeep = {"history_ttl_s": 0}
    with TableWorld(tmp_path, item_table(), url=f"memory:///upkeep-busy-{next(NTH)}", upkeep=upkeep) as world:
        HistoryHolds(world.storage.open(), world.clock).hold(1, "readers", START)
        yield world


def test_flushes_merges_collections_and_reads_do_not_disturb_each_other(busy: TableWorld) -> None:
    known: list[tuple[int, Snapshot]] = [(busy.flush(), {})]
    done = threading.Event()
    failures: list[BaseException] = []
    counts = {"merges": 0, "reads": 0}

    def again(work: Callable[[], None]) -> None:
        try:
            while not done.is_set():
                work()
        except BaseException as error:  # noqa: BLE001 - told by the test
            failures.append(error)
            done.set()

    def care() -> None:
        counts["merges"] += busy.store.merge(1)
        busy.store.collect(1)

    def read() -> None:
        ts, expected = known[int(SYSTEM.random() * len(known))]
        assert busy.snapshot(ts) == expected
        upto, after = known[-1]
        if ts < upto:
            target = CopiedTable(dict(expected), ts, in_order=True, coalesced=False)
            target.take_all(busy.changes(ts, upto, coalesce=False))
            assert target.rows == after
        counts["reads"] += 1

    threads = [threading.Thread(target=again, args=(each,)) for each in (care, read, read)]
    for thread in threads:
        thread.start()
    try:
        for step in range(60):
            numbers = [step % 7, step % 5 + 10, step % 3 + 20]
            busy.commit(*(item("integer", each, f"{step}") for each in numbers))
            gone = [key for key in ((step % 4,), (step % 6 + 10,)) if busy.versions.last(key) is not None]
            busy.commit(delete=gone)
            ts = busy.flush()
            known.append((ts, busy.versions.at(ts)))
            if failures:
                break
    finally:
        done.set()
        for thread in threads:
            thread.join(60)
    if failures:
        raise failures[0]
    assert counts["merges"] > 3
    assert counts["reads"] > 3
    for ts, expected in known:
        assert busy.snapshot(ts) == expected
