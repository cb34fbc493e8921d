"""Upkeep: which duty is next, and what a failure does."""

import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock import metrics
from penstock.clock import SYSTEM
from penstock.errors import Corrupt, Fenced, Unavailable
from penstock.eventstore.manifest_log import Ownership
from penstock.eventstore.upkeep import merge_policy, upkeep
from penstock.eventstore.upkeep.upkeep import TableUpkeep, UpkeepPolicy, UpkeepTask
from penstock.retry import BackoffPolicy
from support.itemtables import item, item_table
from support.tableworld import TableWorld

NTH = count()
POLICY = UpkeepPolicy(merge=True, merge_interval_s=10, collect_interval_s=100, sweep_interval_s=1000)


@pytest.mark.parametrize(
    ("tables", "chosen"),
    [
        ({}, None),
        ({1: (TableUpkeep(0, 0, 0), 5)}, (1, UpkeepTask.MERGE)),
        ({1: (TableUpkeep(0, 0, 0, merged_seq=5), 5)}, None),
        ({1: (TableUpkeep(0, -90, 0, merged_seq=5), 5)}, (1, UpkeepTask.COLLECT)),
        ({1: (TableUpkeep(0, 0, -990, merged_seq=5), 5)}, (1, UpkeepTask.SWEEP)),
        ({1: (TableUpkeep(0, 0, 0, retry_at={UpkeepTask.MERGE: 11}), 5)}, None),
        ({1: (TableUpkeep(1, 0, 0), 5)}, None),
        (
            {1: (TableUpkeep(0, -92, 0), 5), 2: (TableUpkeep(-1, 0, 0), 5)},
            (1, UpkeepTask.COLLECT),
        ),  # due the longest
        ({1: (TableUpkeep(0, 0, 0), 5), 2: (TableUpkeep(-1, 0, 0), 5)}, (2, UpkeepTask.MERGE)),
    ],
)
def test_what_is_due_the_longest_comes_first(tables: dict[int, Any], chosen: Any) -> None:
    assert POLICY.choose(tables, now=10) == chosen


def test_merges_can_be_left_off() -> None:
    off = UpkeepPolicy(merge=False, merge_interval_s=1, collect_interval_s=100, sweep_interval_s=1000)
    assert off.choose({1: (TableUpkeep(0, 0, 0), 5)}, now=50) is None


def test_a_new_table_is_swept_soon_after_its_first_collection() -> None:
    care = POLICY.begin(7)
    care.merged_seq = 5
    assert POLICY.choose({1: (care, 5)}, now=106) is None
    assert POLICY.choose({1: (care, 5)}, now=107) == (1, UpkeepTask.COLLECT)
    care.collected_at = 107
    assert POLICY.choose({1: (care, 5)}, now=107) == (1, UpkeepTask.SWEEP)
    care.swept_at = 107
    assert POLICY.choose({1: (care, 5)}, now=206) is None


def test_a_duty_that_fails_is_left_alone_for_longer_and_longer() -> None:
    care = TableUpkeep(0, 0, 0)
    assert [care.record_failure(UpkeepTask.MERGE, 7) for _ in range(4)] == [1, 2, 4, 8]
    assert care.retry_at == {UpkeepTask.MERGE: 15}
    assert [care.record_failure(UpkeepTask.MERGE, 0) for _ in range(10)][-1] == 300
    care.record_success(UpkeepTask.MERGE)
    assert care.record_failure(UpkeepTask.MERGE, 0) == 1


def test_a_duty_that_fails_for_ever_keeps_no_other_from_being_done() -> None:
    care = TableUpkeep(0, -990, 0)
    for now in (10, 400, 1000):
        assert POLICY.choose({1: (care, 5)}, now) == (1, UpkeepTask.COLLECT)
        care.record_failure(UpkeepTask.COLLECT, now)
        assert POLICY.choose({1: (care, 5)}, now) == (1, UpkeepTask.MERGE)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TableWorld]:
    """A table that is looked after all the time, by the machine's own clock."""
    monkeypatch.setattr(merge_policy, "_FANOUT", 2)
    monkeypatch.setattr(upkeep, "_TICK_S", 0.01)
    monkeypatch.setattr(upkeep, "_BACKOFF", BackoffPolicy(base_s=0.01, cap_s=300.0))
    monkeypatch.setattr("support.tableworld.CountingClock.monotonic", lambda _: SYSTEM.monotonic())
    often = {"merge_interval_s": 0.01, "collect_interval_s": 0.02, "history_ttl_s": 0}
    url = f"memory:///upkeep-{next(NTH)}"
    with TableWorld(tmp_path, item_table(), url=url, upkeep=often) as made:
        yield made


def until(condition: Callable[[], bool]) -> None:
    deadline = SYSTEM.monotonic() + 20
    while not condition():
        assert SYSTEM.monotonic() < deadline, "it does not happen"
        SYSTEM.pause(0.005)


def two_flushes(world: TableWorld) -> None:
    for number in (1, 2):
        world.commit(item("integer", number, f"at {world.ts}"))
        world.flush()


def objects(world: TableWorld) -> list[str]:
    return [each.kind for each in world.store.ownership(1).state.objects.values()]


def failures(duty: str, reason: str) -> float:
    return metrics.EVENTSTORE_UPKEEP_FAILURES_TOTAL.labels(duty, reason)._value.get()


def test_tables_are_merged_and_collected_in_the_background(world: TableWorld) -> None:
    two_flushes(world)
    until(lambda: objects(world) == ["merged"])
    until(lambda: world.manifest().oldest_ts == world.ts)
    assert world.snapshot(world.ts) == world.versions.at(world.ts)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(Unavailable("x"), "unavailable"), (Corrupt("x"), "failed"), (KeyError("x"), "failed")],
)
def test_a_failure_is_counted_and_tried_again(
    world: TableWorld, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    before = failures("merge", reason)
    with monkeypatch.context() as patched:

        def fails(*_: object, **__: object) -> None:
            raise error

        patched.setattr(upkeep, "plan_merge", fails)
        two_flushes(world)
        until(lambda: failures("merge", reason) >= before + 2)
    until(lambda: objects(world) == ["merged"])


def test_a_table_with_a_newer_owner_is_let_go(world: TableWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    world.store._on_fenced = lambda _: told.set()
    with monkeypatch.context() as patched:

        def later(*_: object, **__: object) -> None:
            raise Unavailable("later")

        patched.setattr(upkeep, "plan_merge", later)
        two_flushes(world)
        rows = world.store.tables()[1]
        Ownership(world.storage.open(), 1, writer="another", clock=world.clock)
    assert told.wait(20)
    assert rows.disowned
    assert world.store.tables() == {}


def test_a_table_is_not_let_go_while_it_is_flushed(
    world: TableWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a flush of it could go on beside those of whoever takes it next, with the same index."""
    table = world.store._find_owned(1)
    failed, told = threading.Event(), threading.Event()
    world.store._on_fenced = lambda _: told.set()

    def newer_owner(*_: object, **__: object) -> None:
        failed.set()
        raise Fenced("taken")

    with table.flushing:
        monkeypatch.setattr(upkeep, "plan_merge", newer_owner)
        assert failed.wait(20)
        assert not told.wait(0.2)
        assert not table.rows.disowned
    assert told.wait(20)
    assert table.rows.disowned


def test_stopping_does_not_wait_for_a_merge(world: TableWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    writing = threading.Event()

    class Slow(upkeep.MergeWriter):
        def write(self) -> Any:
            writing.set()
            for _ in range(2000):
                self.proceed()
                SYSTEM.pause(0.01)
            raise AssertionError("nobody stopped it")

    monkeypatch.setattr(upkeep, "MergeWriter", Slow)
    two_flushes(world)
    assert writing.wait(20)
    began = SYSTEM.monotonic()
    world.close()
    assert SYSTEM.monotonic() - began < 5
