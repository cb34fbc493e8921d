"""Why a subscription is refused or ends, as the client is told."""

from collections.abc import Sequence

from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.proto import errorpb_pb2 as errorpb
from penstock.store.region import Region

__all__ = [
    "cluster_id_mismatch",
    "congested",
    "duplicate_request",
    "incompatible",
    "of_change",
    "of_refusal",
    "region_not_found",
    "server_is_busy",
]

_RAW_KV_SINCE = "6.2.0"
_SAME_NAME = ("not_leader", "region_not_found", "epoch_not_match", "server_is_busy")


def of_refusal(error: errorpb.Error, region_id: int) -> cdcpb.Error:
    """Translate a region error; one that a change stream has no word for becomes region_not_found."""
    for name in _SAME_NAME:
        if error.HasField(name):
            told = cdcpb.Error()
            getattr(told, name).CopyFrom(getattr(error, name))
            return told
    return region_not_found(region_id)


def of_change(before: Region, after: Sequence[Region], store_id: int) -> cdcpb.Error | None:
    """Return why a subscription served by `store_id` ends with a change of its region, if it does."""
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


def cluster_id_mismatch(current: int, asked: int) -> cdcpb.Error:
    return cdcpb.Error(cluster_id_mismatch=cdcpb.ClusterIDMismatch(current=current, request=asked))


def incompatible() -> cdcpb.Error:
    """Only transactional changes are captured; streams of raw changes need another server."""
    return cdcpb.Error(compatibility=cdcpb.Compatibility(required_version=_RAW_KV_SINCE))


def server_is_busy(reason: str) -> cdcpb.Error:
    return cdcpb.Error(server_is_busy=errorpb.ServerIsBusy(reason=reason))


def congested(region_id: int) -> cdcpb.Error:
    return cdcpb.Error(congested=cdcpb.Congested(region_id=region_id))
