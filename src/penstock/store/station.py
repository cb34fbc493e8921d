"""One store of the cluster: its commands behind an address, turned off and on."""

from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from penstock.clock import SYSTEM, Clock
from penstock.settings import ServerTlsSettings
from penstock.store import tikv
from penstock.store.commands import Command
from penstock.store.executor import CommandExecutor
from penstock.store.faults import Faults
from penstock.store.health import StoreHealth
from penstock.store.housekeeping import Housekeeping
from penstock.store.regions import Regions
from penstock.store.safe_ts import SafeTs
from penstock.store.server import Endpoint
from penstock.store.sizes import SizeWatch

__all__ = ["Station"]

_GRACE_S = 0.2


class Station:
    """Serves the shared storage as one store. The address is bound at once, served after `start`."""

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
        """Say what to serve: the commands on regions, and services beside them."""
        health = StoreHealth(self.store_id, clock=self._clock)
        table = {**commands, **Housekeeping(regions, health, safe_ts).commands()}
        self._executor = CommandExecutor(
            self.store_id, table, cluster_id=cluster_id, regions=regions, sizes=sizes, faults=faults
        )
        self._handlers = [tikv.service(self._executor, health, clock=self._clock), *others]

    @property
    def up(self) -> bool:
        return self._endpoint is not None

    async def start(self) -> None:
        """Serve; after a stop the same address is bound again. Raise Invalid when it was taken meanwhile."""
        if self._endpoint is None:
            self._endpoint = Endpoint(self.address, tls=self._tls)
        await self._endpoint.start(self._handlers)

    async def stop(self) -> None:
        """Close the address, and wait for the commands under way."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            await endpoint.stop(_GRACE_S)
        if self._executor is not None:
            await self._executor.finish()
