"""Reads at a timestamp. They take no latches, only a view."""

from collections.abc import Iterable

from penstock.clock import Clock
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.store.bounds import KeyBounds
from penstock.store.concurrency import ConcurrencyManager
from penstock.store.engine import Engine
from penstock.store.mvcc import scanner
from penstock.store.mvcc.failures import KeyRefused
from penstock.store.mvcc.reader import SCANNING, SEEKING, MvccReader, ReadPoint
from penstock.store.mvcc.records import LockKind, LockRecord
from penstock.store.mvcc.scanner import MvccScanner, Row

_PAGE_ROWS = 4096


class StoreReader:
    """Answers reads at a timestamp.

    A read raises max_ts, then checks the guards, then takes its view, and no other task runs in between.
    penstock.store.concurrency says why this order keeps snapshots unchanged.
    """

    def __init__(self, engine: Engine, concurrency: ConcurrencyManager, clock: Clock) -> None:
        self._engine = engine
        self._concurrency = concurrency
        self._clock = clock

    def get(self, request: kvrpcpb.GetRequest) -> kvrpcpb.GetResponse:
        """Read one key."""
        point = self._point(request.version, request.context)
        try:
            self._check_guards(point, self._concurrency.guards_of((request.key,)))
            found = self._read(MvccReader(self._engine.view(SEEKING)), point, request.key)
        except KeyRefused as refused:
            return kvrpcpb.GetResponse(error=refused.error)
        if found is None:
            return kvrpcpb.GetResponse(not_found=True)
        commit_ts, value = found
        return kvrpcpb.GetResponse(value=value, commit_ts=commit_ts if request.need_commit_ts else 0)

    def batch_get(self, request: kvrpcpb.BatchGetRequest) -> kvrpcpb.BatchGetResponse:
        """Read many keys: those that exist, and an error for each that is locked."""
        point = self._point(request.version, request.context)
        keys = request.keys
        response = kvrpcpb.BatchGetResponse()
        try:
            self._check_guards(point, self._concurrency.guards_of(keys))
        except KeyRefused as refused:
            return kvrpcpb.BatchGetResponse(error=refused.error, pairs=[kvrpcpb.KvPair(error=refused.error)])
        reader = MvccReader(self._engine.view(SEEKING))
        for key in keys:
            try:
                found = self._read(reader, point, key)
            except KeyRefused as refused:
                response.pairs.add(key=key, error=refused.error)
                continue
            if found is not None:
                commit_ts, value = found
                response.pairs.add(key=key, value=value, commit_ts=commit_ts if request.need_commit_ts else 0)
        return response

    async def scan(self, request: kvrpcpb.ScanRequest, bounds: KeyBounds) -> kvrpcpb.ScanResponse:
        """Read the rows of a range in order; in a reverse scan the start is the upper end."""
        if request.reverse:
            within = bounds.clamp(request.end_key, request.start_key)
        else:
            within = bounds.clamp(request.start_key, request.end_key)
        response = kvrpcpb.ScanResponse()
        if within is None or not request.limit:
            return response
        point = self._point(request.version, request.context)
        try:
            self._check_guards(point, self._concurrency.guards_in(within))
            await self._scan(request, within, point, response)
        except KeyRefused as refused:
            return kvrpcpb.ScanResponse(error=refused.error, pairs=[kvrpcpb.KvPair(error=refused.error)])
        return response

    async def _scan(
        self,
        request: kvrpcpb.ScanRequest,
        bounds: KeyBounds,
        point: ReadPoint,
        response: kvrpcpb.ScanResponse,
    ) -> None:
        reader = MvccReader(self._engine.view(SCANNING))
        rows = MvccScanner(
            reader,
            point,
            suspects=self._concurrency.suspects(bounds) if point.checks_locks else (),
            reverse=request.reverse,
            key_only=request.key_only,
        )
        left = request.limit
        seen = 0
        for page in rows.pages(bounds, min(left, _PAGE_ROWS)):
            chosen, seen = _sample(page, request.sample_step, seen)
            scanner.fill(response, chosen[:left])
            left -= min(left, len(chosen))
            if not left:
                return
            await self._clock.sleep(0)  # other tasks run between the pages of a long scan

    def scan_locks(self, request: kvrpcpb.ScanLockRequest, bounds: KeyBounds) -> kvrpcpb.ScanLockResponse:
        """List locks of transactions that began at or before a timestamp."""
        self._concurrency.update_max_ts(request.max_version)
        response = kvrpcpb.ScanLockResponse()
        within = bounds.clamp(request.start_key, request.end_key)
        if within is None:
            return response
        for key, lock in self._concurrency.guards_in(within):
            if lock.start_ts <= request.max_version:
                response.error.locked.CopyFrom(lock.info(key))
                return response
        for key, lock in MvccReader(self._engine.view(SCANNING)).scan_locks(within):
            if lock.start_ts <= request.max_version:
                response.locks.append(lock.info(key))
                if len(response.locks) == request.limit:
                    break
        return response

    def _point(self, version: int, context: kvrpcpb.Context) -> ReadPoint:
        if not context.stale_read:
            self._concurrency.update_max_ts(version)
        return ReadPoint.of(version, context)

    def _read(self, reader: MvccReader, point: ReadPoint, key: bytes) -> tuple[int, bytes] | None:
        """Return (commit_ts, value) of a key; raise KeyRefused when a lock or a newer version forbids it."""
        if point.checks_locks and self._concurrency.may_be_locked(key):
            lock = reader.load_lock(key)
            refused = None if lock is None else point.obstacle(key, lock)
            if lock is not None and refused is not None:
                if refused.lock is None or not point.reads_through(lock):
                    raise refused
                return None if lock.kind is LockKind.DELETE else (0, reader.value_of(key, lock))
        if point.checks_newer:
            newest = reader.seek_write(key)
            if newest is not None and newest[0] > point.ts:
                raise point.newer(key, *newest)
        found = reader.newest_put(key, point.ts)
        return None if found is None else (found[0], reader.value_of(key, found[1]))

    @staticmethod
    def _check_guards(point: ReadPoint, guards: Iterable[tuple[bytes, LockRecord]]) -> None:
        if point.checks_locks:
            for key, lock in guards:
                refused = point.obstacle(key, lock)
                if refused is not None:
                    raise refused


def _sample(page: list[Row], step: int, seen: int) -> tuple[list[Row], int]:
    """Keep every `step`-th readable row, and every row that is an error."""
    if step <= 1:
        return page, seen
    kept = []
    for row in page:
        if isinstance(row[1], KeyRefused):
            kept.append(row)
            continue
        if seen % step == 0:
            kept.append(row)
        seen += 1
    return kept, seen
