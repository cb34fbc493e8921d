"""Regions by key, without overlap."""

import pytest

from penstock.kv.region_table import CachedRegion, KeyLocation, RegionTable, RegionVerId, peers_that_lead
from penstock.kv.regions import EpochVerdict, judge_epoch
from penstock.proto import metapb_pb2 as metapb


def region(
    region_id: int, start: bytes, end: bytes, version: int = 1, *, expires_at: float = 100.0
) -> CachedRegion:
    return CachedRegion(
        location=KeyLocation(RegionVerId(region_id, 1, version), start, end),
        peers=(metapb.Peer(id=region_id * 10, store_id=1),),
        target=0,
        ttl_s=100.0,
        expires_at=expires_at,
        store_epoch=0,
    )


def table(*regions: CachedRegion, size_max: int = 100) -> RegionTable:
    made = RegionTable(size_max)
    for one in regions:
        assert made.insert(one)
    return made


def found(made: RegionTable, key: bytes, now: float = 0.0) -> int | None:
    hit = made.find(key, now)
    return hit.location.region.id if hit else None


def before(made: RegionTable, key: bytes) -> int | None:
    hit = made.find_before(key, 0.0)
    return hit.location.region.id if hit else None


@pytest.mark.parametrize(
    ("key", "expected"), [(b"", 1), (b"a", 1), (b"b", 2), (b"bz", 2), (b"c", None), (b"d", 4), (b"zz", 4)]
)
def test_a_key_is_found_in_the_region_that_holds_it(key, expected):
    made = table(region(1, b"", b"b"), region(2, b"b", b"c"), region(4, b"d", b""))
    assert found(made, key) == expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [(b"b", 1), (b"a", 1), (b"bz", 2), (b"c", 2), (b"d", None), (b"cx", None), (b"dd", 4), (b"", 4)],
)
def test_the_region_before_a_key_holds_the_keys_just_below_it(key, expected):
    made = table(region(1, b"", b"b"), region(2, b"b", b"c"), region(4, b"d", b""))
    assert before(made, key) == expected


def test_nothing_is_below_the_first_region():
    assert before(table(region(2, b"b", b"c")), b"b") is None
    assert before(table(region(2, b"b", b"c")), b"") is None


def test_the_halves_of_a_split_replace_the_whole():
    made = table(region(1, b"a", b"z"))
    assert made.insert(region(1, b"a", b"m", version=2))
    assert found(made, b"n") is None
    assert made.insert(region(2, b"m", b"z", version=2))
    assert (found(made, b"b"), found(made, b"n"), len(made)) == (1, 2, 2)
    assert made.get(RegionVerId(1, 1, 1)) is None


def test_a_merged_region_replaces_its_parts():
    made = table(region(1, b"", b"g"), region(2, b"g", b"m"), region(3, b"m", b""))
    assert made.insert(region(2, b"", b"m", version=2))
    assert (found(made, b"a"), found(made, b"h"), found(made, b"x"), len(made)) == (2, 2, 3, 2)


def test_an_outdated_region_is_refused_and_changes_nothing():
    made = table(region(1, b"a", b"m", version=5), region(2, b"m", b"z", version=5))
    assert not made.insert(region(1, b"a", b"z", version=4))
    assert (found(made, b"b"), found(made, b"n")) == (1, 2)


def test_a_region_that_only_touches_its_neighbours_drops_neither():
    made = table(region(1, b"a", b"c"), region(3, b"e", b"g"))
    assert made.insert(region(2, b"c", b"e"))
    assert len(made) == 3


def test_a_region_expires_when_nobody_asks_for_it_and_lives_while_somebody_does():
    made = table(region(1, b"", b"", expires_at=100))
    assert found(made, b"k", now=90) == 1
    assert found(made, b"k", now=180) == 1  # renewed at 90 for another 100
    assert found(made, b"k", now=281) is None


def test_a_sweep_drops_the_expired_a_few_at_a_time_going_round():
    made = table(*(region(i, b"%02d" % i, b"%02d" % (i + 1), expires_at=i * 10) for i in range(1, 10)))
    assert made.sweep(now=35, count=2) == 2
    assert made.sweep(now=35, count=2) == 1
    assert len(made) == 6
    assert [made.sweep(now=1000, count=4) for _ in range(3)] == [4, 1, 1]
    assert len(made) == 0


def test_the_table_stays_within_its_size_by_forgetting_what_would_expire_first():
    made = table(
        *(region(i, b"%02d" % i, b"%02d" % (i + 1), expires_at=100 - i) for i in range(1, 6)), size_max=4
    )
    assert len(made) == 4
    assert found(made, b"05") == 5  # what was just put in stays
    assert found(made, b"04") is None


def test_a_removed_region_is_gone_by_key_and_by_id():
    made = table(region(1, b"", b"m"), region(2, b"m", b""))
    assert made.remove(RegionVerId(1, 1, 1))
    assert not made.remove(RegionVerId(1, 1, 1))
    assert found(made, b"a") is None
    assert found(made, b"x") == 2


def test_learners_and_witnesses_never_lead():
    peers = (
        metapb.Peer(id=1, role=metapb.Learner),
        metapb.Peer(id=2),
        metapb.Peer(id=3, is_witness=True),
        metapb.Peer(id=4, role=metapb.IncomingVoter),
    )
    assert peers_that_lead(peers) == [1, 3]


def _now(region_id: int, conf_ver: int, version: int) -> metapb.Region:
    return metapb.Region(id=region_id, region_epoch=metapb.RegionEpoch(conf_ver=conf_ver, version=version))


@pytest.mark.parametrize(
    ("current", "verdict"),
    [
        ([], EpochVerdict.UNKNOWN),
        ([_now(7, 3, 6)], EpochVerdict.CACHE_BEHIND),
        ([_now(9, 3, 6), _now(7, 3, 6)], EpochVerdict.CACHE_BEHIND),
        ([_now(9, 1, 1)], EpochVerdict.CACHE_BEHIND),
        ([_now(7, 3, 4)], EpochVerdict.STORE_BEHIND),
        ([_now(7, 2, 5)], EpochVerdict.STORE_BEHIND),
        ([_now(9, 3, 6), _now(7, 3, 4)], EpochVerdict.STORE_BEHIND),
        ([_now(7, 3, 5)], EpochVerdict.STORE_BEHIND),  # contradicts itself: wait, do not spin
    ],
)
def test_an_epoch_error_tells_who_is_behind(current, verdict):
    assert judge_epoch(RegionVerId(7, 3, 5), current) is verdict
