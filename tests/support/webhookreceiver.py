"""A server that receives changes, on a loopback address, and misbehaves when it is told to.

It does what one has to that wants each change exactly once: it keeps what comes until the last request of an
iteration, applies that together with its watermark, refuses iterations that begin elsewhere, and drops
requests that it has seen.
"""

import io
import json
import ssl
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import pyarrow as pa

from penstock.consumers.webhook.consumer import is_signed

__all__ = ["Misbehaviour", "Request", "WebhookReceiver"]

Misbehaviour = str
"""A status as text, with `:seconds` for Retry-After; or `drop` before a request is read, `forget` after it
was applied, `deaf` without reading it, `hang`, `trickle`, `drip` in its text, `cut`, `garbage`."""

_JOIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came."""

    headers: Mapping[str, str]
    body: bytes
    target: str = "/"

    def changes(self) -> list[dict[str, Any]]:
        """Return what it brings: `_deleted` and either a key or a row, in order."""
        if self.headers["Content-Type"] != "application/x-ndjson":
            return pa.ipc.open_stream(self.body).read_all().to_pylist() if self.body else []
        lines = [json.loads(line) for line in io.BytesIO(self.body)]
        return [
            {**(line.get("row") or line.get("key")), "_deleted": line["op"] == "delete"} for line in lines
        ]


@dataclass
class WebhookReceiver:
    """A context. `rows` by key, `to_ts` and `seen` are what it has; `plan` is what it does wrong next."""

    keys: tuple[str, ...] = ("id",)
    secret: str = ""
    certificate: ssl.SSLContext | None = None
    plan: deque[Misbehaviour] = field(default_factory=deque)
    rows: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    to_ts: int = 0
    seen: list[Request] = field(default_factory=list)
    repeated: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._staged: list[tuple[str, Request]] = []
        self._released = threading.Event()

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"receiver": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        if self.certificate is not None:
            self._server.socket = self.certificate.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_JOIN_S)

    @property
    def url(self) -> str:
        """Where it listens."""
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://127.0.0.1:{self._server.server_address[1]}/changes?token=hush"

    def next_fault(self) -> Misbehaviour:
        """Return the next fault; an empty text means none."""
        with self._lock:
            return self.plan.popleft() if self.plan else ""

    def wait(self) -> None:
        """Hang until the end."""
        self._released.wait(_JOIN_S)

    def take(self, request: Request) -> int:
        """Receive a request; return the status of the answer."""
        if self.secret and not is_signed(self.secret, request.headers, request.body, now_s=_sent_s(request)):
            return 401
        with self._lock:
            self.seen.append(request)
            return self._stage_or_apply(request)

    def _stage_or_apply(self, request: Request) -> int:
        headers = request.headers
        from_ts, to_ts = int(headers["Penstock-From-Ts"]), int(headers["Penstock-To-Ts"])
        snapshot = headers["Penstock-Kind"] == "snapshot"
        if to_ts == self.to_ts:  # applied already; its answer was lost
            self.repeated += 1
            return 200
        if not snapshot and from_ts != self.to_ts:
            return 409
        iteration, sequence = headers["Idempotency-Key"].rpartition(":")[0], headers["Penstock-Sequence"]
        if sequence == "0":
            self._staged = []
        if any(key == headers["Idempotency-Key"] for key, _ in self._staged):
            self.repeated += 1
            return 200
        if int(sequence) != len(self._staged) or any(
            not key.startswith(iteration) for key, _ in self._staged
        ):
            return 400
        self._staged.append((headers["Idempotency-Key"], request))
        if headers["Penstock-Last"] == "true":
            self._apply(snapshot=snapshot)
            self.to_ts = to_ts
        return 200

    def _apply(self, *, snapshot: bool) -> None:
        if snapshot:
            self.rows = {}
        for _, request in self._staged:
            for change in request.changes():
                key = tuple(change[name] for name in self.keys)
                if change.pop("_deleted"):
                    self.rows.pop(key, None)
                else:
                    change.pop("_commit_ts", None)
                    self.rows[key] = change
        self._staged = []


def _sent_s(request: Request) -> int:
    """Return the time by the sender's clock: tests have their own clocks."""
    return int(request.headers.get("Penstock-Signature", "t=0,").partition(",")[0].removeprefix("t="))


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Clients that go away are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    receiver: WebhookReceiver
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self._misbehaves():
            return
        to_ts = self.receiver.to_ts
        self._answer(200 if to_ts else 404, json.dumps({"to_ts": str(to_ts)}).encode())

    def do_POST(self) -> None:
        fault = self.receiver.next_fault()
        if fault == "drop":
            self.close_connection = True
            return
        if fault == "deaf":
            self.receiver.wait()
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = Request(dict(self.headers.items()), body, self.path)
        if fault == "forget":
            self.receiver.take(request)
            self.close_connection = True
            return
        if not self._misbehave(fault):
            self._answer(self.receiver.take(request), b"")

    def _misbehaves(self) -> bool:
        return self._misbehave(self.receiver.next_fault())

    def _misbehave(self, fault: Misbehaviour) -> bool:
        if fault == "drop":
            self.close_connection = True
        elif fault == "hang":
            self.receiver.wait()
            self.close_connection = True
        elif fault == "trickle":
            self._trickle(b"HTTP/1.1 200 OK\r\n", b"X-Slow: 1\r\n")
        elif fault == "drip":
            self._trickle(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"x")
        elif fault == "cut":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            self.close_connection = True
        elif fault == "garbage":
            self.wfile.write(b"this is no answer\r\n\r\n")
            self.close_connection = True
        elif fault:
            status, _, retry_after = fault.partition(":")
            self._answer(int(status), b"hush" * 50_000, {"Retry-After": retry_after} if retry_after else {})
        return bool(fault)

    def _trickle(self, begin: bytes, more: bytes) -> None:
        """An answer without an end, byte by byte: each comes in time, all of them never do."""
        self.close_connection = True
        try:
            self.wfile.write(begin)
            while not self.receiver._released.wait(0.02):
                self.wfile.write(more)
        except OSError:
            return

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        try:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""
