"""Copies in each format against a table as a dict.

Iterations are killed at any step, repeated, overtaken by others, made anew. Whatever happens, the copy is the
source at the watermark that it says it has.
"""

import random  # noqa: TID251 - seeded
import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.changes.columns import own_key_names
from penstock.errors import Fenced, Invalid
from penstock.tables import alter
from penstock.tables.define import define_table
from penstock.testing.consumers import ListRetriever, SourceModel, rows_by_key
from support.campaign import examples
from support.lakeworld import Killed, LakeWorld, as_copied

TABLES = {
    "number": define_table(
        "items", [("id", "bigint primary key"), ("_commit_ts", "varchar(99)"), ("_deleted", "decimal(8,2)")]
    ),
    "pair": define_table(
        "items", [("_handle", "varchar(9)"), ("n", "int"), ("doc", "json")], primary_key=["_handle", "n"]
    ),
    "no key": define_table("items", [("name", "varchar(99)"), ("at", "datetime(3)")]),
    "moment": define_table(
        "items", [("at", "datetime(3) primary key"), ("span", "time"), ("small", "tinyint")]
    ),
}


class Copy(RuleBasedStateMachine):
    format = ""

    @initialize(kind=st.sampled_from(sorted(TABLES)), seed=st.integers(0, 2**32))
    def begin(self, kind: str, seed: int) -> None:
        self.mix = random.Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-lake-"))
        self.world = LakeWorld(self.format, self.folder)
        self.source = SourceModel(replace(TABLES[kind], id=1))
        self.source.churn(self.mix, commits=3)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.close()
            shutil.rmtree(self.folder)

    def retriever(self, from_ts: int | None = None) -> ListRetriever:
        begin = self.world.committed_ts() if from_ts is None else from_ts
        size = self.mix.choice([1, 3, 1000])
        return self.source.retriever(
            begin, self.source.ts, batch_rows=size, ends_of_updates=self.mix.random() < 0.5
        )

    @rule(commits=st.integers(1, 5))
    def change(self, commits: int) -> None:
        self.source.churn(self.mix, commits=commits)

    @precondition(lambda self: len(self.source.table.columns) < 6)
    @rule(
        definition=st.sampled_from(
            ["int", "varchar(9) default 'y'", "varchar(9) not null default 'x'", "datetime"]
        )
    )
    def add_a_column(self, definition: str) -> None:
        name = f"more{self.source.table.max_column_id}"
        self.source.alter(alter.add_column(self.source.table, name, definition))

    @precondition(lambda self: any(each.name.startswith("more") for each in self.source.table.columns))
    @rule()
    def drop_a_column(self) -> None:
        gone = next(each.name for each in self.source.table.columns if each.name.startswith("more"))
        self.source.alter(alter.drop_column(self.source.table, gone))

    @precondition(lambda self: any(each.name == "small" for each in self.source.table.columns))
    @rule(wider=st.sampled_from(["smallint", "int", "bigint"]))
    def widen_a_column(self, wider: str) -> None:
        with suppress(Invalid):  # when it is as wide already
            self.source.alter(alter.modify_column(self.source.table, "small", wider))

    @rule()
    def run(self) -> None:
        data = self.retriever()
        consumer = self.world.consumer()
        assert consumer.committed_ts() == data.from_ts
        consumer.consume(data)
        assert self.world.committed_ts() == data.to_ts

    @rule(steps=st.integers(0, 12))
    def run_and_be_killed(self, steps: int) -> None:
        data = self.retriever()
        try:
            self.world.mortal(steps).consume(data)
        except Killed:
            assert self.world.committed_ts() in {data.from_ts, data.to_ts}

    @rule()
    def repeat_what_is_done(self) -> None:
        self.source.churn(self.mix, commits=1)
        data = self.retriever()
        self.world.consumer().consume(data)
        if data.from_ts:
            self.is_fenced(data.again())

    @rule()
    def be_overtaken(self) -> None:
        self.source.churn(self.mix, commits=1)
        slow = self.world.consumer()
        slow.committed_ts()
        data = self.retriever()
        self.world.consumer().consume(data.again())
        try:
            slow.consume(data)
        except Fenced:
            return
        raise AssertionError("both of two writers have committed")

    @precondition(lambda self: self.world.committed_ts() > 0)
    @rule(steps=st.integers(0, 12))
    def make_it_anew(self, steps: int) -> None:
        with suppress(Killed):
            self.world.mortal(steps).consume(self.retriever(0))

    def is_fenced(self, data: ListRetriever) -> None:
        try:
            self.world.consumer().consume(data)
        except Fenced:
            return
        raise AssertionError("a commit was made twice")

    @invariant()
    def the_copy_is_the_source_at_its_watermark(self) -> None:
        if not hasattr(self, "world"):
            return
        ts = self.world.committed_ts()
        if ts == 0:
            return
        expected = as_copied(self.source.at(ts))
        columns = {each.name for each in self.source.versions.table_at(ts).stored_columns}
        table = self.world.table()
        kept = [name for name in table.column_names if name in columns or name == "_handle"]
        keys = own_key_names(self.source.table)
        hidden = "\0" if self.source.table.primary_key else "_handle"
        found = rows_by_key(table.select(kept), keys, hidden=hidden)
        assert found == expected
        self.world.close()


class DeltaCopies(Copy):
    format = "delta"


class IcebergCopies(Copy):
    format = "iceberg"


class ParquetCopies(Copy):
    format = "parquet"


_SETTINGS = settings(max_examples=examples(4, 10), stateful_step_count=12, deadline=None)
TestDelta, TestIceberg, TestParquet = DeltaCopies.TestCase, IcebergCopies.TestCase, ParquetCopies.TestCase
TestDelta.settings = TestIceberg.settings = TestParquet.settings = _SETTINGS
