"""The commands a store serves: what each runs, which keys it names, who may serve it."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any

from google.protobuf.message import Message

from penstock.proto.services import methods
from penstock.store.bounds import KeyBounds
from penstock.store.raw import RawStorage
from penstock.store.storage import TxnStorage

__all__ = ["Command", "Effect", "commands"]

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
    """One kind of request."""

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
    found: dict[str, Command] = {}

    def add(name: str, run: Run, effect: Effect, keys: KeysOf | None = None, **flags: bool) -> None:
        found[name] = Command(name, run, responses[name].response, effect, keys, **flags)

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
    return found
