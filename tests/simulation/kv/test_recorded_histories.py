"""Concurrent transactions against the embedded store, recorded and checked for snapshot isolation."""

import asyncio
import itertools
from pathlib import Path

import pytest

from penstock.clock import SYSTEM
from penstock.errors import Conflict, Unavailable, Undetermined
from penstock.kv import AsyncClient
from penstock.settings import StoreSettings
from penstock.store.cluster import Cluster
from penstock.testing.store import Admin
from support.histories import Outcome, Transaction, check

KEYS = [b"list/%d" % number for number in range(12)]
CALLERS = 12
TRANSACTIONS = 60


def names_of(value: bytes | None) -> tuple[str, ...]:
    return tuple(value.decode().split()) if value else ()


def some(keys: list[bytes], count: int) -> list[bytes]:
    return sorted(keys, key=lambda _: SYSTEM.random())[:count]


async def one(client: AsyncClient, name: str, protocol: dict[str, bool], *, pessimistic: bool) -> Transaction:
    reads, writes = some(KEYS, 3), some(KEYS, 2)
    txn = client.begin(pessimistic=pessimistic, **protocol)
    seen: dict[bytes, tuple[str, ...]] = {}
    outcome = Outcome.ABORTED
    try:
        async with txn:
            if pessimistic:
                await txn.lock_keys(sorted(writes))
            for key in reads:
                if not pessimistic or key in writes:
                    seen[key] = names_of(await txn.get(key))
            for key in writes:
                names = seen[key] if key in seen else names_of(await txn.get(key))
                await txn.put(key, " ".join((*names, name)).encode())
        outcome = Outcome.COMMITTED
    except Undetermined:
        outcome = Outcome.UNKNOWN
    except (Conflict, Unavailable):
        pass
    return Transaction(
        name=name,
        start_ts=await txn.start_ts,
        commit_ts=txn.commit_ts if outcome is Outcome.COMMITTED else 0,
        outcome=outcome,
        reads=seen,
        writes=frozenset(writes),
        locked=pessimistic,
    )


async def disturb(admin: Admin, client: AsyncClient) -> None:
    """Split, move and merge regions under the running transactions, until cancelled."""
    for turn in itertools.count():
        regions = await client.regions()
        if turn % 3 == 0 and len(regions) < 6:
            await admin.split([KEYS[int(SYSTEM.random() * len(KEYS))]])
        elif turn % 3 == 1:
            await admin.transfer_leader(
                regions[int(SYSTEM.random() * len(regions))].id, 1 + int(SYSTEM.random() * 3)
            )
        elif len(regions) > 2:
            await admin.merge(regions[1].id)
        await SYSTEM.sleep(0.05)


@pytest.mark.parametrize("faults", [False, True], ids=["moving regions", "moving regions and failing calls"])
async def test_recorded_histories_are_snapshot_isolated(tmp_path: Path, faults: bool) -> None:
    settings = StoreSettings(data=tmp_path, pd_addr="127.0.0.1:0", stores=3, sync=False, faults=True)
    cluster = await Cluster.start(settings)
    client = await AsyncClient.connect([cluster.pd_addr])
    admin = Admin(cluster.pd_addr)
    names = (f"t{number}" for number in itertools.count())
    protocols = itertools.cycle(
        [
            {"one_pc": True, "async_commit": True},
            {"one_pc": False, "async_commit": True},
            {"one_pc": False, "async_commit": False},
        ]
    )

    async def caller(number: int) -> list[Transaction]:
        return [
            await one(client, next(names), next(protocols), pessimistic=number % 3 == 0)
            for _ in range(TRANSACTIONS)
        ]

    if faults:
        await admin.set_faults(
            [
                admin.fault("UNDETERMINED", method="KvPrewrite", skip=20, times=6),
                admin.fault("UNDETERMINED", method="KvCommit", skip=20, times=6),
                admin.fault("NOT_LEADER", method="KvPrewrite", skip=60, times=10),
                admin.fault("UNAVAILABLE", method="KvPessimisticLock", skip=20, times=5),
                admin.fault("STALE_COMMAND", method="KvGet", skip=50, times=10),
            ]
        )
    try:
        disturbance = asyncio.ensure_future(disturb(admin, client))
        histories = await asyncio.gather(*(caller(number) for number in range(CALLERS)))
        disturbance.cancel()
        snapshot = client.snapshot(await client.timestamp())
        final = {key: names_of(await snapshot.get(key)) for key in KEYS}
    finally:
        await admin.close()
        await client.close()
        await cluster.stop()
    history = list(itertools.chain.from_iterable(histories))
    assert check(history, final) == []
    assert sum(t.outcome is Outcome.COMMITTED for t in history) > TRANSACTIONS
