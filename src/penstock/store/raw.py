"""The raw commands: reads and writes of keys without versions, in their own key space."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Protocol

from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.store.bounds import KeyBounds
from penstock.store.engine import Cf, Engine, Mutation

__all__ = ["RawStorage"]

_SCAN_MAX = 10_240


class _KeyLocks:
    """One writer at a time for each key."""

    def __init__(self) -> None:
        self._locks: dict[bytes, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, key: bytes) -> AsyncIterator[None]:
        lock, users = self._locks.get(key) or (asyncio.Lock(), 0)
        self._locks[key] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = lock, users - 1


class _HasCf(Protocol):
    cf: str


def _refuse(request: _HasCf, ttls: Iterable[int] = ()) -> str:
    """Return why a request cannot be served, or nothing."""
    if request.cf not in {"", "default"}:
        return f"column family {request.cf!r} is not served; use default"
    if any(ttls):
        return "ttl is not enabled, but the request has one"
    return ""


class RawStorage:
    """One coroutine per raw RPC. A range never leaves the bounds of its region; raw keys are not encoded."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._locks = _KeyLocks()

    async def raw_get(self, request: kvrpcpb.RawGetRequest, _: KeyBounds) -> kvrpcpb.RawGetResponse:
        if error := _refuse(request):
            return kvrpcpb.RawGetResponse(error=error)
        value = self._engine.view().get(Cf.RAW, request.key)
        if value is None:
            return kvrpcpb.RawGetResponse(not_found=True)
        return kvrpcpb.RawGetResponse(value=value)

    async def raw_batch_get(
        self, request: kvrpcpb.RawBatchGetRequest, _: KeyBounds
    ) -> kvrpcpb.RawBatchGetResponse:
        view = self._engine.view()
        found = ((key, view.get(Cf.RAW, key)) for key in request.keys)
        return kvrpcpb.RawBatchGetResponse(
            pairs=[kvrpcpb.KvPair(key=key, value=value) for key, value in found if value is not None]
        )

    async def raw_scan(self, request: kvrpcpb.RawScanRequest, bounds: KeyBounds) -> kvrpcpb.RawScanResponse:
        low, high = request.start_key, request.end_key
        if request.reverse:
            low, high = high, low
        response = kvrpcpb.RawScanResponse()
        asked = bounds.clamp(low, high)
        if asked is None:
            return response
        view = self._engine.view()
        walk = view.iterate_reverse if request.reverse else view.iterate
        left = min(request.limit, _SCAN_MAX)
        for key, value in walk(Cf.RAW, asked.start, asked.end):
            if not left:
                break
            left -= 1
            response.kvs.add(key=key, value=b"" if request.key_only else value)
        return response

    async def raw_put(self, request: kvrpcpb.RawPutRequest, _: KeyBounds) -> kvrpcpb.RawPutResponse:
        if error := _refuse(request, [request.ttl]):
            return kvrpcpb.RawPutResponse(error=error)
        await self._write(request.key, request.value)
        return kvrpcpb.RawPutResponse()

    async def raw_delete(self, request: kvrpcpb.RawDeleteRequest, _: KeyBounds) -> kvrpcpb.RawDeleteResponse:
        if error := _refuse(request):
            return kvrpcpb.RawDeleteResponse(error=error)
        await self._write(request.key, None)
        return kvrpcpb.RawDeleteResponse()

    async def _write(self, key: bytes, value: bytes | None) -> None:
        async with self._locks.hold(key):
            await self._engine.write([(Cf.RAW, key, value)])

    async def raw_batch_put(
        self, request: kvrpcpb.RawBatchPutRequest, _: KeyBounds
    ) -> kvrpcpb.RawBatchPutResponse:
        if error := _refuse(request, [request.ttl, *request.ttls]):
            return kvrpcpb.RawBatchPutResponse(error=error)
        await self._engine.write([(Cf.RAW, pair.key, pair.value) for pair in request.pairs])
        return kvrpcpb.RawBatchPutResponse()

    async def raw_batch_delete(
        self, request: kvrpcpb.RawBatchDeleteRequest, _: KeyBounds
    ) -> kvrpcpb.RawBatchDeleteResponse:
        if error := _refuse(request):
            return kvrpcpb.RawBatchDeleteResponse(error=error)
        await self._engine.write([(Cf.RAW, key, None) for key in request.keys])
        return kvrpcpb.RawBatchDeleteResponse()

    async def raw_delete_range(
        self, request: kvrpcpb.RawDeleteRangeRequest, bounds: KeyBounds
    ) -> kvrpcpb.RawDeleteRangeResponse:
        if error := _refuse(request):
            return kvrpcpb.RawDeleteRangeResponse(error=error)
        asked = bounds.clamp(request.start_key, request.end_key)
        if asked is not None:
            await self._engine.delete_range([(Cf.RAW, asked.start, asked.end)])
        return kvrpcpb.RawDeleteRangeResponse()

    async def raw_compare_and_swap(
        self, request: kvrpcpb.RawCASRequest, _: KeyBounds
    ) -> kvrpcpb.RawCASResponse:
        """Write if the value is what the caller expects; answer with the previous value.

        It is atomic among single-key writes and swaps of the same key.
        """
        if error := _refuse(request, [request.ttl]):
            return kvrpcpb.RawCASResponse(error=error)
        async with self._locks.hold(request.key):
            value = self._engine.view().get(Cf.RAW, request.key)
            expected = None if request.previous_not_exist else request.previous_value
            if value == expected:
                change: Mutation = (Cf.RAW, request.key, None if request.delete else request.value)
                await self._engine.write([change])
        return kvrpcpb.RawCASResponse(
            succeed=value == expected, previous_not_exist=value is None, previous_value=value or b""
        )
