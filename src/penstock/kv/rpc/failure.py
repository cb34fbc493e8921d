"""A request without an answer."""

import asyncio
from typing import Any, Final

import grpc

# What read() returns at the end of a stream; the published stubs do not declare it.
EOF: Final[Any] = vars(grpc.aio)["EOF"]


class RpcFailed(Exception):
    """A request got no answer from its store; `sent` tells whether the store may have received it."""

    def __init__(self, code: grpc.StatusCode, reason: str, *, addr: str, sent: bool = True) -> None:
        super().__init__(f"{code.name} from {addr}: {reason}")
        self.code = code
        self.addr = addr
        self.sent = sent


def from_grpc(error: grpc.aio.AioRpcError, addr: str) -> RpcFailed:
    """Wrap what gRPC raised."""
    return RpcFailed(error.code(), error.details() or "no details", addr=addr)


def from_closing(cancelled: asyncio.CancelledError, addr: str) -> RpcFailed | asyncio.CancelledError:
    """Tell apart the two reasons why gRPC raises CancelledError.

    Closing a channel cancels its calls in the tasks that wait for them; unless the task itself is
    being cancelled, that is a failed request and must not pass for a cancellation.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return cancelled
    return RpcFailed(grpc.StatusCode.CANCELLED, "the connection was closed", addr=addr)
