import asyncio
import logging

import grpc
import pytest

from penstock.errors import Unavailable
from penstock.store.executor import ClusterMismatch
from penstock.store.faults import FaultStruck
from penstock.store.server import end_call


class Ended(Exception):
    pass


class Call:
    """A call that remembers how it was ended."""

    code: grpc.StatusCode | None = None
    details = ""

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.code, self.details = code, details
        raise Ended


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ClusterMismatch("request is for cluster 1"), grpc.StatusCode.INVALID_ARGUMENT),
        (Unavailable("the disk is full"), grpc.StatusCode.UNAVAILABLE),
        (FaultStruck(grpc.StatusCode.UNAVAILABLE), grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_expected_errors_have_a_status_of_their_own(error: Exception, code: grpc.StatusCode) -> None:
    call = Call()
    with pytest.raises(Ended):
        await end_call(call, error, "KvGet")
    assert (call.code, call.details) == (code, str(error))


async def test_an_unexpected_error_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    call = Call()
    with caplog.at_level(logging.ERROR), pytest.raises(Ended):
        await end_call(call, RuntimeError("value of row 7"), "KvGet")
    assert call.code is grpc.StatusCode.INTERNAL
    assert "row 7" not in call.details
    assert "row 7" in caplog.text


async def test_a_call_that_is_never_answered_waits_for_its_caller_to_leave() -> None:
    call = Call()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(end_call(call, FaultStruck(None), "KvGet"), 0.05)
    assert call.code is None
