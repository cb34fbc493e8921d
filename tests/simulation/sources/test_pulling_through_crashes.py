"""A store in a process of its own is killed again and again while changes are pulled from it."""

import asyncio
import contextlib
from pathlib import Path

from penstock.clock import SYSTEM
from penstock.errors import PenstockError
from penstock.kv import AsyncClient
from penstock.sources import KeySpan, SubscriptionClient
from penstock.testing.store import Admin
from support.recorder import Recorder
from support.warmstore import WarmStore

SPAN = KeySpan(3, b"k", b"l")
ROUNDS = 3


async def write(client: AsyncClient, stopping: asyncio.Event, number: int) -> None:
    turn = 0
    while not stopping.is_set():
        turn += 1
        with contextlib.suppress(PenstockError):
            async with client.begin(one_pc=turn % 2 == 0, async_commit=turn % 3 != 0) as txn:
                for _ in range(3):
                    key = b"k%02d" % int(SYSTEM.random() * 40)
                    if SYSTEM.random() < 0.2:
                        await txn.delete(key)
                    else:
                        await txn.put(key, b"%d/%d" % (number, turn))


async def test_nothing_is_missing_after_the_store_was_killed_under_the_puller(tmp_path: Path) -> None:
    with await asyncio.to_thread(WarmStore.start, tmp_path) as store:
        client = await AsyncClient.connect([store.pd_addr])
        admin = Admin(store.pd_addr)
        recorder = Recorder()
        start_ts = await client.timestamp()
        async with await SubscriptionClient.connect([store.pd_addr]) as puller:
            await puller.subscribe(SPAN, start_ts, recorder.consume, recorder.advance)
            for round_ in range(ROUNDS):
                stopping = asyncio.Event()
                writers = [asyncio.create_task(write(client, stopping, n)) for n in range(2)]
                await admin.split([b"k%02d" % (8 + 10 * round_)])
                seen = recorder.resolved_ts
                await asyncio.to_thread(
                    recorder.wait_until, lambda seen=seen: recorder.resolved_ts > seen, 30.0
                )
                await SYSTEM.sleep(0.3)
                await asyncio.to_thread(store.kill)
                await asyncio.to_thread(store.restart)
                stopping.set()
                await asyncio.gather(*writers)
            now = await client.timestamp()
            await asyncio.to_thread(recorder.wait_until, lambda: recorder.resolved_ts >= now, 40.0)
        told = [*recorder.resolved[:: max(1, len(recorder.resolved) // 10)], recorder.resolved_ts]
        for ts in told:
            snapshot = {key: value async for key, value in client.snapshot(ts).iter(SPAN.start, SPAN.end)}
            assert recorder.state_at(ts) == snapshot
        assert not recorder.problems
        assert len(recorder.rows) > 20
        await admin.close()
        await client.close()
