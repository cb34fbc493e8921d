"""Random transactions and splits on the real storage, followed by a client that matches.

In the end the client has exactly the changes after its checkpoint, with their values, each once but for
repetitions, and nothing came at or below a resolved timestamp it was told before.
"""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import eventloop
from penstock.clock import SYSTEM
from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto.codec import encode_bytes
from penstock.settings import StoreSettings
from penstock.store.bounds import EVERYTHING, KeyBounds
from penstock.store.cdc import subscription
from penstock.store.cdc.service import ChangeDataService
from penstock.store.engine import Engine
from penstock.store.mvcc.reader import MvccReader
from penstock.store.mvcc.records import WriteKind
from penstock.store.region import Peer, Region
from penstock.store.regions import Regions
from penstock.store.storage import TxnStorage
from penstock.store.tso import Ids, Tso
from support.campaign import examples

KEYS = [b"k%d" % i for i in range(6)]
CLUSTER_ID = 77
DEADLINE_S = 20


class RegionClient:
    """One registration of a region: the public matcher."""

    def __init__(self, region, checkpoint_ts, emit):
        self.region = region
        self.start_ts = self.resolved_ts = checkpoint_ts
        self.initialized = False
        self.prewrites = {}
        self.commits = []
        self.rollbacks = []
        self._emit = emit

    def take(self, row):
        lock = (row.start_ts, row.key)
        if row.type == subscription.PREWRITE:
            if row.value or lock not in self.prewrites:
                self.prewrites[lock] = row
        elif row.type == subscription.COMMITTED:
            assert row.commit_ts > self.resolved_ts
            self._emit(row, row)
        elif row.type == subscription.COMMIT:
            self.commit(row)
        elif row.type == subscription.ROLLBACK:
            if self.initialized:
                self.prewrites.pop(lock, None)
            else:
                self.rollbacks.append(lock)
        else:
            self.initialized = True
            for commit in self.commits:
                if (commit.start_ts, commit.key) in self.prewrites:
                    self.commit(commit)
            for lock in self.rollbacks:
                self.prewrites.pop(lock, None)

    def commit(self, row):
        found = self.prewrites.get((row.start_ts, row.key))
        if found is None or not (found.value or self.initialized):
            assert not self.initialized, "a COMMIT without a PREWRITE is fatal"
            self.commits.append(row)
            return
        del self.prewrites[row.start_ts, row.key]
        if row.commit_ts > self.start_ts:
            assert row.commit_ts > self.resolved_ts
            self._emit(row, found)

    def resolve(self, ts):
        assert self.initialized
        self.resolved_ts = max(self.resolved_ts, ts)


class Client:
    """A subscription of a range, whatever becomes of its regions."""

    def __init__(self, world, request_id, bounds, checkpoint_ts):
        self.world = world
        self.request_id = request_id
        self.bounds = bounds
        self.checkpoint_ts = checkpoint_ts
        self.regions = {}
        self.emitted = {}
        self.register(bounds, checkpoint_ts)

    def register(self, bounds, checkpoint_ts):
        start, end = encode_bytes(bounds.start), encode_bytes(bounds.end) if bounds.end else b""
        for region in self.world.regions.scan(start, end, 0):
            client = RegionClient(region, checkpoint_ts, self.emit)
            self.regions[region.id] = client
            self.world.stream.handle(
                cdcpb.ChangeDataRequest(
                    header=cdcpb.Header(cluster_id=CLUSTER_ID, ticdc_version="8.5.0"),
                    region_id=region.id,
                    region_epoch=region.to_proto().region_epoch,
                    checkpoint_ts=checkpoint_ts,
                    start_key=encode_bytes(self.bounds.start),
                    end_key=encode_bytes(self.bounds.end) if self.bounds.end else b"",
                    request_id=self.request_id,
                    extra_op=kvrpcpb.ReadOldValue,
                )
            )

    def emit(self, row, values):
        assert self.bounds.contains(row.key)
        content = (row.op_type, values.value, values.old_value)
        assert self.emitted.setdefault((row.key, row.start_ts, row.commit_ts), content) == content

    def take(self, event):
        if event.WhichOneof("event") == "error":
            assert event.error.HasField("epoch_not_match"), event
            gone = self.regions.pop(event.region_id)
            self.register(gone.region.bounds().clamp(self.bounds.start, self.bounds.end), gone.resolved_ts)
            return
        for row in event.entries.entries:
            self.regions[event.region_id].take(row)


class World:
    def __init__(self, path):
        self.engine = Engine.open(path, sync=False)
        self.regions = Regions(
            self.engine, Ids(self.engine), [Region(10_000, b"", b"", 1, 1, (Peer(10_001, 1),), 1)]
        )
        self.tso = Tso(self.engine)
        settings = StoreSettings(resolved_ts_interval_ms=10)
        self.storage = TxnStorage(self.engine, clock=SYSTEM, settings=settings, max_ts=0)
        self.service = ChangeDataService(
            storage=self.storage,
            regions=self.regions,
            tso=self.tso,
            cluster_id=CLUSTER_ID,
            clock=SYSTEM,
            settings=settings,
        )
        self.storage.observer = self.service
        self.regions.listen(self.service)
        self.stream = self.service.open(1, multiplexing=True)
        self.clients = {}
        self.tasks = []
        self.pump = asyncio.ensure_future(self.receive())

    async def receive(self):
        while (message := await self.stream.outbox.next()) is not None:
            for event in message.events:
                self.clients[event.request_id].take(event)
            if message.HasField("resolved_ts"):
                client = self.clients[message.resolved_ts.request_id]
                for region_id in message.resolved_ts.regions:
                    if region_id in client.regions:
                        client.regions[region_id].resolve(message.resolved_ts.ts)

    # One transaction, from begin to end, at its own pace.

    async def transact(self, keys, protocol, op, size, *, rolls_back):
        storage = self.storage
        start_ts = await self.tso.current()
        if protocol == "pessimistic":
            response = await storage.kv_pessimistic_lock(
                kvrpcpb.PessimisticLockRequest(
                    mutations=[kvrpcpb.Mutation(op=kvrpcpb.PessimisticLock, key=key) for key in keys],
                    primary_lock=keys[0],
                    start_version=start_ts,
                    for_update_ts=start_ts,
                    lock_ttl=60_000,
                    wait_timeout=-1,
                ),
                EVERYTHING,
            )
            if response.errors:
                return
        value = b"%d." % start_ts * size if op == kvrpcpb.Put else b""
        request = kvrpcpb.PrewriteRequest(
            mutations=[kvrpcpb.Mutation(op=op, key=key, value=value) for key in keys],
            primary_lock=keys[0],
            start_version=start_ts,
            lock_ttl=60_000,
            txn_size=len(keys),
        )
        if protocol == "pessimistic":
            request.for_update_ts = start_ts
            request.pessimistic_actions.extend([kvrpcpb.PrewriteRequest.DO_PESSIMISTIC_CHECK] * len(keys))
        if protocol in {"async", "1pc"}:
            request.use_async_commit = True
            request.secondaries.extend(keys[1:])
            request.try_one_pc = protocol == "1pc"
        response = await storage.kv_prewrite(request, EVERYTHING)
        if response.one_pc_commit_ts:
            return
        if response.errors or (rolls_back and protocol != "async"):
            await storage.kv_batch_rollback(
                kvrpcpb.BatchRollbackRequest(start_version=start_ts, keys=keys), EVERYTHING
            )
            return
        commit_ts = response.min_commit_ts or await self.tso.current()
        for key in keys:
            done = await storage.kv_commit(
                kvrpcpb.CommitRequest(start_version=start_ts, keys=[key], commit_version=commit_ts),
                EVERYTHING,
            )
            assert not done.HasField("error"), done

    async def run(self, steps):
        for name, arguments in steps:
            await getattr(self, "do_" + name)(*arguments)
        await asyncio.gather(*self.tasks)
        await self.settle()
        self.check()

    async def do_txn(self, *arguments):
        keys, protocol, op, size, rolls_back = arguments
        self.tasks.append(
            asyncio.ensure_future(self.transact(keys, protocol, op, size, rolls_back=rolls_back))
        )

    async def do_subscribe(self, bounds, back):
        request_id = len(self.clients) + 1
        checkpoint_ts = 0 if back is None else await self.tso.current() - (back << 18)
        self.clients[request_id] = None
        self.clients[request_id] = Client(self, request_id, bounds, checkpoint_ts)

    async def do_split(self, key):
        await self.regions.split_at([encode_bytes(key)])

    async def do_round(self):
        await self.service.advance()

    async def do_pause(self, turns):
        for _ in range(turns):
            await SYSTEM.sleep(0)

    async def settle(self):
        """Wait until every client has heard of a timestamp after the last transaction."""
        last = await self.tso.current()
        limit = SYSTEM.monotonic() + DEADLINE_S
        while not all(
            region.resolved_ts >= last
            for client in self.clients.values()
            for region in client.regions.values()
        ):
            assert not self.pump.done(), self.pump.result()
            assert SYSTEM.monotonic() < limit, "the client never caught up"
            await self.service.advance()
            await SYSTEM.sleep(0.001)

    def check(self):
        reader = MvccReader(self.engine.view())
        for client in self.clients.values():
            truth = {}
            for key, commit_ts, write in reader.scan_writes(client.bounds, max(client.checkpoint_ts, 0)):
                if write.kind is WriteKind.PUT or write.kind is WriteKind.DELETE:
                    put = write.kind is WriteKind.PUT
                    truth[key, write.start_ts, commit_ts] = (
                        subscription.PUT if put else subscription.DELETE,
                        reader.value_of(key, write) if put else b"",
                        reader.newest_put_before(key, commit_ts) or b"",
                    )
            assert client.emitted == truth
            assert not any(region.prewrites for region in client.regions.values())

    async def close(self):
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.stream.close()
        await self.pump
        await asyncio.gather(*self.stream._scanners, return_exceptions=True)
        await self.service.stop()
        await self.storage.close()
        await self.tso.close()
        self.engine.close()


transactions = st.tuples(
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=4, unique=True).map(sorted),
    st.sampled_from(["2pc", "async", "1pc", "pessimistic"]),
    st.sampled_from([kvrpcpb.Put, kvrpcpb.Del]),
    st.sampled_from([1, 400]),
    st.booleans(),
)
ranges = st.sampled_from([EVERYTHING, KeyBounds(b"k1", b"k4"), KeyBounds(b"k3", b"")])
one_step = st.one_of(
    st.tuples(st.just("txn"), transactions),
    st.tuples(st.just("txn"), transactions),
    st.tuples(st.just("subscribe"), st.tuples(ranges, st.sampled_from([None, 0, 5]))),
    st.tuples(st.just("split"), st.tuples(st.sampled_from(KEYS))),
    st.tuples(st.just("round"), st.just(())),
    st.tuples(st.just("pause"), st.tuples(st.integers(1, 12))),
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(one_step, min_size=3, max_size=40))
def test_a_client_gets_exactly_the_committed_changes(steps):
    with tempfile.TemporaryDirectory() as path:

        async def play():
            world = World(Path(path))
            try:
                await world.run(steps)
            finally:
                await world.close()

        eventloop.run(play())
