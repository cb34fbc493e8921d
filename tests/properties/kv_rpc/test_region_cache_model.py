"""The region cache against a model of a cluster whose regions split and merge."""

import itertools
from bisect import bisect_right
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock import eventloop
from penstock.kv.backoff import Backoffer
from penstock.kv.pd import RegionInfo, raw_region
from penstock.kv.region_table import KeyLocation
from penstock.kv.regions import EpochVerdict, RegionCache, judge_epoch
from penstock.proto import metapb_pb2 as metapb
from penstock.proto.codec import encode_bytes
from penstock.settings import KvSettings
from support.campaign import examples

KEYS = st.binary(min_size=0, max_size=3)


@dataclass(frozen=True)
class Part:
    """A region of the model, with raw keys."""

    id: int
    start: bytes
    end: bytes
    version: int

    def encoded(self) -> metapb.Region:
        meta = metapb.Region(id=self.id)
        meta.start_key = encode_bytes(self.start) if self.start else b""
        meta.end_key = encode_bytes(self.end) if self.end else b""
        meta.region_epoch.conf_ver, meta.region_epoch.version = 1, self.version
        meta.peers.add(id=self.id * 10, store_id=1)
        return meta


class Model:
    """The truth, which is also the placement driver; `lag` makes it answer with an older layout."""

    cluster_id = 1

    def __init__(self) -> None:
        self.parts = [Part(1, b"", b"", 1)]
        self.shown = list(self.parts)
        self.last_id = 1

    def at(self, key: bytes, parts: list[Part] | None = None) -> int:
        chosen = self.parts if parts is None else parts
        return bisect_right([part.start for part in chosen], key) - 1

    def split(self, key: bytes) -> None:
        i = self.at(key)
        old = self.parts[i]
        if old.start == key:
            return
        self.last_id += 1
        left = Part(self.last_id, old.start, key, old.version + 1)
        self.parts[i : i + 1] = [left, Part(old.id, key, old.end, old.version + 1)]

    def merge(self, key: bytes) -> None:
        i = self.at(key)
        if i + 1 < len(self.parts):
            source, target = self.parts[i], self.parts[i + 1]
            merged = Part(target.id, source.start, target.end, max(source.version, target.version) + 1)
            self.parts[i : i + 2] = [merged]

    def _info(self, part: Part) -> RegionInfo:
        meta = raw_region(part.encoded())
        return RegionInfo(meta, meta.peers[0])

    async def get_region(self, key: bytes, *, bo: Backoffer) -> RegionInfo:
        return self._info(self.shown[self.at(key, self.shown)])

    async def get_previous_region(self, key: bytes, *, bo: Backoffer) -> RegionInfo:
        return self._info(self.shown[self.at(key, self.shown) - 1])

    async def get_last_region(self, *, bo: Backoffer) -> RegionInfo:
        return self._info(self.shown[-1])


class CacheAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.cache = RegionCache(self.model, KvSettings(region_cache_size=4))  # so small that it evicts
        self.bo = Backoffer(1000)

    @rule(key=KEYS)
    def split(self, key: bytes) -> None:
        self.model.split(key)

    @rule(key=KEYS)
    def merge(self, key: bytes) -> None:
        self.model.merge(key)

    @rule()
    def placement_driver_catches_up(self) -> None:
        self.model.shown = list(self.model.parts)

    @rule(key=KEYS)
    def a_request_reaches_the_right_region(self, key: bytes) -> None:
        """Locate, be refused with the store's regions, locate again: as a sender does."""
        for _ in range(4):
            location = eventloop.run(self.cache.locate(self.bo, key))
            assert location.contains(key)
            truth = self.model.parts[self.model.at(key)]
            if (location.region.id, location.region.version) == (truth.id, truth.version):
                assert (location.start, location.end) == (truth.start, truth.end)
                return
            self._refuse(location)
        # With a placement driver that lags, the key's own region may have been evicted again.
        self.model.shown = list(self.model.parts)
        for _ in range(2):
            location = eventloop.run(self.cache.locate(self.bo, key))
            truth = self.model.parts[self.model.at(key)]
            if location.region.version == truth.version:
                return
            self._refuse(location)
        raise AssertionError("the cache does not converge")

    def _refuse(self, location: KeyLocation) -> None:
        """What a store answers for an outdated region: those it has now over the same keys."""
        now = [
            part
            for part in self.model.parts
            if (not part.end or part.end > location.start) and (not location.end or part.start < location.end)
        ]
        current = [part.encoded() for part in now]
        if judge_epoch(location.region, current) is EpochVerdict.CACHE_BEHIND:
            self.cache.install(location.region, 1, current)
        else:
            self.cache.invalidate(location.region, "model")

    @rule(start=KEYS, end=KEYS)
    def a_range_is_covered_without_gaps(self, start: bytes, end: bytes) -> None:
        if end and end <= start:
            return
        found = [eventloop.run(self.cache.locate(self.bo, start))]
        while found[-1].end and (not end or found[-1].end < end):
            found.append(eventloop.run(self.cache.locate(self.bo, found[-1].end)))
        assert found[0].contains(start)
        for one, following in itertools.pairwise(found):
            assert one.end == following.start or following.contains(one.end)
        assert not found[-1].end or (end and found[-1].end >= end)

    @rule(keys=st.lists(KEYS, unique=True, max_size=12))
    def grouped_keys_lie_in_their_regions(self, keys: list[bytes]) -> None:
        keys = sorted(keys)
        groups = eventloop.run(self.cache.group_keys(self.bo, keys))
        assert [key for _, part in groups for key in keys[part]] == keys
        assert all(location.contains(key) for location, part in groups for key in keys[part])

    @rule(key=KEYS)
    def the_region_before_a_key_ends_at_or_after_it(self, key: bytes) -> None:
        location = eventloop.run(self.cache.locate_before(self.bo, key))
        if key:
            assert location.start < key
            assert not location.end or location.end >= key
        else:
            assert not location.end

    @invariant()
    def cached_regions_never_overlap(self) -> None:
        table = self.cache._table
        assert len(table) <= 4
        assert table._starts == [region.location.start for region in table._regions]
        assert set(table._by_id) == {region.location.region for region in table._regions}
        for one, following in itertools.pairwise(table._regions):
            assert one.location.end
            assert one.location.end <= following.location.start


CacheAgainstModel.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)
TestRegionCacheAgainstModel = CacheAgainstModel.TestCase
