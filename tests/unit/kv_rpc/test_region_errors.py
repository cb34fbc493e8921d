"""Every region error of the protocol has a reaction."""

import pytest

from penstock.errors import Invalid, Unavailable
from penstock.kv.backoff import BackoffKind
from penstock.kv.sender import Act, classify, permanent_error
from penstock.proto import errorpb_pb2 as errorpb

EXPECTED = {
    "not_leader": (Act.FOLLOW_LEADER, BackoffKind.REGION_SCHEDULING),
    "region_not_found": (Act.RELOAD, BackoffKind.REGION_MISS),
    "key_not_in_region": (Act.RELOAD, BackoffKind.REGION_MISS),
    "epoch_not_match": (Act.UPDATE_EPOCH, BackoffKind.REGION_MISS),
    "server_is_busy": (Act.RETRY, BackoffKind.SERVER_BUSY),
    "stale_command": (Act.RETRY, BackoffKind.STALE_COMMAND),
    "store_not_match": (Act.RESOLVE_STORE, BackoffKind.REGION_MISS),
    "raft_entry_too_large": (Act.GIVE_UP, BackoffKind.REGION_MISS),
    "max_timestamp_not_synced": (Act.RETRY, BackoffKind.MAX_TS_NOT_SYNCED),
    "read_index_not_ready": (Act.RETRY, BackoffKind.REGION_SCHEDULING),
    "proposal_in_merging_mode": (Act.RETRY, BackoffKind.REGION_SCHEDULING),
    "data_is_not_ready": (Act.RETRY, BackoffKind.DATA_NOT_READY),
    "region_not_initialized": (Act.RETRY, BackoffKind.REGION_NOT_INITIALIZED),
    "disk_full": (Act.RETRY, BackoffKind.DISK_FULL),
    "recovery_in_progress": (Act.RELOAD, BackoffKind.RECOVERY_IN_PROGRESS),
    "flashback_in_progress": (Act.GIVE_UP, BackoffKind.REGION_MISS),
    "flashback_not_prepared": (Act.GIVE_UP, BackoffKind.REGION_MISS),
    "is_witness": (Act.RELOAD, BackoffKind.IS_WITNESS),
    "mismatch_peer_id": (Act.RELOAD, BackoffKind.REGION_MISS),
    "bucket_version_not_match": (Act.RETRY, BackoffKind.REGION_MISS),
    "undetermined_result": (Act.UNDETERMINED, BackoffKind.REGION_MISS),
}


def _error(name: str) -> errorpb.Error:
    error = errorpb.Error(message="why")
    getattr(error, name).SetInParent()
    return error


def test_the_table_covers_every_error_of_the_protocol():
    fields = {field.name for field in errorpb.Error.DESCRIPTOR.fields} - {"message"}
    assert fields == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_each_error_has_its_reaction(name):
    found, reaction = classify(_error(name))
    assert (found, (reaction.act, reaction.sleep)) == (name, EXPECTED[name])


def test_an_error_we_do_not_know_reloads_the_region():
    name, reaction = classify(errorpb.Error(message="something new"))
    assert (name, reaction.act, reaction.sleep) == ("other", Act.RELOAD, BackoffKind.REGION_MISS)


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("raft_entry_too_large", Invalid, "too large"),
        ("flashback_in_progress", Unavailable, "flashed back"),
        ("flashback_not_prepared", Invalid, "not prepared"),
    ],
)
def test_an_error_that_repeating_cannot_mend_says_what_to_do(name, kind, says):
    error = permanent_error(name, _error(name))
    assert isinstance(error, kind)
    assert says in str(error)
