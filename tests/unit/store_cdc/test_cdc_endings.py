from dataclasses import replace

from penstock.proto import errorpb_pb2 as errorpb
from penstock.store import refusals
from penstock.store.cdc import stream
from penstock.store.region import Peer, Region

REGION = Region(5, b"", b"", 1, 3, (Peer(51, 1), Peer(52, 2)), 1)


def test_a_split_ends_with_the_current_regions():
    left, right = REGION.split([b"m"], [(9, (91, 92))])
    error = stream.of_change(REGION, (left, right), 1)
    assert [region.id for region in error.epoch_not_match.current_regions] == [9, 5]


def test_a_region_that_was_merged_away_is_not_found():
    other = replace(REGION, id=9, version=8)
    assert stream.of_change(REGION, [other], 1).region_not_found.region_id == 5


def test_a_new_leader_is_named_to_those_on_another_store():
    moved = REGION.with_leader(2)
    assert stream.of_change(REGION, [moved], 1).not_leader.leader.store_id == 2
    assert stream.of_change(REGION, [moved], 2) is None


def test_a_new_peer_ends_nothing():
    assert stream.of_change(REGION, [REGION.with_peer(Peer(53, 3))], 1) is None


def test_region_errors_keep_their_meaning():
    assert stream.of_refusal(refusals.not_leader(REGION), 5).not_leader.leader.store_id == 1
    assert stream.of_refusal(refusals.epoch_not_match(REGION), 5).epoch_not_match.current_regions[0].id == 5
    assert stream.of_refusal(refusals.region_not_found(6), 6).region_not_found.region_id == 6
    assert stream.of_refusal(refusals.server_is_busy("why"), 5).server_is_busy.reason == "why"


def test_a_region_error_without_a_word_for_it_is_region_not_found():
    error = errorpb.Error(stale_command=errorpb.StaleCommand())
    assert stream.of_refusal(error, 5).region_not_found.region_id == 5
