"""The client for ordinary threads: the same calls, each waiting for the event loop behind it.

Rows cross between threads a page at a time, and writes of optimistic transactions not at all.
"""

from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock import clock as clocks
from penstock import eventloop
from penstock.clock import Clock
from penstock.kv.client import AsyncClient
from penstock.kv.details import CommitDetails
from penstock.kv.membuffer import Assertion
from penstock.kv.protocol import BinlogHook, SchemaHook
from penstock.kv.scanning import Page, Row, ScanRows
from penstock.kv.snapshot import AsyncSnapshot
from penstock.kv.transaction import AsyncTransaction, TxnPhase
from penstock.proto import metapb_pb2 as metapb
from penstock.settings import KvSettings, TlsSettings

T = TypeVar("T")


def _run(work: Coroutine[Any, Any, T]) -> T:
    return eventloop.run(work)


def _pages(rows: ScanRows) -> Iterator[Page]:
    while (page := _run(rows.next_page())) is not None:
        yield page


def _rows(rows: ScanRows) -> Iterator[Row]:
    for page in _pages(rows):
        yield from page


class Snapshot:
    """Reads at one timestamp: repeatable, without locking anything.

    Every read may raise Unavailable when the store cannot be reached in time, or when a running
    transaction holds a lock for longer than a read waits.
    """

    def __init__(self, snapshot: AsyncSnapshot) -> None:
        self._snapshot = snapshot

    @property
    def ts(self) -> int:
        """The timestamp read at."""
        return self._snapshot.ts

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None when it has none."""
        return _run(self._snapshot.get(key))

    def batch_get(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the values of those keys that have one."""
        return _run(self._snapshot.batch_get(list(keys)))

    def iter(
        self, lower: bytes = b"", upper: bytes = b"", *, limit: int | None = None, key_only: bool = False
    ) -> Iterator[Row]:
        """Return the rows of [lower, upper) in ascending order; an empty `upper` is the end of all keys."""
        return _rows(self._snapshot.iter(lower, upper, limit=limit, key_only=key_only))

    def iter_reverse(
        self, lower: bytes = b"", upper: bytes = b"", *, limit: int | None = None, key_only: bool = False
    ) -> Iterator[Row]:
        """Return the rows of [lower, upper) in descending order."""
        return _rows(self._snapshot.iter_reverse(lower, upper, limit=limit, key_only=key_only))

    def scan_pages(self, lower: bytes = b"", upper: bytes = b"", *, key_only: bool = False) -> Iterator[Page]:
        """Return the rows of [lower, upper) in lists, as they come from the store."""
        return _pages(self._snapshot.iter(lower, upper, key_only=key_only))


class Transaction:
    """Reads see the store as it was at `start_ts`, and the transaction's own writes. For one thread only.

    Optimistic: nothing is locked before the commit, which raises WriteConflict when another
    transaction committed one of the keys first. Pessimistic: each key is locked before it is
    written, and a locked key reads at its latest value. Used as a context manager it commits at the
    end of the block and rolls back when the block raises.
    """

    def __init__(self, txn: AsyncTransaction) -> None:
        self._txn = txn
        self._start_ts: int | None = None

    @property
    def start_ts(self) -> int:
        """The timestamp of the transaction's reads; waits for it the first time."""
        if self._start_ts is None:
            self._start_ts = _run(self._wait_start_ts())
        return self._start_ts

    async def _wait_start_ts(self) -> int:
        return await self._txn.start_ts

    def check_schema_by(self, hook: SchemaHook) -> None:
        """Have the commit ask a hook that must see every change of the schema up to the commit timestamp.

        Raise Invalid when the transaction has a hook already.
        """
        self._txn.check_schema_by(hook)

    @property
    def commit_ts(self) -> int:
        """The timestamp of the commit; 0 before it, and for a transaction that wrote nothing."""
        return self._txn.commit_ts

    @property
    def commit_details(self) -> CommitDetails | None:
        """Where the time of the commit went."""
        return self._txn.commit_details

    @property
    def phase(self) -> TxnPhase:
        """How far the transaction has come."""
        return self._txn.phase

    @property
    def pessimistic(self) -> bool:
        """Whether keys are locked when they are written, not at the commit."""
        return self._txn.pessimistic

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None when it has none."""
        return _run(self._txn.get(key))

    def batch_get(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the values of those keys that have one."""
        return _run(self._txn.batch_get(list(keys)))

    def scan(
        self, lower: bytes = b"", upper: bytes = b"", *, limit: int | None = None, key_only: bool = False
    ) -> Iterator[Row]:
        """Return the rows of [lower, upper) in ascending order, own writes among them."""
        return _rows(self._txn.scan(lower, upper, limit=limit, key_only=key_only))

    def scan_reverse(
        self, lower: bytes = b"", upper: bytes = b"", *, limit: int | None = None, key_only: bool = False
    ) -> Iterator[Row]:
        """Return the rows of [lower, upper) in descending order, own writes among them."""
        return _rows(self._txn.scan_reverse(lower, upper, limit=limit, key_only=key_only))

    def put(self, key: bytes, value: bytes, *, assertion: Assertion | None = None) -> None:
        """Write a value; a pessimistic transaction locks the key first."""
        if self._txn.pessimistic:
            _run(self._txn.put(key, value, assertion=assertion))
        else:
            self._txn.writes.put(key, value, assertion)

    def delete(self, key: bytes, *, assertion: Assertion | None = None) -> None:
        """Delete a key, whether it exists or not."""
        if self._txn.pessimistic:
            _run(self._txn.delete(key, assertion=assertion))
        else:
            self._txn.writes.delete(key, assertion)

    def insert(self, key: bytes, value: bytes) -> None:
        """Write a value of a key that must not exist; KeyExists comes at once or at the commit."""
        if self._txn.pessimistic:
            _run(self._txn.insert(key, value))
        else:
            self._txn.writes.insert(key, value)

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write many values at once; a pessimistic transaction locks their keys first."""
        if self._txn.pessimistic:
            _run(self._txn.put_many(keys, values))
        else:
            self._txn.writes.put_many(keys, values)

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Delete many keys at once; a pessimistic transaction locks them first."""
        if self._txn.pessimistic:
            _run(self._txn.delete_many(keys))
        else:
            self._txn.writes.delete_many(keys)

    def insert_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write many values of keys that must not exist; KeyExists comes at once or at the commit."""
        if self._txn.pessimistic:
            _run(self._txn.insert_many(keys, values))
        else:
            self._txn.writes.insert_many(keys, values)

    def savepoint(self) -> AbstractContextManager[None]:
        """Return a block whose writes are undone when it raises; locks taken in it stay."""
        return self._txn.savepoint()

    def lock_keys(
        self,
        keys: Iterable[bytes],
        *,
        wait_timeout_ms: int | None = None,
        no_wait: bool = False,
        return_values: bool = False,
    ) -> dict[bytes, bytes | None]:
        """Lock keys; with `return_values` return their values."""
        return _run(
            self._txn.lock_keys(
                list(keys), wait_timeout_ms=wait_timeout_ms, no_wait=no_wait, return_values=return_values
            )
        )

    def get_for_update(
        self, key: bytes, *, wait_timeout_ms: int | None = None, no_wait: bool = False
    ) -> bytes | None:
        """Lock a key and return its value."""
        return _run(self._txn.get_for_update(key, wait_timeout_ms=wait_timeout_ms, no_wait=no_wait))

    def commit(self) -> int:
        """Make the writes durable and visible; return the commit timestamp (0: nothing to write)."""
        return _run(self._txn.commit())

    def rollback(self) -> None:
        """Forget the writes and give up the locks."""
        _run(self._txn.rollback())

    def __enter__(self) -> Self:
        _ = self._txn.writes  # raises Invalid after the end
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _run(self._txn.__aexit__(kind, error, trace))


class Client:
    """Transactions and snapshots of a cluster, for any number of threads.

    Close it, or use it as a context manager: it then waits up to 10 s for commits that go on in the
    background.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    @classmethod
    def connect(
        cls,
        pd_addrs: Sequence[str],
        *,
        tls: TlsSettings | None = None,
        settings: KvSettings | None = None,
        clock: Clock = clocks.SYSTEM,
    ) -> "Client":
        """Find the cluster by its placement drivers; raise Unavailable when none of them answers."""
        return cls(_run(AsyncClient.connect(pd_addrs, tls=tls, settings=settings, clock=clock)))

    @property
    def on_loop(self) -> AsyncClient:
        """The client behind this one, for coroutines on the event loop, such as hooks."""
        return self._client

    @property
    def cluster_id(self) -> int:
        """The id of the cluster."""
        return self._client.cluster_id

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
    ) -> Transaction:
        """Begin a transaction. Hooks are called on the event loop.

        `async_commit` and `one_pc` allow faster commits where they are possible. With
        `causal_consistency` the commit is ordered after what this transaction saw, not after
        everything that was committed before it in real time, and saves a round trip. `txn_source` marks the
        transaction for change streams: TiKV sends none of its rows when it rewrites a column (bits 8 to 15).
        `reserve_commit_ts` asks for the timestamps of a commit with an exact schema check together with the
        start timestamp, for a transaction that will commit within a second.
        """

        async def begin() -> AsyncTransaction:
            return self._client.begin(
                pessimistic=pessimistic,
                async_commit=async_commit,
                one_pc=one_pc,
                causal_consistency=causal_consistency,
                schema=schema,
                binlog=binlog,
                txn_source=txn_source,
                reserve_commit_ts=reserve_commit_ts,
            )

        return Transaction(_run(begin()))

    def timestamp(self) -> int:
        """Return a timestamp greater than every commit that was acknowledged before."""
        return _run(self._client.timestamp())

    def snapshot(self, ts: int) -> Snapshot:
        """Return the view at a timestamp."""
        return Snapshot(self._client.snapshot(ts))

    def regions(self, lower: bytes = b"", upper: bytes = b"") -> list[metapb.Region]:
        """Return the regions that meet [lower, upper) as the placement driver knows them now."""
        return _run(self._client.regions(lower, upper))

    def resolve_locks_before(self, ts: int, lower: bytes = b"", upper: bytes = b"") -> int:
        """Resolve locks that dead transactions left at `ts` or before; return how many of live ones stay."""
        return _run(self._client.resolve_locks_before(ts, lower, upper))

    def gc(self, safe_point: int) -> int:
        """Remove versions that no reader at `safe_point` or later can see; return the safe point in force."""
        return _run(self._client.gc(safe_point))

    def delete_range(self, lower: bytes, upper: bytes) -> None:
        """Remove every version of [lower, upper) at once, as for a dropped table.

        Nobody may read or write the range. Change streams do not show it, and nothing can undo it.
        """
        _run(self._client.delete_range(lower, upper))

    def close(self) -> None:
        """Wait for work in the background, then close the connections. Closing twice is harmless."""
        _run(self._client.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
