"""The jobs of a cluster together with the event store that they read, for commands that need both."""

from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from penstock import eventloop
from penstock.clock import physical_ms
from penstock.jobs.log.api import Jobs
from penstock.jobs.log.lease import holder
from penstock.jobs.reading.eventsource import EventStoreJobSource
from penstock.jobs.source import Look
from penstock.kv import AsyncClient, Client
from penstock.kv.clusterref import ClusterRef
from penstock.settings import Settings

__all__ = ["JobReading", "reading"]

_SETTLE_S = 10.0


@dataclass(frozen=True, slots=True)
class JobReading:
    """Jobs and what they read; blocks, but for `attended`."""

    settings: Settings
    client: AsyncClient
    jobs: Jobs
    source: EventStoreJobSource

    def looks(self, table_ids: Collection[int]) -> dict[int, Look]:
        """How far tables have come; those that nobody captures are left out."""
        return eventloop.run(self.source.look(table_ids))

    async def attended(self) -> bool:
        """Whether some process runs jobs."""
        row = await holder(self.client)
        return bool(row.owner) and row.expires_ms > physical_ms(await self.client.timestamp())


@contextmanager
def reading(loaded: Settings) -> Iterator[JobReading]:
    """Open both, of a cluster and of the event store in the settings."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[JobReading]:
        async with (
            await AsyncClient.connect(loaded.pd_addrs, tls=loaded.tls, settings=loaded.kv) as client,
            await EventStoreJobSource.connect(
                loaded, client, flight_tls=loaded.capture.flight_client_tls
            ) as source,
        ):
            await source.settle(_SETTLE_S)
            yield JobReading(loaded, client, Jobs(Client(client)), source)

    context = opened()
    found = eventloop.run(context.__aenter__())
    try:
        yield found
    finally:
        ClusterRef.of(loaded).close()  # consumers of tables in the cluster have one of their own
        eventloop.run(context.__aexit__(None, None, None))
