"""The batch connection of one store: a bounded channel of requests and the loop that sends them.

One timer serves the timeouts of all requests.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import grpc
from google.protobuf.message import Message

from penstock import metrics
from penstock.clock import Clock
from penstock.kv.rpc.connections import BATCH_REQUESTS, ConnectionArray, RpcFailed
from penstock.kv.rpc.stream import BatchStream, PendingRequest
from penstock.proto import tikvpb_pb2 as tikvpb
from penstock.settings import KvSettings


class Deadlines:
    """The requests that have no answer yet, and the timer of the earliest deadline among them.

    A timer for each request would cost as much as sending it. Most requests are answered long
    before the timer fires, and it then looks at those that are left.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[PendingRequest], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = float("inf")
        self.unanswered: set[PendingRequest] = set()

    def add(self, entry: PendingRequest, timeout_s: float) -> None:
        """Watch a request until it is removed from `unanswered`."""
        entry.deadline = self._loop.time() + timeout_s
        self.unanswered.add(entry)
        if entry.deadline < self._fires_at:
            self._set(entry.deadline)

    def _set(self, at: float) -> None:
        self.stop()
        self._fires_at = at
        self._timer = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._timer, self._fires_at = None, float("inf")
        now = self._loop.time()
        late = [entry for entry in self.unanswered if entry.deadline <= now]
        for entry in late:
            self.unanswered.discard(entry)
            self._expire(entry)
        if self.unanswered:
            self._set(min(entry.deadline for entry in self.unanswered))

    def stop(self) -> None:
        """Stop the timer; the owner fails the requests that are still unanswered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._fires_at = None, float("inf")


# A write that takes longer is stalled by flow control: go on with the other connections.
_WRITE_STALL_S = 0.02


class BatchConnection:
    """Gathers the requests of many callers into batches, and spreads those over the connections.

    The channel holds at most `max_batch_size` requests; callers beyond it wait in order to enter.
    A request is written once: when its stream breaks the caller gets RpcFailed and decides.
    """

    def __init__(self, array: ConnectionArray, settings: KvSettings, clock: Clock) -> None:
        self._addr = array.addr
        self._clock = clock
        self._batch_max = settings.max_batch_size
        self._overload = settings.overload_threshold
        self._more_wait_s = settings.max_batch_wait_ms / 1000
        self._more_size = min(settings.batch_wait_size, settings.max_batch_size)
        self._loop = asyncio.get_running_loop()
        self._channel: deque[PendingRequest] = deque()
        self._entering: deque[tuple[PendingRequest, float]] = (
            deque()
        )  # callers that wait for room, and since when
        self._deadlines = Deadlines(self._loop, self._expire)
        self._arrival: asyncio.Future[None] | None = None
        self._last_id = 0
        self._turn = 0
        self._load = 0
        dial_timeout_s = settings.dial_timeout_ms / 1000
        self._streams = [
            BatchStream(connection, clock, dial_timeout_s, self._note_load)
            for connection in array.connections
        ]
        self._pending_requests = metrics.KV_BATCH_PENDING_REQUESTS.labels(self._addr)
        self._requests = metrics.KV_BATCH_REQUESTS.labels(self._addr)
        self._closed = False
        self._sender = asyncio.create_task(self._run())

    @property
    def unsupported(self) -> bool:
        """Whether the store has no batch service."""
        return any(stream.unsupported for stream in self._streams)

    @property
    def idle(self) -> bool:
        """Whether no request is queued or unanswered."""
        return not self._deadlines.unanswered

    async def send(self, field: str, request: Message, timeout_s: float) -> Message:
        """Send a command; raise RpcFailed when no answer comes in time or the stream breaks."""
        if self._closed:
            raise self._closed_error()
        # Checked here, where it fails this caller: in the send loop it would fail all callers.
        assert isinstance(request, BATCH_REQUESTS[field]), f"{type(request).__name__} is no {field} request"
        entry = PendingRequest(self._loop.create_future(), field, request)
        self._enter(entry)
        self._deadlines.add(entry, timeout_s)
        try:
            return await entry.answer
        except BaseException:
            entry.forget()
            raise
        finally:
            self._deadlines.unanswered.discard(entry)

    def _enter(self, entry: PendingRequest) -> None:
        if self._entering or len(self._channel) >= self._batch_max:
            self._entering.append((entry, self._clock.monotonic()))
            return
        self._channel.append(entry)
        metrics.KV_BATCH_WAIT_DURATION.observe(0)
        arrival = self._arrival
        if arrival is not None and not arrival.done():
            arrival.set_result(None)

    def _expire(self, entry: PendingRequest) -> None:
        sent = entry.pending_on is not None
        entry.fail(
            self._failure(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer within the timeout", sent=sent)
        )

    def _closed_error(self) -> RpcFailed:
        return self._failure(grpc.StatusCode.CANCELLED, "the connection was closed", sent=True)

    @staticmethod
    def _fail(entries: Iterable[PendingRequest], error: RpcFailed) -> None:
        for entry in entries:
            entry.fail(error)

    def _failure(self, code: grpc.StatusCode, reason: str, *, sent: bool) -> RpcFailed:
        return RpcFailed(code, reason, addr=self._addr, sent=sent)

    def _note_load(self, load: int) -> None:
        self._load = load

    async def _run(self) -> None:
        while True:
            await self._wait_for_request()
            started = self._clock.monotonic()
            self._pending_requests.observe(len(self._channel))
            batch = self._drain(self._batch_max)
            if self._more_wait_s > 0 and self._load >= self._overload and len(batch) < self._batch_max:
                metrics.KV_BATCH_WAIT_OVERLOAD.inc()
                await self._gather_more(batch)
            await self._dispatch(batch)
            metrics.KV_BATCH_SEND_LATENCY.observe((self._clock.monotonic() - started) * 1e9)

    async def _wait_for_request(self) -> None:
        if not self._channel:
            self._arrival = self._loop.create_future()
            await self._arrival
            self._arrival = None

    def _drain(self, count_max: int) -> list[PendingRequest]:
        channel = self._channel
        taken = [channel.popleft() for _ in range(min(count_max, len(channel)))]
        while self._entering and len(channel) < self._batch_max:
            entry, since = self._entering.popleft()
            channel.append(entry)
            metrics.KV_BATCH_WAIT_DURATION.observe((self._clock.monotonic() - since) * 1e9)
        return taken

    async def _gather_more(self, batch: list[PendingRequest]) -> None:
        """Wait a little for more requests: an overloaded store is better served by larger batches."""
        try:
            async with asyncio.timeout(self._more_wait_s):
                while len(batch) < self._more_size:
                    await self._wait_for_request()
                    batch += self._drain(self._batch_max - len(batch))
        except TimeoutError:
            self._arrival = None

    async def _dispatch(self, batch: Sequence[PendingRequest]) -> None:
        stream = await self._pick()
        waiting = [entry for entry in batch if not entry.answer.done()]
        if not waiting:
            return
        if stream is None:
            metrics.KV_BATCH_CLIENT_NO_AVAILABLE_CONNECTION_TOTAL.inc()
            self._fail(waiting, self._failure(self._down_code(), "no available connections", sent=False))
            return
        message = tikvpb.BatchCommandsRequest()
        entries: dict[int, PendingRequest] = {}
        add = message.requests.add
        next_id = self._last_id
        for entry in waiting:
            next_id += 1
            getattr(add(), entry.field).CopyFrom(entry.request)
            entry.request_id = next_id
            entries[next_id] = entry
        self._last_id = next_id
        message.request_ids.extend(entries)
        self._requests.observe(len(waiting))
        await asyncio.wait((stream.send(message, entries),), timeout=_WRITE_STALL_S)

    def _down_code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNIMPLEMENTED if self.unsupported else grpc.StatusCode.UNAVAILABLE

    async def _pick(self) -> BatchStream | None:
        """Return the next stream that takes a batch, in turn; None when all are being re-created."""
        while True:
            count = len(self._streams)
            for step in range(1, count + 1):
                turn = (self._turn + step) % count
                if self._streams[turn].available:
                    self._turn = turn
                    return self._streams[turn]
            stalled = [s.writing for s in self._streams if s.open and s.writing is not None]
            if not stalled:
                return None
            await asyncio.wait(stalled, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """End the loops; callers that wait get RpcFailed."""
        self._closed = True
        self._sender.cancel()
        await asyncio.gather(self._sender, return_exceptions=True)
        self._deadlines.stop()
        self._fail(self._deadlines.unanswered, self._closed_error())
        for stream in self._streams:
            await stream.close()
