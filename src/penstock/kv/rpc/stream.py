"""One BatchCommands stream: its receive loop, and its re-creation after an error."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from penstock import metrics
from penstock.clock import Clock
from penstock.kv.backoff import BackoffKind, sleep_ms
from penstock.kv.rpc.connections import (
    EOF,
    SERVICE,
    Connection,
    RpcFailed,
    error_from_closing,
    error_from_grpc,
)
from penstock.proto import tikvpb_pb2 as tikvpb
from penstock.proto.services import methods

_LOG = logging.getLogger(__name__)
_METHOD = methods(SERVICE)["BatchCommands"]
_RECEIVED = metrics.KV_BATCH_RECV_LATENCY.labels("ok")
_RECEIVE_FAILED = metrics.KV_BATCH_RECV_LATENCY.labels("err")


class PendingRequest:
    """A request on its way: queued, then pending on a stream until `answer` is done."""

    __slots__ = ("answer", "deadline", "field", "pending_on", "request", "request_id")

    def __init__(self, answer: "asyncio.Future[Message]", field: str, request: Message) -> None:
        self.answer: Final = answer
        self.field: Final = field
        self.request: Final = request
        self.deadline = 0.0
        self.request_id = 0
        self.pending_on: dict[int, PendingRequest] | None = None

    def fail(self, error: RpcFailed) -> None:
        """Answer with an error, unless the caller has its answer or has gone."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def forget(self) -> None:
        """Stop waiting: a late answer is then an unknown id."""
        if self.pending_on is not None:
            self.pending_on.pop(self.request_id, None)


class BatchStream:
    """A stream that carries batches on one connection.

    Invariant: `_pending` holds the entries written in the current epoch that have no answer yet.
    An epoch ends once, whoever notices the error first; its entries fail, and a new stream
    is made with growing pauses until the connection is ready.
    """

    def __init__(
        self, connection: Connection, clock: Clock, dial_timeout_s: float, on_load: Callable[[int], None]
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._dial_timeout_s = dial_timeout_s
        self._on_load = on_load
        self._epoch = 0
        self._failures = 0  # attempts since a message was last received
        self._call: Any = None
        self._pending: dict[int, PendingRequest] = {}
        self._receiver: asyncio.Task[None] | None = None
        self._recreator: asyncio.Task[None] | None = None
        self.writing: asyncio.Task[None] | None = None
        self.unsupported = False
        self._start()

    @property
    def open(self) -> bool:
        """Whether the stream exists; false while it is being re-created."""
        return self._call is not None

    @property
    def available(self) -> bool:
        """Whether a batch can be handed over now."""
        return self._call is not None and (self.writing is None or self.writing.done())

    def send(
        self, message: tikvpb.BatchCommandsRequest, entries: dict[int, PendingRequest]
    ) -> "asyncio.Task[None]":
        """Hand over a batch; the task ends when gRPC has taken it. The stream must be available."""
        assert self.available
        self._pending.update(entries)
        for entry in entries.values():
            entry.pending_on = self._pending
        self.writing = asyncio.create_task(self._write(self._call, message))
        return self.writing

    async def _write(self, call: Any, message: tikvpb.BatchCommandsRequest) -> None:
        try:
            await call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            # The receive loop sees the same end of the stream and fails the entries.
            _LOG.debug("a batch was not written", extra={"addr": self._connection.addr, "error": repr(error)})

    def _start(self) -> None:
        self._epoch += 1
        self._pending = {}
        self.writing = None
        self._call = self._connection.call(_METHOD)()
        self._receiver = asyncio.create_task(self._receive(self._call, self._epoch))

    async def _receive(self, call: Any, epoch: int) -> None:
        clock = self._clock
        while True:
            waiting_since = clock.monotonic()
            message = await self._read(call)
            waited_ns = (clock.monotonic() - waiting_since) * 1e9
            if isinstance(message, RpcFailed):
                _RECEIVE_FAILED.observe(waited_ns)
                self._end_epoch(epoch, message)
                return
            _RECEIVED.observe(waited_ns)
            self._deliver(message)

    async def _read(self, call: Any) -> tikvpb.BatchCommandsResponse | RpcFailed:
        """Return the next message, or why there is none."""
        addr = self._connection.addr
        try:
            message = await call.read()
        except grpc.aio.AioRpcError as error:
            return error_from_grpc(error, addr)
        except asyncio.CancelledError as error:
            failure = error_from_closing(error, addr)
            if isinstance(failure, asyncio.CancelledError):
                raise
            return failure
        if message is EOF:
            return RpcFailed(grpc.StatusCode.UNAVAILABLE, "the batch stream ended", addr=addr)
        if message is None:  # what gRPC makes of bytes that are no message
            return RpcFailed(grpc.StatusCode.INTERNAL, "the store sent an unreadable batch", addr=addr)
        batch: tikvpb.BatchCommandsResponse = message
        return batch

    def _deliver(self, message: tikvpb.BatchCommandsResponse) -> None:
        if message.transport_layer_load:
            self._on_load(message.transport_layer_load)
        self._failures = 0
        pending = self._pending
        for request_id, response in zip(message.request_ids, message.responses, strict=False):
            entry = pending.pop(request_id, None)
            if entry is None or entry.answer.done():
                continue  # the caller timed out or was cancelled
            field = response.WhichOneof("cmd")
            if field == entry.field:
                entry.answer.set_result(getattr(response, field))
            else:
                wrong = f"the store answered {field} to {entry.field}"
                entry.fail(RpcFailed(grpc.StatusCode.INTERNAL, wrong, addr=self._connection.addr))

    def _end_epoch(self, epoch: int, error: RpcFailed) -> None:
        if epoch != self._epoch or self._call is None:
            return
        call, self._call = self._call, None
        call.cancel()
        pending, self._pending = self._pending, {}
        for entry in pending.values():
            entry.fail(error)
        if error.code is grpc.StatusCode.UNIMPLEMENTED:
            self.unsupported = True
            return
        _LOG.info("a batch stream broke", extra={"addr": self._connection.addr, "error": str(error)})
        self._recreator = asyncio.create_task(self._recreate())

    async def _recreate(self) -> None:
        broken_at = self._clock.monotonic()
        while True:
            if self._failures:
                await self._pause(self._failures - 1)
            self._failures += 1
            if await self._connect():
                break
        self._start()
        metrics.KV_BATCH_CLIENT_RESET.observe(self._clock.monotonic() - broken_at)

    async def _pause(self, attempt: int) -> None:
        kind = BackoffKind.TIKV_RPC
        draw = self._clock.random()
        pause = sleep_ms(kind.jitter, kind.base_ms, kind.cap_ms, attempt=attempt, last_ms=0, draw=draw)
        await self._clock.sleep(pause / 1000)

    async def _connect(self) -> bool:
        await self._connection.renew()
        try:
            async with asyncio.timeout(self._dial_timeout_s):
                await self._connection.channel.channel_ready()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """End the stream for good; nobody may be waiting for an answer any more."""
        call, self._call = self._call, None
        self._epoch += 1
        if call is not None:
            call.cancel()
        tasks = [task for task in (self._receiver, self._recreator, self.writing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
