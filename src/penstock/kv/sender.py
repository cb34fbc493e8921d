"""Requests to regions, through leader changes, splits and failures.

A table says what the client does about each region error. `RegionSender` sends a request to a region as
it was located; `Router` locates the region of a key first, and again when it changed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import Message

from penstock import clock as clocks
from penstock import metrics
from penstock.clock import Clock
from penstock.errors import Invalid, PenstockError, Unavailable, Undetermined
from penstock.kv.background import run_all
from penstock.kv.backoff import Backoffer, BackoffKind
from penstock.kv.region_table import KeyLocation, RegionVerId
from penstock.kv.regions import EpochVerdict, PeerTarget, RegionCache, judge_epoch
from penstock.kv.rpc.client import RpcClient
from penstock.kv.rpc.connections import RpcFailed
from penstock.kv.stores import Liveness, Prober
from penstock.proto import errorpb_pb2 as errorpb
from penstock.settings import KvSettings


class Act(Enum):
    """The next step after a region error."""

    RETRY = auto()  # sleep, then send the same request again
    RELOAD = auto()  # forget the region, sleep, let the caller locate its keys again
    FOLLOW_LEADER = auto()  # send to the peer the store names, or look for another
    UPDATE_EPOCH = auto()  # compare epochs and take over the store's regions
    RESOLVE_STORE = auto()  # the address leads to another store: ask for it again, then RELOAD
    UNDETERMINED = auto()  # the store cannot tell whether it did the work: report it, then RELOAD
    GIVE_UP = auto()  # repeating cannot help


@dataclass(frozen=True, slots=True)
class Reaction:
    """A step, and the kind of sleep that goes with it."""

    act: Act
    sleep: BackoffKind = BackoffKind.REGION_MISS


_REACTIONS = {
    "not_leader": Reaction(Act.FOLLOW_LEADER, BackoffKind.REGION_SCHEDULING),
    "region_not_found": Reaction(Act.RELOAD),
    "key_not_in_region": Reaction(Act.RELOAD),
    "epoch_not_match": Reaction(Act.UPDATE_EPOCH),
    "server_is_busy": Reaction(Act.RETRY, BackoffKind.SERVER_BUSY),
    "stale_command": Reaction(Act.RETRY, BackoffKind.STALE_COMMAND),
    "store_not_match": Reaction(Act.RESOLVE_STORE),
    "raft_entry_too_large": Reaction(Act.GIVE_UP),
    "max_timestamp_not_synced": Reaction(Act.RETRY, BackoffKind.MAX_TS_NOT_SYNCED),
    "read_index_not_ready": Reaction(Act.RETRY, BackoffKind.REGION_SCHEDULING),
    "proposal_in_merging_mode": Reaction(Act.RETRY, BackoffKind.REGION_SCHEDULING),
    "data_is_not_ready": Reaction(Act.RETRY, BackoffKind.DATA_NOT_READY),
    "region_not_initialized": Reaction(Act.RETRY, BackoffKind.REGION_NOT_INITIALIZED),
    "disk_full": Reaction(Act.RETRY, BackoffKind.DISK_FULL),
    "recovery_in_progress": Reaction(Act.RELOAD, BackoffKind.RECOVERY_IN_PROGRESS),
    "flashback_in_progress": Reaction(Act.GIVE_UP),
    "flashback_not_prepared": Reaction(Act.GIVE_UP),
    "is_witness": Reaction(Act.RELOAD, BackoffKind.IS_WITNESS),
    "mismatch_peer_id": Reaction(Act.RELOAD),
    # We keep no buckets, so that there is none to update: the region is asked again as a whole.
    "bucket_version_not_match": Reaction(Act.RETRY),
    "undetermined_result": Reaction(Act.UNDETERMINED),
}
OTHER = "other"


def classify(error: errorpb.Error) -> tuple[str, Reaction]:
    """Return the error's name, for the metric, and what to do; an unknown error reloads the region."""
    for known, _ in error.ListFields():
        reaction = _REACTIONS.get(known.name)
        if reaction is not None:
            return known.name, reaction
    return OTHER, Reaction(Act.RELOAD)


def permanent_error(name: str, error: errorpb.Error) -> PenstockError:
    """Return what to raise for an error that repeating the request cannot repair."""
    if name == "raft_entry_too_large":
        found = error.raft_entry_too_large
        return Invalid(
            f"a write of {found.entry_size} bytes is too large for region {found.region_id}; "
            "split it into smaller values or transactions"
        )
    if name == "flashback_in_progress":
        return Unavailable(
            f"region {error.flashback_in_progress.region_id} is being flashed back; wait until that is done"
        )
    assert name == "flashback_not_prepared", name
    region_id = error.flashback_not_prepared.region_id
    return Invalid(f"region {region_id} is not prepared for flashback; prepare it first")


_ATTEMPTS_MAX = 10  # at one peer, before the region is loaded again
_READS = frozenset({"KvGet", "KvBatchGet", "KvScan", "KvScanLock"})
_SEND_FAILED = metrics.KV_REGION_CACHE_OPERATIONS_TOTAL.labels("send_fail", "ok")


class RegionStale(Exception):
    """The region of a request changed: locate the keys again and regroup.

    `in_doubt` is what to raise when the keys cannot be located: set after an attempt without an
    answer that may have decided the transaction.
    """

    in_doubt: Undetermined | None = None


class NotServed(Invalid):
    """A store does not know the call."""


class UndeterminedAnswer(Exception):
    """A store answered that it cannot tell whether it did the work."""


@dataclass(slots=True)
class _RegionRequest:
    """One request on its way to its region, and what was tried so far."""

    bo: Backoffer
    method: str
    request: Any
    region: RegionVerId
    on_rpc_error: Callable[[Exception], None] | None
    attempts: dict[int, int] = field(default_factory=dict)  # by peer id
    exhausted: set[int] = field(default_factory=set)  # ids of peers whose store is out of reach

    def address(self, target: PeerTarget) -> None:
        """Name the target in the request and count the attempt."""
        context = self.request.context
        context.ClearField("region_epoch")
        context.ClearField("peer")
        context.MergeFrom(target.context)
        if self.attempts:
            context.is_retry_request = True
        self.attempts[target.peer.id] = self.attempts.get(target.peer.id, 0) + 1

    def report(self, error: Exception) -> None:
        """Report an attempt without an answer, which may have done its work, to the caller."""
        if self.on_rpc_error is not None:
            self.on_rpc_error(error)


class RegionSender:
    """Sends requests to regions.

    Failures that leave the region valid are retried here: another leader, a busy store, a lost connection.
    Failures that change the region update the cache and raise RegionStale.
    """

    def __init__(
        self,
        cache: RegionCache,
        rpc: RpcClient,
        clock: Clock = clocks.SYSTEM,
        settings: KvSettings | None = None,
    ) -> None:
        settings = settings or KvSettings()
        self._cache = cache
        self._rpc = rpc
        self._clock = clock
        self._read_timeout_s = settings.read_timeout_ms / 1000
        self._write_timeout_s = settings.write_timeout_ms / 1000
        self._prober = Prober(
            cache.stores, rpc, timeout_s=settings.store_liveness_timeout_ms / 1000, clock=clock
        )
        self._seconds: dict[tuple[str, int], Any] = {}

    async def send(
        self,
        bo: Backoffer,
        method: str,
        request: Message,
        region: RegionVerId,
        *,
        timeout_s: float | None = None,
        on_rpc_error: Callable[[Exception], None] | None = None,
    ) -> Message:
        """Send a request to the leader of a region and return its response, which has no region error.

        Fills the region, epoch and peer of the request's context and keeps what else it holds.
        `on_rpc_error` is called for every attempt that may have reached a store without an answer.
        Raises RegionStale when the keys must be located again (having slept where that is
        due), Unavailable when the budget of `bo` is used up, Invalid when repeating cannot help.
        """
        errand = _RegionRequest(bo, method, request, region, on_rpc_error)
        timeout_s = timeout_s or (self._read_timeout_s if method in _READS else self._write_timeout_s)
        while True:
            target = self._cache.route(region) or await self._find_target(errand)
            if errand.attempts.get(target.peer.id, 0) >= _ATTEMPTS_MAX:
                await self._reload(errand, BackoffKind.REGION_MISS, "its peer did not serve in many attempts")
            errand.address(target)
            began = self._clock.monotonic()
            try:
                response: Any = await self._rpc.send(target.addr, method, request, timeout_s=timeout_s)
            except RpcFailed as error:
                await self._rpc_failed(errand, target, error)
                continue
            finally:
                self._observe(method, target.store.id, self._clock.monotonic() - began)
            if not response.HasField("region_error"):
                break
            await self._react(errand, target, response.region_error)
        answer: Message = response
        return answer

    async def close(self) -> None:
        """Stop watching stores."""
        await self._prober.close()

    async def _find_target(self, errand: _RegionRequest) -> PeerTarget:
        target = await self._cache.target(errand.bo, errand.region)
        if target is None:
            await self._stale(errand, BackoffKind.REGION_MISS, "the region is no longer in the cache")
        return target

    def _observe(self, method: str, store_id: int, seconds: float) -> None:
        histogram = self._seconds.get((method, store_id))
        if histogram is None:
            histogram = metrics.KV_REQUEST_SECONDS.labels(method, store_id)
            self._seconds[method, store_id] = histogram
        histogram.observe(seconds)

    async def _rpc_failed(self, errand: _RegionRequest, target: PeerTarget, error: RpcFailed) -> None:
        """Prepare the next attempt: at the same peer while its store answers, else at another."""
        metrics.KV_RPC_ERR_TOTAL.labels(error.code.name, target.store.id).inc()
        if error.sent:
            errand.report(error)
        if error.code is grpc.StatusCode.UNIMPLEMENTED:
            raise NotServed(
                f"store {target.store.id} at {target.addr} does not serve {errand.method}; upgrade it"
            ) from error
        if error.code is grpc.StatusCode.INVALID_ARGUMENT and "cluster" in str(error).lower():
            raise Invalid(
                f"store {target.store.id} at {target.addr} belongs to another cluster; check pd_addrs"
            ) from error
        if await self._prober.check(target.store) is Liveness.REACHABLE:
            await errand.bo.backoff(BackoffKind.TIKV_RPC, error)
            return
        _SEND_FAILED.inc()
        errand.exhausted.add(target.peer.id)
        if self._cache.try_next_peer(errand.region, target.peer, errand.exhausted):
            await errand.bo.backoff(BackoffKind.TIKV_RPC, error)
        else:
            await self._reload(errand, BackoffKind.TIKV_RPC, error)

    async def _react(self, errand: _RegionRequest, target: PeerTarget, error: errorpb.Error) -> None:
        """Return when the request is to be sent again."""
        name, reaction = classify(error)
        metrics.KV_REGION_ERR_TOTAL.labels(name).inc()
        detail = f" ({error.message})" if name == OTHER else ""
        why = f"{name} from store {target.store.id} for region {errand.region.id}{detail}"
        match reaction.act:
            case Act.RETRY:
                await self._again(errand, reaction.sleep, why, error)
            case Act.FOLLOW_LEADER:
                await self._follow_leader(errand, target, why, error.not_leader)
            case Act.UPDATE_EPOCH:
                await self._update_epoch(errand, target, why, error.epoch_not_match)
            case Act.RESOLVE_STORE:
                target.store.stale = True
                await self._rpc.close_addr(target.addr)
                await self._reload(errand, reaction.sleep, why)
            case Act.UNDETERMINED:
                errand.report(UndeterminedAnswer(why))
                await self._reload(errand, reaction.sleep, why)
            case Act.RELOAD:
                await self._reload(errand, reaction.sleep, why)
            case Act.GIVE_UP:
                raise permanent_error(name, error)

    @staticmethod
    async def _again(errand: _RegionRequest, sleep: BackoffKind, why: str, error: errorpb.Error) -> None:
        asked_ms = error.server_is_busy.backoff_ms
        errand.request.context.ClearField("buckets_version")
        await errand.bo.backoff(sleep, why, max_ms=asked_ms or None)

    async def _follow_leader(
        self, errand: _RegionRequest, target: PeerTarget, why: str, error: errorpb.NotLeader
    ) -> None:
        if error.leader.id and self._reachable(error.leader.store_id):
            if not self._cache.switch_leader(errand.region, error.leader):
                await self._stale(errand, BackoffKind.REGION_MISS, why)
            return
        # There is no leader, or it is out of reach: an election is due, and any peer may win it.
        await errand.bo.backoff(BackoffKind.REGION_SCHEDULING, why)
        self._cache.try_next_peer(errand.region, target.peer, errand.exhausted)

    def _reachable(self, store_id: int) -> bool:
        return self._cache.stores.get(store_id).liveness is not Liveness.UNREACHABLE

    async def _update_epoch(
        self, errand: _RegionRequest, target: PeerTarget, why: str, error: errorpb.EpochNotMatch
    ) -> None:
        match judge_epoch(errand.region, error.current_regions):
            case EpochVerdict.UNKNOWN:
                await self._reload(errand, BackoffKind.REGION_MISS, why)
            case EpochVerdict.STORE_BEHIND:
                await errand.bo.backoff(BackoffKind.REGION_MISS, why)
            case EpochVerdict.CACHE_BEHIND:
                self._cache.install(errand.region, target.store.id, error.current_regions)
                raise RegionStale(why)

    async def _reload(self, errand: _RegionRequest, sleep: BackoffKind, why: RpcFailed | str) -> NoReturn:
        self._cache.invalidate(errand.region, str(why))
        await self._stale(errand, sleep, why)

    @staticmethod
    async def _stale(errand: _RegionRequest, sleep: BackoffKind, why: RpcFailed | str) -> NoReturn:
        await errand.bo.backoff(sleep, why)
        raise RegionStale(str(why))


Answer = TypeVar("Answer", bound=Message)


class Router:
    """Finds the region of a request and follows it through splits, merges and leader changes."""

    def __init__(self, cache: RegionCache, sender: RegionSender) -> None:
        self.cache = cache
        self.sender = sender

    async def send_to_key(
        self, bo: Backoffer, method: str, request: Message, key: bytes, answer: type[Answer]
    ) -> Answer:
        """Send a request that concerns one key to the region that holds it."""
        while True:
            location = await self.cache.locate(bo, key)
            try:
                response = await self.sender.send(bo, method, request, location.region)
            except RegionStale:
                continue
            assert isinstance(response, answer)
            return response

    async def send_to_region(
        self, bo: Backoffer, method: str, request: Message, location: KeyLocation, answer: type[Answer]
    ) -> Answer:
        """Send a request to a region as it was located; raise RegionStale when it is no longer so."""
        response = await self.sender.send(bo, method, request, location.region)
        assert isinstance(response, answer)
        return response

    async def send_by_region(
        self,
        bo: Backoffer,
        method: str,
        keys: Sequence[bytes],
        make: Callable[[Sequence[bytes]], Message],
        answer: type[Answer],
    ) -> list[tuple[Sequence[bytes], Answer]]:
        """Send one request to each region that holds some of the sorted keys; return all answers."""
        groups = await self.cache.group_keys(bo, keys)

        async def ask(location: KeyLocation, part: Sequence[bytes]) -> list[tuple[Sequence[bytes], Answer]]:
            mine = bo.fork() if len(groups) > 1 else bo
            try:
                return [(part, await self.send_to_region(mine, method, make(part), location, answer))]
            except RegionStale:
                return await self.send_by_region(mine, method, part, make, answer)

        answers = await run_all(ask(location, keys[part]) for location, part in groups)
        return [pair for pairs in answers for pair in pairs]
