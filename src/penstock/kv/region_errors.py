"""What a client does about each region error. A table: no I/O."""

from dataclasses import dataclass
from enum import Enum, auto

from penstock.errors import Invalid, PenstockError, Unavailable
from penstock.kv.backoff import BackoffKind
from penstock.proto import errorpb_pb2 as errorpb


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
    for field, _ in error.ListFields():
        reaction = _REACTIONS.get(field.name)
        if reaction is not None:
            return field.name, reaction
    return OTHER, Reaction(Act.RELOAD)


def hopeless(name: str, error: errorpb.Error) -> PenstockError:
    """Return what to raise for an error that repeating cannot mend."""
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
