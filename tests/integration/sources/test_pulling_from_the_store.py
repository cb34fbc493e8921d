"""Subscriptions on the embedded store: what the consumer saw is what the snapshots say."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from penstock import metrics
from penstock.clock import SYSTEM
from penstock.errors import Conflict, PenstockError
from penstock.kv import AsyncClient
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.settings import PullerSettings
from penstock.sources import KeySpan, SubscriptionClient
from penstock.store.cdc import stream as store_stream
from penstock.store.cluster import Cluster
from penstock.testing.store import Admin
from support.recorder import Recorder

SPAN = KeySpan(7, b"k", b"l")
PROTOCOLS = (
    {"one_pc": True, "async_commit": True},
    {"one_pc": False, "async_commit": True},
    {"one_pc": False, "async_commit": False},
)


async def write(client: AsyncClient, keys: list[bytes], value: bytes, **options: bool) -> None:
    async with client.begin(**options) as txn:
        for key in keys:
            await txn.put(key, value)


async def until(recorder: Recorder, condition: Callable[[], bool], timeout_s: float = 15.0) -> None:
    await asyncio.to_thread(recorder.wait_until, condition, timeout_s)


async def snapshot(client: AsyncClient, ts: int, span: KeySpan = SPAN) -> dict[bytes, bytes]:
    return {key: value async for key, value in client.snapshot(ts).iter(span.start, span.end)}


class Ends:
    """How often regions' feeds ended since it was made, by reason: proof that a test did its worst."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> dict[str, float]:
        samples = metrics.PULLER_FEED_ERRORS_TOTAL.collect()[0].samples
        return {each.labels["type"]: each.value for each in samples if each.name.endswith("_total")}

    def __getitem__(self, reason: str) -> int:
        return int(self._now().get(reason, 0) - self._before.get(reason, 0))


class Writers:
    """Transactions of every kind on the keys of the span until told to stop."""

    def __init__(self, client: AsyncClient, keys: int = 60, tasks: int = 3) -> None:
        self._client = client
        self._keys = keys
        self._stopping = False
        self._tasks = [asyncio.create_task(self._write(n)) for n in range(tasks)]
        self.committed = 0

    async def _write(self, number: int) -> None:
        turn = 0
        while not self._stopping:
            turn += 1
            chosen = {b"k%03d" % int(SYSTEM.random() * self._keys) for _ in range(4)}
            with contextlib.suppress(PenstockError):  # conflicts, and stores that are away
                async with self._client.begin(**PROTOCOLS[turn % 3], pessimistic=turn % 4 == 0) as txn:
                    for key in sorted(chosen):
                        if SYSTEM.random() < 0.2:
                            await txn.delete(key)
                        else:
                            await txn.put(key, b"%d/%d" % (number, turn))
                    if turn % 11 == 0:
                        raise Conflict("rolled back on purpose")
                self.committed += 1

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)


@contextlib.asynccontextmanager
async def pulling(
    cluster: Cluster, recorder: Recorder, start_ts: int, *, interval_ms: int = 20, **settings: int
) -> AsyncIterator[SubscriptionClient]:
    made = PullerSettings(region_workers=2, **settings)
    async with await SubscriptionClient.connect([cluster.pd_addr], settings=made) as puller:
        await puller.subscribe(
            SPAN, start_ts, recorder.consume, recorder.advance, advance_interval_ms=interval_ms
        )
        yield puller


async def assert_complete(client: AsyncClient, recorder: Recorder) -> None:
    """Wait until now is resolved; then the rows give every snapshot that was resolved on the way."""
    now = await client.timestamp()
    await until(recorder, lambda: recorder.resolved_ts >= now, 30.0)
    told = [*recorder.resolved[:: max(1, len(recorder.resolved) // 12)], recorder.resolved_ts]
    for ts in told:
        assert recorder.state_at(ts) == await snapshot(client, ts)
    assert not recorder.problems


async def test_changes_before_and_after_the_subscription_arrive_and_are_resolved(
    cluster: Cluster, client: AsyncClient
) -> None:
    await write(client, [b"k1", b"k2"], b"old", async_commit=False, one_pc=False)
    start_ts = await client.timestamp()
    await write(client, [b"k1", b"k3"], b"early")
    recorder = Recorder()
    async with pulling(cluster, recorder, start_ts):
        await until(recorder, lambda: recorder.resolved_ts > start_ts)
        await write(client, [b"k4", b"z-elsewhere"], b"late", async_commit=False, one_pc=False)
        async with client.begin() as txn:
            await txn.delete(b"k2")
        last = await client.timestamp()
        await until(recorder, lambda: recorder.resolved_ts >= last)
    rows = sorted(recorder.distinct().values())
    assert [(row[0], row[3], row[4], row[5]) for row in rows] == [
        (b"k1", 1, b"early", b"old"),
        (b"k2", 2, None, b"old"),
        (b"k3", 1, b"early", None),
        (b"k4", 1, b"late", None),
    ]
    assert not recorder.problems


async def test_the_span_goes_on_while_regions_split_and_merge(cluster: Cluster, client: AsyncClient) -> None:
    ends = Ends()
    recorder = Recorder()
    start_ts = await client.timestamp()
    admin = Admin(cluster.pd_addr)
    async with pulling(cluster, recorder, start_ts):
        writers = Writers(client)
        for round_ in range(6):
            await admin.split([b"k%03d" % (7 + 8 * round_)])
            await SYSTEM.sleep(0.15)
        regions = [region for region in await client.regions() if region.start_key.startswith(b"k")]
        for region in regions[1:4]:
            await admin.merge(region.id)
            await SYSTEM.sleep(0.15)
        await writers.stop()
        await assert_complete(client, recorder)
        assert writers.committed > 20
    assert ends["epoch_not_match"] >= 6
    assert ends["region_not_found"] >= 1
    await admin.close()


async def test_the_span_goes_on_while_leaders_move_and_streams_break(
    cluster: Cluster, client: AsyncClient
) -> None:
    ends = Ends()
    recorder = Recorder()
    start_ts = await client.timestamp()
    admin = Admin(cluster.pd_addr)
    await admin.split([b"k015", b"k030", b"k045"])
    async with pulling(cluster, recorder, start_ts, interval_ms=0):
        writers = Writers(client)
        for round_ in range(8):
            for region in await client.regions():
                await admin.transfer_leader(region.id, 1 + (region.id + round_) % 3)
            if round_ % 3 == 2:
                await admin.set_faults([Admin.fault("STREAM_RESET", method="EventFeedV2", times=1)])
            await SYSTEM.sleep(0.1)
        await admin.set_faults([])
        await writers.stop()
        await assert_complete(client, recorder)
    assert ends["not_leader"] >= 5
    assert ends["stream_lost"] >= 1
    await admin.close()


async def test_the_span_goes_on_after_a_store_was_away(cluster: Cluster, client: AsyncClient) -> None:
    ends = Ends()
    recorder = Recorder()
    start_ts = await client.timestamp()
    admin = Admin(cluster.pd_addr)
    await admin.split([b"k015", b"k030", b"k045"])
    for number, region in enumerate(await client.regions()):
        await admin.transfer_leader(region.id, 1 + number % 3)
    async with pulling(cluster, recorder, start_ts):
        await until(recorder, lambda: recorder.resolved_ts > start_ts)
        await write(client, [b"k001", b"k020", b"k050"], b"before")
        await admin.stop_store(2)
        await SYSTEM.sleep(0.3)
        await admin.start_store(2)
        await write(client, [b"k002", b"k021", b"k051"], b"after")
        await assert_complete(client, recorder)
    assert ends["stream_lost"] >= 1
    await admin.close()


async def test_a_busy_store_is_asked_again_until_it_has_time(
    cluster: Cluster, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = Ends()
    recorder = Recorder()
    start_ts = await client.timestamp()
    monkeypatch.setattr(store_stream, "SCANS_WAITING_MAX", 0)
    async with pulling(cluster, recorder, start_ts):
        await write(client, [b"k1"], b"v")
        await until(recorder, lambda: ends["server_is_busy"] >= 3)
        monkeypatch.undo()
        await assert_complete(client, recorder)


async def test_a_region_that_the_store_let_go_for_its_memory_is_read_again(
    cluster: Cluster, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = Ends()
    recorder = Recorder()
    start_ts = await client.timestamp()
    async with pulling(cluster, recorder, start_ts):
        await until(recorder, lambda: recorder.resolved_ts > start_ts)
        monkeypatch.setattr(cluster._changes._quota, "limit", 1)
        for number in range(20):
            await write(client, [b"k%03d" % number], b"x" * 1000)
        await until(recorder, lambda: ends["congested"] >= 1)
        monkeypatch.undo()
        await assert_complete(client, recorder)


async def test_locks_of_a_dead_transaction_are_resolved_when_they_hold_the_span_back(
    cluster: Cluster, client: AsyncClient
) -> None:
    recorder = Recorder()
    start_ts = await client.timestamp()
    async with pulling(cluster, recorder, start_ts):
        await until(recorder, lambda: recorder.resolved_ts > start_ts)
        dead = await client.timestamp()
        bounds = next(r for r in cluster.regions.scan(b"", b"", 10)).bounds()
        answer = await cluster.storage.kv_prewrite(
            kvrpcpb.PrewriteRequest(
                mutations=[kvrpcpb.Mutation(op=kvrpcpb.Op.Put, key=b"k-dead", value=b"never")],
                primary_lock=b"k-dead",
                start_version=dead,
                lock_ttl=1,
            ),
            bounds,
        )
        assert not answer.errors
        await write(client, [b"k-alive"], b"v")
        await assert_complete(client, recorder)
    assert [row[0] for row in recorder.distinct().values()] == [b"k-alive"]


async def test_a_consumer_that_persists_nothing_stops_the_flow_within_the_quota(
    cluster: Cluster, client: AsyncClient
) -> None:
    recorder = Recorder(hold=True)
    start_ts = await client.timestamp()
    async with pulling(cluster, recorder, start_ts, quota_bytes=20_000) as puller:
        await until(recorder, lambda: puller._pipeline.active_subscriptions == 1)
        for number in range(40):
            await write(client, [b"k%03d" % number], b"x" * 1000)
        await until(recorder, lambda: len(recorder.held) >= 3)
        assert puller._pipeline.quota.used <= 20_000
        assert len(recorder.rows) < 40
        now = await client.timestamp()
        while recorder.resolved_ts < now:
            recorder.release()
            await SYSTEM.sleep(0.02)
        assert recorder.state_at(now) == await snapshot(client, now)
        recorder.release()
        await until(recorder, lambda: puller._pipeline.quota.used == 0)
    assert not recorder.problems


async def test_a_transaction_larger_than_the_memory_for_prewrites_arrives_whole(
    cluster: Cluster, client: AsyncClient
) -> None:
    recorder = Recorder()
    start_ts = await client.timestamp()
    async with pulling(cluster, recorder, start_ts, prewrite_memory_bytes=64 * 1024) as puller:
        await until(recorder, lambda: recorder.resolved_ts > start_ts)
        keys = [b"k%05d" % number for number in range(2000)]
        await write(client, keys, b"v" * 200, async_commit=False, one_pc=False)
        await assert_complete(client, recorder)
        assert puller._memory.used <= 64 * 1024
        assert puller._spill._path is not None, "nothing was moved to disk"
    assert len(recorder.distinct()) == 2000


async def test_nothing_is_called_back_after_unsubscribing(cluster: Cluster, client: AsyncClient) -> None:
    recorder = Recorder()
    start_ts = await client.timestamp()
    async with await SubscriptionClient.connect([cluster.pd_addr]) as puller:
        sub_id = await puller.subscribe(SPAN, start_ts, recorder.consume, recorder.advance)
        await until(recorder, lambda: recorder.resolved_ts > start_ts)
        await puller.unsubscribe(sub_id)
        seen = len(recorder.rows), len(recorder.resolved)
        await write(client, [b"k1"], b"v")
        other = Recorder()
        await puller.subscribe(SPAN, start_ts, other.consume, other.advance)
        await assert_complete(client, other)
        assert (len(recorder.rows), len(recorder.resolved)) == seen
        assert puller._pipeline.active_subscriptions == 1
        await puller.unsubscribe(sub_id)


async def test_a_consumer_that_raises_ends_its_subscription_and_is_told(
    cluster: Cluster, client: AsyncClient
) -> None:
    failures: list[Exception] = []
    bystander = Recorder()
    start_ts = await client.timestamp()

    def consume(raw: object, finish: object, /) -> bool:
        raise ValueError("disk full")

    async with await SubscriptionClient.connect([cluster.pd_addr]) as puller:
        await puller.subscribe(SPAN, start_ts, consume, lambda ts: None, on_failure=failures.append)
        await puller.subscribe(SPAN, start_ts, bystander.consume, bystander.advance)
        await write(client, [b"k1"], b"v")
        await assert_complete(client, bystander)
        await until(bystander, lambda: bool(failures) and puller._pipeline.active_subscriptions == 1)
        assert puller._pipeline.quota.used == 0
    assert [str(error) for error in failures] == ["disk full"]
