"""What every process of ours sets up first: its logs, and the libraries that read their environment.

A log has one line per event: text for a terminal, JSON for a machine. Log calls pass facts as `extra={...}`;
a message never contains a row's values or a secret.
"""

import json
import logging
import os
import resource
import sys
from datetime import UTC, datetime
from typing import TextIO

LIBRARY_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "jemalloc",
    "JE_ARROW_MALLOC_CONF": "dirty_decay_ms:5000,muzzy_decay_ms:5000",
    "ACERO_ALIGNMENT_HANDLING": "reallocate",
    "GRPC_VERBOSITY": "ERROR",
}
"""Environment variables that Arrow and gRPC read when they are first used.

Arrow's default allocator keeps memory that one thread frees for another thread's use: a process that reads
ahead holds half as much again, and more the longer it reads. jemalloc returns unused pages by itself after a
while. Buffers that come out of messages are not aligned as Arrow's joins and groups want them: `reallocate`
copies those without a warning. gRPC writes a line of its own form between the lines of our log for every
connection that a peer closes; what matters of it reaches our log as the error of a call.
"""

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def prepare_libraries() -> None:
    """Set the environment of Arrow and gRPC, here and for children. Call it before they are imported.

    Variables that are already set stay as they are.
    """
    for name, value in LIBRARY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


_OPEN_FILES = 65_536


def raise_file_limit() -> None:
    """Allow this process and its children as many open files as the system lets them, up to 65,536.

    Connections soon take the usual 1024, and a process that cannot open another file fails in every part.
    The caps on connections bound what clients can take.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def configure_logs(
    *, style: str = "text", level: str = "INFO", part: str = "", stream: TextIO | None = None
) -> None:
    """Send Penstock's logs to a stream (standard error by default).

    Lines of JSON name the `part` that wrote them, because a machine gathers the lines of many processes.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(part) if style == "json" else TextFormatter())
    root = logging.getLogger("penstock")
    root.handlers = [handler]
    root.setLevel(level)
    root.propagate = False


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, part, logger, message, then the facts."""

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
    """One line of text: time level logger: message key=value ...

    Names come from users: a line break or a terminal's escape in one is shown as it would be written in code.
    The lines of a traceback are indented, so that none of them looks like a line of the log.
    """

    def format(self, record: logging.LogRecord) -> str:
        facts = "".join(f" {key}={value}" for key, value in _facts(record).items())
        line = f"{_time(record)} {record.levelname:<7} {record.name}: {record.getMessage()}{facts}"
        traceback = self.formatException(record.exc_info).split("\n") if record.exc_info else []
        return "\n".join([printable(line), *(f"    {printable(below)}" for below in traceback)])


# Line breaks, other controls of terminals, and marks that change the direction in which text is shown.
_CONTROLS = {
    *(*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),
} - {ord("\t")}
_SHOWN = {code: repr(chr(code))[1:-1] for code in _CONTROLS}


def printable(text: str) -> str:
    """Return a text of users for a line of a log or of a terminal: its control characters as escapes."""
    return text.translate(_SHOWN)


def _facts(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
