"""What an error means for a job: its code, and what is said of it. Pure.

Invalid and Corrupt need somebody to repair the job; whatever else may pass, and so may refused credentials.
Errors of others may show values of rows in their words, so of those only the kind is told, and where in the
code they came up.
"""

import traceback
from pathlib import PurePath
from typing import NamedTuple

from penstock.errors import Corrupt, Denied, Invalid, PenstockError
from penstock.follow.cluster_tables import TableGone
from penstock.jobs.job import ErrorCode

_MESSAGE_CHARS = 1000
_OF_VALUES = ("22", "23")
"""Classes of SQLSTATEs whose messages may quote values: data exceptions, and broken constraints."""


class SchemaRefused(Invalid):
    """The source has a schema that the target cannot take."""


class TargetDiffers(Invalid):
    """The target is not what the job left."""


class CutOff(PenstockError):
    """A consumer was too slow for its siblings: it goes on alone, in an iteration of its own."""


class Failure(NamedTuple):
    """What is kept of an error: one line, without values of rows."""

    code: ErrorCode
    message: str


def failure_of(error: BaseException) -> Failure:
    """The code and the words of an error."""
    return Failure(_code(error), " ".join(_words(error).split())[:_MESSAGE_CHARS])


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
        case _:
            return ErrorCode.TEMPORARY


def _words(error: BaseException) -> str:
    if isinstance(error, PenstockError):
        return str(error) or type(error).__name__
    about = _about(error)
    return f"{type(error).__name__}{f': {about}' if about else ''} (in {_place(error)})"


def _about(error: BaseException) -> str:
    """What can be told of an error of others."""
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


def _place(error: BaseException) -> str:
    """The innermost line of code."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "unknown code"
