"""The gRPC status of a call that ends with an error instead of an answer."""

import asyncio
import logging
from typing import Any, NoReturn

import grpc

from penstock.errors import Unavailable
from penstock.store.executor import ClusterMismatch
from penstock.store.faults import Struck

__all__ = ["end"]

_LOG = logging.getLogger(__name__)


async def end(context: grpc.aio.ServicerContext[Any, Any], error: BaseException, method: str) -> NoReturn:
    """End a call; one that a fault keeps from being answered hangs until its caller gives up.

    An error nobody expected is logged, and the caller learns only that there was one.
    """
    if isinstance(error, Struck):
        if error.code is None:
            await asyncio.get_running_loop().create_future()
        else:
            await context.abort(error.code, "fault")
    if isinstance(error, ClusterMismatch):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    if isinstance(error, Unavailable):
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    _LOG.error("call failed", exc_info=error, extra={"method": method})
    await context.abort(grpc.StatusCode.INTERNAL, f"{method} failed; the server's log says why")
    raise AssertionError("abort raises")
