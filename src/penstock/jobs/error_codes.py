"""How an error of an iteration is recorded: its code and its message. Pure.

Invalid and Corrupt need somebody to repair the job. All other errors may pass, and so may refused
credentials. The text of a foreign exception may show values of rows, so only its type is recorded, and the
line of code that raised it.
"""

import traceback
from collections.abc import Callable
from pathlib import PurePath
from typing import NamedTuple

from penstock.errors import Corrupt, Denied, Invalid, PenstockError
from penstock.follow.source import TableGone
from penstock.jobs.job import ErrorCode

_MESSAGE_CHARS = 1000
_OF_VALUES = ("22", "23")
"""Classes of SQLSTATEs whose messages may quote values: data exceptions and violated constraints."""


class SchemaRefused(Invalid):
    """The target does not accept the schema that the source has now."""


class TargetDiffers(Invalid):
    """The target is not what the job left."""


class CutOff(PenstockError):
    """A consumer was too slow for the other jobs of its table and continues in an iteration of its own."""


class Stalled(PenstockError):
    """A consumer made no progress for so long that its iteration was ended."""


class TooManyAbandoned(PenstockError):
    """Too many consumers of an account were abandoned and have not returned; nothing of it begins."""


class Failure(NamedTuple):
    """What is recorded of an error: its code and one line without values of rows."""

    code: ErrorCode
    message: str


def failure_of(error: BaseException, mask: Callable[[str], str] = str) -> Failure:
    """Return the code and the message that are recorded of an error. `mask` hides secrets in the message."""
    return Failure(_code(error), " ".join(mask(_message(error)).split())[:_MESSAGE_CHARS])


def _code(error: BaseException) -> ErrorCode:
    match error:
        case SchemaRefused():
            return ErrorCode.SCHEMA
        case TableGone():
            return ErrorCode.TABLE_GONE
        case TargetDiffers():
            return ErrorCode.TARGET_DIFFERS
        case Denied():
            return ErrorCode.TEMPORARY
        case Invalid() | Corrupt():
            return ErrorCode.REFUSED
        case CutOff():
            return ErrorCode.CUT_OFF
        case Stalled():
            return ErrorCode.STALLED
        case TooManyAbandoned():
            return ErrorCode.ABANDONED
        case _:
            return ErrorCode.TEMPORARY


def _message(error: BaseException) -> str:
    if isinstance(error, PenstockError):
        return str(error) or type(error).__name__
    about = _foreign_detail(error)
    return f"{type(error).__name__}{f': {about}' if about else ''} (in {_code_line(error)})"


def _foreign_detail(error: BaseException) -> str:
    """Return what a foreign exception says without values of rows."""
    if isinstance(error, OSError):
        return error.strerror or ""
    state = getattr(error, "sqlstate", None)
    if not isinstance(state, str):
        return ""
    diagnosis = getattr(error, "diag", None)
    if state.startswith(_OF_VALUES):
        names = [getattr(diagnosis, name, None) for name in ("constraint_name", "column_name", "table_name")]
        return " ".join([f"SQLSTATE {state}", *(name for name in names if name)])
    primary = getattr(diagnosis, "message_primary", None)
    return f"{primary} (SQLSTATE {state})" if primary else f"SQLSTATE {state}"


def _code_line(error: BaseException) -> str:
    """Return the innermost line of code."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "unknown code"
