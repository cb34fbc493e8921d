"""One deployment as commands and the API reach it: cluster, changefeeds, jobs and event store."""

import threading
from collections.abc import Collection, Iterator
from contextlib import AsyncExitStack, contextmanager

from penstock import eventloop
from penstock.changefeeds.store import ChangefeedStore
from penstock.clock import physical_ms
from penstock.follow.follower import ScanFollower
from penstock.follow.source import ReadableRange
from penstock.jobs.api import Jobs
from penstock.jobs.log.job_log import RUNNER_LEASE
from penstock.kv import AsyncClient, Client
from penstock.kv.cluster_ref import ClusterRef
from penstock.kv.lease import read_lease
from penstock.secret_keys import Keyring
from penstock.settings import Settings
from penstock.tables import Catalog

__all__ = ["Deployment", "open_deployment"]

_SETTLE_S = 10.0


class Deployment:
    """The clients and stores of one cluster.

    Methods block unless they are coroutines, so call them from any thread but the event loop's. Coroutines of
    `client`, `feeds` and `source` run on the process's shared event loop: pass them to `eventloop.run`.
    """

    def __init__(self, settings: Settings, client: AsyncClient, closing: AsyncExitStack) -> None:
        self.settings = settings
        self.client = client
        self.blocking_client = Client(client)
        self.keys = Keyring(settings.secrets_dir)
        self.feeds = ChangefeedStore(client, keys=self.keys)
        self.catalog = Catalog(self.blocking_client)
        self._closing = closing
        self._source_lock = threading.Lock()
        self._source: ScanFollower | None = None

    def feeds_of(self, account: str | None) -> ChangefeedStore:
        """Return the changefeeds of one account; with None, of all accounts."""
        return (
            self.feeds if account is None else ChangefeedStore(self.client, account=account, keys=self.keys)
        )

    def jobs(self, account: str | None = None) -> Jobs:
        """Return the jobs of one account; with None, of all accounts."""
        return Jobs(self.blocking_client, account=account, catalog=self.catalog, keys=self.keys)

    @property
    def source(self) -> ScanFollower:
        """The captured tables. It connects on first use, because most commands do not need it."""
        with self._source_lock:
            if self._source is None:
                self._source = eventloop.run(self._open_source())
            return self._source

    async def _open_source(self) -> ScanFollower:
        source = await ScanFollower.connect(
            self.settings, self.client, flight_tls=self.settings.capture.flight_client_tls
        )
        self._closing.push_async_callback(source.close)
        await source.settle(_SETTLE_S)
        return source

    def now_ts(self) -> int:
        """Return a new timestamp of the database."""
        return eventloop.run(self.client.timestamp())

    def readable_ranges(self, table_ids: Collection[int]) -> dict[int, ReadableRange]:
        """Return up to where each table can be read; a table that nobody captures is left out."""
        return eventloop.run(self.source.read_progress(table_ids))

    async def has_runner(self) -> bool:
        """Return whether a process holds the lease to run jobs."""
        lease = await read_lease(self.client, RUNNER_LEASE)
        return lease.is_held(physical_ms(await self.client.timestamp()))


@contextmanager
def open_deployment(settings: Settings) -> Iterator[Deployment]:
    """Connect to the deployment of `settings`; raise Unavailable when its cluster does not answer."""
    closing = AsyncExitStack()

    async def connect() -> AsyncClient:
        client = await AsyncClient.connect(settings.pd_addrs, tls=settings.tls, settings=settings.kv)
        closing.push_async_callback(client.close)
        return client

    try:
        yield Deployment(settings, eventloop.run(connect()), closing)
    finally:
        ClusterRef.of(settings).close()  # verification and the kv consumer open it
        eventloop.run(closing.aclose())
