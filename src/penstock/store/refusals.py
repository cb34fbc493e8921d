"""Region errors: why a store does not serve a request for a region."""

from collections.abc import Sequence

from penstock.errors import show_key
from penstock.proto import errorpb_pb2 as errorpb
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.store.region import Region

__all__ = [
    "epoch_not_match",
    "key_not_in_region",
    "not_leader",
    "refusal",
    "region_not_found",
    "server_is_busy",
    "stale_command",
]


def refusal(
    region: Region | None,
    context: kvrpcpb.Context,
    store_id: int,
    *,
    any_peer: bool,
    siblings: Sequence[Region],
) -> errorpb.Error | None:
    """Return the error why `store_id` may not serve a request with this context, or None when it may.

    The checks have TiKV's order: the store, the region, the peer, the leader, the term, the version.
    `any_peer` lets a follower serve. A caller with another version is sent `siblings`.
    """
    if context.peer.store_id != store_id:
        return _store_not_match(context.peer.store_id, store_id)
    mine = region.peer_on(store_id) if region is not None else None
    if region is None or mine is None:
        return region_not_found(context.region_id)
    if context.peer.id != mine.id:
        return errorpb.Error(
            message=f"peer {context.peer.id} of region {region.id} is now peer {mine.id}",
            mismatch_peer_id=errorpb.MismatchPeerId(request_peer_id=context.peer.id, store_peer_id=mine.id),
        )
    if region.leader_store != store_id and not any_peer:
        return not_leader(region)
    if context.term and region.term > context.term + 1:
        return stale_command()
    if context.region_epoch.version != region.version:
        return epoch_not_match(region, siblings)
    return None


def _store_not_match(asked: int, actual: int) -> errorpb.Error:
    return errorpb.Error(
        message=f"request is for store {asked}, this is store {actual}",
        store_not_match=errorpb.StoreNotMatch(request_store_id=asked, actual_store_id=actual),
    )


def region_not_found(region_id: int) -> errorpb.Error:
    return errorpb.Error(
        message=f"region {region_id} is not found",
        region_not_found=errorpb.RegionNotFound(region_id=region_id),
    )


def not_leader(region: Region) -> errorpb.Error:
    return errorpb.Error(
        message=f"peer is not leader of region {region.id}",
        not_leader=errorpb.NotLeader(region_id=region.id, leader=region.leader.to_proto()),
    )


def stale_command() -> errorpb.Error:
    return errorpb.Error(message="stale command", stale_command=errorpb.StaleCommand())


def epoch_not_match(region: Region, siblings: Sequence[Region] = ()) -> errorpb.Error:
    return errorpb.Error(
        message=f"current epoch of region {region.id} is conf_ver {region.conf_ver} version {region.version}",
        epoch_not_match=errorpb.EpochNotMatch(
            current_regions=[region.to_proto(), *(sibling.to_proto() for sibling in siblings)]
        ),
    )


def key_not_in_region(region: Region, encoded: bytes) -> errorpb.Error:
    return errorpb.Error(
        message=f"key {show_key(encoded)} is not in region {region.id}",
        key_not_in_region=errorpb.KeyNotInRegion(
            key=encoded, region_id=region.id, start_key=region.start, end_key=region.end
        ),
    )


def server_is_busy(reason: str, backoff_ms: int = 0) -> errorpb.Error:
    return errorpb.Error(
        message="server is busy", server_is_busy=errorpb.ServerIsBusy(reason=reason, backoff_ms=backoff_ms)
    )
