"""The client for asyncio; `blocking` has the same for ordinary threads."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from penstock import clock as clocks
from penstock.clock import TS_MAX, Clock
from penstock.errors import Invalid
from penstock.kv import gc
from penstock.kv.background import Background
from penstock.kv.latches import LocalLatches
from penstock.kv.locks import Lock
from penstock.kv.pd import PdClient
from penstock.kv.protocol import BinlogHook, CommitOptions, SchemaHook
from penstock.kv.regions import RegionCache
from penstock.kv.resolver import LockResolver
from penstock.kv.rpc.client import RpcClient
from penstock.kv.scope import SafePoint, Session
from penstock.kv.sender import RegionSender, Router
from penstock.kv.snapshot import AsyncSnapshot
from penstock.kv.transaction import AsyncTransaction
from penstock.proto import metapb_pb2 as metapb
from penstock.settings import KvSettings, TlsSettings

_CLOSE_S = 10.0
_REGIONS_PER_CALL = 256


class AsyncClient:
    """Transactions and snapshots of a cluster, for any number of tasks of one event loop.

    Close it, or use it as an async context manager: it then waits up to 10 s for commits that go
    on in the background.
    """

    def __init__(self, session: Session, rpc: RpcClient) -> None:
        self._session = session
        self._rpc = rpc
        self._closed = False

    @classmethod
    async def connect(
        cls,
        pd_addrs: Sequence[str],
        *,
        tls: TlsSettings | None = None,
        settings: KvSettings | None = None,
        clock: Clock = clocks.SYSTEM,
    ) -> "AsyncClient":
        """Find the cluster by its placement drivers; raise Unavailable when none of them answers."""
        settings = settings or KvSettings()
        pd = await PdClient.connect(pd_addrs, tls=tls, settings=settings, clock=clock)
        rpc = RpcClient(tls, settings, clock)
        cache = RegionCache(pd, settings, clock)
        router = Router(cache, RegionSender(cache, rpc, clock, settings))
        background = Background()
        session = Session(
            pd=pd,
            router=router,
            resolver=LockResolver(pd, router, background, settings=settings, clock=clock),
            safe_point=SafePoint(pd, settings=settings, clock=clock),
            background=background,
            latches=LocalLatches(settings.local_latches, clock=clock) if settings.local_latches else None,
            settings=settings,
            clock=clock,
        )
        return cls(session, rpc)

    @property
    def cluster_id(self) -> int:
        """The id of the cluster."""
        return self._session.pd.cluster_id

    def begin(
        self,
        *,
        pessimistic: bool = False,
        async_commit: bool = True,
        one_pc: bool = True,
        causal_consistency: bool = False,
        schema: SchemaHook | None = None,
        binlog: BinlogHook | None = None,
        txn_source: int = 0,
        reserve_commit_ts: bool = False,
    ) -> AsyncTransaction:
        """Begin a transaction; its start timestamp is asked for at once and awaited when it is needed.

        `async_commit` and `one_pc` allow faster commits where they are possible. With
        `causal_consistency` the commit is ordered after what this transaction saw, not after
        everything that was committed before it in real time, and saves a round trip. `txn_source` marks the
        transaction for change streams: TiKV sends none of its rows when it rewrites a column (bits 8 to 15).
        `reserve_commit_ts` asks for the timestamps of a commit with an exact schema check together with the
        start timestamp, for a transaction that will commit within a second.
        """
        self._check_open()
        options = CommitOptions(
            async_commit=async_commit, one_pc=one_pc, causal_consistency=causal_consistency
        )
        return AsyncTransaction(
            self._session,
            pessimistic=pessimistic,
            options=options,
            schema=schema,
            binlog=binlog,
            txn_source=txn_source,
            reserve_commit_ts=reserve_commit_ts,
        )

    async def timestamp(self) -> int:
        """Return a timestamp greater than every commit that was acknowledged before."""
        self._check_open()
        return await self._session.pd.timestamp()

    def snapshot(self, ts: int) -> AsyncSnapshot:
        """Return the view at a timestamp; reads raise Invalid below the safe point of garbage collection."""
        self._check_open()
        if type(ts) is not int or not 0 < ts <= TS_MAX:
            raise Invalid(f"{ts!r} is no timestamp; take one from timestamp() or a transaction")
        return AsyncSnapshot(self._session, ts)

    async def regions(self, lower: bytes = b"", upper: bytes = b"") -> list[metapb.Region]:
        """Return the regions that meet [lower, upper) as the placement driver knows them now, with raw keys.

        Without bounds: all of the cluster, in order.
        """
        self._check_open()
        found: list[metapb.Region] = []
        start = lower
        while True:
            page = await self._session.pd.scan_regions(start, upper, _REGIONS_PER_CALL)
            found += [info.meta for info in page]
            start = page[-1].meta.end_key if page else b""
            if not start or (upper and start >= upper):
                return found

    async def resolve_locks_before(self, ts: int, lower: bytes = b"", upper: bytes = b"") -> int:
        """Resolve locks that dead transactions left at `ts` or before; return how many of live ones stay."""
        self._check_open()
        return await gc.resolve_locks_before(self._session, ts, lower, upper)

    async def locks_before(
        self, ts: int, lower: bytes = b"", upper: bytes = b"", *, count_max: int = 1024
    ) -> list[Lock]:
        """Return the locks of [lower, upper) of transactions that began at `ts` or before; touch none.

        Returns some of them when there are more than `count_max`: not all regions are asked then.
        """
        self._check_open()
        return await gc.locks_before(self._session, ts, lower, upper, count_max=count_max)

    async def gc(self, safe_point: int) -> int:
        """Remove versions that no reader at `safe_point` or later can see; return the safe point in force.

        Waits a while (settings: twice `safe_point_refresh_ms`) between announcing and collecting, so
        that every client refuses reads below it instead of answering them wrongly.
        """
        self._check_open()
        return await gc.collect_garbage(self._session, safe_point)

    async def delete_range(self, lower: bytes, upper: bytes) -> None:
        """Remove every version of [lower, upper) at once, as for a dropped table.

        Nobody may read or write the range. Change streams do not show it, and nothing can undo it.
        """
        self._check_open()
        if not lower < upper:
            raise Invalid("the range to delete is empty or has no end; give a lower and a higher key")
        await gc.delete_range(self._session, lower, upper)

    async def close(self) -> None:
        """Wait for work in the background, then close the connections. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        await self._session.background.close(_CLOSE_S)
        await self._session.router.sender.close()
        await self._rpc.close()
        await self._session.pd.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Invalid("the client is closed; connect another one")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
