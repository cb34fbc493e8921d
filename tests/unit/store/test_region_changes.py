import pytest

from penstock.errors import Corrupt, Invalid
from penstock.store.region import Peer, Region


def region(**changes: object) -> Region:
    values: dict[str, object] = {
        "id": 10,
        "start": b"a",
        "end": b"m",
        "conf_ver": 3,
        "version": 5,
        "peers": (Peer(11, 1), Peer(12, 2), Peer(13, 3)),
        "leader_store": 2,
    }
    return Region(**{**values, **changes})


def test_a_split_gives_the_old_id_to_the_last_part_and_one_version_to_all() -> None:
    parts = region().split([b"c", b"f"], [(20, [21, 22, 23]), (30, [31, 32, 33])])
    assert [(part.id, part.start, part.end) for part in parts] == [
        (20, b"a", b"c"),
        (30, b"c", b"f"),
        (10, b"f", b"m"),
    ]
    assert {(part.conf_ver, part.version) for part in parts} == {(3, 7)}
    assert [peer.id for peer in parts[0].peers] == [21, 22, 23]
    assert parts[2].peers == region().peers
    assert {part.leader.store_id for part in parts} == {2}


def test_a_merge_raises_the_version_above_both() -> None:
    left = region(id=20, start=b"", end=b"a", version=9)
    assert (region().absorb(left).start, region().absorb(left).version) == (b"", 11)
    right = region(id=30, start=b"m", end=b"", version=2)
    assert (region().absorb(right).end, region().absorb(right).version) == (b"", 6)


def test_regions_apart_do_not_merge() -> None:
    with pytest.raises(Invalid, match="not neighbours"):
        region().absorb(region(id=30, start=b"x", end=b"z"))


def test_a_new_leader_raises_the_term_and_leaves_the_epoch() -> None:
    moved = region().with_leader(3)
    assert (moved.leader, moved.term, moved.conf_ver, moved.version) == (Peer(13, 3), 6, 3, 5)
    assert region().with_leader(2) == region()
    with pytest.raises(Invalid, match="no peer on store 9"):
        region().with_leader(9)


def test_peers_come_and_go_with_the_configuration_version() -> None:
    assert region().with_peer(Peer(40, 4)).conf_ver == 4
    assert region().without_peer(1).peers == (Peer(12, 2), Peer(13, 3))


def test_a_region_survives_its_form_on_disk() -> None:
    assert Region.from_bytes(region(term=8).to_bytes()) == region(term=8)
    with pytest.raises(Corrupt, match="damaged"):
        Region.from_bytes(b"short")
