import asyncio
from collections.abc import Sequence

import pytest

from penstock.clock import SYSTEM
from penstock.errors import Corrupt, Invalid
from penstock.proto import errorpb_pb2 as errorpb
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto import metapb_pb2 as metapb
from penstock.proto.codec import encode_bytes
from penstock.store import meta
from penstock.store.engine import Cf, Engine
from penstock.store.region import Peer, Region
from penstock.store.regions import Regions
from penstock.store.tso import Ids


def first_region(**changes: object) -> Region:
    values: dict[str, object] = {
        "id": 1000,
        "start": b"",
        "end": b"",
        "conf_ver": 1,
        "version": 1,
        "peers": (Peer(1001, 1), Peer(1002, 2), Peer(1003, 3)),
        "leader_store": 1,
    }
    return Region(**{**values, **changes})


def made(engine: Engine) -> Regions:
    return Regions(engine, Ids(engine), [first_region()])


def keys(*raw: bytes) -> list[bytes]:
    return [encode_bytes(key) for key in raw]


class Journal:
    def __init__(self) -> None:
        self.heard: list[tuple[int, list[int]]] = []

    def region_changed(self, before: Region, after: Sequence[Region]) -> None:
        self.heard.append((before.id, [region.id for region in after]))


def context_for(region: Region, store_id: int = 0, **changes: object) -> kvrpcpb.Context:
    peer = region.peer_on(store_id or region.leader_store)
    assert peer is not None
    values: dict[str, object] = {
        "region_id": region.id,
        "region_epoch": metapb.RegionEpoch(conf_ver=region.conf_ver, version=region.version),
        "peer": peer.to_proto(),
    }
    return kvrpcpb.Context(**{**values, **changes})


async def test_lookups_find_the_region_of_a_key_and_its_neighbours(engine: Engine) -> None:
    regions = made(engine)
    left, middle, right = await regions.split(1000, keys(b"g", b"p"))
    assert regions.by_key(encode_bytes(b"")) is left
    assert regions.by_key(encode_bytes(b"g")) is middle
    assert regions.by_key(encode_bytes(b"z")) is right
    assert regions.previous(encode_bytes(b"z")) is middle
    assert regions.previous(encode_bytes(b"a")) is None
    assert regions.scan(b"", b"", 0) == [left, middle, right]
    assert regions.scan(encode_bytes(b"h"), encode_bytes(b"p"), 0) == [middle]
    assert regions.scan(encode_bytes(b"h"), b"", 1) == [middle]


async def test_a_change_on_its_way_to_the_disk_is_seen_when_its_caller_goes_away(engine: Engine) -> None:
    await engine.write([(Cf.META, meta.region_key(1000), first_region().to_bytes())])
    ids = Ids(engine)
    await ids.allocate(1)
    regions = Regions.load(engine, ids)
    for key in (b"m", b"x"):
        with engine._writing:
            change = asyncio.ensure_future(regions.split(1000, keys(key)))
            for _ in range(10):
                await SYSTEM.sleep(0)
            change.cancel()
            await SYSTEM.sleep(0)
        await asyncio.wait([change])
        assert change.cancelled()
        assert list(Regions.load(engine, ids)) == list(regions)
    assert len(regions) == 3


async def test_a_change_is_told_once_it_is_durable(engine: Engine) -> None:
    regions, journal = made(engine), Journal()
    regions.listen(journal)
    left, right = await regions.split(1000, keys(b"m"))
    assert journal.heard == [(1000, [left.id, 1000])]
    again = Regions.load(engine, Ids(engine))
    assert list(again) == [left, right]
    journal.heard.clear()
    merged = await regions.merge(left.id)
    assert (merged.id, merged.start, merged.end) == (1000, b"", b"")
    assert journal.heard == [(left.id, [1000]), (1000, [1000])]
    assert list(Regions.load(engine, Ids(engine))) == [merged]
    journal.heard.clear()
    await regions.transfer_leader(1000, 3)
    await regions.transfer_leader(1000, 3)
    assert journal.heard == [(1000, [1000])]


async def test_the_last_region_merges_into_its_left_neighbour(engine: Engine) -> None:
    regions = made(engine)
    left, _ = await regions.split(1000, keys(b"m"))
    merged = await regions.merge(1000)
    assert (merged.id, merged.start, merged.end) == (left.id, b"", b"")
    with pytest.raises(Invalid, match="only one"):
        await regions.merge(left.id)


async def test_cuts_that_are_there_already_change_nothing(engine: Engine) -> None:
    regions = made(engine)
    cut = await regions.split_at(keys(b"c", b"f", b"k"))
    assert [region.start for region in cut] == keys(b"c", b"f", b"k")
    before = list(regions)
    await regions.split_at(keys(b"f", b"c"))
    assert list(regions) == before
    with pytest.raises(Invalid, match="not in region"):
        await regions.split(cut[0].id, keys(b"z"))
    with pytest.raises(Invalid, match="does not exist"):
        await regions.split(4711, keys(b"z"))


async def test_a_moved_leader_takes_a_followers_peer_along(engine: Engine) -> None:
    regions = made(engine)
    moved = await regions.move_leader(1000, 7)
    assert moved.leader_store == 7
    assert sorted(peer.store_id for peer in moved.peers) == [1, 3, 7]
    assert moved.conf_ver == 3


async def test_new_stores_get_peers_until_there_are_three(engine: Engine) -> None:
    regions = Regions(engine, Ids(engine), [first_region(peers=(Peer(1001, 1),))])
    await regions.replicate([1, 2, 3, 4])
    assert [peer.store_id for peer in regions.by_key(b"").peers] == [1, 2, 3]


async def test_a_stopped_store_leads_nothing_that_others_hold(engine: Engine) -> None:
    regions = made(engine)
    await regions.split_at(keys(b"c", b"f", b"k"))
    await regions.depose(1, {2, 3})
    assert {region.leader_store for region in regions} <= {2, 3}
    await regions.depose(2, set())
    assert 2 in {region.leader_store for region in regions}


def test_a_map_with_a_gap_is_corrupt(engine: Engine) -> None:
    for pieces in (
        [],
        [first_region(start=b"b")],
        [first_region(end=b"b")],
        [first_region(end=b"b"), first_region(id=2, start=b"c")],
        [first_region(end=b"d"), first_region(id=2, start=b"c")],
    ):
        with pytest.raises(Corrupt):
            Regions(engine, Ids(engine), pieces)


async def test_requests_are_refused_in_the_order_a_store_looks(engine: Engine) -> None:
    """Each step mends what the one before refused, so each refusal hides all later ones."""
    regions = made(engine)
    region = await regions.transfer_leader(1000, 2)
    for _ in range(3):
        await regions.transfer_leader(1000, 3)
        region = await regions.transfer_leader(1000, 2)
    wrong = kvrpcpb.Context(
        region_id=9, region_epoch=metapb.RegionEpoch(version=99), peer=metapb.Peer(id=9, store_id=9), term=2
    )

    def refused(store_id: int) -> str:
        error = regions.check(wrong, store_id)
        assert isinstance(error, errorpb.Error)
        kinds = [field.name for field, _ in error.ListFields() if field.name != "message"]
        assert len(kinds) == 1
        return kinds[0]

    assert refused(1) == "store_not_match"
    wrong.peer.store_id = 1
    assert refused(1) == "region_not_found"
    wrong.region_id = 1000
    assert refused(1) == "mismatch_peer_id"
    wrong.peer.id = 1001
    assert refused(1) == "not_leader"
    wrong.peer.CopyFrom(region.leader.to_proto())
    assert refused(2) == "stale_command"
    wrong.term = 0
    assert refused(2) == "epoch_not_match"
    wrong.region_epoch.version = region.version
    assert regions.check(wrong, 2) is region


async def test_a_follower_serves_only_who_asked_for_any_peer(engine: Engine) -> None:
    regions = made(engine)
    region = regions.by_key(b"")
    context = context_for(region, store_id=3)
    refusal = regions.check(context, 3)
    assert isinstance(refusal, errorpb.Error)
    assert refusal.not_leader.leader.store_id == 1
    assert regions.check(context, 3, any_peer=True) is region


async def test_a_region_a_store_has_no_peer_of_is_not_found_there(engine: Engine) -> None:
    regions = made(engine)
    context = kvrpcpb.Context(region_id=1000, peer=metapb.Peer(store_id=5))
    refusal = regions.check(context, 5)
    assert isinstance(refusal, errorpb.Error)
    assert refusal.region_not_found.region_id == 1000


async def test_an_old_version_is_shown_the_region_and_what_was_cut_off(engine: Engine) -> None:
    regions = made(engine)
    stale = context_for(regions.by_key(b""))
    left, right = await regions.split(1000, keys(b"m"))
    refusal = regions.check(stale, 1)
    assert isinstance(refusal, errorpb.Error)
    shown = refusal.epoch_not_match.current_regions
    assert [(region.id, region.start_key) for region in shown] == [
        (right.id, encode_bytes(b"m")),
        (left.id, b""),
    ]


async def test_the_configuration_version_alone_refuses_nothing(engine: Engine) -> None:
    regions = made(engine)
    region = regions.by_key(b"")
    epoch = metapb.RegionEpoch(conf_ver=77, version=region.version)
    assert regions.check(context_for(region, region_epoch=epoch), 1) is region
