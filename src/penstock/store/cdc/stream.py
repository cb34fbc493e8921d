"""One client's stream on one store: its requests, its subscriptions, its outbox.

It also holds the errors with which a subscription is refused or ends, and what a client supports by its
version and its requested features.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock.clock import Clock
from penstock.errors import Invalid
from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.proto import errorpb_pb2 as errorpb
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto.codec import decode_bytes
from penstock.store.bounds import KeyBounds
from penstock.store.cdc.delegates import Delegates
from penstock.store.cdc.outbox import EVENTS_MAX, Outbox, Quota
from penstock.store.cdc.progress import RequestProgress
from penstock.store.cdc.scan import IncrementalScan
from penstock.store.cdc.subscription import RegionSubscription, SubscriptionPhase
from penstock.store.region import Region
from penstock.store.regions import Regions
from penstock.store.storage import TxnStorage

__all__ = [
    "STREAM_MULTIPLEXING",
    "ClientFeatures",
    "ClientStream",
    "Source",
    "cluster_id_mismatch",
    "congestion",
    "duplicate_request",
    "incompatible",
    "of_change",
    "of_refusal",
    "region_not_found",
    "requested_features",
    "server_is_busy",
    "unknown_features",
]


_RAW_KV_SINCE = "6.2.0"
_SAME_NAME = ("not_leader", "region_not_found", "epoch_not_match", "server_is_busy")


def of_refusal(error: errorpb.Error, region_id: int) -> cdcpb.Error:
    """Translate a region error; one that change streams do not have becomes region_not_found."""
    for name in _SAME_NAME:
        if error.HasField(name):
            translated = cdcpb.Error()
            getattr(translated, name).CopyFrom(getattr(error, name))
            return translated
    return region_not_found(region_id)


def of_change(before: Region, after: Sequence[Region], store_id: int) -> cdcpb.Error | None:
    """Return the error with which a region's change ends a subscription on `store_id`, or None."""
    now = next((region for region in after if region.id == before.id), None)
    if now is None:
        return region_not_found(before.id)
    if now.version != before.version:
        current = errorpb.EpochNotMatch(current_regions=[region.to_proto() for region in after])
        return cdcpb.Error(epoch_not_match=current)
    if now.leader_store != store_id:
        return cdcpb.Error(not_leader=errorpb.NotLeader(region_id=now.id, leader=now.leader.to_proto()))
    return None


def region_not_found(region_id: int) -> cdcpb.Error:
    return cdcpb.Error(region_not_found=errorpb.RegionNotFound(region_id=region_id))


def duplicate_request(region_id: int) -> cdcpb.Error:
    return cdcpb.Error(duplicate_request=cdcpb.DuplicateRequest(region_id=region_id))


def cluster_id_mismatch(current: int, requested: int) -> cdcpb.Error:
    return cdcpb.Error(cluster_id_mismatch=cdcpb.ClusterIDMismatch(current=current, request=requested))


def incompatible() -> cdcpb.Error:
    """Return the error for a stream of raw changes: only transactional changes are captured."""
    return cdcpb.Error(compatibility=cdcpb.Compatibility(required_version=_RAW_KV_SINCE))


def server_is_busy(reason: str) -> cdcpb.Error:
    return cdcpb.Error(server_is_busy=errorpb.ServerIsBusy(reason=reason))


def congestion(region_id: int) -> cdcpb.Error:
    return cdcpb.Error(congested=cdcpb.Congested(region_id=region_id))


STREAM_MULTIPLEXING = "stream-multiplexing"
_FEATURES_KEY = "features"
_KNOWN = {STREAM_MULTIPLEXING}

_RELEASED = 1  # after every pre-release of the same number
_Version = tuple[int, int, int, int]
_NO_VERSION: _Version = (0, 0, 0, _RELEASED)
_BATCHED_RESOLVED_TS_SINCE: _Version = (4, 0, 8, _RELEASED)
_CLUSTER_ID_SINCE: _Version = (5, 3, 0, _RELEASED)
_SEMVER = re.compile(r"(\d+)\.(\d+)\.(\d+)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")


@dataclass(frozen=True, slots=True)
class ClientFeatures:
    """What a client supports."""

    batched_resolved_ts: bool
    sends_cluster_id: bool

    @classmethod
    def of(cls, ticdc_version: str) -> "ClientFeatures":
        """Read the features from a version such as "8.5.0-rc.1"; a malformed one counts as the oldest."""
        match = _SEMVER.fullmatch(ticdc_version)
        version = _NO_VERSION
        if match is not None:
            major, minor, patch, pre, _build = match.groups()
            version = (int(major), int(minor), int(patch), 0 if pre else _RELEASED)
        return cls(
            batched_resolved_ts=version >= _BATCHED_RESOLVED_TS_SINCE,
            sends_cluster_id=version >= _CLUSTER_ID_SINCE,
        )


def requested_features(metadata: Iterable[tuple[str, str | bytes]]) -> set[str]:
    """Return the features named in a call's metadata."""
    lists = [value for key, value in metadata if key == _FEATURES_KEY]
    texts = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in lists]
    return {feature.strip() for text in texts for feature in text.split(",")}


def unknown_features(requested: set[str]) -> list[str]:
    """Return the requested features that this server does not have."""
    return sorted(requested - _KNOWN)


SCANS_AT_ONCE = 4
SCANS_WAITING_MAX = 10_000
_NOTHING = KeyBounds(b"\x00", b"\x00")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """What the streams of all stores share."""

    storage: TxnStorage
    regions: Regions
    delegates: Delegates
    quota: Quota
    cluster_id: int
    clock: Clock


class ClientStream:
    """A stream without the RPC itself.

    Everything about a subscription goes through the outbox. So an error is the last message of a
    subscription, and a resolved timestamp comes after all changes that it covers.
    """

    def __init__(self, source: Source, store_id: int, *, multiplexing: bool) -> None:
        self.store_id = store_id
        self.outbox = Outbox(source.quota)
        self._source = source
        self._multiplexing = multiplexing
        self._features: ClientFeatures | None = None  # known with the first request
        self._subscriptions: dict[tuple[int, int], RegionSubscription] = {}
        self._progress: dict[int, RequestProgress] = {}
        self._scans_waiting: deque[RegionSubscription] = deque()
        self._scanners: set[asyncio.Task[None]] = set()
        self.cut_off = False  # ended by the server, not by the client

    def __len__(self) -> int:
        return len(self._subscriptions)

    async def serve(
        self,
        requests: AsyncIterable[cdcpb.ChangeDataRequest],
        send: Callable[[cdcpb.ChangeDataEvent], Awaitable[None]],
    ) -> None:
        """Take requests and send events until the client is done or `close` is called."""
        ends = [asyncio.create_task(self._receive(requests)), asyncio.create_task(self._send(send))]
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._release()
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, *self._scanners, return_exceptions=True)
        for task in done:
            task.result()

    async def _receive(self, requests: AsyncIterable[cdcpb.ChangeDataRequest]) -> None:
        async for request in requests:
            self.handle(request)

    async def _send(self, send: Callable[[cdcpb.ChangeDataEvent], Awaitable[None]]) -> None:
        while (message := await self.outbox.next()) is not None:
            await send(message)

    def close(self) -> None:
        """End the stream from the side of the server."""
        self.cut_off = True
        self._release()

    def _release(self) -> None:
        """End every subscription without a message, and send nothing more."""
        for subscription in tuple(self._subscriptions.values()):
            self.end(subscription, None)
        self._scans_waiting.clear()
        for task in self._scanners:
            task.cancel()
        self.outbox.close()

    def handle(self, request: cdcpb.ChangeDataRequest) -> None:
        """Do what a request asks; a refusal is an event on the stream."""
        if self._features is None:
            self._features = ClientFeatures.of(request.header.ticdc_version)
        kind = request.WhichOneof("request")
        if kind == "deregister":
            self._deregister(request.request_id, request.region_id)
        elif kind != "notify_txn_status":  # a hint that this store does not need
            self._register(request)

    def _register(self, request: cdcpb.ChangeDataRequest) -> None:
        region = self._check(request)
        if isinstance(region, cdcpb.Error):
            self._send_error(request.region_id, request.request_id, region)
            return
        whole = region.bounds()
        bounds = _requested_bounds(request, whole)
        subscription = RegionSubscription(
            owner=self,
            outbox=self.outbox,
            region_id=region.id,
            request_id=request.request_id,
            checkpoint_ts=request.checkpoint_ts,
            bounds=bounds,
            whole_region=bounds == whole,
            old_values=request.extra_op == kvrpcpb.ReadOldValue,
            filter_loop=request.filter_loop,
        )
        self._subscriptions[self._group(request.request_id), region.id] = subscription
        self._source.delegates.add(region, subscription)
        self._scans_waiting.append(subscription)
        if len(self._scanners) < SCANS_AT_ONCE:
            scanner = asyncio.create_task(self._scan_waiting())
            self._scanners.add(scanner)
            scanner.add_done_callback(self._scanners.discard)

    def _check(self, request: cdcpb.ChangeDataRequest) -> Region | cdcpb.Error:
        """Return the region to subscribe to, or the error why not."""
        assert self._features is not None
        source = self._source
        region_id = request.region_id
        if request.kv_api != cdcpb.ChangeDataRequest.TiDB:
            return incompatible()
        if self._features.sends_cluster_id and request.header.cluster_id != source.cluster_id:
            return cluster_id_mismatch(source.cluster_id, request.header.cluster_id)
        if (self._group(request.request_id), region_id) in self._subscriptions:
            return duplicate_request(region_id)
        if len(self._scans_waiting) >= SCANS_WAITING_MAX:
            return server_is_busy("too many incremental scans are waiting")
        region = source.regions.by_id(region_id)
        peer = region.peer_on(self.store_id) if region is not None else None
        if peer is None:
            return region_not_found(region_id)
        context = kvrpcpb.Context(
            region_id=region_id, region_epoch=request.region_epoch, peer=peer.to_proto()
        )
        checked = source.regions.check(context, self.store_id)
        return checked if isinstance(checked, Region) else of_refusal(checked, region_id)

    def _deregister(self, request_id: int, region_id: int) -> None:
        """End one region's subscription, or those of the whole request; each end is acknowledged."""
        if region_id:
            one = self._subscriptions.get((self._group(request_id), region_id))
            candidates = [one] if one is not None else []
        else:
            candidates = list(self._subscriptions.values())
        for subscription in candidates:
            if subscription.request_id == request_id:
                self.end(subscription, region_not_found(subscription.region_id))

    def _group(self, request_id: int) -> int:
        """Return the key that groups subscriptions: without multiplexing, one for the whole stream."""
        return request_id if self._multiplexing else 0

    async def _scan_waiting(self) -> None:
        source = self._source
        while self._scans_waiting:
            subscription = self._scans_waiting.popleft()
            if subscription.phase is SubscriptionPhase.ENDED:
                continue
            scan = IncrementalScan(subscription, self.outbox, source.storage, source.clock)
            try:
                await scan.run()
            except Exception:  # noqa: BLE001 - the client gets an error and may try again
                _log.exception("incremental scan of region %d failed", subscription.region_id)
                self.end(subscription, server_is_busy("the incremental scan failed"))

    def locks_changed(self, subscription: RegionSubscription) -> None:
        group = self._group(subscription.request_id)
        progress = self._progress.get(group)
        if progress is None:
            progress = self._progress[group] = RequestProgress(group)
        progress.place(subscription)

    def end(self, subscription: RegionSubscription, error: cdcpb.Error | None) -> None:
        group = self._group(subscription.request_id)
        if subscription.phase is SubscriptionPhase.ENDED:
            return
        subscription.phase = SubscriptionPhase.ENDED
        del self._subscriptions[group, subscription.region_id]
        self._source.delegates.remove(subscription)
        progress = self._progress.get(group)
        if progress is not None:
            progress.remove(subscription)
            if not progress:
                del self._progress[group]
        if error is not None:
            self._send_error(subscription.region_id, subscription.request_id, error)

    def congest(self) -> None:
        """End all subscriptions of a client that is too slow; it subscribes again from where it is.

        The client never gets a resolved timestamp beyond the changes dropped here.
        """
        self.outbox.drop_data()
        for subscription in tuple(self._subscriptions.values()):
            self.end(subscription, congestion(subscription.region_id))

    def _send_error(self, region_id: int, request_id: int, error: cdcpb.Error) -> None:
        self.outbox.add_event(region_id, request_id).error.CopyFrom(error)
        self.outbox.charge(error.ByteSize())

    def advance(self, bound: int) -> None:
        """Report a new bound to the client, unless the last one still waits to be sent."""
        if self.outbox.resolved_waiting or self._features is None:
            return
        for progress in self._progress.values():
            for news in progress.advance(bound):
                if self._features.batched_resolved_ts:
                    self.outbox.add_resolved(cdcpb.ChangeDataEvent(resolved_ts=news))
                else:
                    self._send_one_by_one(news)

    def _send_one_by_one(self, news: cdcpb.ResolvedTs) -> None:
        """Send one event for each region, for clients that do not support batches."""
        for at in range(0, len(news.regions), EVENTS_MAX):
            message = cdcpb.ChangeDataEvent()
            for region_id in news.regions[at : at + EVENTS_MAX]:
                request_id = self._subscriptions[news.request_id, region_id].request_id
                message.events.add(region_id=region_id, request_id=request_id, resolved_ts=news.ts)
            self.outbox.add_resolved(message)


def _requested_bounds(request: cdcpb.ChangeDataRequest, region: KeyBounds) -> KeyBounds:
    """Return the part of the region that the request names.

    The keys of a request are encoded like those of a region. A range that cannot be decoded means the whole
    region: a client drops what it did not ask for.
    """
    try:
        start = decode_bytes(request.start_key) if request.start_key else b""
        end = decode_bytes(request.end_key) if request.end_key else b""
    except Invalid:
        _log.warning("a subscription of region %d has keys that are not encoded", request.region_id)
        return region
    return region.clamp(start, end) or _NOTHING
