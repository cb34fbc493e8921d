"""One store of the cluster: its gRPC service at an address, which can be turned off and on.

It also holds the commands that concern a store itself rather than the data of a region.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid
from penstock.proto import errorpb_pb2 as errorpb
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto import tikvpb_pb2 as tikvpb
from penstock.proto.codec import encode_bytes
from penstock.proto.services import handler, methods
from penstock.settings import ServerTlsSettings
from penstock.store.batch import BatchCommandsStream
from penstock.store.bounds import KeyBounds
from penstock.store.executor import SERVICE, Command, CommandExecutor, Effect, StoreHealth
from penstock.store.faults import Faults
from penstock.store.refusals import epoch_not_match, key_not_in_region, region_not_found
from penstock.store.regions import Regions, SizeWatch
from penstock.store.safe_ts import SafeTs
from penstock.store.server import Endpoint, end_call

__all__ = ["Housekeeping", "Station", "service"]


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
    # A raw write must hold its key until it is durable, also when its caller leaves. Transactional commands
    # ensure that themselves.
    to_its_end = command.raw and command.effect is not Effect.READS

    async def behaviour(request: Any, context: Context) -> Message:
        try:
            if to_its_end:
                return await asyncio.shield(executor.start(command, request))
            if executor.faults.active:
                return await executor.execute_faulty(command, request)
            return await executor.execute(command, request)
        except Exception as error:  # noqa: BLE001 - every error becomes a status of the call
            await end_call(context, error, command.name)

    return behaviour


class Housekeeping:
    """The commands of a store itself: splits on request, health, and the safe timestamp for stale reads."""

    def __init__(self, regions: Regions, health: StoreHealth, safe_ts: SafeTs) -> None:
        self._regions = regions
        self._health = health
        self._safe_ts = safe_ts

    def commands(self) -> Mapping[str, Command]:
        """Return these commands by the name of their RPC."""
        rpcs = methods(SERVICE)

        def command(name: str, run: object, effect: Effect, *, local: bool) -> Command:
            return Command(name, run, rpcs[name].response, effect, local=local)  # type: ignore[arg-type]

        commands = (
            command("SplitRegion", self.split_region, Effect.CHANGES, local=False),
            command("GetStoreSafeTS", self.get_store_safe_ts, Effect.READS, local=True),
            command("GetHealthFeedback", self.get_health_feedback, Effect.READS, local=True),
            command("BroadcastTxnStatus", self.broadcast_txn_status, Effect.READS, local=True),
        )
        return {command.name: command for command in commands}

    async def split_region(
        self, request: kvrpcpb.SplitRegionRequest, _: KeyBounds
    ) -> kvrpcpb.SplitRegionResponse:
        """Split the region at the keys; the answer lists its parts in order."""
        keys = list(request.split_keys) or [request.split_key]
        encoded = keys if request.is_raw_kv else [encode_bytes(key) for key in keys]
        region_id = request.context.region_id
        region = self._regions.by_id(region_id)
        assert region is not None, "the region was checked just now"
        for key in encoded:
            if not region.contains(key):
                return kvrpcpb.SplitRegionResponse(region_error=key_not_in_region(region, key))
        try:
            parts = await self._regions.split(region_id, encoded)
        except Invalid:  # it changed while this waited for another change
            return kvrpcpb.SplitRegionResponse(region_error=self._region_error(region_id))
        regions = [part.to_proto() for part in parts]
        return kvrpcpb.SplitRegionResponse(
            regions=regions, left=regions[0], right=regions[1] if len(regions) == 2 else None
        )

    def _region_error(self, region_id: int) -> errorpb.Error:
        region = self._regions.by_id(region_id)
        return region_not_found(region_id) if region is None else epoch_not_match(region)

    async def get_store_safe_ts(
        self, _: kvrpcpb.StoreSafeTSRequest, __: KeyBounds
    ) -> kvrpcpb.StoreSafeTSResponse:
        return kvrpcpb.StoreSafeTSResponse(safe_ts=await self._safe_ts.get())

    async def get_health_feedback(
        self, _: kvrpcpb.GetHealthFeedbackRequest, __: KeyBounds
    ) -> kvrpcpb.GetHealthFeedbackResponse:
        return kvrpcpb.GetHealthFeedbackResponse(health_feedback=self._health.feedback())

    async def broadcast_txn_status(
        self, _: kvrpcpb.BroadcastTxnStatusRequest, __: KeyBounds
    ) -> kvrpcpb.BroadcastTxnStatusResponse:
        """Ignore the hint: it saves lookups in TiKV, but this store reads the locks themselves."""
        return kvrpcpb.BroadcastTxnStatusResponse()


_GRACE_S = 0.2


class Station:
    """Serves the shared storage as one store. It binds its address at once and serves from `start` on."""

    def __init__(
        self,
        store_id: int,
        address: str,
        *,
        tls: ServerTlsSettings | None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.store_id = store_id
        self._tls = tls
        self._clock = clock
        self._endpoint: Endpoint | None = Endpoint(address, tls=tls)
        self.address = self._endpoint.address
        self._executor: CommandExecutor | None = None
        self._handlers: Sequence[grpc.GenericRpcHandler[Any, Any]] = ()

    def equip(
        self,
        commands: Mapping[str, Command],
        *,
        cluster_id: int,
        regions: Regions,
        sizes: SizeWatch,
        safe_ts: SafeTs,
        faults: Faults,
        others: "Sequence[grpc.GenericRpcHandler[Any, Any]]",
    ) -> None:
        """Set what to serve: the commands on regions, and other services."""
        health = StoreHealth(self.store_id, clock=self._clock)
        table = {**commands, **Housekeeping(regions, health, safe_ts).commands()}
        self._executor = CommandExecutor(
            self.store_id, table, cluster_id=cluster_id, regions=regions, sizes=sizes, faults=faults
        )
        self._handlers = [service(self._executor, health, clock=self._clock), *others]

    @property
    def up(self) -> bool:
        """Whether the address is bound."""
        return self._endpoint is not None

    async def start(self) -> None:
        """Serve, after a stop at the same address again; raise Invalid when it was taken meanwhile."""
        if self._endpoint is None:
            self._endpoint = Endpoint(self.address, tls=self._tls)
        await self._endpoint.start(self._handlers)

    async def stop(self) -> None:
        """Close the address and wait for the commands under way."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            await endpoint.stop(_GRACE_S)
        if self._executor is not None:
            await self._executor.finish()
