"""The blocking face: the same behaviour from ordinary threads."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import penstock.kv
from penstock.errors import Conflict, Invalid, KeyExists, LockTimeout, Unavailable, WriteConflict
from penstock.kv import Client, TxnPhase
from penstock.settings import KvSettings


@pytest.fixture
def client(world: Any) -> Iterator[Client]:
    with Client.connect([world.cluster.pd_addr], settings=KvSettings(safe_point_refresh_ms=25)) as client:
        yield client


def test_the_public_names_are_listed_in_order() -> None:
    names = penstock.kv.__all__
    assert names == sorted(names)
    assert all(hasattr(penstock.kv, name) for name in names)


@pytest.mark.parametrize("pessimistic", [False, True])
def test_a_block_commits_or_rolls_back(world: Any, client: Client, pessimistic: bool) -> None:
    with client.begin(pessimistic=pessimistic) as txn:
        txn.put(world.key("a"), b"1")
        txn.insert(world.key("b"), b"2")
        txn.put(world.key("c"), b"3")
        txn.delete(world.key("c"))
        assert txn.get(world.key("a")) == b"1"
    assert txn.commit_ts > txn.start_ts
    assert txn.phase is TxnPhase.COMMITTED
    assert txn.commit_details is not None

    def fail() -> None:
        with client.begin(pessimistic=pessimistic) as txn:
            txn.put(world.key("a"), b"other")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    snapshot = client.snapshot(client.timestamp())
    assert snapshot.batch_get([world.key(name) for name in "abc"]) == {
        world.key("a"): b"1",
        world.key("b"): b"2",
    }
    assert snapshot.get(world.key("c")) is None
    assert client.snapshot(snapshot.ts).ts == snapshot.ts


def test_errors_cross_the_threads_as_they_are(world: Any, client: Client) -> None:
    with client.begin() as txn:
        txn.put(world.key("k"), b"1")
    late = client.begin()
    late.insert(world.key("k"), b"2")
    with pytest.raises(KeyExists):
        late.commit()
    with pytest.raises(Invalid, match="begin another one"):
        late.put(world.key("k"), b"3")
    holder, other = client.begin(pessimistic=True), client.begin(pessimistic=True)
    assert holder.get_for_update(world.key("k")) == b"1"
    with pytest.raises(LockTimeout):
        other.lock_keys([world.key("k")], no_wait=True)
    holder.rollback()
    assert other.lock_keys([world.key("k")], return_values=True) == {world.key("k"): b"1"}
    other.rollback()


def test_rows_come_in_order_from_both_ends_and_in_pages(world: Any, client: Client) -> None:
    keys = [world.key(f"{n:04d}") for n in range(700)]
    with client.begin() as txn:
        for key in keys:
            txn.put(key, b"v")
    low, high = world.prefix, world.prefix + b"\xff"
    with client.begin() as txn:
        txn.delete(keys[0])
        txn.put(keys[1], b"mine")
        assert [key for key, _ in txn.scan(low, high)] == keys[1:]
        assert next(iter(txn.scan(low, high))) == (keys[1], b"mine")
        assert [key for key, _ in txn.scan_reverse(low, high, limit=3)] == keys[:-4:-1]
        txn.rollback()
    snapshot = client.snapshot(client.timestamp())
    assert [key for key, _ in snapshot.iter_reverse(low, high)] == keys[::-1]
    pages = list(snapshot.scan_pages(low, high))
    assert [len(page) for page in pages] == [256, 444]
    # An iterator that is dropped half way holds nothing up.
    rows = snapshot.iter(low, high)
    assert next(rows) == (keys[0], b"v")
    del rows


def test_threads_share_a_client(world: Any, client: Client) -> None:
    def increment(_: int) -> None:
        while True:
            try:
                with client.begin() as txn:
                    value = txn.get(world.key("n"))
                    txn.put(world.key("n"), b"%d" % (int(value or b"0") + 1))
            except Conflict:
                continue
            return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(increment, range(20)))
    assert client.snapshot(client.timestamp()).get(world.key("n")) == b"20"


def test_a_savepoint_undoes_its_writes_only(world: Any, client: Client) -> None:
    with client.begin() as txn:
        txn.put(world.key("a"), b"1")

        def fail() -> None:
            with txn.savepoint():
                txn.put(world.key("a"), b"2")
                txn.put(world.key("b"), b"2")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fail()
        assert txn.batch_get([world.key("a"), world.key("b")]) == {world.key("a"): b"1"}


def test_garbage_collection_keeps_what_readers_at_the_safe_point_see(world: Any, client: Client) -> None:
    for value in (b"1", b"2", b"3"):
        with client.begin() as txn:
            txn.put(world.key("k"), value)
        if value == b"2":
            safe_point = client.timestamp()
    assert client.gc(safe_point) == safe_point
    assert client.snapshot(safe_point).get(world.key("k")) == b"2"
    assert client.snapshot(client.timestamp()).get(world.key("k")) == b"3"
    with pytest.raises(Invalid, match="future"):
        client.gc(client.timestamp() + (1 << 40))


def test_reads_below_the_safe_point_are_refused_by_every_client(world: Any, client: Client) -> None:
    with client.begin() as txn:
        txn.put(world.key("k"), b"1")
    past = client.snapshot(client.timestamp())
    settings = KvSettings(safe_point_refresh_ms=25)
    with Client.connect([world.cluster.pd_addr], settings=settings) as other:
        theirs = other.snapshot(past.ts)
        assert theirs.get(world.key("k")) == b"1"
        with client.begin() as txn:
            txn.delete(world.key("k"))
        client.gc(client.timestamp())
        for reader in (past, other.snapshot(past.ts)):
            with pytest.raises(Invalid, match="older than the safe point"):
                reader.get(world.key("k"))
            with pytest.raises(Invalid, match="older than the safe point"):
                reader.batch_get([world.key("k")])
            with pytest.raises(Invalid, match="older than the safe point"):
                list(reader.iter(world.prefix, world.prefix + b"\xff"))


def test_a_cluster_that_is_not_there_is_named() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        Client.connect(["127.0.0.1:1"])


def test_conflicting_writers_are_told(world: Any, client: Client) -> None:
    one, two = client.begin(), client.begin()
    for txn in (one, two):
        txn.get(world.key("k"))
        txn.put(world.key("k"), b"v")
    one.commit()
    with pytest.raises(WriteConflict):
        two.commit()
