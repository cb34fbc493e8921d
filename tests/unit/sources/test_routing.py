"""What follows from the end of a region's stream, and who goes first."""

import pytest

from penstock.errors import Invalid
from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.proto import errorpb_pb2 as errorpb
from penstock.proto import metapb_pb2 as metapb
from penstock.sources.tikv.routing import (
    FORCED_MAX,
    FeedEnd,
    FeedEndReason,
    RetryPauses,
    Urgency,
    priority,
    route,
)

HIGH, LOW = Urgency.HIGH, Urgency.LOW


@pytest.mark.parametrize(
    ("reason", "same_region", "urgency"),
    [
        (FeedEndReason.NOT_LEADER, True, HIGH),
        (FeedEndReason.UNKNOWN, True, HIGH),
        (FeedEndReason.STREAM_LOST, True, HIGH),
        (FeedEndReason.EPOCH_NOT_MATCH, False, HIGH),
        (FeedEndReason.REGION_NOT_FOUND, False, HIGH),
        (FeedEndReason.NO_LEADER, False, HIGH),
        (FeedEndReason.STORE_NOT_FOUND, False, HIGH),
        (FeedEndReason.SERVER_IS_BUSY, True, LOW),
        (FeedEndReason.CONGESTED, True, LOW),
    ],
)
def test_a_region_that_can_be_followed_again_is(
    reason: FeedEndReason, same_region: bool, urgency: Urgency
) -> None:
    decided = route(FeedEnd(reason))
    assert (decided.same_region, decided.urgency) == (same_region, urgency)
    assert decided.fatal is None
    assert not decided.ignored


@pytest.mark.parametrize(
    "reason",
    [
        FeedEndReason.DUPLICATE_REQUEST,
        FeedEndReason.COMPATIBILITY,
        FeedEndReason.CLUSTER_ID_MISMATCH,
        FeedEndReason.UNSUPPORTED,
    ],
)
def test_a_misunderstanding_is_fatal(reason: FeedEndReason) -> None:
    assert isinstance(route(FeedEnd(reason)).fatal, Invalid)


def test_what_was_cancelled_is_ignored() -> None:
    assert route(FeedEnd(FeedEndReason.CANCELLED)).ignored


def test_every_reason_has_a_route() -> None:
    assert all(route(FeedEnd(reason)) for reason in FeedEndReason)


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (
            cdcpb.Error(not_leader=errorpb.NotLeader(leader=metapb.Peer(store_id=4))),
            FeedEnd(FeedEndReason.NOT_LEADER, leader_store_id=4),
        ),
        (cdcpb.Error(not_leader=errorpb.NotLeader()), FeedEnd(FeedEndReason.NOT_LEADER)),
        (cdcpb.Error(epoch_not_match=errorpb.EpochNotMatch()), FeedEnd(FeedEndReason.EPOCH_NOT_MATCH)),
        (cdcpb.Error(region_not_found=errorpb.RegionNotFound()), FeedEnd(FeedEndReason.REGION_NOT_FOUND)),
        (cdcpb.Error(congested=cdcpb.Congested()), FeedEnd(FeedEndReason.CONGESTED)),
        (
            cdcpb.Error(server_is_busy=errorpb.ServerIsBusy(reason="scans", backoff_ms=70)),
            FeedEnd(FeedEndReason.SERVER_IS_BUSY, "scans", backoff_ms=70),
        ),
        (cdcpb.Error(duplicate_request=cdcpb.DuplicateRequest()), FeedEnd(FeedEndReason.DUPLICATE_REQUEST)),
        (
            cdcpb.Error(compatibility=cdcpb.Compatibility(required_version="9.0")),
            FeedEnd(FeedEndReason.COMPATIBILITY, "9.0"),
        ),
        (
            cdcpb.Error(cluster_id_mismatch=cdcpb.ClusterIDMismatch(current=3)),
            FeedEnd(FeedEndReason.CLUSTER_ID_MISMATCH, "3"),
        ),
    ],
)
def test_an_error_of_the_stream_is_read(error: cdcpb.Error, end: FeedEnd) -> None:
    assert FeedEnd.of(error) == end


def test_an_error_without_a_known_reason_is_unknown() -> None:
    assert FeedEnd.of(cdcpb.Error()).reason is FeedEndReason.UNKNOWN


def test_pauses_double_up_to_two_seconds_and_begin_anew_after_success() -> None:
    pauses, end, key_range = RetryPauses(), FeedEnd(FeedEndReason.NOT_LEADER), (b"a", b"b")
    upper = [pauses.next_s(key_range, end, now=0.0, draw=1.0) for _ in range(8)]
    assert upper == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert pauses.next_s(key_range, end, now=0.0, draw=0.0) == 1.0
    assert pauses.next_s((b"x", b"y"), end, now=0.0, draw=1.0) == 0.05
    pauses.forget(key_range)
    assert pauses.next_s(key_range, end, now=0.0, draw=1.0) == 0.05


def test_failures_of_long_ago_are_forgotten() -> None:
    pauses, end, key_range = RetryPauses(), FeedEnd(FeedEndReason.NOT_LEADER), (b"a", b"b")
    for _ in range(5):
        pauses.next_s(key_range, end, now=1.0, draw=1.0)
    assert pauses.next_s(key_range, end, now=400.0, draw=1.0) == 0.05


@pytest.mark.parametrize(("asked_ms", "pause_s"), [(70, 0.07), (3_600_000, 600.0)])
def test_the_store_may_ask_for_a_pause_of_up_to_ten_minutes(asked_ms: int, pause_s: float) -> None:
    end = FeedEnd(FeedEndReason.SERVER_IS_BUSY, backoff_ms=asked_ms)
    assert RetryPauses().next_s((b"a", b"b"), end, now=0.0, draw=0.3) == pause_s


@pytest.mark.parametrize(
    ("urgency", "waited_s", "lag_s", "value"),
    [(HIGH, 0, 10, 10), (HIGH, 20, 10, 0), (LOW, 0, 0, 86_400), (LOW, 90_000, 0, 0), (LOW, 100, 50, 86_350)],
)
def test_waiting_brings_a_task_forward_and_lag_sets_it_back(
    urgency: Urgency, waited_s: float, lag_s: float, value: float
) -> None:
    assert priority(urgency, waited_s=waited_s, lag_s=lag_s) == value


def test_only_urgent_tasks_are_forced() -> None:
    assert priority(HIGH, waited_s=0, lag_s=3600) <= FORCED_MAX
    assert priority(LOW, waited_s=0, lag_s=0) > FORCED_MAX
