"""A bank over the embedded store in a process of its own, while everything that can go wrong does.

Transfers run optimistic and pessimistic, over all three commit protocols; regions split and merge,
leaders move, and the store is killed with SIGKILL and started again. In every snapshot the total
is constant; at the end the balances are exactly what the ledger of committed transfers says, and
no acknowledged transfer is missing from it.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.clock import SYSTEM
from penstock.errors import Conflict, Unavailable, Undetermined
from penstock.kv import AsyncClient
from penstock.testing.store import Admin
from support.warmstore import WarmStore

ACCOUNTS = 40
OPENING = 1_000
WORKERS = 18
PROTOCOLS = (
    {"one_pc": True, "async_commit": True},
    {"one_pc": False, "async_commit": True},
    {"one_pc": False, "async_commit": False},
)


def account(number: int) -> bytes:
    return b"account/%04d" % number


@dataclass(slots=True)
class Books:
    """What the workers were told."""

    names: "itertools.count[int]" = field(default_factory=itertools.count)
    acknowledged: set[bytes] = field(default_factory=set)
    undetermined: set[bytes] = field(default_factory=set)
    refused: set[bytes] = field(default_factory=set)
    snapshots: int = 0
    stopped: bool = False


async def transfer(
    client: AsyncClient, books: Books, protocol: dict[str, bool], *, pessimistic: bool
) -> None:
    source = int(SYSTEM.random() * ACCOUNTS)
    target = (source + 1 + int(SYSTEM.random() * (ACCOUNTS - 1))) % ACCOUNTS
    entry = b"ledger/%08d" % next(books.names)
    keys = sorted((account(source), account(target)))
    try:
        async with client.begin(pessimistic=pessimistic, **protocol) as txn:
            if pessimistic:
                await txn.lock_keys(keys)
            held = {key: int(await txn.get(key)) for key in keys}
            amount = min(held[account(source)], int(SYSTEM.random() * 50))
            await txn.put(account(source), b"%d" % (held[account(source)] - amount))
            await txn.put(account(target), b"%d" % (held[account(target)] + amount))
            await txn.insert(entry, b"%d %d %d" % (source, target, amount))
        books.acknowledged.add(entry)
    except Undetermined:
        books.undetermined.add(entry)
    except (Conflict, Unavailable):
        books.refused.add(entry)


async def work(client: AsyncClient, books: Books, number: int) -> None:
    protocol = PROTOCOLS[number % len(PROTOCOLS)]
    while not books.stopped:
        await transfer(client, books, protocol, pessimistic=number % 2 == 1)


async def audit(client: AsyncClient, books: Books) -> None:
    while not books.stopped:
        try:
            ts = await client.timestamp()
            rows = [row async for row in client.snapshot(ts).iter(b"account/", b"account0")]
        except Unavailable:
            continue
        assert len(rows) == ACCOUNTS
        assert sum(int(value) for _, value in rows) == ACCOUNTS * OPENING
        books.snapshots += 1


async def progress(books: Books, workers: list["asyncio.Task[None]"]) -> None:
    """Wait until more transfers and audits went through, so that each event strikes running work."""
    transfers, snapshots = len(books.acknowledged) + 40, books.snapshots + 2
    deadline = SYSTEM.monotonic() + 90
    while len(books.acknowledged) < transfers or books.snapshots < snapshots:
        assert SYSTEM.monotonic() < deadline, "the workload stands still"
        for worker in workers:
            if worker.done():
                worker.result()
        await SYSTEM.sleep(0.02)


async def events(
    store: WarmStore, admin: Admin, client: AsyncClient
) -> list[Callable[[], Awaitable[object]]]:
    async def split() -> None:
        await admin.split([account(int(SYSTEM.random() * ACCOUNTS)), b"ledger/"])

    async def move_leaders() -> None:
        for region in await client.regions():
            await admin.transfer_leader(region.id, 1 + int(SYSTEM.random() * 3))

    async def merge() -> None:
        regions = await client.regions()
        await admin.merge(regions[len(regions) // 2].id)

    async def crash() -> None:
        await asyncio.to_thread(store.kill)
        await asyncio.to_thread(store.restart)

    return [split, move_leaders, crash, split, merge, move_leaders, crash, merge, split, crash]


async def test_money_is_neither_made_nor_lost_while_regions_move_and_the_store_dies(tmp_path: Path) -> None:
    books = Books()
    store = await asyncio.to_thread(WarmStore.start, tmp_path, stores=3)
    try:
        client = await AsyncClient.connect([store.pd_addr])
        async with client.begin() as txn:
            for number in range(ACCOUNTS):
                await txn.put(account(number), b"%d" % OPENING)
        admin = Admin(store.pd_addr)
        workers = [asyncio.ensure_future(work(client, books, number)) for number in range(WORKERS)]
        workers.append(asyncio.ensure_future(audit(client, books)))
        for event in await events(store, admin, client):
            await progress(books, workers)
            await event()
        await progress(books, workers)
        books.stopped = True
        await asyncio.gather(*workers)
        await check(client, books)
        await admin.close()
        await client.close()
    finally:
        await asyncio.to_thread(store.terminate)


async def check(client: AsyncClient, books: Books) -> None:
    snapshot = client.snapshot(await client.timestamp())
    ledger = {key: value async for key, value in snapshot.iter(b"ledger/", b"ledger0")}
    assert books.acknowledged <= ledger.keys(), "an acknowledged transfer is lost"
    assert not books.refused & ledger.keys(), "a refused transfer happened"
    assert ledger.keys() <= books.acknowledged | books.undetermined
    expected = dict.fromkeys(range(ACCOUNTS), OPENING)
    for value in ledger.values():
        source, target, amount = (int(part) for part in value.split())
        expected[source] -= amount
        expected[target] += amount
    balances = {number: int(await snapshot.get(account(number))) for number in range(ACCOUNTS)}
    assert balances == expected
    assert books.snapshots > 10
