"""Random interleavings of transactions on the storage, against plain dictionaries of versions.

The model knows nothing of records, column families or rollback markers: only which versions a key has,
who holds it, and which transactions are finished on it. PENSTOCK's answers are predicted exactly.
"""

import atexit
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock import eventloop
from penstock.clock import SYSTEM, TS_MAX
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.settings import StoreSettings
from penstock.store.bounds import EVERYTHING
from penstock.store.engine import Cf, Engine
from penstock.store.storage import TxnStorage
from support.campaign import examples

T = TypeVar("T")
KEYS = (b"a", b"a\0", b"b", b"b\xff", b"c")


@dataclass
class Version:
    start_ts: int
    op: int
    value: bytes


@dataclass
class Held:
    """A lock of the model."""

    start_ts: int
    op: int
    value: bytes = b""
    min_commit_ts: int = 0
    for_update_ts: int = 0
    asynchronous: bool = False


@dataclass
class Cell:
    """A key of the model: versions by commit timestamp, the lock, and who was rolled back here."""

    versions: dict[int, Version] = field(default_factory=dict)
    lock: Held | None = None
    rolled_back: set[int] = field(default_factory=set)
    protected: set[int] = field(default_factory=set)

    def newest(self) -> int:
        return max([*self.versions, *self.rolled_back], default=0)

    def committed_at(self, start_ts: int) -> int:
        return next((ts for ts, version in self.versions.items() if version.start_ts == start_ts), 0)

    def value_at(self, ts: int) -> bytes | None:
        for commit_ts in sorted(self.versions, reverse=True):
            version = self.versions[commit_ts]
            if commit_ts <= ts and version.op in {kvrpcpb.Put, kvrpcpb.Del}:
                return version.value if version.op == kvrpcpb.Put else None
        return None


@dataclass
class Txn:
    start_ts: int
    primary: bytes
    pessimistic: bool
    commit_ts: int = 0
    dead: bool = False


@cache
def engine() -> Engine:
    """One engine for all examples, emptied between them: opening one takes longer than an example."""
    directory = tempfile.TemporaryDirectory()
    opened = Engine.open(Path(directory.name) / "data", sync=False)
    atexit.register(directory.cleanup)
    atexit.register(opened.close)
    return opened


def run(work: Coroutine[Any, Any, T]) -> T:
    return eventloop.run(work)


class Transactions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine = engine()
        run(self.engine.delete_range([(cf, b"", b"") for cf in Cf]))
        self.storage = TxnStorage(self.engine, clock=SYSTEM, settings=StoreSettings(), max_ts=0)
        self.cells = {key: Cell() for key in KEYS}
        self.txns: list[Txn] = []
        self.clock = 10
        self.max_ts = 0
        self.safe_ts = 0
        self.reads: dict[tuple[bytes, int], bytes | None] = {}

    def teardown(self) -> None:
        run(self.storage.close())

    def now(self, step: int = 1) -> int:
        """The next timestamp of the oracle: after everything read or committed, like a real one."""
        self.clock = max(
            self.clock, self.max_ts, *(max(cell.versions, default=0) for cell in self.cells.values())
        )
        self.clock += step
        return self.clock

    def has_read(self, ts: int) -> None:
        self.max_ts = max(self.max_ts, ts)

    @rule(primary=st.sampled_from(KEYS), pessimistic=st.booleans(), step=st.integers(1, 2))
    def begin(self, primary: bytes, pessimistic: bool, step: int) -> None:
        self.txns.append(Txn(self.now(step), primary, pessimistic))

    def pick(self, data: st.DataObject) -> Txn:
        return data.draw(st.sampled_from(self.txns[-6:]), label="transaction")

    @precondition(lambda self: self.txns)
    @rule(
        data=st.data(),
        keys=st.sets(st.sampled_from(KEYS), min_size=1, max_size=3),
        op=st.sampled_from([kvrpcpb.Put, kvrpcpb.Put, kvrpcpb.Del, kvrpcpb.Lock, kvrpcpb.Insert]),
        size=st.sampled_from([0, 3, 1500]),
        mode=st.sampled_from(["two phases", "async", "one phase"]),
    )
    def prewrite(self, data: st.DataObject, keys: set[bytes], op: int, size: int, mode: str) -> None:
        txn = self.pick(data)
        if txn.pessimistic:
            return
        value = b"%d" % txn.start_ts * (size // 2) if op in {kvrpcpb.Put, kvrpcpb.Insert} else b""
        request = kvrpcpb.PrewriteRequest(
            mutations=[kvrpcpb.Mutation(op=op, key=key, value=value) for key in sorted(keys)],
            primary_lock=txn.primary,
            start_version=txn.start_ts,
            lock_ttl=1,
            use_async_commit=mode == "async",
            try_one_pc=mode == "one phase",
        )
        response = run(self.storage.kv_prewrite(request, EVERYTHING))
        if op == kvrpcpb.Insert:
            self.has_read(txn.start_ts)
        held = kvrpcpb.Put if op == kvrpcpb.Insert else op
        self.check_prewrite(txn, sorted(keys), Held(txn.start_ts, held, value), op, mode, response)

    def check_prewrite(
        self, txn: Txn, keys: list[bytes], lock: Held, op: int, mode: str, response: kvrpcpb.PrewriteResponse
    ) -> None:
        locked = []
        for key in keys:
            cell = self.cells[key]
            if cell.lock is not None and cell.lock.start_ts == txn.start_ts:
                continue
            committed = cell.committed_at(txn.start_ts)
            obstacle = self.obstacle(cell, txn.start_ts, op)
            if obstacle and obstacle != "exists" and committed:
                assert not response.errors
                expected = committed if mode != "two phases" else 0
                assert (response.min_commit_ts or response.one_pc_commit_ts) == expected
                return
            if obstacle == "locked":
                locked.append(key)
            elif obstacle:
                (error,) = response.errors
                assert error.HasField("already_exist" if obstacle == "exists" else "conflict")
                return
        if locked:
            assert [error.locked.key for error in response.errors] == locked
            return
        assert not response.errors
        self.apply_prewrite(txn, keys, lock, mode, response)

    @staticmethod
    def obstacle(cell: Cell, start_ts: int, op: int) -> str:
        if cell.lock is not None:
            return "locked"
        if cell.newest() > start_ts or start_ts in cell.rolled_back:
            return "conflict"
        if op == kvrpcpb.Insert and cell.value_at(start_ts) is not None:
            return "exists"
        return ""

    def apply_prewrite(
        self, txn: Txn, keys: list[bytes], lock: Held, mode: str, response: kvrpcpb.PrewriteResponse
    ) -> None:
        own = [held for key in keys if (held := self.cells[key].lock) is not None]
        new = [key for key in keys if self.cells[key].lock is None]
        ts = max([txn.start_ts + 1, *(held.min_commit_ts for held in own)])
        if new:
            ts = max(ts, self.max_ts + 1)
        if (
            mode == "two phases"
            or not all(held.asynchronous for held in own)
            or (mode == "one phase" and own)
        ):
            ts = 0
        assert response.min_commit_ts == (ts if mode == "async" else 0)
        assert response.one_pc_commit_ts == (ts if mode == "one phase" else 0)
        for key in new:
            cell = self.cells[key]
            if ts and mode == "one phase":
                cell.versions[ts] = Version(txn.start_ts, lock.op, lock.value)
            else:
                cell.lock = Held(txn.start_ts, lock.op, lock.value, ts, asynchronous=bool(ts))
        if ts and mode == "one phase":
            txn.commit_ts = ts

    @precondition(lambda self: self.txns)
    @rule(data=st.data(), keys=st.sets(st.sampled_from(KEYS), min_size=1, max_size=2), fresh=st.booleans())
    def lock_pessimistically(self, data: st.DataObject, keys: set[bytes], fresh: bool) -> None:
        txn = self.pick(data)
        if not txn.pessimistic:
            return
        for_update_ts = self.now() if fresh else txn.start_ts
        request = kvrpcpb.PessimisticLockRequest(
            mutations=[kvrpcpb.Mutation(op=kvrpcpb.PessimisticLock, key=key) for key in sorted(keys)],
            primary_lock=txn.primary,
            start_version=txn.start_ts,
            for_update_ts=for_update_ts,
            lock_ttl=1,
            wait_timeout=-1,
            return_values=True,
        )
        response = run(self.storage.kv_pessimistic_lock(request, EVERYTHING))
        self.has_read(for_update_ts)
        for key in sorted(keys):
            cell = self.cells[key]
            if cell.lock is not None:
                if cell.lock.start_ts == txn.start_ts and cell.lock.op == kvrpcpb.PessimisticLock:
                    continue
                assert response.errors
                return
            if (
                cell.newest() > for_update_ts
                or txn.start_ts in cell.rolled_back
                or cell.committed_at(txn.start_ts)
            ):
                assert response.errors
                return
        assert not response.errors
        for key, value, missing in zip(sorted(keys), response.values, response.not_founds, strict=True):
            cell = self.cells[key]
            expected = cell.value_at(for_update_ts)
            assert (None if missing else value) == expected
            if cell.lock is None or cell.lock.for_update_ts < for_update_ts:
                cell.lock = Held(txn.start_ts, kvrpcpb.PessimisticLock, for_update_ts=for_update_ts)

    @precondition(lambda self: self.txns)
    @rule(data=st.data())
    def prewrite_pessimistically(self, data: st.DataObject) -> None:
        txn = self.pick(data)
        keys = [
            key
            for key, cell in self.cells.items()
            if cell.lock and cell.lock.start_ts == txn.start_ts and cell.lock.op == kvrpcpb.PessimisticLock
        ]
        if not keys:
            return
        held = [self.cells[key].lock for key in keys]
        for_update_ts = max(lock.for_update_ts for lock in held if lock)
        value = b"p%d" % txn.start_ts
        request = kvrpcpb.PrewriteRequest(
            mutations=[kvrpcpb.Mutation(op=kvrpcpb.Put, key=key, value=value) for key in keys],
            primary_lock=txn.primary,
            start_version=txn.start_ts,
            for_update_ts=for_update_ts,
            pessimistic_actions=[kvrpcpb.PrewriteRequest.DO_PESSIMISTIC_CHECK] * len(keys),
            lock_ttl=1,
        )
        assert not run(self.storage.kv_prewrite(request, EVERYTHING)).errors
        for key in keys:
            self.cells[key].lock = Held(txn.start_ts, kvrpcpb.Put, value, for_update_ts=for_update_ts)

    @precondition(lambda self: self.txns)
    @rule(data=st.data(), keys=st.sets(st.sampled_from(KEYS), min_size=1))
    def unlock(self, data: st.DataObject, keys: set[bytes]) -> None:
        txn = self.pick(data)
        request = kvrpcpb.PessimisticRollbackRequest(
            start_version=txn.start_ts, for_update_ts=self.clock, keys=sorted(keys)
        )
        run(self.storage.kv_pessimistic_rollback(request, EVERYTHING))
        for key in keys:
            lock = self.cells[key].lock
            if lock and lock.start_ts == txn.start_ts and lock.op == kvrpcpb.PessimisticLock:
                self.cells[key].lock = None

    @precondition(lambda self: self.txns)
    @rule(data=st.data(), keys=st.sets(st.sampled_from(KEYS), min_size=1), step=st.integers(1, 2))
    def commit(self, data: st.DataObject, keys: set[bytes], step: int) -> None:
        """Commit some keys; the timestamp is the transaction's own once it has one."""
        txn = self.pick(data)
        if txn.dead:
            return
        locks = [
            cell.lock for cell in self.cells.values() if cell.lock and cell.lock.start_ts == txn.start_ts
        ]
        computed = max([lock.min_commit_ts for lock in locks if lock.asynchronous], default=0)
        commit_ts = txn.commit_ts or computed or self.now(step)
        request = kvrpcpb.CommitRequest(
            start_version=txn.start_ts, commit_version=commit_ts, keys=sorted(keys)
        )
        response = run(self.storage.kv_commit(request, EVERYTHING))
        for key in sorted(keys):
            cell = self.cells[key]
            if cell.lock is None or cell.lock.start_ts != txn.start_ts:
                if not cell.committed_at(txn.start_ts):
                    assert response.error.HasField("txn_lock_not_found")
                    return
            elif commit_ts < cell.lock.min_commit_ts:
                assert response.error.HasField("commit_ts_expired")
                return
        assert not response.HasField("error")
        self.settle(txn, sorted(keys), commit_ts)

    def settle(self, txn: Txn, keys: list[bytes], commit_ts: int) -> None:
        for key in keys:
            cell = self.cells[key]
            if cell.lock is None or cell.lock.start_ts != txn.start_ts:
                continue
            if cell.lock.op != kvrpcpb.PessimisticLock:
                cell.versions[commit_ts] = Version(txn.start_ts, cell.lock.op, cell.lock.value)
                txn.commit_ts = commit_ts
            cell.lock = None

    @precondition(lambda self: self.txns)
    @rule(data=st.data(), keys=st.sets(st.sampled_from(KEYS), min_size=1))
    def roll_back(self, data: st.DataObject, keys: set[bytes]) -> None:
        txn = self.pick(data)
        if txn.commit_ts:
            return
        request = kvrpcpb.BatchRollbackRequest(start_version=txn.start_ts, keys=sorted(keys))
        assert not run(self.storage.kv_batch_rollback(request, EVERYTHING)).HasField("error")
        self.has_read(txn.start_ts)
        txn.dead = True
        for key in keys:
            self.undo(txn, key, protect_missing=False)

    def undo(self, txn: Txn, key: bytes, *, protect_missing: bool) -> None:
        cell = self.cells[key]
        own = cell.lock is not None and cell.lock.start_ts == txn.start_ts
        protected = key == txn.primary if own else protect_missing
        if own:
            cell.lock = None
        if txn.start_ts in cell.rolled_back:
            return
        # A rollback pushes out the plain one right before it.
        before = max((ts for ts in [*cell.versions, *cell.rolled_back] if ts <= txn.start_ts), default=0)
        if before not in cell.versions and before not in cell.protected:
            cell.rolled_back.discard(before)
        # Where another's version lies at this very timestamp a plain rollback leaves no trace.
        if txn.start_ts not in cell.versions or protected:
            cell.rolled_back.add(txn.start_ts)
        if protected:
            cell.protected.add(txn.start_ts)

    @precondition(lambda self: self.txns)
    @rule(data=st.data())
    def resolve_by_status(self, data: st.DataObject) -> None:
        """What a client does that meets an expired lock: ask the primary, then settle all the locks."""
        txn = self.pick(data)
        cell = self.cells[txn.primary]
        request = kvrpcpb.CheckTxnStatusRequest(
            primary_key=txn.primary,
            lock_ts=txn.start_ts,
            current_ts=TS_MAX,  # every lock is expired by then
            rollback_if_not_exist=True,
            force_sync_commit=True,
        )
        own = cell.lock is not None and cell.lock.start_ts == txn.start_ts
        committed = cell.committed_at(txn.start_ts)
        if txn.commit_ts and not committed:
            return  # committed elsewhere without its primary: no client does that
        response = run(self.storage.kv_check_txn_status(request, EVERYTHING))
        self.has_read(txn.start_ts)
        assert response.commit_version == committed
        if not committed:
            expected = kvrpcpb.TTLExpireRollback if own else kvrpcpb.LockNotExistRollback
            known = not own and txn.start_ts in cell.rolled_back
            assert response.action == (kvrpcpb.NoAction if known else expected)
            txn.dead = True
            self.undo(txn, txn.primary, protect_missing=True)
        resolve = kvrpcpb.ResolveLockRequest(start_version=txn.start_ts, commit_version=committed)
        assert not run(self.storage.kv_resolve_lock(resolve, EVERYTHING)).HasField("error")
        for key, other in self.cells.items():
            if other.lock is not None and other.lock.start_ts == txn.start_ts:
                if committed:
                    self.settle(txn, [key], committed)
                else:
                    self.undo(txn, key, protect_missing=False)

    @rule(key=st.sampled_from(KEYS), back=st.integers(0, 12))
    def read(self, key: bytes, back: int) -> None:
        ts = max(self.now() - back, self.safe_ts, 1)
        response = run(self.storage.kv_get(kvrpcpb.GetRequest(key=key, version=ts), EVERYTHING))
        self.has_read(ts)
        cell = self.cells[key]
        if self.blocks(cell.lock, ts):
            assert cell.lock
            assert response.error.locked.lock_version == cell.lock.start_ts
            return
        value = None if response.not_found else response.value
        assert value == cell.value_at(ts)
        self.reads[key, ts] = value

    @staticmethod
    def blocks(lock: Held | None, ts: int) -> bool:
        return (
            lock is not None
            and lock.op in {kvrpcpb.Put, kvrpcpb.Del}
            and lock.start_ts <= ts
            and lock.min_commit_ts <= ts
        )

    @precondition(lambda self: self.reads)
    @rule(data=st.data())
    def read_again(self, data: st.DataObject) -> None:
        """A snapshot never changes, whatever was committed since."""
        key, ts = data.draw(st.sampled_from(sorted(self.reads)))
        if ts < self.safe_ts:
            return
        response = run(self.storage.kv_get(kvrpcpb.GetRequest(key=key, version=ts), EVERYTHING))
        self.has_read(ts)
        if not response.HasField("error"):
            assert (None if response.not_found else response.value) == self.reads[key, ts]

    @rule(back=st.integers(0, 8), reverse=st.booleans(), limit=st.integers(1, 6), key_only=st.booleans())
    def scan(self, back: int, reverse: bool, limit: int, key_only: bool) -> None:
        ts = max(self.now() - back, self.safe_ts, 1)
        request = kvrpcpb.ScanRequest(version=ts, limit=limit, reverse=reverse, key_only=key_only)
        response = run(self.storage.kv_scan(request, EVERYTHING))
        self.has_read(ts)
        expected: list[tuple[bytes, bytes | None]] = []
        for key in sorted(KEYS, reverse=reverse):
            cell = self.cells[key]
            value = cell.value_at(ts)
            if self.blocks(cell.lock, ts):
                expected.append((key, None))
            elif value is not None:
                expected.append((key, b"" if key_only else value))
        told = [(pair.key, None if pair.HasField("error") else pair.value) for pair in response.pairs]
        assert told == expected[:limit]

    @rule(back=st.integers(0, 20))
    def collect(self, back: int) -> None:
        """Drop old versions, up to where every lock is settled, as the protocol demands."""
        oldest = min(
            (cell.lock.start_ts for cell in self.cells.values() if cell.lock), default=self.clock + 1
        )
        safe_ts = max(min(self.now() - back, oldest - 1), self.safe_ts)
        run(self.storage.kv_gc(kvrpcpb.GCRequest(safe_point=safe_ts), EVERYTHING))
        self.safe_ts = safe_ts
        self.txns = [txn for txn in self.txns if txn.start_ts > safe_ts]
        for cell in self.cells.values():
            keep = max(
                (
                    ts
                    for ts, v in cell.versions.items()
                    if ts <= safe_ts and v.op in {kvrpcpb.Put, kvrpcpb.Del}
                ),
                default=0,
            )
            kept_put = bool(keep) and cell.versions[keep].op == kvrpcpb.Put
            cell.versions = {
                ts: v for ts, v in cell.versions.items() if ts > safe_ts or (kept_put and ts == keep)
            }
            cell.rolled_back = {ts for ts in cell.rolled_back if ts > safe_ts}
            cell.protected = {ts for ts in cell.protected if ts > safe_ts}

    @invariant()
    def versions_and_locks_are_those_of_the_model(self) -> None:
        for key, cell in self.cells.items():
            info = run(self.storage.mvcc_get_by_key(kvrpcpb.MvccGetByKeyRequest(key=key), EVERYTHING)).info
            long = {value.start_ts: value.value for value in info.values}
            told = {
                write.commit_ts: Version(
                    write.start_ts, write.type, write.short_value or long.get(write.start_ts, b"")
                )
                for write in info.writes
                if write.type != kvrpcpb.Rollback
            }
            assert told == cell.versions
            assert info.HasField("lock") == (cell.lock is not None)
            if cell.lock is not None:
                assert (info.lock.start_ts, info.lock.type) == (cell.lock.start_ts, cell.lock.op)
            marked = {
                write.commit_ts
                for write in info.writes
                if write.type == kvrpcpb.Rollback or write.has_overlapped_rollback
            }
            assert cell.protected <= marked


Transactions.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTransactions = Transactions.TestCase
