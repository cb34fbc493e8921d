"""Change streams of an embedded cluster, over real gRPC."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from penstock.clock import SYSTEM
from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto.codec import encode_bytes
from penstock.proto.services import Stub
from penstock.settings import StoreSettings
from penstock.store.bounds import EVERYTHING
from penstock.store.cluster import Cluster

DEADLINE_S = 20
MULTIPLEXING = (("features", "stream-multiplexing"),)


@asynccontextmanager
async def running(path, **more):
    settings = StoreSettings(
        data=path, pd_addr="127.0.0.1:0", sync=False, resolved_ts_interval_ms=20, **{"stores": 2, **more}
    )
    cluster = await Cluster.start(settings)
    try:
        yield cluster
    finally:
        await cluster.stop()


class Feed:
    """A stream and what came of it."""

    def __init__(self, cluster, store_id, *, method="EventFeedV2", metadata=MULTIPLEXING, version="8.5.0"):
        self.cluster = cluster
        self.version = version
        self.events = []
        self.resolved = {}  # by (request, region)
        self._channel = grpc.aio.insecure_channel(
            cluster.store_addrs[store_id], options=[("grpc.max_receive_message_length", -1)]
        )
        self.call = getattr(Stub(self._channel, "cdcpb.ChangeData"), method)(metadata=metadata)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.call.cancel()
        await self._channel.close()

    async def register(self, region, request_id=1, checkpoint_ts=0, **more):
        await self.call.write(
            cdcpb.ChangeDataRequest(
                **{
                    "header": cdcpb.Header(cluster_id=self.cluster.cluster_id, ticdc_version=self.version),
                    "region_id": region.id,
                    "region_epoch": region.to_proto().region_epoch,
                    "checkpoint_ts": checkpoint_ts,
                    "start_key": region.start,
                    "end_key": region.end,
                    "request_id": request_id,
                    "extra_op": kvrpcpb.ReadOldValue,
                    **more,
                }
            )
        )

    async def deregister(self, request_id, region_id=0):
        await self.call.write(
            cdcpb.ChangeDataRequest(
                request_id=request_id, region_id=region_id, deregister=cdcpb.ChangeDataRequest.Deregister()
            )
        )

    async def receive(self):
        message = await asyncio.wait_for(self.call.read(), DEADLINE_S)
        assert message is not grpc.aio.EOF
        for event in message.events:
            if event.WhichOneof("event") == "resolved_ts":
                self.resolved[event.request_id, event.region_id] = event.resolved_ts
            else:
                self.events.append(event)
        for region_id in message.resolved_ts.regions:
            self.resolved[message.resolved_ts.request_id, region_id] = message.resolved_ts.ts

    async def until(self, met):
        limit = SYSTEM.monotonic() + DEADLINE_S
        while not (found := met()):
            assert SYSTEM.monotonic() < limit
            await self.receive()
        return found

    async def status(self):
        """Read to the end of the stream; return how it ended."""
        try:
            while await asyncio.wait_for(self.call.read(), DEADLINE_S) is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
        return await self.call.code()

    def rows(self, request_id=1):
        return [
            (cdcpb.Event.LogType.Name(row.type), row.key, row.value, row.old_value)
            for event in self.events
            if event.request_id == request_id
            for row in event.entries.entries
        ]

    def initialized(self, request_id=1):
        return any(row[0] == "INITIALIZED" for row in self.rows(request_id))

    def errors(self):
        return [
            (event.request_id, event.region_id, event.error.ListFields()[0][0].name)
            for event in self.events
            if event.HasField("error")
        ]


async def put(cluster, *keys, value=b"v"):
    """Commit in two phases; return start and commit timestamps."""
    start_ts = await cluster.tso.current()
    request = kvrpcpb.PrewriteRequest(
        mutations=[kvrpcpb.Mutation(op=kvrpcpb.Put, key=key, value=value) for key in keys],
        primary_lock=keys[0],
        start_version=start_ts,
        lock_ttl=60_000,
    )
    assert not (await cluster.storage.kv_prewrite(request, EVERYTHING)).errors
    commit_ts = await cluster.tso.current()
    commit = kvrpcpb.CommitRequest(start_version=start_ts, keys=keys, commit_version=commit_ts)
    assert not (await cluster.storage.kv_commit(commit, EVERYTHING)).HasField("error")
    return start_ts, commit_ts


def region_of(cluster, key):
    return cluster.regions.by_key(encode_bytes(key))


async def test_a_subscription_gets_the_past_then_the_present_then_progress(tmp_path):
    async with running(tmp_path) as cluster:
        _, old_ts = await put(cluster, b"a", value=b"0")
        await put(cluster, b"a", value=b"1")
        region = region_of(cluster, b"a")
        async with Feed(cluster, region.leader_store) as feed:
            await feed.register(region, checkpoint_ts=old_ts)
            await feed.until(feed.initialized)
            assert feed.rows() == [("COMMITTED", b"a", b"1", b"0"), ("INITIALIZED", b"", b"", b"")]
            _, commit_ts = await put(cluster, b"a", b"b", value=b"2" * 5000)
            await feed.until(lambda: feed.resolved.get((1, region.id), 0) >= commit_ts)
            assert feed.rows()[2:] == [
                ("PREWRITE", b"a", b"2" * 5000, b"1"),
                ("PREWRITE", b"b", b"2" * 5000, b""),
                ("COMMIT", b"a", b"", b""),
                ("COMMIT", b"b", b"", b""),
            ]


async def test_one_stream_serves_many_requests_of_one_region(tmp_path):
    async with running(tmp_path, stores=1) as cluster:
        region = region_of(cluster, b"a")
        async with Feed(cluster, region.leader_store) as feed:
            await feed.register(region, request_id=1)
            await feed.register(
                region, request_id=2, start_key=encode_bytes(b"m"), end_key=encode_bytes(b"q")
            )
            await feed.until(lambda: feed.initialized(1) and feed.initialized(2))
            _, commit_ts = await put(cluster, b"a", b"n", b"q")
            await feed.until(lambda: min(feed.resolved.get((i, region.id), 0) for i in (1, 2)) >= commit_ts)
            assert {row[1] for row in feed.rows(1)} == {b"", b"a", b"n", b"q"}
            assert {row[1] for row in feed.rows(2)} == {b"", b"n"}


async def test_a_client_from_before_batches_is_told_of_each_region(tmp_path):
    async with running(tmp_path, stores=1) as cluster:
        await cluster.split_at([b"m"])
        left, right = region_of(cluster, b"a"), region_of(cluster, b"m")
        async with Feed(cluster, left.leader_store, method="EventFeed", metadata=(), version="4.0.7") as feed:
            await feed.register(left, request_id=5)
            await feed.register(right, request_id=6)
            await feed.until(lambda: set(feed.resolved) == {(5, left.id), (6, right.id)})
            await feed.register(left, request_id=7)
            await feed.until(feed.errors)
            assert feed.errors() == [(7, left.id, "duplicate_request")]


async def test_an_unknown_feature_is_unimplemented(tmp_path):
    async with running(tmp_path, stores=1) as cluster:
        store_id = next(iter(cluster.store_addrs))
        async with Feed(
            cluster, store_id, metadata=(("features", "stream-multiplexing,time-travel"),)
        ) as feed:
            assert await feed.call.code() == grpc.StatusCode.UNIMPLEMENTED
            assert await feed.call.details() == "time-travel"


async def test_refusals_are_events_of_the_request(tmp_path):
    async with running(tmp_path) as cluster:
        region = region_of(cluster, b"a")
        stale = region.to_proto().region_epoch
        stale.version += 1
        other = next(store_id for store_id in cluster.store_addrs if store_id != region.leader_store)
        async with Feed(cluster, region.leader_store) as feed:
            await feed.register(region, request_id=1)
            await feed.register(region, request_id=1)
            await feed.register(region, request_id=2, region_id=999_999)
            await feed.register(region, request_id=3, region_epoch=stale)
            await feed.register(
                region, request_id=4, header=cdcpb.Header(cluster_id=1, ticdc_version="8.5.0")
            )
            await feed.register(region, request_id=5, kv_api=cdcpb.ChangeDataRequest.RawKV)
            await feed.until(lambda: len(feed.errors()) == 5)
            assert feed.errors() == [
                (1, region.id, "duplicate_request"),
                (2, 999_999, "region_not_found"),
                (3, region.id, "epoch_not_match"),
                (4, region.id, "cluster_id_mismatch"),
                (5, region.id, "compatibility"),
            ]
            current = next(event for event in feed.events if event.request_id == 3)
            assert current.error.epoch_not_match.current_regions[0] == region.to_proto()
        async with Feed(cluster, other) as feed:
            await feed.register(region)
            await feed.until(feed.errors)
            assert feed.events[0].error.not_leader.leader.store_id == region.leader_store


async def test_a_region_that_changes_ends_its_subscriptions(tmp_path):
    async with running(tmp_path) as cluster:
        region = region_of(cluster, b"a")
        async with Feed(cluster, region.leader_store) as feed:
            await feed.register(region)
            await feed.until(feed.initialized)
            await cluster.split_at([b"m"])
            await feed.until(feed.errors)
            told = feed.events[-1].error.epoch_not_match.current_regions
            assert [one.start_key for one in told] == [b"", encode_bytes(b"m")]

            left, right = region_of(cluster, b"a"), region_of(cluster, b"m")
            await feed.register(left, request_id=2)
            await feed.register(right, request_id=3)
            await feed.until(lambda: feed.initialized(2) and feed.initialized(3))
            other = next(store for store in cluster.store_addrs if store != right.leader_store)
            await cluster.regions.transfer_leader(right.id, other)
            await feed.until(lambda: len(feed.errors()) == 2)
            assert feed.errors()[1] == (3, right.id, "not_leader")
            assert feed.events[-1].error.not_leader.leader.store_id == other

            await cluster.regions.merge(left.id)
            await feed.until(lambda: len(feed.errors()) == 3)
            assert feed.errors()[2] == (2, left.id, "region_not_found")


async def test_deregistering_ends_one_region_or_the_whole_request(tmp_path):
    async with running(tmp_path, stores=1) as cluster:
        await cluster.split_at([b"g", b"p"])
        regions = [region_of(cluster, key) for key in (b"a", b"g", b"p")]
        async with Feed(cluster, regions[0].leader_store) as feed:
            for region in regions:
                await feed.register(region, request_id=1)
            await feed.register(regions[0], request_id=2)
            await feed.until(lambda: len(feed.resolved) == 4)
            await feed.deregister(1, regions[1].id)
            await feed.until(lambda: feed.errors() == [(1, regions[1].id, "region_not_found")])
            await feed.deregister(1)
            await feed.until(lambda: len(feed.errors()) == 3)
            _, commit_ts = await put(cluster, b"a", b"g", b"p")
            await feed.until(lambda: feed.resolved[2, regions[0].id] >= commit_ts)
            assert len(feed.errors()) == 3
            assert {row[1] for row in feed.rows(1)} == {b""}
            assert {row[1] for row in feed.rows(2)} == {b"", b"a"}
            await feed.register(regions[1], request_id=1)
            await feed.until(lambda: b"g" in {row[1] for row in feed.rows(1)})


async def test_a_client_that_is_done_ends_the_stream(tmp_path):
    async with running(tmp_path, stores=1) as cluster:
        region = region_of(cluster, b"a")
        async with Feed(cluster, region.leader_store) as feed:
            await feed.register(region)
            await feed.until(feed.initialized)
            await feed.call.done_writing()
            assert await feed.status() == grpc.StatusCode.OK
            assert len(cluster._changes._delegates) == 0


async def test_a_client_that_goes_away_leaves_nothing_behind(tmp_path):
    async with running(tmp_path, stores=1) as cluster:
        region = region_of(cluster, b"a")
        async with Feed(cluster, region.leader_store) as feed:
            await feed.register(region)
            await feed.until(feed.initialized)
        limit = SYSTEM.monotonic() + DEADLINE_S
        while cluster._changes._streams or cluster._changes._delegates:
            assert SYSTEM.monotonic() < limit
            await SYSTEM.sleep(0.005)
        assert cluster._changes._quota.used == 0


async def test_a_stopped_store_cuts_its_streams_off(tmp_path):
    async with running(tmp_path) as cluster:
        region = region_of(cluster, b"a")
        async with Feed(cluster, region.leader_store) as feed:
            await feed.register(region)
            await feed.until(feed.initialized)
            await cluster.stop_store(region.leader_store)
            assert await feed.status() == grpc.StatusCode.UNAVAILABLE


async def test_a_client_that_is_too_slow_is_congested_and_others_are_not(tmp_path):
    async with running(tmp_path, stores=1, cdc_memory_bytes=1 << 20) as cluster:
        region = region_of(cluster, b"a")
        async with Feed(cluster, region.leader_store) as slow, Feed(cluster, region.leader_store) as quick:
            for feed in (slow, quick):
                await feed.register(region)
                await feed.until(feed.initialized)
            for i in range(600):
                _, commit_ts = await put(cluster, b"k%d" % i, value=bytes(100_000))
                assert cluster._changes._quota.used < (2 << 20)
                await quick.until(lambda ts=commit_ts: quick.resolved.get((1, region.id), 0) >= ts)
                if len(cluster._changes._delegates.get(region.id).subscriptions) == 1:
                    break
            else:
                pytest.fail("the slow client was never congested")
            await slow.until(slow.errors)
            assert slow.errors() == [(1, region.id, "congested")]
            assert quick.errors() == []
            known = slow.resolved.get((1, region.id), 0)
            await slow.register(region, request_id=2, checkpoint_ts=known)
            await slow.until(lambda: slow.resolved.get((2, region.id), 0) >= commit_ts)
            matched = {row[1] for request in (1, 2) for row in slow.rows(request) if row[0] != "PREWRITE"}
            assert matched == {b""} | {b"k%d" % j for j in range(i + 1)}


async def test_a_large_scan_waits_for_its_client(tmp_path):
    async with running(tmp_path, stores=1) as cluster:
        count = 400
        for at in range(0, count, 50):
            await put(cluster, *(b"k%04d" % i for i in range(at, at + 50)), value=bytes(100_000))
        region = region_of(cluster, b"k")
        service = cluster._changes
        async with Feed(cluster, region.leader_store) as feed:
            await feed.register(region)
            most = 0
            limit = SYSTEM.monotonic() + DEADLINE_S
            while not feed.initialized():
                assert SYSTEM.monotonic() < limit
                await feed.receive()
                most = max(most, service._quota.used)
            assert [row[1] for row in feed.rows()][:-1] == [b"k%04d" % i for i in range(count)]
            assert most < 10 * 1024 * 1024
