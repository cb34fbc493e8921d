"""Interleaved transactions on a real store, step by step against a dictionary of versions."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    rule,
    run_state_machine_as_test,
)

from penstock import eventloop
from penstock.errors import KeyExists, WriteConflict
from penstock.kv import Client
from penstock.kv.blocking import Transaction
from penstock.settings import StoreSettings
from penstock.store.cluster import Cluster
from support.campaign import examples

KEYS = [b"%02d" % number for number in range(8)]
PROTOCOLS = {
    "1pc": {"one_pc": True, "async_commit": True},
    "async": {"one_pc": False, "async_commit": True},
    "2pc": {"one_pc": False, "async_commit": False},
}
keys = st.sampled_from(KEYS)
values = st.binary(min_size=1, max_size=300)
worlds = itertools.count()


@dataclass
class Model:
    """Every version of every key: (commit_ts, value or None)."""

    versions: dict[bytes, list[tuple[int, bytes | None]]] = field(default_factory=dict)

    def get(self, key: bytes, ts: int) -> bytes | None:
        return next((value for at, value in reversed(self.versions.get(key, [])) if at <= ts), None)

    def changed_after(self, key: bytes, ts: int) -> bool:
        return any(at > ts for at, _ in self.versions.get(key, []))


@dataclass
class Open:
    """A running transaction and what it wrote itself."""

    txn: Transaction
    writes: dict[bytes, bytes | None] = field(default_factory=dict)
    inserts: set[bytes] = field(default_factory=set)

    def view(self, model: Model) -> dict[bytes, bytes]:
        merged = {key: model.get(key, self.txn.start_ts) for key in KEYS} | self.writes
        return {key: value for key, value in sorted(merged.items()) if value is not None}


class Transactions(RuleBasedStateMachine):
    """Snapshot isolation: reads at the start, own writes first, first committer wins."""

    client: Client
    cluster: Cluster
    running = Bundle("running")

    @initialize()
    def open_world(self) -> None:
        self.prefix = b"world/%06d/" % next(worlds)
        self.model = Model()

    def key(self, key: bytes) -> bytes:
        return self.prefix + key

    @rule(target=running, protocol=st.sampled_from(sorted(PROTOCOLS)))
    def begin(self, protocol: str) -> Open:
        txn = self.client.begin(**PROTOCOLS[protocol])
        assert txn.start_ts > 0
        return Open(txn)

    @rule(running=running, key=keys, value=values)
    def put(self, running: Open, key: bytes, value: bytes) -> None:
        running.txn.put(self.key(key), value)
        running.writes[key] = value

    @rule(running=running, key=keys, value=values)
    def insert(self, running: Open, key: bytes, value: bytes) -> None:
        if key not in running.writes:
            running.txn.insert(self.key(key), value)
            running.writes[key] = value
            running.inserts.add(key)

    @rule(running=running, key=keys)
    def delete(self, running: Open, key: bytes) -> None:
        if key not in running.inserts:
            running.txn.delete(self.key(key))
            running.writes[key] = None

    @rule(running=running, key=keys)
    def get(self, running: Open, key: bytes) -> None:
        assert running.txn.get(self.key(key)) == running.view(self.model).get(key)

    @rule(running=running, wanted=st.sets(keys, min_size=1))
    def batch_get(self, running: Open, wanted: set[bytes]) -> None:
        found = running.txn.batch_get([self.key(key) for key in wanted])
        expected = {self.key(k): v for k, v in running.view(self.model).items() if k in wanted}
        assert found == expected

    @rule(running=running, bounds=st.tuples(keys, keys), reverse=st.booleans())
    def scan(self, running: Open, bounds: tuple[bytes, bytes], reverse: bool) -> None:
        low, high = (self.key(bound) for bound in sorted(bounds))
        expected = [
            (self.key(k), v) for k, v in running.view(self.model).items() if low <= self.key(k) < high
        ]
        if reverse:
            assert list(running.txn.scan_reverse(low, high)) == expected[::-1]
        else:
            assert list(running.txn.scan(low, high)) == expected

    @rule(running=consumes(running))
    def commit(self, running: Open) -> None:
        start_ts = running.txn.start_ts
        conflict = any(self.model.changed_after(key, start_ts) for key in running.writes)
        exists = any(self.model.get(key, start_ts) is not None for key in running.inserts)
        if conflict or exists:
            allowed = ((WriteConflict,) if conflict else ()) + ((KeyExists,) if exists else ())
            with pytest.raises(allowed):
                running.txn.commit()
            return
        running.txn.commit()
        if not running.writes:
            return
        commit_ts = running.txn.commit_ts
        assert commit_ts > start_ts
        for key, value in running.writes.items():
            history = self.model.versions.setdefault(key, [])
            assert not history or history[-1][0] < commit_ts
            history.append((commit_ts, value))

    @rule(running=consumes(running))
    def rollback(self, running: Open) -> None:
        running.txn.rollback()

    @rule(key=keys)
    def split(self, key: bytes) -> None:
        eventloop.run(self.cluster.split_at([self.key(key)]))

    @rule(data=st.data())
    def read_the_past(self, data: st.DataObject) -> None:
        stamps = sorted({ts for history in self.model.versions.values() for ts, _ in history})
        if stamps:
            ts = data.draw(st.sampled_from(stamps)) - data.draw(st.sampled_from([0, 1]))
            snapshot = self.client.snapshot(ts)
            seen = dict(snapshot.iter(self.key(b""), self.key(b"\xff")))
            assert seen == {self.key(k): v for k in KEYS if (v := self.model.get(k, ts)) is not None}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    data = tmp_path_factory.mktemp("store")
    cluster = eventloop.run(
        Cluster.start(StoreSettings(data=data, pd_addr="127.0.0.1:0", stores=3, sync=False))
    )
    Transactions.cluster = cluster
    Transactions.client = Client.connect([cluster.pd_addr])
    yield
    Transactions.client.close()
    eventloop.run(cluster.stop())


def test_interleaved_transactions_are_snapshot_isolated(world: None) -> None:
    run_state_machine_as_test(
        Transactions,
        settings=settings(
            max_examples=examples(60),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
