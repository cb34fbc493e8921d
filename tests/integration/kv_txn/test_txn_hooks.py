"""Schema checks, amendments and binlogs inside a commit; local latches around it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.errors import Aborted, Conflict, Unavailable, WriteConflict
from penstock.kv.protocol import Write

PROTOCOLS = ["1pc", "2pc", "async-commit"]


@dataclass
class Schema:
    """A schema that changed as often as told, and what must be written then."""

    changes: int = 0
    extra: Sequence[Write] | None = None
    calls: list[str] = field(default_factory=list)

    async def check(self, since_ts: int, until_ts: int) -> bool:
        assert since_ts <= until_ts
        self.calls.append("check")
        if self.changes:
            self.changes -= 1
            return False
        return True

    async def amend(self, since_ts: int, until_ts: int, writes: Sequence[Write]) -> Sequence[Write] | None:
        self.calls.append("amend")
        return self.extra


@dataclass
class Binlog:
    failing: bool = False
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    async def prewrite(self, start_ts: int, primary: bytes, writes: Sequence[Write]) -> None:
        self.calls.append(("prewrite", start_ts, primary, list(writes)))
        if self.failing:
            raise Unavailable("the log is full")

    async def commit(self, start_ts: int, commit_ts: int) -> None:
        self.calls.append(("commit", start_ts, commit_ts))
        self.finished.set()

    async def skip(self, start_ts: int) -> None:
        self.calls.append(("skip", start_ts))
        self.finished.set()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_unchanged_schema_lets_every_protocol_pass(world: Any, protocol: str) -> None:
    async with world.client() as client:
        schema = Schema()
        async with client.begin(schema=schema, **world.options(protocol)) as txn:
            await txn.put(world.key("k"), b"1")
        assert txn.commit_details.protocol == protocol
        assert schema.calls == ["check"]


@pytest.mark.parametrize("pessimistic", [False, True])
async def test_a_changed_schema_ends_a_commit_that_cannot_be_amended(world: Any, pessimistic: bool) -> None:
    async with world.client() as client:
        txn = client.begin(schema=Schema(changes=2), pessimistic=pessimistic)
        await txn.put(world.key("k"), b"1")
        with pytest.raises(Aborted, match="schema changed"):
            await txn.commit()
        assert txn.commit_details.fell_back_from == "1pc"
        assert await world.read(client, "k") == [None]
        await world.wait_until_unlocked(client)


async def test_a_pessimistic_commit_is_amended(world: Any) -> None:
    async with world.client() as client:
        await world.write(client, "index/old")
        schema = Schema(changes=1, extra=[(world.key("index/1"), b"1"), (world.key("index/old"), None)])
        async with client.begin(schema=schema, pessimistic=True, **world.options("2pc")) as txn:
            await txn.put(world.key("k"), b"1")
        assert schema.calls == ["check", "amend", "check"]
        assert txn.commit_details.amended_keys == 2
        assert await world.read(client, "k", "index/1", "index/old") == [b"1", b"1", None]
        await world.wait_until_unlocked(client)


async def test_a_schema_that_changes_again_after_the_amendment_ends_the_commit(world: Any) -> None:
    async with world.client() as client:
        schema = Schema(changes=2, extra=[(world.key("index"), b"1")])
        txn = client.begin(schema=schema, pessimistic=True, **world.options("2pc"))
        await txn.put(world.key("k"), b"1")
        with pytest.raises(Conflict):
            await txn.commit()
        await world.wait_until_unlocked(client)
        assert await world.read(client, "k", "index") == [None, None]


async def test_a_binlog_is_prewritten_before_the_commit_and_told_the_outcome(world: Any) -> None:
    async with world.client() as client:
        await world.write(client, "gone")
        binlog = Binlog()
        async with client.begin(binlog=binlog) as txn:
            await txn.put(world.key("a"), b"1")
            await txn.delete(world.key("gone"))
        assert txn.commit_details.protocol == "2pc"
        await asyncio.wait_for(binlog.finished.wait(), 5)
        start_ts = await txn.start_ts
        writes = [(world.key("a"), b"1"), (world.key("gone"), None)]
        assert binlog.calls == [
            ("prewrite", start_ts, world.key("a"), writes),
            ("commit", start_ts, txn.commit_ts),
        ]


async def test_a_binlog_that_fails_rolls_back(world: Any) -> None:
    async with world.client() as client:
        binlog = Binlog(failing=True)
        txn = client.begin(binlog=binlog)
        await txn.put(world.key("a"), b"1")
        with pytest.raises(Unavailable, match="log is full"):
            await txn.commit()
        await asyncio.wait_for(binlog.finished.wait(), 5)
        assert [call[0] for call in binlog.calls] == ["prewrite", "skip"]
        await world.wait_until_unlocked(client)
        assert await world.read(client, "a") == [None]


async def test_a_conflict_skips_the_binlog(world: Any) -> None:
    async with world.client() as client:
        binlog = Binlog()
        txn = client.begin(binlog=binlog)
        await txn.get(world.key("a"))
        await world.write(client, "a")
        await txn.put(world.key("a"), b"1")
        with pytest.raises(WriteConflict):
            await txn.commit()
        await asyncio.wait_for(binlog.finished.wait(), 5)
        assert binlog.calls[-1] == ("skip", await txn.start_ts)


async def test_local_latches_settle_conflicts_without_the_store(world: Any) -> None:
    async with world.client(local_latches=64) as client:
        stale = client.begin()
        await stale.get(world.key("k"))
        await world.write(client, "k")
        await stale.put(world.key("k"), b"stale")
        world.faults(world.fault("SERVER_IS_BUSY", "KvPrewrite"))
        with pytest.raises(WriteConflict, match="local latch"):
            await stale.commit()
        world.faults()

        async def increment() -> None:
            while True:
                try:
                    async with client.begin() as txn:
                        value = await txn.get(world.key("n"))
                        await txn.put(world.key("n"), b"%d" % (int(value or b"0") + 1))
                except WriteConflict:
                    continue
                return

        await asyncio.gather(*(increment() for _ in range(10)))
        assert await world.read(client, "n") == [b"10"]
