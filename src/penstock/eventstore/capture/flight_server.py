"""Arrow Flight's protocol on gRPC's own server, with limits for connections, calls and messages.

pyarrow's Flight server takes none of gRPC's settings: it accepts messages of any size, and a caller that does
not read holds a thread for ever. Messages of Flight are pyarrow's here, and the clients are pyarrow's; only
the server is gRPC's. Who is refused or late costs others nothing:

- `FlightAccess` is asked before anything of a call is read.
- A caller has `request_s` to send its request, and `stall_s` to take each part of an answer.
- At most `calls` run at once. When there are more, the one that has waited longest for its caller ends.

`CallBoard` decides and is pure.
"""

import hmac
import logging
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import grpc
import pyarrow as pa
from pydantic import SecretStr

from penstock.audit import write_entry
from penstock.clock import SYSTEM, Clock
from penstock.errors import Corrupt, Invalid, PenstockError, StaleRead, Unavailable
from penstock.eventstore.read.flight_client import CORRUPT, HEADER, bearer, write_stale
from penstock.metrics import FLIGHT_REFUSED_TOTAL
from penstock.settings import CaptureSettings
from penstock.settings.network import is_loopback
from penstock.shares import RateLimit

__all__ = [
    "OPEN",
    "CallBoard",
    "FlightAccess",
    "FlightLimits",
    "FlightMethod",
    "FlightServer",
    "ThreadForEachCall",
    "encode_batches",
    "encode_field",
]

_NOTED_PER_S, _NOTED_BURST = 1, 20
"""Refused calls of an address that the audit log has; more are counted only: they would fill its disk."""
_SERVICE = "/arrow.flight.protocol.FlightService/"
_METHODS = frozenset(
    {
        "DoAction",
        "DoExchange",
        "DoGet",
        "DoPut",
        "GetFlightInfo",
        "GetSchema",
        "Handshake",
        "ListActions",
        "ListFlights",
        "PollFlightInfo",
    }
)
_WATCH_S = 0.5
_PART_BYTES = 1024 * 1024
"""A batch is sent in parts of about this size: it is the memory that a call takes, twice, while it waits for
its caller, and it tells a slow reader from one that does not read."""
_SMALL_BYTES = 256 * 1024
"""Batches below it are sent together: a message costs as much as some hundred kilobytes."""
_REASON_CHARS_MAX = 2000  # of an error; gRPC sends it as a header, and clients take few kilobytes of those
_CUT_OFF_S = 1.0

FlightMethod = Callable[[bytes], Iterator[bytes]]
"""From a request to the messages of its answer, in the wire format; an error becomes a gRPC status."""

_log = logging.getLogger(__name__)

C = TypeVar("C", bound=Hashable)


@dataclass(frozen=True, slots=True)
class FlightAccess:
    """What a service shows to its callers and asks of them. The default asks for nothing."""

    certificate: tuple[bytes, bytes] | None = field(default=None, repr=False)  # and its key
    authority: bytes | None = None  # callers must show a certificate that it signed
    token: SecretStr | None = None  # every call must carry it

    @classmethod
    def of(cls, settings: CaptureSettings) -> "FlightAccess":
        """Read the files that the settings name; raise Invalid when a file cannot be used.

        An address that other machines reach must be protected: without TLS and a token it is refused.
        """
        token = settings.read_flight_token()
        if not (settings.flight_tls and token) and not is_loopback(settings.flight_addr):
            raise Invalid(
                f"capture.flight_addr = {settings.flight_addr!r} can be reached by other machines; give"
                " capture.flight_tls and capture.flight_token (or flight_token_path), or listen on 127.0.0.1"
            )
        if settings.flight_tls is None:
            return cls(token=token)
        certificate, key, authority = settings.flight_tls.read()
        return cls((certificate, key), authority, token)

    def credentials(self) -> "grpc.ServerCredentials | None":
        """Return the service's TLS for gRPC; None without TLS."""
        if self.certificate is None:
            return None
        certificate, key = self.certificate
        return grpc.ssl_server_credentials(
            [(key, certificate)],
            root_certificates=self.authority,
            require_client_auth=self.authority is not None,
        )

    def refuse(self, metadata: "Sequence[tuple[str, str | bytes]]") -> str | None:
        """Return why a call with these headers gets nothing; None when it may go on. Takes constant time."""
        if self.token is None:
            return None
        given = [value for name, value in metadata if name.lower() == HEADER]
        if not given:
            return "this service needs a token; send it as authorization: Bearer"
        shown = given[0].encode() if isinstance(given[0], str) else given[0]
        if len(given) > 1 or not hmac.compare_digest(shown, bearer(self.token)):
            return "the token is not the one of this service; check it"
        return None


OPEN = FlightAccess()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightLimits:
    """What callers may take of a service."""

    connections: int = 4000
    calls: int = 4096
    """One reader of a partitioned table has two calls for each partition, and takes rows of all in turn."""
    request_bytes: int = 16 * 1024 * 1024
    request_s: float = 10.0
    stall_s: float = 3600.0
    """A reader opens its call before it reads the table's objects, so that it may take no rows for long."""
    handshake_s: float = 5.0
    idle_s: float = 600.0  # without a call; the client connects again when it needs to
    ping_s: float = 60.0
    """Seconds without traffic after which a caller is asked whether it is still there."""
    ping_timeout_s: float = 20.0
    makes_room_s: float = 1.0
    """Seconds that a call must have waited for its caller before it ends for another."""


class CallBoard(Generic[C]):
    """Which calls run, and which of them wait for their caller, since when and until when. Pure.

    Invariant: at most `limit` calls.
    """

    def __init__(self, limit: int, makes_room_s: float) -> None:
        self._limit = limit
        self._makes_room_s = makes_room_s
        self._calls: dict[C, tuple[float, float] | None] = {}  # since when and until when it waits

    def enter(self, call: C, now: float) -> C | None:
        """Count a call. Return the one to end for it; the new one itself when none can go."""
        leaving = None
        if len(self._calls) >= self._limit:
            waits = [(wait[0], other) for other, wait in self._calls.items() if wait is not None]
            since, leaving = min(waits, key=lambda wait: wait[0], default=(now, call))
            if now - since < self._makes_room_s:
                return call
            del self._calls[leaving]
        self._calls[call] = None
        return leaving

    def wait(self, call: C, now: float, timeout_s: float) -> None:
        """Note that a call waits for its caller from now on."""
        if call in self._calls:
            self._calls[call] = now, now + timeout_s

    def work(self, call: C) -> None:
        """Note that a call does not wait for its caller any more."""
        if call in self._calls:
            self._calls[call] = None

    def leave(self, call: C) -> None:
        """Forget a call. A second time does nothing."""
        self._calls.pop(call, None)

    def take_late(self, now: float) -> list[C]:
        """Remove and return the calls whose caller is too slow."""
        late = [call for call, wait in self._calls.items() if wait is not None and wait[1] <= now]
        for call in late:
            del self._calls[call]
        return late

    def __len__(self) -> int:
        return len(self._calls)


class FlightServer:
    """Serves methods of Flight by their names; others answer UNIMPLEMENTED. It serves until `close`."""

    def __init__(
        self,
        addr: str,
        methods: Mapping[str, FlightMethod],
        access: FlightAccess,
        *,
        limits: FlightLimits | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Listen at host:port, where port 0 takes a free one; raise Invalid when that cannot be done."""
        self._methods = methods
        self._access = access
        self._limits = limits = limits or FlightLimits()
        self._clock = clock
        self._noted = RateLimit(_NOTED_PER_S, _NOTED_BURST)
        self._noting = threading.Lock()
        self._lock = threading.Lock()
        self._board: CallBoard[_Call] = CallBoard(limits.calls, limits.makes_room_s)
        self._closed = threading.Event()
        self._server = grpc.server(
            ThreadForEachCall(),  # type: ignore[arg-type]  # any executor will do
            handlers=[_FlightHandler(self)],
            options=_options(limits),
            maximum_concurrent_rpcs=_calls_begun(limits),
        )
        host = addr.rpartition(":")[0]
        self.addr = f"{host}:{self._listen(addr)}"
        self._server.start()
        threading.Thread(target=self._watch, name="penstock-flight-watch", daemon=True).start()

    def _listen(self, addr: str) -> int:
        remedy = "free the port or change capture.flight_addr"
        if self._access.certificate is not None:
            remedy += ", and check that the files of capture.flight_tls belong together"
        try:
            port = (
                self._server.add_insecure_port(addr)
                if (credentials := self._access.credentials()) is None
                else self._server.add_secure_port(addr, credentials)
            )
        except RuntimeError as error:
            raise Invalid(f"Flight cannot listen on {addr}; {remedy}") from error
        if not port:
            raise Invalid(f"Flight cannot listen on {addr}; {remedy}")
        return port

    def close(self, timeout_s: float) -> bool:
        """Take no more calls. Return whether those under way ended in time; the others are cut off."""
        deadline = self._clock.monotonic() + timeout_s
        ended = self._server.stop(timeout_s)
        ended.wait(timeout_s + _CUT_OFF_S)
        self._closed.set()
        return self._clock.monotonic() < deadline

    def refuse(self, metadata: Sequence[tuple[str, str | bytes]]) -> str | None:
        """Return why a caller gets nothing; None when it may call."""
        return self._access.refuse(metadata)

    def note_refusal(self, method: str, peer: str) -> None:
        """Write a call that was refused to the audit log, unless its address makes many of them."""
        address = peer.partition(":")[2].rpartition(":")[0]
        with self._noting:
            wait_s = self._noted.take(address, self._clock.monotonic())
        if not wait_s:
            write_entry(f"flight {method}", None, "refused", account=None, client=address)

    def serve(self, name: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer one call, in a thread of its own."""
        method = self._methods.get(name)
        if method is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "this service has no such method")
        call = _Call(context)
        try:
            self._enter(call)
            with self._waiting(call, self._limits.request_s):
                request = _take(requests)
            for message in method(request):
                with self._waiting(call, self._limits.stall_s):
                    yield message
        except grpc.RpcError:
            return  # the call was ended while it waited for its request
        except Exception as error:  # noqa: BLE001 - whatever it was, the caller gets one line
            _abort(context, error)
        finally:
            with self._lock:
                self._board.leave(call)

    def _enter(self, call: "_Call") -> None:
        with self._lock:
            leaving = self._board.enter(call, self._clock.monotonic())
        if leaving is not None:
            FLIGHT_REFUSED_TOTAL.labels("calls").inc()
        if leaving is call:
            raise Unavailable("there are too many calls at a time; try again")
        if leaving is not None:
            leaving.end()

    def _waiting(self, call: "_Call", timeout_s: float) -> "_WaitingCall":
        return _WaitingCall(self, call, timeout_s)

    def begin_wait(self, call: "_Call", timeout_s: float) -> None:
        """Note that a call waits for its caller."""
        with self._lock:
            self._board.wait(call, self._clock.monotonic(), timeout_s)

    def end_wait(self, call: "_Call") -> None:
        """Note that a call goes on."""
        with self._lock:
            self._board.work(call)

    def _watch(self) -> None:
        """End the calls whose callers are too slow."""
        while not self._closed.wait(_WATCH_S):
            with self._lock:
                late = self._board.take_late(self._clock.monotonic())
            for call in late:
                FLIGHT_REFUSED_TOTAL.labels("slow").inc()
                _log.warning("a Flight caller was too slow and is cut off", extra={"peer": call.peer})
                call.end()


def _take(requests: Iterator[bytes]) -> bytes:
    for request in requests:
        return request
    raise Invalid("the call has no request")


class _Call:
    """One call; can be ended by any thread."""

    def __init__(self, context: grpc.ServicerContext) -> None:
        self._context = context

    @property
    def peer(self) -> str:
        return str(self._context.peer())

    def end(self) -> None:
        self._context.cancel()  # type: ignore[no-untyped-call]


class _WaitingCall:
    def __init__(self, server: FlightServer, call: _Call, timeout_s: float) -> None:
        self._server = server
        self._call = call
        self._timeout_s = timeout_s

    def __enter__(self) -> None:
        self._server.begin_wait(self._call, self._timeout_s)

    def __exit__(self, *_: object) -> None:
        self._server.end_wait(self._call)


class _FlightHandler(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
    """Finds the method of a call. A stranger's call ends here, with nothing of it read."""

    def __init__(self, server: FlightServer) -> None:
        self._server = server

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return what answers a call: of two streams always, because a single request is waited for."""
        path = str(handler_call_details.method)
        name = path.removeprefix(_SERVICE)
        if name not in _METHODS or name == path:
            return None
        refusal = self._server.refuse(handler_call_details.invocation_metadata or ())

        def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            if refusal is not None:
                FLIGHT_REFUSED_TOTAL.labels("token").inc()
                self._server.note_refusal(name, context.peer())
                context.abort(grpc.StatusCode.UNAUTHENTICATED, refusal)
            return self._server.serve(name, requests, context)

        return grpc.stream_stream_rpc_method_handler(answer)


class ThreadForEachCall(Executor):
    """Runs each call in a thread that the end of the process does not wait for."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - the future's to tell
                future.set_exception(error)

        try:
            threading.Thread(target=work, name="penstock-flight-call", daemon=True).start()
        except RuntimeError as error:  # no more threads: raised here, it would end gRPC's server
            _log.error("a Flight call got no thread", exc_info=error)
            future.set_exception(error)
        return future


def _calls_begun(limits: FlightLimits) -> int:
    """Return at how many calls gRPC itself refuses; somewhat more, so that most are refused in our words."""
    return limits.calls + 128


def _options(limits: FlightLimits) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # a second server on the same address is a mistake: let it fail
        ("grpc.max_receive_message_length", limits.request_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small request cannot become a large one
        ("grpc.max_allowed_incoming_connections", limits.connections),
        # Fewer would make a client wait in silence, and one that needs them all to go on would wait for ever.
        ("grpc.max_concurrent_streams", _calls_begun(limits)),
        ("grpc.server_handshake_timeout_ms", int(limits.handshake_s * 1000)),
        ("grpc.max_connection_idle_ms", int(limits.idle_s * 1000)),
        ("grpc.keepalive_time_ms", int(limits.ping_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(limits.ping_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        # gRPC's own 60 s otherwise, whatever keepalive says.
        ("grpc.http2.ping_timeout_ms", int(limits.ping_timeout_s * 1000)),
    ]


def _abort(context: grpc.ServicerContext, error: Exception) -> None:
    """End a call with the status that pyarrow's client reads as its own error."""
    reason = str(error)[:_REASON_CHARS_MAX]
    if isinstance(error, Unavailable):
        context.abort(grpc.StatusCode.UNAVAILABLE, reason)
    elif isinstance(error, Corrupt | StaleRead):
        detail = CORRUPT if isinstance(error, Corrupt) else write_stale(error)
        context.set_trailing_metadata(
            (
                ("x-arrow-status", "5"),  # Arrow's IOError, with a detail of Flight's
                ("x-arrow-status-message-bin", reason.encode()),
                ("x-arrow-status-detail-bin", b"Internal"),
                ("grpc-status-details-bin", detail),
            )
        )
        context.abort(grpc.StatusCode.INTERNAL, reason)
    elif isinstance(error, PenstockError):
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
    elif context.is_active():  # a mistake of ours: the caller learns that there was one, and no more
        _log.error("a Flight call failed", exc_info=error)
        context.abort(grpc.StatusCode.INTERNAL, "the call failed; the log of the capture says why")


def encode_batches(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield a schema and its batches as messages of a stream, each of bounded size.

    Columns must not be dictionaries, which would need messages of their own.
    """
    yield _encode_message(schema.serialize())
    for batch in _join_small(batches):
        assert batch.schema.equals(schema), "the batches of a stream have its schema"
        parts = -(-batch.nbytes // _PART_BYTES) or 1
        rows = -(-batch.num_rows // parts) or 1
        for start in range(0, max(batch.num_rows, 1), rows):
            yield _encode_message(batch.slice(start, rows).serialize())


def _join_small(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in the same order, in batches of _SMALL_BYTES or more where there are as many."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        nbytes = batch.nbytes
        if held and nbytes >= _SMALL_BYTES:  # a large one is not copied
            joined, held, held_bytes = pa.concat_batches(held), [], 0
            yield joined
        held.append(batch)
        held_bytes += nbytes
        if held_bytes >= _SMALL_BYTES:
            joined, held, held_bytes = pa.concat_batches(held) if len(held) > 1 else batch, [], 0
            yield joined
    if held:
        yield pa.concat_batches(held)


def _encode_message(encapsulated: pa.Buffer) -> bytes:
    """Encode FlightData: the metadata of an IPC message is field 2, its body field 1000."""
    message = pa.ipc.read_message(encapsulated)
    body = () if message.body is None else _field(1000, message.body)
    return b"".join((*_field(2, message.metadata), *body))  # the only copy, until gRPC makes its own


def encode_field(number: int, value: bytes) -> bytes:
    """Encode bytes as a field of a protobuf message."""
    return b"".join(_field(number, value))


def _field(number: int, value: "bytes | pa.Buffer") -> "tuple[bytes, bytes, bytes | pa.Buffer]":
    return _varint(number << 3 | 2), _varint(len(value)), value


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
