"""The store's RPCs, as gRPC sees them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import Message

from penstock.clock import SYSTEM, Clock
from penstock.proto import tikvpb_pb2 as tikvpb
from penstock.proto.services import handler
from penstock.store.batch import BatchCommandsStream
from penstock.store.commands import SERVICE, Command, Effect
from penstock.store.executor import CommandExecutor
from penstock.store.health import StoreHealth
from penstock.store.statuses import end

__all__ = ["service"]

Context = grpc.aio.ServicerContext[Any, Any]


def service(
    executor: CommandExecutor, health: StoreHealth, *, clock: Clock = SYSTEM
) -> "grpc.GenericRpcHandler[Any, Any]":
    """Return the service of one store: every command by itself, and the batched stream."""
    behaviours: dict[str, Callable[..., Awaitable[Any]]] = {
        name: _unary(executor, command) for name, command in executor.table.items()
    }

    async def batch_commands(requests: AsyncIterator[tikvpb.BatchCommandsRequest], context: Context) -> None:
        await BatchCommandsStream(executor, health, clock=clock).serve(requests, context)

    behaviours["BatchCommands"] = batch_commands
    return handler(SERVICE, behaviours)


def _unary(executor: CommandExecutor, command: Command) -> Callable[[Any, Context], Awaitable[Message]]:
    # A raw write holds its key until it is durable, also when its caller leaves; the transactional
    # commands see to that themselves.
    to_its_end = command.raw and command.effect is not Effect.READS

    async def behaviour(request: Any, context: Context) -> Message:
        try:
            if to_its_end:
                return await asyncio.shield(executor.start(command, request))
            if executor.faults.active:
                return await executor.execute_faulty(command, request)
            return await executor.execute(command, request)
        except Exception as error:  # noqa: BLE001 - whatever it was, the caller gets a status
            await end(context, error, command.name)

    return behaviour
