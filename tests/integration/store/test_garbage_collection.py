"""The embedded store collects its own garbage: old versions, and the keys of what was dropped."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import eventloop, metrics
from penstock.clock import SYSTEM, SystemClock
from penstock.errors import Invalid
from penstock.kv import Client
from penstock.settings import KvSettings, StoreSettings, TlsSettings
from penstock.store.cluster import Cluster
from penstock.store.engine import Cf
from penstock.store.mvcc import records
from penstock.tables import Catalog
from penstock.tables.garbage import BOOTSTRAP, DROPPED_RANGES, GarbageCollector
from penstock.tables.keys import meta_string_key, table_prefix
from penstock.tables.meta import MetaReader
from support.certificates import issue
from support.warmstore import WarmStore

LIFE_TIME_S = 600


class TravellingClock(SystemClock):
    """The machine's clock, with a wall time that a test moves ahead."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms

    def travel(self, seconds: float) -> None:
        self.ahead_ms += round(seconds * 1000)


class World:
    """A store whose wall time moves on request, a client of it, and its collector."""

    def __init__(self, cluster: Cluster, client: Client, clock: TravellingClock) -> None:
        self.cluster = cluster
        self.client = client
        self.clock = clock
        self.db = Catalog(client)
        self.collector = GarbageCollector(client, life_time_s=LIFE_TIME_S, clock=clock)

    def put(self, *keys: bytes, value: bytes = b"v") -> int:
        with self.client.begin() as txn:
            for key in keys:
                txn.put(key, value)
        return txn.commit_ts

    def stored(self, cf: Cf, lower: bytes = b"", upper: bytes = b"") -> int:
        """Return how many entries a column family has."""
        return sum(1 for _ in self.cluster.storage.engine.view((cf,)).iterate(cf, lower, upper))

    def keys_of_table(self, table_id: int) -> int:
        """Return how many versions the engine has of a table's rows and index entries, seen or not."""
        prefix = table_prefix(table_id)
        view = self.cluster.storage.engine.view((Cf.WRITE,))
        return sum(records.unescape(versioned).startswith(prefix) for versioned, _ in view.iterate(Cf.WRITE))


@contextmanager
def a_world(data: Path) -> Iterator[World]:
    clock = TravellingClock()
    settings = StoreSettings(data=data, pd_addr="127.0.0.1:0", stores=2, sync=False)
    cluster = eventloop.run(Cluster.start(settings, clock=clock))
    try:
        with Client.connect([cluster.pd_addr], settings=KvSettings(safe_point_refresh_ms=10)) as client:
            yield World(cluster, client, clock)
    finally:
        eventloop.run(cluster.stop())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with a_world(tmp_path / "store") as made:
        yield made


def total(metric: Any) -> float:
    return sum(s.value for family in metric.collect() for s in family.samples if s.name.endswith("_total"))


def test_hours_of_leases_and_checkpoints_stay_bounded(world: World) -> None:
    keys = [b"lease/%d" % number for number in range(4)] + [b"checkpoint/%d" % number for number in range(4)]
    rounds, writes = 18, 60  # three hours in rounds of ten minutes, a write every ten seconds
    largest = 0
    for _ in range(rounds):
        for _ in range(writes):
            world.put(*keys, value=b"x" * 300)  # too long for a version: the value lies beside it
            world.clock.travel(LIFE_TIME_S / writes)
        world.collector.collect()
        largest = max(largest, world.stored(Cf.WRITE), world.stored(Cf.DEFAULT))
    assert largest <= 2 * writes * len(keys)  # of rounds * writes * len(keys)
    assert world.client.snapshot(world.client.timestamp()).get(keys[0]) == b"x" * 300


def test_only_versions_that_no_reader_can_see_are_collected(world: World) -> None:
    first, second = world.put(b"k", value=b"1"), world.put(b"k", value=b"2")
    world.put(b"gone")
    with world.client.begin() as txn:
        txn.delete(b"gone")
    world.clock.travel(LIFE_TIME_S + 60)
    third = world.put(b"k", value=b"3")
    before = total(metrics.STORE_GC_COLLECTED_VERSIONS_TOTAL)
    safe_point = world.collector.collect()
    assert total(metrics.STORE_GC_COLLECTED_VERSIONS_TOTAL) - before == 3  # the first k, and both of gone
    assert second < safe_point < third
    assert world.client.snapshot(safe_point).get(b"k") == b"2"
    assert world.client.snapshot(safe_point).get(b"gone") is None
    with pytest.raises(Invalid, match="safe point of garbage collection"):
        world.client.snapshot(first).get(b"k")


def test_a_service_safe_point_holds_it_back(world: World) -> None:
    first = world.put(b"k", value=b"1")
    pd = world.client._client._session.pd
    eventloop.run(pd.update_service_gc_safe_point("capture", 3600, first))
    world.put(b"k", value=b"2")
    world.clock.travel(LIFE_TIME_S + 60)
    assert world.collector.collect() == first
    assert world.client.snapshot(first).get(b"k") == b"1"
    eventloop.run(pd.update_service_gc_safe_point("capture", 0, 0))
    assert world.collector.collect() > first
    assert world.stored(Cf.WRITE) == 1


def test_keys_of_what_was_dropped_go_after_the_life_time_and_nothing_else_does(world: World) -> None:
    db = world.db
    db.create_database("shop")
    columns = [("id", "bigint primary key"), ("name", "varchar(20)")]
    rows = [{"id": number, "name": "x"} for number in range(50)]
    ids = {}
    for name in ("dropped", "truncated", "kept"):
        ids[name] = db.create_table(f"shop.{name}", columns).id
        db.table(f"shop.{name}").insert(rows)
    db.create_database("old")
    ids["in old"] = db.create_table("old.inside", columns).id
    db.table("old.inside").insert(rows)
    db.drop_table("shop.dropped")
    db.truncate_table("shop.truncated")
    db.drop_database("old")
    world.collector.collect()
    assert all(world.keys_of_table(table_id) >= 50 for table_id in ids.values()), "they can still be read"
    world.clock.travel(LIFE_TIME_S + 60)
    before = total(metrics.STORE_GC_DELETED_RANGES_TOTAL)
    world.collector.collect()
    found = {name: world.keys_of_table(table_id) for name, table_id in ids.items()}
    assert found == {"dropped": 0, "truncated": 0, "in old": 0, "kept": 50}
    assert total(metrics.STORE_GC_DELETED_RANGES_TOTAL) - before == 3
    snapshot = world.client.snapshot(world.client.timestamp())
    assert list(MetaReader(snapshot).fields(DROPPED_RANGES)) == []
    assert sum(batch.num_rows for batch in db.table("shop.kept").scan()) == 50


def test_a_round_that_dies_before_it_forgets_a_range_is_finished_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.db.create_database("shop")
    table_id = world.db.create_table("shop.t", [("id", "bigint primary key")]).id
    world.db.table("shop.t").insert([{"id": 1}])
    world.db.drop_table("shop.t")
    world.clock.travel(LIFE_TIME_S + 60)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Client, "delete_range", die)
        with pytest.raises(KeyboardInterrupt):
            world.collector.collect()
    assert world.keys_of_table(table_id) > 0
    world.collector.collect()
    assert world.keys_of_table(table_id) == 0


def test_garbage_of_a_cluster_with_a_tidb_is_left_to_tidb(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock.tables")
    first = world.put(b"k", value=b"1")
    world.put(b"k", value=b"2")
    world.put(meta_string_key(BOOTSTRAP), value=b"220")
    world.clock.travel(LIFE_TIME_S + 60)
    assert world.collector.collect() == 0
    assert world.collector.collect() == 0
    assert world.client.snapshot(first).get(b"k") == b"1"
    assert [record.getMessage() for record in caplog.records] == [
        "a TiDB runs on this cluster and collects its garbage; the store leaves it to TiDB"
    ]


@pytest.mark.parametrize(("secured", "interval_s"), [(False, 3600), (True, 0.2)])
def test_a_running_store_collects_soon_and_again_without_being_asked(
    tmp_path: Path, secured: bool, interval_s: float
) -> None:
    config = tmp_path / "penstock.yaml"
    config.write_text(
        f"store:\n  gc_life_time_s: 0.2\n  gc_run_interval_s: {interval_s}\n"
        "kv:\n  safe_point_refresh_ms: 10\n"
    )
    arguments, tls = [], None
    if secured:
        ca = issue(tmp_path, "ca")
        server, client = issue(tmp_path, "server", ca), issue(tmp_path, "client", ca)
        tls = TlsSettings(ca_path=ca.cert_path, cert_path=client.cert_path, key_path=client.key_path)
        files = {"--tls-ca": ca.cert_path, "--tls-cert": server.cert_path, "--tls-key": server.key_path}
        arguments = [text for option, path in files.items() for text in (option, str(path))]
    with (
        WarmStore.start(tmp_path / "store", stores=1, config=config, arguments=arguments) as store,
        Client.connect([store.pd_addr], tls=tls, settings=KvSettings(safe_point_refresh_ms=10)) as client,
    ):
        with client.begin() as txn:
            txn.put(b"k", b"1")
        deadline = SYSTEM.monotonic() + 60
        pd = client._client._session.pd
        wanted = txn.commit_ts if interval_s < 1 else 1  # the first round may have been before the commit
        while eventloop.run(pd.get_gc_safe_point()) < wanted:
            assert SYSTEM.monotonic() < deadline, "nothing was collected"
            SYSTEM.pause(0.05)
        assert client.snapshot(client.timestamp()).get(b"k") == b"1"
