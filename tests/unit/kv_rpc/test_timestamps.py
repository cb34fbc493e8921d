"""A response of timestamps, shared out."""

import pytest

from penstock.clock import compose_ts
from penstock.errors import Corrupt, Unavailable
from penstock.kv.tso import Timestamps
from penstock.proto import pdpb_pb2 as pdpb


def response(physical: int, logical: int, count: int) -> pdpb.TsoResponse:
    return pdpb.TsoResponse(count=count, timestamp=pdpb.Timestamp(physical=physical, logical=logical))


def test_the_requesters_share_the_run_that_ends_at_the_logical_of_the_response():
    taken = Timestamps().take(response(1000, 7, 3), 3)
    assert list(taken) == [compose_ts(1000, 5), compose_ts(1000, 6), compose_ts(1000, 7)]


def test_a_response_for_another_count_is_refused():
    with pytest.raises(Unavailable, match="asked the placement driver for 3 timestamps and got 2"):
        Timestamps().take(response(1000, 7, 2), 3)


def test_an_error_in_the_header_is_reported():
    answer = response(1000, 7, 1)
    answer.header.error.message = "not leader"
    with pytest.raises(Unavailable, match="not leader"):
        Timestamps().take(answer, 1)


@pytest.mark.parametrize(("physical", "logical", "count"), [(1000, 7, 1), (1000, 8, 2), (999, 100, 1)])
def test_time_never_goes_back(physical, logical, count):
    timestamps = Timestamps()
    timestamps.take(response(1000, 7, 1), 1)
    with pytest.raises(Corrupt, match="handed out timestamp"):
        timestamps.take(response(physical, logical, count), count)
    assert timestamps.last_ts == compose_ts(1000, 7)


def test_a_logical_part_too_large_for_its_bits_is_refused():
    with pytest.raises(Corrupt):
        Timestamps().take(response(1000, 1 << 18, 1), 1)
