"""Garbage collection: resolve old locks, then remove old versions."""

import logging

from penstock.errors import Invalid, Unavailable
from penstock.kv import backoff
from penstock.kv.backoff import Backoffer, BackoffKind
from penstock.kv.locks import Lock, to_error
from penstock.kv.region_table import KeyLocation
from penstock.kv.scope import Session
from penstock.kv.sender import NotServed, RegionStale
from penstock.proto import kvrpcpb_pb2 as kvrpcpb

_log = logging.getLogger(__name__)
_SCAN_LOCKS = 1024
_SERVICE = "gc_worker"
_FOR_EVER_S = (1 << 63) - 1


async def resolve_locks_before(
    session: Session, ts: int, lower: bytes = b"", upper: bytes = b"", *, force: bool = False
) -> int:
    """Resolve the locks of [lower, upper) whose transactions began at `ts` or before; return how many stay.

    Those of live transactions stay, unless `force` rolls them back: garbage collection needs that, a
    reader that waits for resolved timestamps must not do it.
    """
    left, position = 0, lower
    while True:
        bo = session.backoffer(backoff.GC_MS, "resolve locks")
        location = await session.router.cache.locate(bo, position)
        end = location.end if not upper or (location.end and location.end < upper) else upper
        try:
            locks = await _scan_locks(session, bo, location, ts, position, end)
            if force:
                await _resolve_for_gc(session, bo, location, locks)
        except RegionStale:
            continue
        if locks and not force:
            left += (await session.resolver.resolve_for_write(bo, locks)).left
        if len(locks) == _SCAN_LOCKS:
            position = locks[-1].key + b"\0"
        elif not location.end or (upper and location.end >= upper):
            return left
        else:
            position = location.end


async def locks_before(
    session: Session, ts: int, lower: bytes, upper: bytes, *, count_max: int
) -> list[Lock]:
    """Return the locks of [lower, upper) whose transactions began at `ts` or before; change none.

    Ends with the region in which `count_max` of them were reached. An empty `upper` is the end of all keys.
    """
    found: list[Lock] = []
    position = lower
    while True:
        bo = session.backoffer(backoff.GC_MS, "list locks")
        location = await session.router.cache.locate(bo, position)
        end = location.end if not upper or (location.end and location.end < upper) else upper
        try:
            page = await _scan_locks(session, bo, location, ts, position, end)
        except RegionStale:
            continue
        found += page
        if len(found) >= count_max:
            return found
        if len(page) == _SCAN_LOCKS:
            position = page[-1].key + b"\0"
        elif not location.end or (upper and location.end >= upper):
            return found
        else:
            position = location.end


async def _scan_locks(
    session: Session, bo: Backoffer, location: KeyLocation, ts: int, start: bytes, end: bytes
) -> list[Lock]:
    request = kvrpcpb.ScanLockRequest(max_version=ts, start_key=start, end_key=end, limit=_SCAN_LOCKS)
    while True:
        answer = await session.router.send_to_region(
            bo, "KvScanLock", request, location, kvrpcpb.ScanLockResponse
        )
        if not answer.HasField("error"):
            return [Lock.of(info) for info in answer.locks]
        if not answer.error.HasField("locked"):
            raise to_error(answer.error, ts)
        # A commit is being written: in a moment its lock can be listed, or is gone.
        await bo.backoff(
            BackoffKind.TXN_LOCK_FAST, f"transaction {answer.error.locked.lock_version} is written"
        )


async def _resolve_for_gc(session: Session, bo: Backoffer, location: KeyLocation, locks: list[Lock]) -> None:
    """Decide and resolve a page of locks of one region, alive or not."""
    if not locks:
        return
    fates = await session.resolver.decide_for_gc(bo, locks)
    if not fates:
        return
    request = kvrpcpb.ResolveLockRequest(
        txn_infos=[kvrpcpb.TxnInfo(txn=start_ts, status=commit_ts) for start_ts, commit_ts in fates.items()]
    )
    answer = await session.router.send_to_region(
        bo, "KvResolveLock", request, location, kvrpcpb.ResolveLockResponse
    )
    if answer.HasField("error"):
        raise to_error(answer.error, 0)


async def collect_garbage(session: Session, safe_point: int) -> int:
    """Remove versions that no reader at `safe_point` or later can see; return the safe point in force.

    It is lower than asked for while a service (a capture, a backup) holds a lower one. Rolls back
    transactions that began at it or before. Raises Invalid for a safe point in the future. Reads
    below the safe point are refused from then on.
    """
    if safe_point > await session.pd.timestamp():
        raise Invalid(f"safe point {safe_point} lies in the future; give a timestamp of the past")
    held = await session.pd.update_service_gc_safe_point(_SERVICE, _FOR_EVER_S, safe_point)
    safe_point = min(safe_point, held)
    await resolve_locks_before(session, safe_point, force=True)
    in_force = await session.pd.update_gc_safe_point(safe_point)
    await session.safe_point.wait_until_known(in_force)
    try:
        await _collect_regions(session, in_force)
    except NotServed:  # newer TiKV: each store collects by itself, up to the safe point
        _log.info("stores collect garbage by themselves", extra={"safe_point": in_force})
    return in_force


async def delete_range(session: Session, lower: bytes, upper: bytes) -> None:
    """Remove every lock and version of [lower, upper), whatever their timestamps; nobody may use them."""
    position = lower
    while position < upper:
        bo = session.backoffer(backoff.GC_MS, "delete range")
        location = await session.router.cache.locate(bo, position)
        end = min(location.end, upper) if location.end else upper
        request = kvrpcpb.DeleteRangeRequest(start_key=position, end_key=end)
        try:
            answer = await session.router.send_to_region(
                bo, "KvDeleteRange", request, location, kvrpcpb.DeleteRangeResponse
            )
        except RegionStale:
            continue
        if answer.error:
            raise Unavailable(f"region {location.region.id} could not delete a range; try again later")
        position = end


async def _collect_regions(session: Session, safe_point: int) -> None:
    position = b""
    while True:
        bo = session.backoffer(backoff.GC_MS, "gc")
        location = await session.router.cache.locate(bo, position)
        request = kvrpcpb.GCRequest(safe_point=safe_point)
        try:
            answer = await session.router.send_to_region(bo, "KvGC", request, location, kvrpcpb.GCResponse)
        except RegionStale:
            continue
        if answer.HasField("error"):
            raise to_error(answer.error, 0)
        if not location.end:
            return
        position = location.end
