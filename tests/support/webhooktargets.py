"""Servers that jobs post changes to, and that end up with each change exactly once, by what is documented.

`Staging` keeps what comes until an iteration is complete, and tells its watermark. `Merging` knows nothing
of iterations but that a snapshot takes the place of everything: of each row it keeps the newest.
"""

import json
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self

import pyarrow as pa

from support.jobtargets import Reading, Row

__all__ = ["Merging", "Receiver", "Staging"]

_JOIN_S = 10.0

Decode = Callable[[Row], Row]
"""Makes values of columns of what JSON has for them."""


class _Change:
    """A change from one line or row."""

    def __init__(self, row: dict[str, Any], commit_ts: int, *, deleted: bool) -> None:
        self.row = row
        self.commit_ts = commit_ts
        self.deleted = deleted

    @property
    def order(self) -> tuple[int, bool]:
        """Of one commit, what comes is newer than what goes."""
        return self.commit_ts, not self.deleted


class Receiver:
    """A context: a server on a loopback address. Implements Target."""

    form: ClassVar[str]

    def __init__(self, keys: Sequence[str], decode: Decode, request_bytes: str = "4KiB") -> None:
        self.to_ts = 0
        self._keys = keys
        self._decode = decode
        self._request_bytes = request_bytes
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"receiver": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign] # clients are killed
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_JOIN_S)

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    @property
    def options(self) -> dict[str, str]:
        """Return the options of the consumer that writes this target."""
        return {"url": self._url, "format": self.form, "request_bytes": self._request_bytes}

    def strays(self) -> list[str]:
        """Return the files or tables that no reader needs."""
        return []

    @abstractmethod
    def read(self) -> Reading | None:
        """Return the rows and the watermark of the target."""

    def post(self, headers: Mapping[str, str], body: bytes) -> int:
        """Take a request; return the status of the answer."""
        with self._lock:
            return self._take(headers, self._changes(body))

    @abstractmethod
    def _take(self, headers: Mapping[str, str], changes: list[_Change]) -> int:
        """Take a request; return the status of the answer."""

    def _changes(self, body: bytes) -> list[_Change]:
        if self.form == "json":
            lines = map(json.loads, body.splitlines())
            return [
                _Change(
                    dict(self._decode(line.get("row") or line["key"])),
                    int(line["commit_ts"]),
                    deleted=line["op"] == "delete",
                )
                for line in lines
            ]
        rows = pa.ipc.open_stream(body).read_all().to_pylist() if body else []
        return [_Change(row, row.pop("_commit_ts"), deleted=row.pop("_deleted")) for row in rows]

    def _key(self, change: _Change) -> tuple[Any, ...]:
        return tuple(change.row[name] for name in self._keys)


class Staging(Receiver):
    """Applies whole iterations, each on top of the one before; gets Arrow."""

    form = "arrow"

    def __init__(self, keys: Sequence[str], decode: Decode, request_bytes: str = "4KiB") -> None:
        super().__init__(keys, decode, request_bytes)
        self._rows: dict[tuple[Any, ...], Row] = {}
        self._staged: dict[str, dict[int, list[_Change]]] = {}

    @property
    def options(self) -> dict[str, str]:
        """Return the options of the consumer that writes this target."""
        return {**super().options, "watermark_url": self._url}

    def read(self) -> Reading | None:
        """Return the rows and the watermark of the target."""
        with self._lock:
            return Reading(self.to_ts, list(self._rows.values())) if self.to_ts else None

    def _take(self, headers: Mapping[str, str], changes: list[_Change]) -> int:
        from_ts, to_ts = int(headers["Penstock-From-Ts"]), int(headers["Penstock-To-Ts"])
        whole = headers["Penstock-Kind"] == "snapshot"
        if to_ts == self.to_ts:  # it was applied; the answer got lost
            return 200
        if to_ts < self.to_ts if whole else from_ts != self.to_ts:
            return 409
        iteration = headers["Idempotency-Key"].rpartition(":")[0]
        staged = self._staged.setdefault(iteration, {})
        staged[int(headers["Penstock-Sequence"])] = changes
        if headers["Penstock-Last"] == "true":
            assert sorted(staged) == list(range(len(staged))), "a part of an iteration is missing"
            rows = {} if whole else self._rows
            for change in (part_change for _, part in sorted(staged.items()) for part_change in part):
                if change.deleted:
                    rows.pop(self._key(change), None)
                else:
                    rows[self._key(change)] = change.row
            self._rows, self.to_ts = rows, to_ts
            self._staged.clear()
        return 200


class Merging(Receiver):
    """Applies every change that is newer than what it knows of the row; gets JSON."""

    form = "json"

    def __init__(self, keys: Sequence[str], decode: Decode, request_bytes: str = "4KiB") -> None:
        super().__init__(keys, decode, request_bytes)
        self._known: dict[tuple[Any, ...], _Change] = {}
        self._first: dict[str, list[_Change]] = {}
        self._first_ts = 0
        self._partly = False

    def read(self) -> Reading | None:
        """Return the rows and the watermark of the target."""
        with self._lock:
            there = [change.row for change in self._known.values() if not change.deleted]
            return Reading(self.to_ts, there) if self.to_ts and not self._partly else None

    def _take(self, headers: Mapping[str, str], changes: list[_Change]) -> int:
        to_ts, last = int(headers["Penstock-To-Ts"]), headers["Penstock-Last"] == "true"
        if headers["Penstock-Kind"] == "snapshot":
            iteration = headers["Idempotency-Key"].rpartition(":")[0]
            held = self._first.setdefault(iteration, [])
            if headers["Penstock-Sequence"] == "0":
                held.clear()
            held += changes
            if not last or to_ts < self.to_ts:
                return 200
            self._known, self._first_ts = {}, to_ts
            changes = self._first.pop(iteration)
        else:
            changes = [change for change in changes if change.commit_ts > self._first_ts]
        for change in changes:
            known = self._known.get(self._key(change))
            if known is None or known.order < change.order:
                self._known[self._key(change)] = change
        if to_ts >= self.to_ts:
            self._partly = not last
            self.to_ts = to_ts
        return 200


class _Handler(BaseHTTPRequestHandler):
    receiver: Receiver
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        to_ts = self.receiver.to_ts
        self._answer(200 if to_ts else 404, json.dumps({"to_ts": str(to_ts)}).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if len(body) == int(self.headers["Content-Length"]):  # else its sender is dead
            self._answer(self.receiver.post(dict(self.headers.items()), body), b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""
