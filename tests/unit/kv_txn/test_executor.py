"""Doing an action on mutations: order of batches, regrouping, tokens, errors."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.clock import SYSTEM
from penstock.errors import Aborted, Unavailable
from penstock.kv.background import Background
from penstock.kv.backoff import Backoffer
from penstock.kv.batch_executor import BatchExecutor, MutationBatch
from penstock.kv.mutations import Mutations
from penstock.kv.region_table import KeyLocation, RegionVerId
from penstock.kv.sender import RegionStale
from penstock.settings import KvSettings


class Regions:
    """A cache of regions that a test cuts as it likes."""

    def __init__(self, *cuts: bytes) -> None:
        self.cuts = list(cuts)

    async def group_keys(self, bo: Backoffer, keys: Sequence[bytes]) -> list[tuple[KeyLocation, slice]]:
        groups: list[tuple[KeyLocation, slice]] = []
        bounds = [b"", *self.cuts, b""]
        for at, key in enumerate(keys):
            number = bisect_right(self.cuts, key)
            if groups and groups[-1][0].region.id == number:
                groups[-1] = (groups[-1][0], slice(groups[-1][1].start, at + 1))
            else:
                ver = RegionVerId(number, 1, len(self.cuts))
                groups.append((KeyLocation(ver, bounds[number], bounds[number + 1]), slice(at, at + 1)))
        return groups


@dataclass
class Recorder:
    """An action that writes down what it is given."""

    primary_first: bool = False
    stops_on_error: bool = True
    react: Callable[[MutationBatch], Any] | None = None
    log: list[str] = field(default_factory=list)
    running: int = 0
    running_max: int = 0

    name = "test"
    with_values = False
    is_one_request = False

    def note_batches(self, batches: Sequence[MutationBatch]) -> None:
        self.log.append(f"planned {len(batches)}")

    async def apply(self, bo: Backoffer, batch: MutationBatch) -> None:
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        try:
            await SYSTEM.sleep(0)
            if self.react is not None:
                outcome = self.react(batch)
                if isinstance(outcome, BaseException):
                    raise outcome
                if outcome is not None:
                    await outcome
            names = b"".join(batch.mutations.keys).decode()
            self.log.append(f"{names}{' primary' if batch.is_primary else ''}")
        finally:
            self.running -= 1


def session(regions: Regions, **settings: Any) -> Any:
    def backoffer(budget_ms: int, name: str) -> Backoffer:
        return Backoffer(budget_ms, clock=SYSTEM, name=name)

    return SimpleNamespace(
        router=SimpleNamespace(cache=regions),
        settings=KvSettings(**settings),
        background=Background(),
        clock=SYSTEM,
        backoffer=backoffer,
    )


async def run(
    action: Recorder, keys: str, regions: Regions, primary: str, *, detach: bool = False, **s: Any
) -> Any:
    parts = session(regions, **s)
    mutations = Mutations.of_keys([key.encode() for key in keys])
    await BatchExecutor(parts).run(
        Backoffer(1000, clock=SYSTEM), action, mutations, primary.encode(), detach_rest=detach
    )
    return parts


async def test_mutations_are_grouped_by_region_and_cut_by_size() -> None:
    action = Recorder()
    await run(action, "abcdef", Regions(b"d"), "a", txn_batch_bytes=2)
    assert action.log[0] == "planned 4"
    assert sorted(action.log[1:]) == ["ab primary", "c", "de", "f"]


async def test_the_primary_runs_alone_and_first_where_it_must() -> None:
    action = Recorder(primary_first=True)
    await run(action, "abcd", Regions(b"b", b"c", b"d"), "c")
    assert action.log[:2] == ["planned 4", "c primary"]
    assert sorted(action.log[2:]) == ["a", "b", "d"]


async def test_mutations_without_the_primary_have_no_primary_batch() -> None:
    action = Recorder(primary_first=True)
    await run(action, "acd", Regions(), "b")
    assert action.log == ["planned 1", "acd"]


async def test_the_rest_follows_in_the_background_when_detached() -> None:
    gate = asyncio.Event()
    action = Recorder(primary_first=True, react=lambda batch: None if batch.is_primary else gate.wait())
    parts = await run(action, "ab", Regions(b"b"), "a", detach=True)
    assert action.log == ["planned 2", "a primary"]
    assert len(parts.background) == 1
    gate.set()
    await parts.background.close(5)
    assert action.log[2:] == ["b"]


async def test_a_batch_whose_region_changed_is_grouped_afresh() -> None:
    regions = Regions()

    def split_once(batch: MutationBatch) -> Any:
        if not regions.cuts:
            regions.cuts = [b"b", b"c"]
            return RegionStale("split")
        assert batch.regrouped
        return None

    action = Recorder(primary_first=True, react=split_once)
    await run(action, "abc", regions, "b")
    assert action.log == ["planned 1", "planned 3", "b primary", "a", "c"]


async def test_no_more_batches_run_at_once_than_there_are_tokens() -> None:
    action = Recorder()
    await run(action, "abcdefgh", Regions(), "a", txn_batch_bytes=1, committer_concurrency=3)
    assert len(action.log) == 9
    assert action.running_max == 3


async def test_the_first_error_stops_what_is_running_and_what_was_to_come() -> None:
    gate = asyncio.Event()

    def react(batch: MutationBatch) -> Any:
        return Aborted("no") if batch.mutations.keys == [b"b"] else gate.wait()

    action = Recorder(react=react)
    with pytest.raises(Aborted):
        await run(action, "abcdefgh", Regions(), "a", txn_batch_bytes=1, committer_concurrency=3)
    assert action.log == ["planned 8"]
    assert action.running == 0


async def test_an_action_that_does_not_stop_goes_on_after_an_error() -> None:
    action = Recorder(
        stops_on_error=False,
        react=lambda batch: Unavailable("no") if batch.mutations.keys == [b"a"] else None,
    )
    with pytest.raises(Unavailable):
        await run(action, "abc", Regions(), "a", txn_batch_bytes=1)
    assert sorted(action.log[1:]) == ["b", "c"]


async def test_a_cancelled_call_leaves_nothing_running() -> None:
    action = Recorder(react=lambda batch: asyncio.Event().wait())
    call = asyncio.ensure_future(run(action, "abc", Regions(), "a", txn_batch_bytes=1))
    while action.running < 3:
        await SYSTEM.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert action.running == 0
