"""A deployment as people reach it: its cluster, its changefeeds and jobs, and the event store they read."""

import threading
from collections.abc import Collection, Iterator
from contextlib import AsyncExitStack, contextmanager

from penstock import eventloop
from penstock.changefeeds.store import ChangefeedStore
from penstock.clock import physical_ms
from penstock.follow.follower import EventStoreJobSource
from penstock.follow.source import ReadableRange
from penstock.jobs.api import Jobs
from penstock.kv import AsyncClient, Client
from penstock.kv.cluster_ref import ClusterRef
from penstock.kv.lease import holder
from penstock.settings import Settings
from penstock.tables import Catalog

__all__ = ["Deployment", "deployed"]

_SETTLE_S = 10.0


class Deployment:
    """Everything that belongs to one cluster. Blocks; for any number of threads, but not for the event loop.

    Coroutines of `client`, `feeds` and `source` are for the process's shared event loop: `eventloop.run`.
    """

    def __init__(self, settings: Settings, client: AsyncClient, closing: AsyncExitStack) -> None:
        self.settings = settings
        self.client = client
        self.face = Client(client)
        self.feeds = ChangefeedStore(client)
        self.catalog = Catalog(self.face)
        self._closing = closing
        self._opening = threading.Lock()
        self._source: EventStoreJobSource | None = None

    def feeds_of(self, account: str | None) -> ChangefeedStore:
        """The changefeeds of one account; None: all of them."""
        return self.feeds if account is None else ChangefeedStore(self.client, account=account)

    def jobs(self, account: str | None = None) -> Jobs:
        """The jobs of the cluster, or of one account."""
        return Jobs(self.face, account=account, catalog=self.catalog)

    @property
    def source(self) -> EventStoreJobSource:
        """What is captured; opened when it is first asked for, because not everybody needs it."""
        with self._opening:
            if self._source is None:
                self._source = eventloop.run(self._open_source())
            return self._source

    async def _open_source(self) -> EventStoreJobSource:
        found = await EventStoreJobSource.connect(
            self.settings, self.client, flight_tls=self.settings.capture.flight_client_tls
        )
        self._closing.push_async_callback(found.close)
        await found.settle(_SETTLE_S)
        return found

    def now_ts(self) -> int:
        """A timestamp of the database."""
        return eventloop.run(self.client.timestamp())

    def looks(self, table_ids: Collection[int]) -> dict[int, ReadableRange]:
        """How far tables have come; those that nobody captures are left out."""
        return eventloop.run(self.source.look(table_ids))

    async def attended(self) -> bool:
        """Whether some process runs jobs."""
        row = await holder(self.client)
        return bool(row.owner) and row.expires_ms > physical_ms(await self.client.timestamp())


@contextmanager
def deployed(settings: Settings) -> Iterator[Deployment]:
    """Reach the deployment that settings tell of; raise Unavailable when its cluster does not answer."""
    closing = AsyncExitStack()

    async def connected() -> AsyncClient:
        client = await AsyncClient.connect(settings.pd_addrs, tls=settings.tls, settings=settings.kv)
        closing.push_async_callback(client.close)
        return client

    try:
        yield Deployment(settings, eventloop.run(connected()), closing)
    finally:
        ClusterRef.of(settings).close()  # consumers of tables in the cluster have one of their own
        eventloop.run(closing.aclose())
