"""Connections to the API: how many there may be, and how long a client may take over each step.

uvicorn waits for ever for the head of a request, for its body, and for a client that does not take the
answer. `Admission` decides, without I/O, who may be connected. `ApiConnection` is uvicorn's protocol with
deadlines: it counts a connection before the TLS handshake, and ends it when its client is too slow.
`ConnectionWatch` tells it, from within the application, when a request has begun and when it is answered.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from penstock import metrics

__all__ = ["Admission", "ApiConnection", "ConnectionWatch", "Doorkeeper"]

_PROGRESS_BYTES = 32 * 1024
"""A client that takes less of its answer than this within the time-out does not read it."""
_STATE_KEY = "connection"

C = TypeVar("C", bound=Hashable)


class Admission(Generic[C]):
    """Who is connected, and who makes room when there are too many.

    Invariants: at most `total` connections, at most `per_address` of one address. The connection that has
    waited longest for its client makes room for a new one, so that silent connections shut nobody out.
    """

    def __init__(self, total: int, per_address: int) -> None:
        self._total = total
        self._per_address = per_address
        self._addresses: dict[C, str] = {}
        self._counts: Counter[str] = Counter()
        self._waiting: dict[C, None] = {}  # in the order in which they began to wait

    def enter(self, connection: C, address: str) -> C | None:
        """Count a connection. Return the one to close for it; the new one itself when no one can go."""
        crowded = self._counts[address] >= self._per_address
        leaving = None
        if crowded or len(self._addresses) >= self._total:
            mine = (other for other in self._waiting if not crowded or self._addresses[other] == address)
            leaving = next(mine, None)
            if leaving is None:
                return connection
            self.leave(leaving)
        self._addresses[connection] = address
        self._counts[address] += 1
        return leaving

    def wait(self, connection: C) -> None:
        """Note that a connection waits for its client from now on."""
        self._waiting.pop(connection, None)
        if connection in self._addresses:
            self._waiting[connection] = None

    def work(self, connection: C) -> None:
        """Note that a connection does not wait for its client any more."""
        self._waiting.pop(connection, None)

    def leave(self, connection: C) -> None:
        """Forget a connection. A second call does nothing."""
        self._waiting.pop(connection, None)
        address = self._addresses.pop(connection, None)
        if address is None:
            return
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._addresses))

    def __len__(self) -> int:
        return len(self._addresses)


@dataclass(slots=True)
class Doorkeeper:
    """What the connections of one server share."""

    admission: "Admission[ApiConnection]"
    client_s: float
    """Seconds for a client to send a head, to send a body, and to take the next part of an answer."""
    tls: ssl.SSLContext | None = None

    def close(self) -> None:
        """End the connections that wait for their clients in a TLS handshake, which uvicorn does not know."""
        for connection in self.admission:
            connection.end_handshake()


class ApiConnection(H11Protocol):
    """One connection: uvicorn's, with TLS of our own and a deadline whenever it waits for its client."""

    def __init__(
        self,
        door: Doorkeeper,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, _STATE_KEY: self}, _loop)
        self._door = door
        self._begun = False  # uvicorn knows the connection
        self._opened: asyncio.Transport | None = None  # below TLS
        self._secured: asyncio.Transport | None = None  # above TLS, once the handshake is done
        self._handshake: asyncio.Task[None] | None = None
        self._early: list[bytes] = []  # what came with the last bytes of the handshake
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0  # bytes of the answer, when the timer was set
        self._requested = False  # a request has begun and is not answered
        self._body_due: float | None = None
        self._receiving = False
        self._stalled = False  # the client does not take the answer
        self._left = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the connection; begin with TLS if the server has it."""
        address = str((transport.get_extra_info("peername") or ("unknown",))[0])
        leaving = self._door.admission.enter(self, address)
        if leaving is not None:
            metrics.API_REFUSED_TOTAL.labels("connections").inc()
        self._opened = transport
        if leaving is self:
            self.cut()
            return
        if leaving is not None:
            leaving.cut()
        self._follow()
        if self._door.tls is None:
            self._begin(transport)
        else:
            transport.pause_reading()  # until TLS takes over: its bytes are not HTTP
            self._handshake = self.loop.create_task(self._secure(transport, self._door.tls))

    async def _secure(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        with suppress(OSError):  # no TLS, or not in time: asyncio has closed the connection
            secured = await self.loop.start_tls(
                transport,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=self._door.client_s,
                ssl_shutdown_timeout=self._door.client_s,
            )
            if secured is not None and not secured.is_closing():
                self._secured = secured
                self._begin(secured)
                return
        self._leave()

    def _begin(self, transport: asyncio.Transport) -> None:
        self._begun = True
        super().connection_made(transport)
        early, self._early = self._early, []
        for data in early:
            super().data_received(data)

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client; keep those that come before uvicorn knows the connection."""
        if self._begun:
            super().data_received(data)
        else:
            self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._leave()
        if self._begun:
            super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Set a deadline: the client has too much of its answer left to take."""
        if self._begun:
            super().pause_writing()
        self._stalled = True
        self._follow()

    def resume_writing(self) -> None:
        """Go on with the answer."""
        if self._begun:
            super().resume_writing()
        self._stalled = False
        self._follow()

    def begin_request(self) -> None:
        """Note that the head is complete."""
        self._requested = True
        self._body_due = None
        self._follow()

    def begin_receive(self) -> None:
        """Note that the application waits for more of the body. All of it has one deadline."""
        if self._body_due is None:
            self._body_due = self.loop.time() + self._door.client_s
        self._receiving = True
        self._follow()

    def end_receive(self) -> None:
        """Note that the application has a part of the body."""
        self._receiving = False
        self._follow()

    def end_request(self) -> None:
        """Note that the answer is complete: from now on the client may send another head."""
        self._requested = False
        self._stop_timer()
        self._follow()

    def _follow(self) -> None:
        """Run the timer exactly while the connection waits for its client."""
        if self._left:
            return
        if self._requested and not self._receiving and not self._stalled:
            self._stop_timer()
            self._door.admission.work(self)
        elif self._timer is None:
            self._door.admission.wait(self)
            self._start_timer(self._body_due if self._receiving else None)

    def _start_timer(self, due: float | None = None) -> None:
        self._unsent = self._unsent_bytes()
        self._timer = self.loop.call_at(due or self.loop.time() + self._door.client_s, self._expire)

    def _unsent_bytes(self) -> int:
        """Return the bytes that the client has not taken; TLS has a buffer above the socket's."""
        return sum(
            transport.get_write_buffer_size()
            for transport in (self._opened, self._secured)
            if transport is not None
        )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        """End the connection, unless its client takes its answer slowly but steadily."""
        if self._unsent - self._unsent_bytes() >= _PROGRESS_BYTES:
            self._start_timer()
            return
        metrics.API_REFUSED_TOTAL.labels("slow").inc()
        self.cut()

    def cut(self) -> None:
        """End the connection at once; what was not sent is lost."""
        self._leave()
        if self._opened is not None:
            self._opened.abort()

    def end_handshake(self) -> None:
        """End the connection if it is still in its handshake."""
        if not self._begun:
            self.cut()

    def _leave(self) -> None:
        self._left = True
        self._stop_timer()
        self._door.admission.leave(self)


class ConnectionWatch:
    """Tells the connection of each request what the application waits for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and note its steps."""
        connection: ApiConnection = scope["state"].pop(_STATE_KEY)
        connection.begin_request()
        complete = False  # the body
        answered = False

        async def receive_noted() -> Message:
            nonlocal complete
            if complete:  # what the application awaits now is that the client goes away
                return await receive()
            connection.begin_receive()
            try:
                message = await receive()
            finally:
                connection.end_receive()
            complete = not message.get("more_body", False)
            return message

        async def send_noted(message: Message) -> None:
            nonlocal answered
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                answered = True
                connection.end_request()

        try:
            await self._app(scope, receive_noted, send_noted)
        finally:
            if not answered:
                connection.end_request()
