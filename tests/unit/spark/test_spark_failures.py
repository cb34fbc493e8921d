import os
import pickle

import pytest
from pyspark.errors import PySparkAttributeError

from penstock.errors import Conflict, Invalid, PenstockError, StaleRead, Unavailable
from penstock.spark.errors import (
    SessionEnded,
    as_penstock_error,
    first_line,
    hide_worker_traceback,
    translate_spark_errors,
)

PLANNING = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: \
penstock.errors.Invalid: unknown option 'x'; give another
 SQLSTATE: 38000"""

TRACEBACK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/x/reading.py", line 3, in read
    raise error
penstock.errors.Invalid: the first reason

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/x/kvreader.py", line 9, in read
    raise Unavailable(...) from error
penstock.errors.Unavailable: store 4 does not answer; try again
"""

# Spark's own cleaning up fails when a stream's reader could not be made, and is the last to speak.
STREAM = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] Failed:
penstock.errors.Invalid: readStream needs more

During handling of the above exception, another exception occurred:
UnboundLocalError: cannot access local variable 'reader' where it is not associated with a value
 SQLSTATE: 38000 SQLSTATE: XXKST"""


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (PLANNING, Invalid, "unknown option 'x'; give another"),
        (TRACEBACK, Unavailable, "store 4 does not answer; try again"),
        (STREAM, Invalid, "readStream needs more"),
    ],
)
def test_the_error_of_a_worker_is_found_in_what_spark_says(
    text: str, kind: type[PenstockError], message: str
):
    found = as_penstock_error(RuntimeError(text))
    assert type(found) is kind
    assert str(found) == message


def test_an_error_on_one_line_loses_sparks_state():
    found = as_penstock_error(RuntimeError("Failed: penstock.errors.Invalid: no such table SQLSTATE: 38000"))
    assert str(found) == "no such table"


@pytest.mark.parametrize("replaced", [False, True])
def test_history_that_is_gone_comes_back_with_its_numbers(replaced: bool):
    error = StaleRead("shop.orders", 5, oldest_ts=9, replaced=replaced, remedy="begin anew")
    found = as_penstock_error(RuntimeError(f"Traceback:\npenstock.errors.StaleRead: {error}"))
    assert isinstance(found, StaleRead)
    assert (found.table, found.ts, found.oldest_ts, str(found)) == ("shop.orders", 5, 9, str(error))
    assert found.replaced == replaced
    assert str(pickle.loads(pickle.dumps(found))) == str(error)


def test_an_error_that_a_message_cannot_make_comes_back_as_the_nearest_that_it_can():
    found = as_penstock_error(RuntimeError("penstock.errors.WriteConflict: write conflict on 0x74"))
    assert type(found) is Conflict
    assert type(as_penstock_error(RuntimeError("penstock.errors.Newer: something"))) is PenstockError


@pytest.mark.parametrize(
    ("text", "kind", "part"),
    [
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9",
            Invalid,
            "version of Python",
        ),
        ("ModuleNotFoundError: No module named 'pyarrow'", Invalid, "no Python package 'pyarrow'"),
        (
            'java.io.IOException: Cannot run program "/x/python": error=2',
            Invalid,
            "'/x/python' cannot be run",
        ),
        ("All masters are unresponsive! Giving up.", Unavailable, "master does not answer"),
        ("Cannot call methods on a stopped SparkContext.", SessionEnded, "build a new one"),
        ("Job 3 cancelled because SparkContext was shut down", SessionEnded, "build a new one"),
    ],
)
def test_what_people_meet_in_clusters_has_a_remedy(text: str, kind: type[PenstockError], part: str):
    found = as_penstock_error(RuntimeError(text))
    assert type(found) is kind
    assert part in str(found)


def test_what_spark_throws_for_reasons_of_its_own_passes_unchanged():
    error = RuntimeError("[DIVIDE_BY_ZERO] Division by zero.")
    with pytest.raises(RuntimeError) as caught, translate_spark_errors():
        raise error
    assert caught.value is error


def test_jobs_raise_our_error_with_sparks_as_its_cause():
    error = RuntimeError(PLANNING)
    with pytest.raises(Invalid) as caught, translate_spark_errors():
        raise error
    assert caught.value.__cause__ is error


def test_an_error_of_ours_passes_as_it_is():
    error = Unavailable("later")
    with pytest.raises(Unavailable) as caught, translate_spark_errors():
        raise error
    assert caught.value is error


def test_only_our_errors_are_shown_without_a_traceback(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    with pytest.raises(ValueError, match="x"), hide_worker_traceback():
        raise ValueError("x")
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # so that what follows is undone
    with pytest.raises(Invalid), hide_worker_traceback():
        raise Invalid("x")
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012", "Division by zero."),
        (
            "java.lang.IllegalArgumentException: spark.x should be int\n\tat a.b(C.java:1)",
            "spark.x should be int",
        ),
        (
            "Thrown from the worker:\nTraceback (most recent call last):\n  File 1\nValueError: x\n",
            "ValueError: x",
        ),
        ("", "RuntimeError"),
    ],
)
def test_the_first_line_says_what_happened_and_no_more(text: str, line: str):
    assert first_line(RuntimeError(text)) == line


def raised_inside_pyspark(code: str, **names: object) -> BaseException:
    made = compile(code, "/x/site-packages/pyspark/sql/dataframe.py", "exec")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the code decides which
        exec(made, names)
    return caught.value


def test_a_missing_attribute_is_an_ended_session_only_where_the_session_is_none():
    ended = as_penstock_error(raised_inside_pyspark("context.sc", context=None))
    assert type(ended) is SessionEnded
    assert as_penstock_error(raised_inside_pyspark("frame.nothing", frame=object())) is None
    unsupported = PySparkAttributeError("[ATTRIBUTE_NOT_SUPPORTED] Attribute `nothing` is not supported.")
    assert as_penstock_error(raised_inside_pyspark("raise error", error=unsupported)) is None


@pytest.mark.parametrize(
    "text",
    [
        "[NO_ACTIVE_SESSION] No active Spark session found.",
        "Cannot invoke RPC on closed channel!",
        "<_InactiveRpcError of RPC that terminated with: status = StatusCode.UNAVAILABLE",
        "[INVALID_HANDLE.SESSION_CHANGED] The handle x is invalid.",
    ],
)
def test_a_server_of_spark_connect_that_is_gone_is_an_ended_session(text: str):
    with pytest.raises(ValueError, match=r".") as caught:
        exec(
            compile("raise error", "/x/site-packages/pyspark/sql/connect/client/core.py", "exec"),
            {"error": ValueError(text)},
        )
    assert type(as_penstock_error(caught.value)) is SessionEnded
    assert as_penstock_error(ValueError(text)) is None
