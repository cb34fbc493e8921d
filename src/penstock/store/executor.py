"""The commands of one store: their table, their execution, and the load that answers report.

The executor checks the region of a request, then calls the storage.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any

from google.protobuf.message import Message

from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid
from penstock.proto import errorpb_pb2 as errorpb
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto.codec import encode_bytes
from penstock.proto.services import methods
from penstock.store.bounds import EVERYTHING, KeyBounds
from penstock.store.faults import Faults
from penstock.store.raw import RawStorage
from penstock.store.refusals import key_not_in_region
from penstock.store.region import Region
from penstock.store.regions import Regions, SizeWatch
from penstock.store.storage import TxnStorage

__all__ = ["SERVICE", "ClusterMismatch", "Command", "CommandExecutor", "Effect", "StoreHealth", "commands"]


SERVICE = "tikvpb.Tikv"

Run = Callable[[Any, KeyBounds], Awaitable[Message]]
KeysOf = Callable[[Any], Iterable[bytes]]


class Effect(Enum):
    """What a command does to the data of a region."""

    READS = "reads"
    CHANGES = "changes"
    GROWS = "grows"  # changes it, and carries new data


@dataclass(frozen=True, slots=True)
class Command:
    """One kind of request: what it runs, which keys it names and which store may serve it."""

    name: str
    run: Run
    response: type[Message]
    effect: Effect
    keys: KeysOf | None = None  # the keys it names; each has to be in the region
    raw: bool = False
    local: bool = False  # concerns the store as a whole, no region


def _mutation_keys(request: Any) -> list[bytes]:
    return [mutation.key for mutation in request.mutations]


def _pair_keys(request: Any) -> list[bytes]:
    return [pair.key for pair in request.pairs]


def _one(field: str) -> KeysOf:
    value = attrgetter(field)
    return lambda request: (value(request),)


_KEYS = attrgetter("keys")
_KEY = _one("key")


def commands(storage: TxnStorage, raw: RawStorage) -> Mapping[str, Command]:
    """Return every command on the data of regions, by the name of its RPC."""
    responses = methods(SERVICE)
    table: dict[str, Command] = {}

    def add(name: str, run: Run, effect: Effect, keys: KeysOf | None = None, **flags: bool) -> None:
        table[name] = Command(name, run, responses[name].response, effect, keys, **flags)

    reads, changes, grows = Effect.READS, Effect.CHANGES, Effect.GROWS
    add("KvGet", storage.kv_get, reads, _KEY)
    add("KvBatchGet", storage.kv_batch_get, reads, _KEYS)
    add("KvScan", storage.kv_scan, reads)
    add("KvPrewrite", storage.kv_prewrite, grows, _mutation_keys)
    add("KvPessimisticLock", storage.kv_pessimistic_lock, changes, _mutation_keys)
    add("KVPessimisticRollback", storage.kv_pessimistic_rollback, changes, _KEYS)
    add("KvCommit", storage.kv_commit, changes, _KEYS)
    add("KvCleanup", storage.kv_cleanup, changes, _KEY)
    add("KvBatchRollback", storage.kv_batch_rollback, changes, _KEYS)
    add("KvCheckTxnStatus", storage.kv_check_txn_status, changes, _one("primary_key"))
    add("KvCheckSecondaryLocks", storage.kv_check_secondary_locks, changes, _KEYS)
    add("KvTxnHeartBeat", storage.kv_txn_heart_beat, changes, _one("primary_lock"))
    add("KvResolveLock", storage.kv_resolve_lock, changes, _KEYS)
    add("KvScanLock", storage.kv_scan_lock, reads)
    add("KvGC", storage.kv_gc, changes)
    add("KvDeleteRange", storage.kv_delete_range, changes)
    add("MvccGetByKey", storage.mvcc_get_by_key, reads, _KEY)
    add("MvccGetByStartTs", storage.mvcc_get_by_start_ts, reads)
    add("UnsafeDestroyRange", storage.unsafe_destroy_range, changes, local=True)
    add("GetLockWaitInfo", storage.get_lock_wait_info, reads, local=True)
    add("RawGet", raw.raw_get, reads, _KEY, raw=True)
    add("RawBatchGet", raw.raw_batch_get, reads, _KEYS, raw=True)
    add("RawScan", raw.raw_scan, reads, raw=True)
    add("RawPut", raw.raw_put, grows, _KEY, raw=True)
    add("RawBatchPut", raw.raw_batch_put, grows, _pair_keys, raw=True)
    add("RawDelete", raw.raw_delete, changes, _KEY, raw=True)
    add("RawBatchDelete", raw.raw_batch_delete, changes, _KEYS, raw=True)
    add("RawDeleteRange", raw.raw_delete_range, changes, raw=True)
    add("RawCompareAndSwap", raw.raw_compare_and_swap, changes, _KEY, raw=True)
    return table


class ClusterMismatch(Invalid):
    """A request was meant for another cluster."""


class CommandExecutor:
    """Runs the commands of one store.

    A command started with `start` runs to its end even when its caller has gone; `finish` waits for it.
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

        Raise ClusterMismatch for a request of another cluster, and whatever the storage raises.
        """
        if command.local:
            return await command.run(request, EVERYTHING)
        context = request.context
        if context.cluster_id and context.cluster_id != self._cluster_id:
            raise ClusterMismatch(
                f"request is for cluster {context.cluster_id}, this is cluster {self._cluster_id}"
            )
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
            # Every store reads the same data, so a stale read is served as a consistent one. That also keeps
            # later commits above its timestamp.
            context.stale_read = False
        if command.effect is Effect.GROWS:
            self._sizes.count_written(region.id, request.ByteSize())
        return await command.run(request, bounds)

    async def execute_faulty(self, command: Command, request: Any) -> Message:
        """Run a command while fault switches are on; raise FaultStruck when one ends the call."""
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
        """Run a command in its own task, which nobody cancels."""
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


_INTERVAL_S = 1.0
_HEALTHY = 1  # the lowest slow score


class StoreHealth:
    """Samples the processor's load once a second, and numbers the feedback given to clients."""

    def __init__(self, store_id: int, *, clock: Clock = SYSTEM) -> None:
        self._store_id = store_id
        self._clock = clock
        self._sampled_at = clock.monotonic()
        self._busy_s = _busy_s()
        self._sequence = 0
        self.load = 0  # percent of one processor

    def feedback(self) -> kvrpcpb.HealthFeedback:
        """Return feedback newer than any before."""
        self._sequence += 1
        return kvrpcpb.HealthFeedback(
            store_id=self._store_id, feedback_seq_no=self._sequence, slow_score=_HEALTHY
        )

    def sample_if_due(self) -> bool:
        """Once a second, sample the load and return True: it is time to give feedback."""
        now = self._clock.monotonic()
        passed = now - self._sampled_at
        if passed < _INTERVAL_S:
            return False
        busy_s = _busy_s()
        self.load = round(100 * (busy_s - self._busy_s) / passed)
        self._sampled_at, self._busy_s = now, busy_s
        return True


def _busy_s() -> float:
    used = os.times()
    return used.user + used.system
