"""An unmodified client written in Rust, as PyPI has it, against a store in a process of its own."""

import asyncio
from collections.abc import Iterator

import pytest

from penstock import eventloop
from penstock.testing.store import Admin
from support.warmstore import WarmStore

tikv_client = pytest.importorskip("tikv_client", reason="it has no wheel for this version of Python")
RawClient, TransactionClient = tikv_client.RawClient, tikv_client.TransactionClient
asynchronous = tikv_client.asynchronous


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmStore]:
    with WarmStore.start(tmp_path_factory.mktemp("rust") / "data", stores=3) as process:
        yield process


@pytest.fixture(autouse=True)
def _loop_of_the_blocking_client() -> Iterator[None]:
    """The client runs each call on its thread's loop, and closes none."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
    asyncio.set_event_loop(None)


def read_all(client: TransactionClient, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
    snapshot = client.snapshot(client.current_timestamp(), pessimistic=False)
    pairs: list[tuple[bytes, bytes]] = snapshot.scan(start, end=end, limit=10_000)
    return pairs


def test_transactions_commit_and_roll_back(store: WarmStore) -> None:
    client = TransactionClient.connect([store.pd_addr])
    txn = client.begin(pessimistic=False)
    txn.put(b"rust/a", b"1")
    txn.put(b"rust/b", b"2")
    txn.commit()
    undone = client.begin(pessimistic=False)
    undone.delete(b"rust/a")
    undone.rollback()
    assert read_all(client, b"rust/", b"rust0") == [(b"rust/a", b"1"), (b"rust/b", b"2")]


def test_pessimistic_transactions_lose_no_update(store: WarmStore) -> None:
    async def increment(client: asynchronous.TransactionClient) -> None:
        for _ in range(50):
            txn = await client.begin(pessimistic=True)
            try:
                value = int(await txn.get_for_update(b"counter"))
                await txn.put(b"counter", b"%d" % (value + 1))
                await txn.commit()
            except Exception as error:
                await txn.rollback()
                if "conflict" not in str(error).lower():  # the client has one class for everything
                    raise
            else:
                return
        raise AssertionError("no increment in 50 attempts")

    async def count() -> bytes:
        client = await asynchronous.TransactionClient.connect([store.pd_addr])
        setup = await client.begin(pessimistic=False)
        await setup.put(b"counter", b"0")
        await setup.commit()
        await asyncio.gather(*(increment(client) for _ in range(12)))
        snapshot = client.snapshot(await client.current_timestamp(), pessimistic=False)
        counted: bytes = await snapshot.get(b"counter")
        return counted

    assert asyncio.run(count()) == b"12"


def test_of_two_optimistic_writers_one_wins(store: WarmStore) -> None:
    client = TransactionClient.connect([store.pd_addr])
    first, second = client.begin(pessimistic=False), client.begin(pessimistic=False)
    first.put(b"contested", b"first")
    second.put(b"contested", b"second")
    first.commit()
    with pytest.raises(Exception, match=r"(?i)conflict"):
        second.commit()
    assert read_all(client, b"contested", b"contestee") == [(b"contested", b"first")]


def test_scans_cross_regions_that_were_split_under_the_client(store: WarmStore) -> None:
    client = TransactionClient.connect([store.pd_addr])
    txn = client.begin(pessimistic=False)
    rows = [(b"row/%03d" % i, b"%d" % i) for i in range(300)]
    for key, value in rows:
        txn.put(key, value)
    txn.commit()
    assert read_all(client, b"row/", b"row0") == rows
    admin = Admin(store.pd_addr)
    parts = eventloop.run(admin.split([b"row/100", b"row/200"]))
    other = next(peer.store_id for peer in parts[0].peers)
    eventloop.run(admin.transfer_leader(parts[1].id, other))
    eventloop.run(admin.close())
    assert read_all(client, b"row/", b"row0") == rows
    across = client.begin(pessimistic=False)
    for i in (50, 150, 250):
        across.put(b"row/%03d" % i, b"changed")
    across.commit()
    changed = [key for key, value in read_all(client, b"row/", b"row0") if value == b"changed"]
    assert changed == [b"row/050", b"row/150", b"row/250"]


def test_raw_keys(store: WarmStore) -> None:
    client = RawClient.connect([store.pd_addr])
    client.batch_put({b"raw/%d" % i: b"%d" % i for i in range(5)})
    client.put(b"raw/1", b"one")
    assert client.get(b"raw/1") == b"one"
    assert client.get(b"raw/none") is None
    assert client.batch_get([b"raw/0", b"raw/none"]) == [(b"raw/0", b"0")]
    found = client.scan(b"raw/1", end=b"raw/4", limit=10, include_start=True, include_end=False)
    assert [key for key, _ in found] == [b"raw/1", b"raw/2", b"raw/3"]
    client.delete(b"raw/0")
    client.delete_range(b"raw/2", end=b"raw/4", include_start=True, include_end=False)
    left = client.scan(b"raw/", end=b"raw0", limit=10, include_start=True, include_end=False)
    assert [key for key, _ in left] == [b"raw/1", b"raw/4"]


def test_the_asynchronous_client(store: WarmStore) -> None:
    async def use() -> None:
        client = await asynchronous.TransactionClient.connect([store.pd_addr])

        async def write(name: bytes) -> None:
            txn = await client.begin(pessimistic=False)
            await txn.put(b"async/" + name, name)
            await txn.commit()

        await asyncio.gather(*(write(b"%02d" % i) for i in range(20)))
        snapshot = client.snapshot(await client.current_timestamp(), pessimistic=False)
        assert await snapshot.get(b"async/07") == b"07"
        assert len(await snapshot.scan(b"async/", end=b"async0", limit=100)) == 20
        raw = await asynchronous.RawClient.connect([store.pd_addr])
        await raw.put(b"raw/async", b"1")
        assert await raw.get(b"raw/async") == b"1"

    asyncio.run(use())


def test_a_client_survives_a_crash_of_the_store(store: WarmStore) -> None:
    client = TransactionClient.connect([store.pd_addr])
    txn = client.begin(pessimistic=False)
    txn.put(b"durable", b"1")
    txn.commit()
    store.kill()
    store.restart()
    again = TransactionClient.connect([store.pd_addr])
    assert read_all(again, b"durable", b"durablf") == [(b"durable", b"1")]
