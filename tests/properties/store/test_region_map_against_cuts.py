"""Whatever is split, merged, moved and restarted, the map covers the key space and epochs only grow."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.proto import errorpb_pb2 as errorpb
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto import metapb_pb2 as metapb
from penstock.proto.codec import encode_bytes
from penstock.store.engine import Cf, Mutation
from penstock.store.region import Peer, Region
from penstock.store.regions import Regions
from penstock.store.tso import Ids
from support.campaign import examples


class MemoryEngine:
    """An engine of one dictionary; it is its own view."""

    def __init__(self) -> None:
        self.kept: dict[tuple[Cf, bytes], bytes] = {}

    def view(self) -> "MemoryEngine":
        return self

    def get(self, cf: Cf, key: bytes) -> bytes | None:
        return self.kept.get((cf, key))

    def iterate(self, cf: Cf, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        for (family, key), value in sorted(self.kept.items()):
            if family is cf and lower <= key < upper:
                yield key, value

    async def write(self, mutations: Sequence[Mutation]) -> None:
        for cf, key, value in mutations:
            if value is None:
                self.kept.pop((cf, key), None)
            else:
                self.kept[cf, key] = value


class RegionMap(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine: Any = MemoryEngine()
        self.loop = asyncio.new_event_loop()
        self.cuts: set[bytes] = set()
        self.versions: dict[int, int] = {}
        self.stale: list[Region] = []
        first = Region(
            id=1 << 30,
            start=b"",
            end=b"",
            conf_ver=1,
            version=1,
            peers=tuple(Peer((1 << 30) + n, n) for n in (1, 2, 3)),
            leader_store=1,
        )
        self.regions = Regions(self.engine, Ids(self.engine), [first])

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.loop.close()

    @rule(keys=st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=4))
    def split(self, keys: list[bytes]) -> None:
        self.stale += self.regions
        encoded = [encode_bytes(key) for key in keys]
        parts = self.run(self.regions.split_at(encoded))
        assert [part.start for part in parts] == sorted(set(encoded))
        self.cuts.update(encoded)

    @precondition(lambda self: self.cuts)
    @rule(pick=st.integers(min_value=0))
    def merge(self, pick: int) -> None:
        self.stale += self.regions
        before = list(self.regions)
        source = before[pick % len(before)]
        edge = source.end or source.start
        merged = self.run(self.regions.merge(source.id))
        assert merged.start <= source.start
        assert self.regions.by_id(source.id) is None
        self.cuts.remove(edge)

    @rule(pick=st.integers(min_value=0), store_id=st.integers(1, 5))
    def move(self, pick: int, store_id: int) -> None:
        before = list(self.regions)
        moved = self.run(self.regions.move_leader(before[pick % len(before)].id, store_id))
        assert moved.leader_store == store_id
        assert len(moved.peers) == 3

    @rule()
    def restart(self) -> None:
        if len(self.regions) == 1:
            return  # the first region is kept only once it has changed
        again = Regions.load(self.engine, Ids(self.engine))
        assert list(again) == list(self.regions)
        self.regions = again

    @invariant()
    def regions_are_what_the_cuts_leave(self) -> None:
        edges = [b"", *sorted(self.cuts)]
        held = [(region.start, region.end) for region in self.regions]
        assert held == list(zip(edges, [*edges[1:], b""], strict=True))

    @invariant()
    def versions_grow_with_every_change_of_a_range(self) -> None:
        for region in self.regions:
            assert region.version >= self.versions.get(region.id, 0)
            self.versions[region.id] = region.version

    @invariant()
    def an_old_range_is_never_served(self) -> None:
        for old in self.stale[-20:]:
            now = self.regions.by_id(old.id)
            if now is not None and (now.start, now.end) == (old.start, old.end):
                continue
            leader = now.leader if now is not None else old.leader
            context = kvrpcpb.Context(
                region_id=old.id,
                region_epoch=metapb.RegionEpoch(conf_ver=old.conf_ver, version=old.version),
                peer=leader.to_proto(),
            )
            assert isinstance(self.regions.check(context, leader.store_id), errorpb.Error)


RegionMap.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
TestRegionMap = RegionMap.TestCase
