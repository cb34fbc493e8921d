"""Timestamps: many callers, one stream, one request at a time."""

import asyncio
import logging
from collections import deque
from typing import Any

import grpc

from penstock.clock import LOGICAL_BITS, Clock, compose_ts
from penstock.errors import Corrupt, Invalid, PenstockError, Unavailable
from penstock.kv.backoff import Backoffer, BackoffKind
from penstock.kv.members import Members
from penstock.kv.rpc.connections import EOF, error_from_closing
from penstock.proto import pdpb_pb2 as pdpb

_LOG = logging.getLogger(__name__)

PATIENCE_S = 15.0
_UNLIMITED_MS = float("inf")


class Timestamps:
    """A run of timestamps as one response gives it, and the rule that time never goes back."""

    def __init__(self) -> None:
        self.last_ts = 0

    def take(self, response: pdpb.TsoResponse, count: int) -> range:
        """Return the timestamps of a response in the order of the requesters.

        Raises Unavailable when the response is not for `count` requesters, Corrupt when it
        contains a timestamp that is not above every one before.
        """
        if response.header.error.message:
            raise Unavailable(f"no timestamp: {response.header.error.message}")
        if response.count != count:
            raise Unavailable(f"asked the placement driver for {count} timestamps and got {response.count}")
        last = compose_ts(response.timestamp.physical, response.timestamp.logical)
        first = last - count + 1
        if first <= self.last_ts or response.timestamp.logical >> LOGICAL_BITS:
            raise Corrupt(
                f"the placement driver handed out timestamp {first} after {self.last_ts}; "
                "check its clock and whether it was restored from a backup"
            )
        self.last_ts = last
        return range(first, last + 1)


class TsoDispatcher:
    """Merges the callers that wait into one request on a bidirectional stream.

    While a request is under way, new callers gather for the next. When the stream fails it is made
    again and the same callers are served by it, for at most PATIENCE_S each.
    """

    def __init__(self, members: Members, *, batch_max: int, timeout_s: float, clock: Clock) -> None:
        self._members = members
        self._batch_max = batch_max
        self._timeout_s = timeout_s
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[asyncio.Future[int], float]] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._timestamps = Timestamps()
        self._call: Any = None
        self._closed = False
        self._runner = asyncio.create_task(self._run())

    @property
    def last_ts(self) -> int:
        """The latest timestamp handed out."""
        return self._timestamps.last_ts

    def ask(self) -> "asyncio.Future[int]":
        """Ask for a timestamp; the future fails with Unavailable, or Corrupt when time went back."""
        answer: asyncio.Future[int] = self._loop.create_future()
        if self._closed:
            answer.set_exception(Unavailable("the client is closed; connect again"))
            return answer
        self._waiting.append((answer, self._clock.monotonic() + PATIENCE_S))
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
        return answer

    async def _run(self) -> None:
        retry: Backoffer | None = None
        while True:
            if not self._waiting:
                self._arrival = self._loop.create_future()
                await self._arrival
            batch = self._take_batch()
            if not batch:
                continue
            try:
                self._hand_out([answer for answer, _ in batch], await self._exchange(len(batch)))
            except PenstockError as error:
                self._drop_stream()
                self._put_back(batch, error)
                retry = await self._before_retry(retry, error)
            except asyncio.CancelledError:
                self._put_back(batch, None)
                raise
            else:
                retry = None

    def _take_batch(self) -> list[tuple["asyncio.Future[int]", float]]:
        waiting = self._waiting
        taken = [waiting.popleft() for _ in range(min(self._batch_max, len(waiting)))]
        return [item for item in taken if not item[0].done()]

    async def _exchange(self, count: int) -> pdpb.TsoResponse:
        """Ask for `count` timestamps; raise Unavailable when no answer comes."""
        request = pdpb.TsoRequest(header=self._members.header(), count=count)
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._call is None:
                    self._call = self._members.stub.Tso()
                await self._call.write(request)
                response = await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            raise Unavailable(f"the timestamp stream broke: {_details(error)}") from error
        except TimeoutError as error:
            raise Unavailable(f"no timestamp came within {self._timeout_s:g} s") from error
        except asyncio.CancelledError as error:
            cause = error_from_closing(error, self._members.leader)
            if cause is error:
                raise
            raise Unavailable("the timestamp stream was closed") from cause
        if response is EOF:
            raise Unavailable("the placement driver ended the timestamp stream")
        answer: pdpb.TsoResponse = response
        return answer

    def _hand_out(self, answers: list["asyncio.Future[int]"], response: pdpb.TsoResponse) -> None:
        for answer, ts in zip(answers, self._timestamps.take(response, len(answers)), strict=True):
            if not answer.done():
                answer.set_result(ts)

    def _put_back(self, batch: list[tuple["asyncio.Future[int]", float]], error: Exception | None) -> None:
        """Queue unanswered callers again, ahead of later ones; those out of patience get the error."""
        now = self._clock.monotonic()
        for answer, deadline in reversed(batch):
            if isinstance(error, Corrupt):
                _fail(answer, error)
            elif now < deadline:
                self._waiting.appendleft((answer, deadline))
            else:
                failed = Unavailable(f"PD server timeout: no timestamp within {PATIENCE_S:.0f} s ({error})")
                failed.__cause__ = error
                _fail(answer, failed)

    async def _before_retry(self, retry: Backoffer | None, error: Exception) -> Backoffer:
        """Wait and look for the leader; the first time without a wait, because a stream may just be stale."""
        try:
            if retry is not None:
                await retry.backoff(BackoffKind.PD_RPC, error)
            await self._members.refresh()
        except Unavailable as unknown:
            _LOG.warning("no timestamps for now", extra={"error": str(unknown)})
        except Invalid as fatal:
            self._fail_waiting(fatal)
        return retry or Backoffer(_UNLIMITED_MS, clock=self._clock, name="timestamp")

    def _fail_waiting(self, error: PenstockError) -> None:
        while self._waiting:
            _fail(self._waiting.popleft()[0], error)

    def _drop_stream(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None

    async def close(self) -> None:
        """End the stream; callers that wait get Unavailable."""
        self._closed = True
        self._runner.cancel()
        await asyncio.gather(self._runner, return_exceptions=True)
        self._drop_stream()
        self._fail_waiting(Unavailable("the client was closed; connect again"))


def _fail(answer: "asyncio.Future[int]", error: PenstockError) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # a timestamp asked for in advance may never be awaited: asyncio must not log it


def _details(error: Exception) -> str:
    return (error.details() if isinstance(error, grpc.aio.AioRpcError) else None) or repr(error)
