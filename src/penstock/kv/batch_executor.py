"""The batch executor: applies an action to mutations, grouped by region and cut into batches.

The primary's batch goes first where the action needs that. A region that one transaction is about to fill is
split before.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from prometheus_client import Histogram

from penstock import metrics
from penstock.errors import PenstockError, Unavailable
from penstock.kv import backoff
from penstock.kv.background import abandon
from penstock.kv.backoff import Backoffer, BackoffKind
from penstock.kv.mutations import Mutations, batches, presplit_keys
from penstock.kv.region_table import KeyLocation
from penstock.kv.scope import Session
from penstock.kv.sender import RegionStale
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto import pdpb_pb2 as pdpb

_KEYS_PER_REQUEST = 2048
ONE_PC_BYTES_MAX = 2 * 1024 * 1024
"""Bytes that one phase may commit by one request; a raft entry of TiKV has at most 8 MiB."""
_log = logging.getLogger(__name__)


@cache
def _regions_num(action: str) -> Histogram:
    return metrics.KV_TXN_REGIONS_NUM.labels(action, "general")


@dataclass(frozen=True, slots=True)
class MutationBatch:
    """Mutations for one request to one region."""

    location: KeyLocation
    mutations: Mutations
    is_primary: bool
    region_keys: int  # how many keys of the whole action lie in the region
    regrouped: bool  # cut again because regions changed


class Action(Protocol):
    """One of the five things that are done to mutations in the store.

    `apply` may be called again with the same mutations after it failed half way, so the store's
    side of it is idempotent. It raises RegionStale to have its mutations grouped again, with
    `in_doubt` set when a failure to group them leaves the outcome of the transaction unknown.
    """

    name: str  # as metrics call it
    with_values: bool  # whether values count to the size of a batch
    primary_first: bool  # whether the primary's batch runs alone before the others
    stops_on_error: bool  # whether one failed batch ends the others

    @property
    def is_one_request(self) -> bool:
        """Whether all mutations of one region should go by one request."""

    def note_batches(self, batches: Sequence[MutationBatch]) -> None:
        """Learn the batches before any of them is sent."""

    async def apply(self, bo: Backoffer, batch: MutationBatch) -> None:
        """Apply the action to one batch."""


class BatchExecutor:
    """Applies actions of one transaction. `backoff_ms` is what all batches slept, in sum."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.backoff_ms = 0.0
        self.regions = 0

    async def run(
        self,
        bo: Backoffer,
        action: Action,
        mutations: Mutations,
        primary: bytes | None,
        *,
        detach_rest: bool = False,
    ) -> None:
        """Apply the action to all mutations; with `detach_rest` return when the primary's batch is done.

        The first error is raised once nothing is running any more.
        """
        await self._run(bo, action, mutations, primary, detach_rest=detach_rest)

    async def _run(
        self,
        bo: Backoffer,
        action: Action,
        mutations: Mutations,
        primary: bytes | None,
        *,
        detach_rest: bool,
        stale: RegionStale | None = None,
    ) -> None:
        try:
            cut = await self._cut(bo, action, mutations, primary, regrouped=stale is not None)
        except PenstockError as error:
            if stale is not None and stale.in_doubt is not None:
                raise stale.in_doubt from error
            raise
        action.note_batches(cut)
        if action.primary_first and cut and cut[0].is_primary:
            await self._apply(bo, action, cut.pop(0), primary, detach_rest=detach_rest)
            if detach_rest:
                if cut:
                    later = self._session.backoffer(backoff.COMMIT_SECONDARIES_MS, "commit secondaries")
                    work = self._apply_all(later, action, cut, primary)
                    self._session.background.spawn(work, action.name)
                return
        await self._apply_all(bo, action, cut, primary)

    async def _cut(
        self, bo: Backoffer, action: Action, mutations: Mutations, primary: bytes | None, *, regrouped: bool
    ) -> list[MutationBatch]:
        """Return the batches in key order, except that the primary's is the first."""
        groups = await self._group(bo, mutations)
        self.regions = max(self.regions, len(groups))
        _regions_num(action.name).observe(len(groups))
        bytes_max = self._session.settings.txn_batch_bytes
        if len(groups) == 1 and action.is_one_request and mutations.size <= ONE_PC_BYTES_MAX:
            bytes_max = ONE_PC_BYTES_MAX + 1
        at_primary = mutations.position(primary)
        cut: list[MutationBatch] = []
        for location, group in groups:
            for part in batches(mutations, group, bytes_max, with_values=action.with_values):
                is_primary = at_primary is not None and part.start <= at_primary < part.stop
                batch = MutationBatch(
                    location, mutations.cut(part), is_primary, group.stop - group.start, regrouped
                )
                cut.insert(0 if is_primary else len(cut), batch)
        return cut

    async def _group(self, bo: Backoffer, mutations: Mutations) -> list[tuple[KeyLocation, slice]]:
        settings = self._session.settings
        cache = self._session.router.cache
        groups = await cache.group_keys(bo, mutations.keys)
        split = False
        for location, group in groups:
            at = presplit_keys(
                mutations, group, keys_min=settings.presplit_keys_min, bytes_each=settings.presplit_bytes
            )
            if at:
                split = await presplit(self._session, location, at) or split
        return await cache.group_keys(bo, mutations.keys) if split else groups

    async def _apply(
        self,
        bo: Backoffer,
        action: Action,
        batch: MutationBatch,
        primary: bytes | None,
        *,
        detach_rest: bool = False,
    ) -> None:
        slept_ms = bo.total_ms
        try:
            await action.apply(bo, batch)
        except RegionStale as stale:
            await self._run(bo, action, batch.mutations, primary, detach_rest=detach_rest, stale=stale)
        finally:
            self.backoff_ms += bo.total_ms - slept_ms

    async def _apply_all(
        self, bo: Backoffer, action: Action, cut: Sequence[MutationBatch], primary: bytes | None
    ) -> None:
        if len(cut) == 1:
            metrics.KV_BATCH_EXECUTOR_TOKEN_WAIT_DURATION.observe(0)
            await self._apply(bo, action, cut[0], primary)
            return
        tokens = asyncio.Semaphore(min(len(cut), self._session.settings.committer_concurrency) or 1)
        running: set[asyncio.Task[None]] = set()
        failures: list[BaseException] = []

        def finished(task: asyncio.Task[None]) -> None:
            tokens.release()
            running.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is None:
                return
            failures.append(error)
            if action.stops_on_error:
                for other in running:
                    other.cancel()

        try:
            for batch in cut:
                await self._take(tokens)
                if failures and action.stops_on_error:
                    tokens.release()
                    break
                task = asyncio.ensure_future(self._apply(bo.fork(), action, batch, primary))
                running.add(task)
                task.add_done_callback(finished)
            while running:
                await asyncio.wait(set(running))
        finally:
            await abandon(running)
        if failures:
            raise failures[0]

    async def _take(self, tokens: asyncio.Semaphore) -> None:
        began = self._session.clock.monotonic()
        await tokens.acquire()
        waited = self._session.clock.monotonic() - began
        metrics.KV_BATCH_EXECUTOR_TOKEN_WAIT_DURATION.observe(waited * 1_000_000_000)


async def presplit(session: Session, location: KeyLocation, keys: Sequence[bytes]) -> bool:
    """Split a region at sorted keys and wait until the parts are placed; return whether it was split.

    A failure is logged, and the transaction goes on with the region as it is.
    """
    budget_ms = min(len(keys) * backoff.SPLIT_MS_EACH, backoff.SPLIT_MS_MAX)
    bo = session.backoffer(budget_ms, "split region")
    try:
        created = []
        for first in range(0, len(keys), _KEYS_PER_REQUEST):
            created += await _split(session, bo, keys[first : first + _KEYS_PER_REQUEST])
        session.router.cache.invalidate(location.region, "pre-split")
        for region_id in created:
            await session.pd.scatter_region(region_id, bo=bo)
        waiting = session.backoffer(backoff.SCATTER_MS, "scatter region")
        for region_id in created:
            await _wait_until_scattered(session, waiting, region_id)
    except PenstockError as error:
        _log.warning(
            "pre-split failed; the transaction goes on without it",
            extra={"region": location.region.id, "error": str(error)},
        )
        session.router.cache.invalidate(location.region, "pre-split failed")
        return False
    return True


async def _split(session: Session, bo: Backoffer, keys: Sequence[bytes]) -> list[int]:
    """Split at the keys, wherever they are by now; return the ids of the new regions."""
    created: list[int] = []
    for location, part in await session.router.cache.group_keys(bo, keys):
        wanted = [key for key in keys[part] if key != location.start]
        if not wanted:
            continue
        request = kvrpcpb.SplitRegionRequest(split_keys=wanted)
        try:
            answer = await session.router.send_to_region(
                bo, "SplitRegion", request, location, kvrpcpb.SplitRegionResponse
            )
        except RegionStale:
            created += await _split(session, bo, wanted)
            continue
        if answer.errors:
            raise Unavailable(f"region {location.region.id} could not be split; try again later")
        session.router.cache.invalidate(location.region, "split")
        created += [region.id for region in answer.regions if region.id != location.region.id]
    return created


async def _wait_until_scattered(session: Session, bo: Backoffer, region_id: int) -> None:
    while True:
        operator = await session.pd.get_operator(region_id, bo=bo)
        if operator is None or operator.desc != b"scatter-region":
            return
        if operator.status != pdpb.OperatorStatus.RUNNING:
            return
        await bo.backoff(BackoffKind.REGION_MISS, f"region {region_id} is being placed")
