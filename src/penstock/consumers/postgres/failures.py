"""What goes wrong in PostgreSQL, said without a row's values, and split by what the caller does next.

The details of an error may quote rows, and so may the messages of errors about data: neither is shown, and
errors are not chained, because tracebacks are logged.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from penstock.errors import Invalid, PenstockError, Unavailable

_FATAL = re.compile(r"FATAL:\s+(.+)")
_CONNECTING = ("Connection refused", "timeout expired", "No such file or directory", "SSL", "certificate")
_COPY_COLUMN = re.compile(r"^COPY [^,]+, line \d+, column ([^:]+)", re.MULTILINE)
_DATA = "22"
_PERMANENT = frozenset({"0A", _DATA, "23", "2B", "3D", "3F", "42", "54", "P0"})
_QUIET = frozenset({_DATA, "P0"})  # their messages quote values, or say what a trigger's author likes


def connecting(error: psycopg.Error) -> PenstockError:
    """Why there is no connection; neither the connection string nor a password is shown."""
    text = str(error)
    fatal = _FATAL.search(text)
    why = fatal[1] if fatal else next((each for each in _CONNECTING if each in text), type(error).__name__)
    return Unavailable(f"PostgreSQL does not take the connection ({why}); check that it runs, and option dsn")


def failing(what: str, error: psycopg.Error) -> PenstockError:
    """Why a statement on a table failed."""
    state = error.sqlstate or ""
    reason = _reason(error, state)
    if state[:2] in _PERMANENT:
        return Invalid(f"{what} in PostgreSQL refuses the changes: {reason}")
    return Unavailable(f"{what} in PostgreSQL did not take the changes: {reason}; they are tried again")


def _reason(error: psycopg.Error, state: str) -> str:
    kind = type(error).__name__
    if state and state[:2] not in _QUIET and error.diag.message_primary:
        return error.diag.message_primary
    place = _COPY_COLUMN.search(error.diag.context or "")
    column = error.diag.column_name or (place and place[1])
    return f"{kind} in column {column}" if column else kind


@contextmanager
def told(what: str) -> Iterator[None]:
    """Raise ours instead of PostgreSQL's errors."""
    try:
        yield
    except psycopg.Error as error:
        raise failing(what, error) from None
