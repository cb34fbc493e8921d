"""Runs the commands sent to one store: checks the region, then hands over to the storage."""

import asyncio
from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from penstock.errors import Invalid
from penstock.proto import errorpb_pb2 as errorpb
from penstock.proto.codec import encode_bytes
from penstock.store.bounds import EVERYTHING, KeyBounds
from penstock.store.commands import Command, Effect
from penstock.store.faults import Faults
from penstock.store.refusals import key_not_in_region
from penstock.store.region import Region
from penstock.store.regions import Regions
from penstock.store.sizes import SizeWatch

__all__ = ["ClusterMismatch", "CommandExecutor"]


class ClusterMismatch(Invalid):
    """A request was meant for another cluster."""


class CommandExecutor:
    """The commands of one store.

    A command started with `start` is run to its end, even when its caller has gone; `finish` waits
    for those.
    """

    def __init__(
        self,
        store_id: int,
        table: Mapping[str, Command],
        *,
        cluster_id: int,
        regions: Regions,
        sizes: SizeWatch,
        faults: Faults,
    ) -> None:
        self.store_id = store_id
        self.table = table
        self.faults = faults
        self._cluster_id = cluster_id
        self._regions = regions
        self._sizes = sizes
        self._running: set[asyncio.Task[Message]] = set()

    async def execute(self, command: Command, request: Any) -> Message:
        """Check and run a command.

        Raise ClusterMismatch for a request of another cluster, and whatever the storage raises
        when it cannot go on.
        """
        if command.local:
            return await command.run(request, EVERYTHING)
        context = request.context
        if context.cluster_id and context.cluster_id != self._cluster_id:
            raise ClusterMismatch(f"request is for cluster {context.cluster_id}, this is {self._cluster_id}")
        reads = command.effect is Effect.READS
        follower = reads and (context.replica_read or context.stale_read)
        region = self._regions.check(context, self.store_id, any_peer=follower)
        if not isinstance(region, Region):
            return command.response(region_error=region)
        bounds = KeyBounds(region.start, region.end) if command.raw else region.bounds()
        if command.keys is not None:
            for key in command.keys(request):
                if not bounds.contains(key):
                    return command.response(region_error=_stray(command, region, key))
        if follower:
            # Every store reads the same data: a stale read is served as a consistent one, which also
            # keeps later commits above its timestamp.
            context.stale_read = False
        if command.effect is Effect.GROWS:
            self._sizes.grew(region.id, request.ByteSize())
        return await command.run(request, bounds)

    async def execute_faulty(self, command: Command, request: Any) -> Message:
        """Run a command while fault switches are on; raise Struck when one ends the call."""
        fault = self.faults.strike(command.name, self.store_id)
        if fault is None:
            return await self.execute(command, request)
        self.faults.before(fault)
        if not command.local:
            error = self.faults.refusal(fault, request.context.region_id)
            if error is not None:
                return command.response(region_error=error)
        response = await self.execute(command, request)
        await self.faults.after(fault)
        return response

    def start(self, command: Command, request: Any) -> asyncio.Task[Message]:
        """Run a command in a task of its own, which nobody cancels."""
        run = self.execute_faulty if self.faults.active else self.execute
        task = asyncio.ensure_future(run(command, request))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def finish(self) -> None:
        """Wait for every command that is still running."""
        if self._running:
            await asyncio.wait(self._running)


def _stray(command: Command, region: Region, key: bytes) -> errorpb.Error:
    return key_not_in_region(region, key if command.raw else encode_bytes(key))
