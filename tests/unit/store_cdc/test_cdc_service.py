"""The service with a real storage and no network."""

import asyncio

import pytest

from penstock.clock import SYSTEM
from penstock.errors import Corrupt, Unavailable
from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.settings import StoreSettings
from penstock.store.bounds import EVERYTHING
from penstock.store.cdc import scan, stream
from penstock.store.cdc.service import ChangeDataService
from penstock.store.cdc.subscription import SubscriptionPhase
from penstock.store.engine import Engine
from penstock.store.region import Peer, Region
from penstock.store.regions import Regions
from penstock.store.storage import TxnStorage
from penstock.store.tso import Ids, Tso

REGION = Region(10_000, b"", b"", 1, 1, (Peer(10_001, 1),), 1)


class World:
    def __init__(self, path):
        settings = StoreSettings(resolved_ts_interval_ms=5)
        self.engine = Engine.open(path, sync=False)
        self.regions = Regions(self.engine, Ids(self.engine), [REGION])
        self.tso = Tso(self.engine)
        self.storage = TxnStorage(self.engine, clock=SYSTEM, settings=settings, max_ts=0)
        self.service = ChangeDataService(
            storage=self.storage,
            regions=self.regions,
            tso=self.tso,
            cluster_id=7,
            clock=SYSTEM,
            settings=settings,
        )
        self.storage.observer = self.service
        self.regions.listen(self.service)
        self.stream = self.service.open(1, multiplexing=True)

    def register(self, request_id=1, **more):
        self.stream.handle(
            cdcpb.ChangeDataRequest(
                **{
                    "header": cdcpb.Header(cluster_id=7, ticdc_version="8.5.0"),
                    "region_id": REGION.id,
                    "region_epoch": REGION.to_proto().region_epoch,
                    "request_id": request_id,
                    "extra_op": kvrpcpb.ReadOldValue,
                    **more,
                }
            )
        )

    async def events(self, count):
        found = []
        while len(found) < count:
            found += (await asyncio.wait_for(self.stream.outbox.next(), 10)).events
        return found

    async def rows(self, count):
        found = []
        while len(found) < count:
            found += [row for event in await self.events(1) for row in event.entries.entries]
        return found

    async def prewrite(self, key, value=b"v"):
        start_ts = await self.tso.current()
        request = kvrpcpb.PrewriteRequest(
            mutations=[kvrpcpb.Mutation(op=kvrpcpb.Put, key=key, value=value)],
            primary_lock=key,
            start_version=start_ts,
            lock_ttl=60_000,
        )
        assert not (await self.storage.kv_prewrite(request, EVERYTHING)).errors
        return start_ts

    async def close(self):
        await self.service.stop()
        await asyncio.gather(*self.stream._scanners, return_exceptions=True)
        await self.storage.close()
        await self.tso.close()
        self.engine.close()


@pytest.fixture
def worlds(tmp_path):
    def make():
        return World(tmp_path)

    return make


def computed(start_ts, *, one_pc):
    """A prewrite that leaves its commit timestamp to the store."""
    return kvrpcpb.PrewriteRequest(
        mutations=[kvrpcpb.Mutation(op=kvrpcpb.Put, key=b"k", value=b"v")],
        primary_lock=b"k",
        start_version=start_ts,
        lock_ttl=60_000,
        use_async_commit=True,
        try_one_pc=one_pc,
    )


@pytest.mark.parametrize("one_pc", [False, True])
async def test_commit_timestamps_computed_after_a_round_lie_above_what_it_resolved(worlds, one_pc):
    world = worlds()
    try:
        world.register()
        await world.rows(1)
        start_ts = await world.tso.current()
        await world.service.advance()
        resolved_ts = (await world.stream.outbox.next()).resolved_ts.ts
        assert resolved_ts > start_ts
        response = await world.storage.kv_prewrite(computed(start_ts, one_pc=one_pc), EVERYTHING)
        assert max(response.min_commit_ts, response.one_pc_commit_ts) > resolved_ts
    finally:
        await world.close()


@pytest.mark.parametrize("one_pc", [False, True])
async def test_a_round_stays_below_a_computed_commit_that_is_not_durable_yet(worlds, one_pc):
    world = worlds()
    try:
        world.register()
        await world.rows(1)
        start_ts = await world.tso.current()
        with world.engine._writing:
            request = computed(start_ts, one_pc=one_pc)
            prewrite = asyncio.ensure_future(world.storage.kv_prewrite(request, EVERYTHING))
            async with asyncio.timeout(10):
                while world.storage.concurrency.min_lock_ts() is None:
                    await SYSTEM.sleep(0)
            await world.service.advance()
            assert (await world.stream.outbox.next()).resolved_ts.ts == start_ts
        assert not (await prewrite).errors
    finally:
        await world.close()


async def test_changes_that_cannot_be_read_end_the_subscription_and_not_the_command(worlds, monkeypatch):
    world = worlds()
    try:
        world.register()
        await world.rows(1)

        def broken(changes):
            raise Corrupt("a version is damaged")

        monkeypatch.setattr(world.service, "_old_values", broken)
        await world.prewrite(b"k")
        (event,) = await world.events(1)
        assert event.error.HasField("server_is_busy")
        assert len(world.stream) == 0
    finally:
        await world.close()


async def test_a_scan_that_fails_ends_its_subscription(worlds, monkeypatch):
    world = worlds()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(scan, "read_committed_after", lambda *_: 1 / 0)
            world.register()
            (event,) = await world.events(1)
        assert event.error.HasField("server_is_busy")
        world.register(2)
        assert (await world.rows(1))[0].type == cdcpb.Event.INITIALIZED
    finally:
        await world.close()


async def test_too_many_waiting_scans_are_refused(worlds, monkeypatch):
    monkeypatch.setattr(stream, "SCANS_WAITING_MAX", 2)
    world = worlds()
    try:
        for request_id in (1, 2, 3):
            world.register(request_id)
        (event, *_) = await world.events(1)
        assert event.request_id == 3
        assert event.error.HasField("server_is_busy")
    finally:
        await world.close()


async def test_a_subscription_that_ends_while_it_waits_is_never_scanned(worlds):
    world = worlds()
    try:
        world.register()
        (waiting,) = world.stream._subscriptions.values()
        world.service.region_changed(REGION, REGION.split([b"m"], [(9, (91,))]))
        (event,) = await world.events(1)
        assert event.error.HasField("epoch_not_match")
        assert waiting.phase is SubscriptionPhase.ENDED
        assert await _nothing_more(world)
    finally:
        await world.close()


async def _nothing_more(world):
    reading = asyncio.ensure_future(world.stream.outbox.next())
    done, _ = await asyncio.wait([reading], timeout=0.05)
    world.stream.close()
    await reading
    return not done


async def test_locks_of_the_past_come_with_their_old_values(worlds):
    world = worlds()
    try:
        start_ts = await world.prewrite(b"k", b"old" * 1000)
        commit_ts = await world.tso.current()
        await world.storage.kv_commit(
            kvrpcpb.CommitRequest(start_version=start_ts, keys=[b"k"], commit_version=commit_ts), EVERYTHING
        )
        again = await world.prewrite(b"k", b"new" * 1000)
        world.register(checkpoint_ts=commit_ts)
        lock, last = await world.rows(2)
        assert (lock.type, lock.start_ts, lock.value, lock.old_value) == (
            cdcpb.Event.PREWRITE,
            again,
            b"new" * 1000,
            b"old" * 1000,
        )
        assert last.type == cdcpb.Event.INITIALIZED
        await world.service.advance()
        message = await world.stream.outbox.next()
        assert (message.resolved_ts.ts, list(message.resolved_ts.regions)) == (again, [REGION.id])
    finally:
        await world.close()


async def test_keys_that_are_not_encoded_subscribe_the_whole_region(worlds):
    world = worlds()
    try:
        world.register(start_key=b"k1", end_key=b"k2")
        await world.rows(1)
        await world.prewrite(b"z")
        assert (await world.rows(1))[0].key == b"z"
    finally:
        await world.close()


async def test_an_oracle_that_fails_only_delays_the_rounds(worlds, monkeypatch):
    world = worlds()
    try:
        world.register()
        await world.rows(1)
        failures = []

        async def fails():
            failures.append(1)
            if len(failures) < 3:
                raise Unavailable("the disk is slow")
            return 1 << 60

        monkeypatch.setattr(world.tso, "current", fails)
        await world.service.start()
        message = await asyncio.wait_for(world.stream.outbox.next(), 10)
        assert message.resolved_ts.ts == 1 << 60
        assert len(failures) == 3
    finally:
        await world.close()


async def test_a_round_is_not_repeated_while_the_last_one_waits(worlds):
    world = worlds()
    try:
        world.register()
        await world.rows(1)
        for _ in range(5):
            await world.service.advance()
        assert world.stream.outbox.resolved_waiting == 1
        first = (await world.stream.outbox.next()).resolved_ts.ts
        await world.service.advance()
        assert (await world.stream.outbox.next()).resolved_ts.ts > first
    finally:
        await world.close()
