"""Splitting a region before one transaction fills it."""

import logging
from collections.abc import Sequence

from penstock.errors import PenstockError, Unavailable
from penstock.kv import budgets
from penstock.kv.backoff import Backoffer, BackoffKind
from penstock.kv.region_table import KeyLocation
from penstock.kv.sender import RegionStale
from penstock.kv.session import Session
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto import pdpb_pb2 as pdpb

_KEYS_PER_REQUEST = 2048
_log = logging.getLogger(__name__)


async def presplit(session: Session, location: KeyLocation, keys: Sequence[bytes]) -> bool:
    """Split a region at sorted keys and wait until the parts are placed; return whether it was split.

    A help, not a duty: a failure is logged, and the transaction goes on with the region as it is.
    """
    budget_ms = min(len(keys) * budgets.SPLIT_MS_EACH, budgets.SPLIT_MS_MAX)
    bo = session.backoffer(budget_ms, "split region")
    try:
        created = []
        for first in range(0, len(keys), _KEYS_PER_REQUEST):
            created += await _split(session, bo, keys[first : first + _KEYS_PER_REQUEST])
        session.router.cache.invalidate(location.region, "pre-split")
        for region_id in created:
            await session.pd.scatter_region(region_id, bo=bo)
        waiting = session.backoffer(budgets.SCATTER_MS, "scatter region")
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
        if operator.desc != b"scatter-region" or operator.status != pdpb.OperatorStatus.RUNNING:
            return
        await bo.backoff(BackoffKind.REGION_MISS, f"region {region_id} is being placed")
