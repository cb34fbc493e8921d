"""Structured logs: one line an event, as text for a terminal or as JSON for a machine.

Log calls pass facts as `extra={...}`; a message never contains a row's values or a secret.

How Arrow gets its memory in our processes.

Its usual allocator keeps what one thread frees of another's for that thread: a process that reads ahead holds
half as much again, the more the longer it reads. jemalloc gives unused pages back after a while, without
being asked. Buffers that come out of messages are not aligned as its joins and groups want them: those are
copied, and nobody is warned.
"""

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import TextIO

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(
    *, style: str = "text", level: str = "INFO", part: str = "", stream: TextIO | None = None
) -> None:
    """Send Penstock's logs to a stream (standard error by default).

    `part` is what lines of JSON say they are of: a machine gathers those of many processes.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(part) if style == "json" else TextFormatter())
    root = logging.getLogger("penstock")
    root.handlers = [handler]
    root.setLevel(level)
    root.propagate = False


def _facts(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, part, logger, message, then the facts."""

    def __init__(self, part: str = "") -> None:
        super().__init__()
        self._part = {"part": part} if part else {}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            **self._part,
            "logger": record.name,
            "message": record.getMessage(),
            **_facts(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """time level logger: message key=value ..."""

    def format(self, record: logging.LogRecord) -> str:
        facts = "".join(f" {key}={value}" for key, value in _facts(record).items())
        line = f"{_time(record)} {record.levelname:<7} {record.name}: {record.getMessage()}{facts}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "jemalloc",
    "JE_ARROW_MALLOC_CONF": "dirty_decay_ms:5000,muzzy_decay_ms:5000",
    "ACERO_ALIGNMENT_HANDLING": "reallocate",
}
"""What Arrow reads when it is first used."""


def prepare() -> None:
    """Choose it for this process and its children, unless somebody has; before Arrow is imported."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
