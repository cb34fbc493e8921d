"""A server that receives traces by OTLP over HTTP, on a loopback address; refuses them when it is told to."""

import gzip
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from penstock.clock import SYSTEM

__all__ = ["ReceivedSpan", "TraceReceiver"]

_WAIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSpan:
    """A received span."""

    service: str
    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    start_ns: int
    end_ns: int
    events: tuple[str, ...]
    attributes: dict[str, str | int]


@dataclass
class TraceReceiver:
    """A context. `spans` are those that came; with `status` it answers that instead of taking them."""

    status: int = 200
    spans: list[ReceivedSpan] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    """Those of every request, by their names in lower case."""

    def __enter__(self) -> Self:
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"receiver": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        """What tracing.endpoint is to be."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"

    def take(self, headers: dict[str, str], body: bytes) -> int:
        """Return what to answer to a request."""
        with self._changed:
            self.headers.append(headers)
            if self.status == 200:
                self.spans += _spans(ExportTraceServiceRequest.FromString(body))
            self._changed.notify_all()
            return self.status

    def trace_of(self, commit_ts: int) -> list[ReceivedSpan]:
        """Return the spans of the trace in which a commit is."""
        with self._changed:
            ids = {span.trace_id for span in self.spans if span.attributes["penstock.commit_ts"] == commit_ts}
            return [span for span in self.spans if span.trace_id in ids]

    def wait_for(self, commit_ts: int, *names: str) -> list[ReceivedSpan]:
        """Return the spans of a commit's trace once it has all these names; fail after a minute."""
        deadline = SYSTEM.monotonic() + _WAIT_S
        while not set(names) <= {span.name for span in self.trace_of(commit_ts)}:
            assert SYSTEM.monotonic() < deadline, f"{names} did not come: {self.trace_of(commit_ts)}"
            with self._changed:
                self._changed.wait(0.2)
        return self.trace_of(commit_ts)


class _Handler(BaseHTTPRequestHandler):
    receiver: TraceReceiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.send_response(self.receiver.take(headers, body))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Say nothing of each request."""


def _spans(request: ExportTraceServiceRequest) -> list[ReceivedSpan]:
    return [
        ReceivedSpan(
            service=next(
                attribute.value.string_value
                for attribute in resource.resource.attributes
                if attribute.key == "service.name"
            ),
            name=span.name,
            trace_id=span.trace_id,
            span_id=span.span_id,
            parent_id=span.parent_span_id,
            start_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
            events=tuple(event.name for event in span.events),
            attributes={
                attribute.key: attribute.value.string_value or attribute.value.int_value
                for attribute in span.attributes
            },
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
