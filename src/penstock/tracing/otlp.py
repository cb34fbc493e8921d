"""Sends spans by OpenTelemetry's protocol, OTLP over HTTP."""

import logging
from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from penstock import __version__
from penstock.tracing.sampling import Span

__all__ = ["OtlpExport"]

_TIMEOUT_S = 5.0
_NS_PER_MS = 1_000_000
_SCOPE = InstrumentationScope("penstock", __version__)


class _LastMessage(logging.Handler):
    """Keeps the exporter's last log line. The tracer logs one line when sending begins to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.message = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.message = record.getMessage().partition("\n")[0]


class OtlpExport:
    """Sends spans to one endpoint. Silences OpenTelemetry's own loggers in this process."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], *, service: str, instance: str) -> None:
        self._exporter = OTLPSpanExporter(endpoint, headers=dict(headers), timeout=_TIMEOUT_S)
        attributes = {"service.name": f"penstock-{service}", "service.version": __version__}
        if instance:
            attributes["service.instance.id"] = instance
        self._resource = Resource(attributes)
        self._last = _LastMessage()
        for name in ("opentelemetry.exporter.otlp", "opentelemetry.exporter.http"):
            logger = logging.getLogger(name)
            logger.handlers = [self._last]
            logger.propagate = False

    def send(self, spans: Sequence[Span]) -> str:
        """Send spans within a few seconds; return the exporter's error, or an empty text on success."""
        self._last.message = ""
        result = self._exporter.export([self._readable(span) for span in spans])
        return "" if result is SpanExportResult.SUCCESS else self._last.message or "no reason was given"

    def close(self) -> None:
        """Shut the exporter down; a running `send` ends soon."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call] # OpenTelemetry gives it none

    def _readable(self, span: Span) -> ReadableSpan:
        began = () if span.began_ms is None else (Event("began", timestamp=span.began_ms * _NS_PER_MS),)
        parent = None if span.parent_id is None else _context(span.trace_id, span.parent_id)
        return ReadableSpan(
            name=span.stage.value,
            context=_context(span.trace_id, span.span_id),
            parent=parent,
            resource=self._resource,
            attributes={f"penstock.{name}": value for name, value in span.attributes.items()},
            events=began,
            start_time=span.start_ms * _NS_PER_MS,
            end_time=span.end_ms * _NS_PER_MS,
            instrumentation_scope=_SCOPE,
        )


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
