"""Translates between PenstockErrors and the exceptions of Spark.

An error that a Python worker raises reaches the caller as text only, inside one of Spark's exceptions:
`penstock.errors.Invalid: ...` as the last line of a traceback. Our messages have one line each, so the kind
and the message can be read back.
"""

import os
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath

from penstock import errors
from penstock.errors import Invalid, PenstockError, StaleRead, Unavailable

__all__ = [
    "SessionEnded",
    "as_penstock_error",
    "first_line",
    "hide_worker_traceback",
    "translate_spark_errors",
]

NOT_SHARED = (
    "executors do not see the folder that the driver writes to; give a folder that is mounted at the same"
    " path on every machine, or object storage"
)

_OURS = re.compile(r"penstock\.errors\.(?P<kind>[A-Z]\w*): (?P<message>[^\n]*)")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+\s*$")
_STALE = re.compile(
    r"(?:history of (?P<table>.+) at (?P<ts>\d+) is gone"
    r"|a DDL replaced rows of (?P<of>.+) since (?P<since>\d+) without changes of them)"
    r"; the oldest that can be read is (?P<oldest>\d+): (?P<remedy>.*)"
)
_ENDED = "the Spark session has ended; build a new one and repeat the call"

_EXECUTOR_PYTHON = "set spark.python to an interpreter there that has Penstock's dependencies"


class SessionEnded(Unavailable):
    """The Spark session is gone. Build a new one, and repeat what was done with it."""


@contextmanager
def hide_worker_traceback() -> Iterator[None]:
    """Let Spark show a PenstockError of the block, which a Python worker runs, without the worker's
    traceback.

    Spark reads the variable when it writes the error, and ends the worker after that: nothing else that runs
    in a worker is affected.
    """
    try:
        yield
    except PenstockError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


@contextmanager
def translate_spark_errors() -> Iterator[None]:
    """Raise the PenstockError inside an exception of Spark, around code that runs Spark jobs.

    Other exceptions of Spark pass unchanged, unless we know a remedy.
    """
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        found = as_penstock_error(error)
        if found is None:
            raise
        raise found from error


def as_penstock_error(error: BaseException) -> PenstockError | None:
    """Return the PenstockError that an exception of Spark contains or stems from; None if there is none."""
    if isinstance(error, PenstockError):
        return error
    text = str(error)
    raised = list(_OURS.finditer(text))
    if raised:
        return _rebuild_error(raised[-1]["kind"], _SQLSTATE.sub("", raised[-1]["message"]))
    for pattern, explain in _KNOWN:
        match = pattern.search(text)
        if match:
            return explain(match)
    return SessionEnded(_ENDED) if _is_of_dead_java(error) or _is_of_lost_server(error) else None


_LOST_SERVER = re.compile(
    r"NO_ACTIVE_SESSION|INVALID_HANDLE\.SESSION|SESSION_(?:CHANGED|CLOSED|NOT_FOUND)"
    r"|server side session identifier"
    r"|StatusCode\.(?:UNAVAILABLE|CANCELLED)|[Ff]ailed to connect to all addresses|Socket closed"
    r"|[Cc]losed channel|Channel closed"
)


def _is_of_lost_server(error: BaseException) -> bool:
    """Return whether the client of Spark Connect raised an exception because its server is gone, or it is
    closed.
    """
    if not _LOST_SERVER.search(str(error)):
        return False
    trace = traceback.extract_tb(error.__traceback__)
    return any({"pyspark", "connect"} <= set(PurePath(frame.filename).parts) for frame in trace)


def _is_of_dead_java(error: BaseException) -> bool:
    """Return whether PySpark raised an exception because Java is gone, or its session was ended meanwhile.

    A call of such a Java fails in its socket; the attributes of an ended session are None.
    """
    of_none = isinstance(error, AttributeError) and str(error).startswith("'NoneType' object")
    if not (of_none or isinstance(error, ConnectionError)) or error.__traceback__ is None:
        return False
    innermost = traceback.extract_tb(error.__traceback__)[-1].filename
    return not {"py4j", "pyspark"}.isdisjoint(PurePath(innermost).parts)


def first_line(error: BaseException) -> str:
    """Return the message of an exception without stack trace, error class and state, for our own message."""
    java = getattr(error, "java_exception", None)  # py4j's errors put a stack trace into their text
    text = java.toString() if java is not None else str(error)
    lines = [line for line in _SQLSTATE.sub("", text).splitlines() if line.strip()] or [type(error).__name__]
    if any(line.endswith("Traceback (most recent call last):") for line in lines):
        lines = [line for line in lines if not line[0].isspace()][-1:]  # the end of a worker's traceback
    line = re.sub(r"^(?:(?:[\w$]+\.)+[\w$]+: )+", "", lines[0].strip())
    return re.sub(r"^\[[A-Z_.]+\] ", "", line)[:300]


def _rebuild_error(kind: str, message: str) -> PenstockError:
    """Return an error of the kind, or of its nearest base class that takes a message alone."""
    stale = _STALE.search(message) if kind == StaleRead.__name__ else None
    if stale:
        return StaleRead(
            stale["table"] or stale["of"],
            int(stale["ts"] or stale["since"]),
            oldest_ts=int(stale["oldest"]),
            replaced=stale["of"] is not None,
            remedy=stale["remedy"],
        )
    named: type[PenstockError] = getattr(errors, kind, PenstockError)
    nearest = PenstockError
    for base in reversed(named.__mro__):
        if "__init__" in vars(base) and issubclass(base, PenstockError):
            break
        if issubclass(base, PenstockError):
            nearest = base
    return nearest(message)


_KNOWN: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], PenstockError]], ...] = (
    (
        re.compile(r"PYTHON_VERSION_MISMATCH|Python in worker has different version"),
        lambda _: Invalid(f"executors run another version of Python than the driver; {_EXECUTOR_PYTHON}"),
    ),
    (
        re.compile(r"No module named '(?P<name>[\w.]+)'"),
        lambda match: Invalid(f"executors have no Python package {match['name']!r}; {_EXECUTOR_PYTHON}"),
    ),
    (
        re.compile(r'Cannot run program "(?P<path>[^"]+)"'),
        lambda match: Invalid(f"Python {match['path']!r} cannot be run; {_EXECUTOR_PYTHON}"),
    ),
    (
        re.compile(r"All masters are unresponsive|Master removed our application"),
        lambda _: Unavailable("the Spark master does not answer; start it, or correct spark.master"),
    ),
    (
        re.compile(
            r"stopped SparkContext|SparkContext (?:was|has been|is) (?:already )?(?:shut ?down|stopped)"
        ),
        lambda _: SessionEnded(_ENDED),
    ),
    (
        re.compile(r"Answer from Java side is empty|Error while sending or receiving"),
        lambda _: SessionEnded(_ENDED),
    ),
)
