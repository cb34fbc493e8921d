"""A target in the key-value store against a table as a dict.

Iterations break off anywhere, are repeated, overtaken and given up. Whatever happens, the log and the target
say the same watermark, and there the target is the source.
"""

import random  # noqa: TID251 - seeded
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from penstock.consumers.kv import KvTable
from penstock.errors import Conflict, Fenced, Unavailable
from penstock.kv import Client, Transaction
from penstock.kv.cluster_ref import ClusterRef
from penstock.settings import Settings
from penstock.tables import Catalog, alter
from penstock.tables.define import define_table
from penstock.testing.consumers import ListRetriever, SourceModel, job_context
from support.campaign import examples
from support.warmstore import WarmStore

TABLES = {
    "number": define_table(
        "items", [("id", "bigint primary key"), ("_commit_ts", "varchar(99)"), ("_deleted", "decimal(8,2)")]
    ),
    "pair": define_table(
        "items", [("_handle", "varchar(9)"), ("n", "int"), ("doc", "json")], primary_key=["_handle", "n"]
    ),
    "no key": define_table("items", [("name", "varchar(99)"), ("at", "datetime(3)")]),
}
_databases = count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with WarmStore.start(tmp_path_factory.mktemp("kvcrash") / "store", stores=1) as store:
        found = Settings(pd_addrs=(store.pd_addr,))
        yield found
        ClusterRef.of(found).close()


class Target(RuleBasedStateMachine):
    cluster: Settings

    @initialize(kind=st.sampled_from(sorted(TABLES)), seed=st.integers(0, 2**32))
    def begin(self, kind: str, seed: int) -> None:
        self.mix = random.Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-kv-"))
        self.client: Client = ClusterRef.of(self.cluster).client()
        self.db = Catalog(self.client)
        self.database = f"copies{next(_databases)}"
        self.db.create_database(self.database)
        self.log_key = f"test/log/{self.database}".encode()
        options = {"table": f"{self.database}.items"}
        self.context = job_context(self.folder, "kv", options, settings=self.cluster)
        self.source = SourceModel(replace(TABLES[kind], id=1))
        self.source.churn(self.mix, commits=3)
        self.columns = 0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)
            self.db.drop_database(self.database)

    def log_ts(self) -> int:
        return int(self.client.snapshot(self.client.timestamp()).get(self.log_key) or 0)

    def iteration(self, *, resync: bool = False) -> ListRetriever:
        """What the runner begins, with a log that only this iteration may move."""
        from_ts = self.log_ts()
        data = self.source.retriever(
            0 if resync else from_ts,
            self.source.ts,
            batch_rows=self.mix.choice([1, 5, 100]),
            ends_of_updates=self.mix.random() < 0.5,
        )

        def update_watermark(txn: Transaction) -> None:
            data.fault("update_watermark")
            if int(txn.get_for_update(self.log_key) or 0) != from_ts:
                raise Fenced("the log is elsewhere")
            txn.put(self.log_key, str(data.to_ts).encode())
            data.fault("commit")

        data.update_watermark = update_watermark  # type: ignore[method-assign]
        return data

    def consume(self, data: ListRetriever) -> None:
        KvTable(self.context).consume(data)

    @rule(commits=st.integers(1, 5))
    def change(self, commits: int) -> None:
        self.source.churn(self.mix, commits=commits, numbers=12)

    @rule()
    def add_a_column(self) -> None:
        self.columns += 1
        default = self.mix.choice(["", " default 'old'", " not null default 'older'"])
        self.source.alter(alter.add_column(self.source.table, f"c{self.columns}", f"varchar(9){default}"))

    @rule()
    def drop_a_column(self) -> None:
        names = [each.name for each in self.source.table.columns if each.name.startswith("c")]
        if names:
            self.source.alter(alter.drop_column(self.source.table, self.mix.choice(names)))

    @rule(resync=st.booleans())
    def go_on(self, resync: bool) -> None:
        self.consume(self.iteration(resync=resync))

    @rule(resync=st.booleans(), steps=st.integers(0, 6))
    def break_off(self, resync: bool, steps: int) -> None:
        data = self.iteration(resync=resync)
        left = iter(range(steps))

        def fault(_: str) -> None:
            if next(left, None) is None:
                raise Unavailable("the process ended")

        data.fault = fault
        try:
            self.consume(data)
        except Unavailable:
            if not data.from_ts:  # what a first sync has begun, only another one ends
                self.consume(self.iteration(resync=True))

    @rule()
    def repeat(self) -> None:
        data = self.iteration()
        again = data.again()
        self.consume(data)
        if data.from_ts and data.from_ts != data.to_ts:
            with pytest.raises(Fenced):
                self.consume(again)

    @rule(resync=st.booleans(), steps=st.integers(0, 6))
    def overtake(self, resync: bool, steps: int) -> None:
        """An iteration that was given up goes on, anywhere, when another one is through."""
        given_up = self.iteration(resync=resync)
        self.source.churn(self.mix, commits=2)
        newer = self.iteration(resync=resync)
        left = iter(range(steps))

        def meanwhile(_: str) -> None:
            if next(left, None) is None:
                given_up.fault = lambda _: None
                self.consume(newer)

        given_up.fault = meanwhile
        try:
            self.consume(given_up)
        except (Fenced, Conflict):  # a conflict, when both were about to commit
            pass
        else:
            assert given_up.fault is meanwhile, "an iteration was committed that had been given up"

    @invariant()
    def target_is_the_source_at_the_watermark_of_the_log(self) -> None:
        if not hasattr(self, "source"):
            return
        ts = self.log_ts()
        assert KvTable(self.context).committed_ts() == ts
        if ts:
            assert self.rows(ts) == self.source.at(ts)

    def rows(self, ts: int) -> dict[Any, Any]:
        table = self.source.versions.table_at(ts)
        keys = [each.name for each in table.primary_key] or ["source_handle"]
        names = [each.name for each in table.columns]
        found = self.db.table(f"{self.database}.items").to_arrow().to_pylist()
        return {tuple(row[key] for key in keys): {name: row[name] for name in names} for row in found}


@pytest.mark.timeout(600)
def test_a_target_is_the_source_at_its_watermark(cluster: Settings) -> None:
    machine = type("Target", (Target,), {"cluster": cluster})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples(12), stateful_step_count=12, deadline=None)
    )
