"""Indexes on Lance against a table as a dict.

Commits fail before and after they count, iterations are repeated, overtaken and given up, strangers compact
the dataset and remove its old versions, columns come and go. Whatever happens, the index is the source at the
watermark that it says it has, and finds exactly the rows that have a word.
"""

import random  # noqa: TID251 - seeded
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from lance.dataset import LanceDataset

from penstock.consumers.search_index.consumer import IndexConsumer
from penstock.consumers.search_index.fulltext import Fulltext
from penstock.consumers.search_index.lance_table import ROWS_ONLY, IndexVersion
from penstock.consumers.search_index.query import SearchQuery
from penstock.consumers.search_index.upkeep import Limits
from penstock.consumers.search_index.vector import Vector
from penstock.errors import Fenced
from penstock.tables import alter
from penstock.tables.define import define_table
from penstock.testing.consumers import ListRetriever, SourceModel, job_context, rows_by_key
from support.campaign import examples

TABLES = {
    "number": define_table(
        "items", [("id", "int primary key"), ("name", "varchar(99)"), ("_deleted", "decimal(8,2)")]
    ),
    "pair": define_table(
        "items",
        [("_handle", "varchar(9)"), ("_commit_ts", "bigint"), ("name", "text")],
        primary_key=["_handle", "_commit_ts"],
    ),
    "no key": define_table("items", [("name", "varchar(99)"), ("at", "datetime(3)"), ("took", "time")]),
}
EAGER = Limits(
    rows_min=4,
    changed_share=1.0,
    unindexed_rows=2,
    unindexed_share=0,
    segments=2,
    fragments=3,
    deleted_rows=2,
    versions=6,
)
"""Limits that are reached all the time."""
WORDS = ("river", "turbine", "gate", "ünïcode")


class EagerFulltext(Fulltext):
    @property
    def limits(self) -> Limits:
        return EAGER


class EagerVector(Vector):
    @property
    def limits(self) -> Limits:
        return EAGER


class Killed(Exception):
    """The process ends here."""


@contextmanager
def commits(fault: Callable[[int, str], None]) -> Iterator[None]:
    """Tell a fault before and after each commit which one it is."""
    real = LanceDataset.commit
    done = [0]

    def commit(*args: Any, **rest: Any) -> LanceDataset:
        done[0] += 1
        fault(done[0], "before")
        made = real(*args, **rest)
        fault(done[0], "after")
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LanceDataset, "commit", staticmethod(commit))
        yield


class Target(RuleBasedStateMachine):
    kind: type[IndexConsumer]
    options: dict[str, str]

    @initialize(table=st.sampled_from(sorted(TABLES)), seed=st.integers(0, 2**32))
    def begin(self, table: str, seed: int) -> None:
        self.mix = random.Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-lance-"))
        self.uri = str(self.folder / "index")
        self.context = job_context(self.folder, "index", {"uri": self.uri, "retain": "1ms", **self.options})
        self.source = SourceModel(replace(TABLES[table], id=1))
        self.source.churn(self.mix, commits=3)
        self.log_ts = self.served_ts = 0
        self.columns = 0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def consumer(self) -> IndexConsumer:
        made: Any = self.kind
        consumer: IndexConsumer = made(self.context)
        return consumer

    def iteration(self, *, resync: bool = False) -> ListRetriever:
        """What the runner begins: the log follows the target."""
        from_ts = 0 if resync else self.consumer().committed_ts()
        return self.source.retriever(
            from_ts,
            self.source.ts,
            batch_rows=self.mix.choice([1, 5, 100]),
            ends_of_updates=self.mix.random() < 0.5,
        )

    def consume(self, data: ListRetriever) -> None:
        self.consumer().consume(data)
        self.served_ts = data.to_ts

    @rule(count=st.integers(1, 5))
    def change(self, count: int) -> None:
        self.source.churn(self.mix, commits=count, numbers=12)

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

    @rule(resync=st.booleans(), at=st.integers(1, 3), when=st.sampled_from(["before", "after"]))
    def die(self, resync: bool, at: int, when: str) -> None:
        def fault(number: int, moment: str) -> None:
            if (number, moment) == (at, when):
                raise Killed

        with commits(fault):
            try:
                self.consume(self.iteration(resync=resync))
            except Killed:
                return

    @rule()
    def repeat(self) -> None:
        data = self.iteration()
        again = data.again()
        self.consume(data)
        if data.from_ts and data.from_ts != data.to_ts:
            with pytest.raises(Fenced):
                self.consume(again)

    @rule(columns=st.integers(0, 2))
    def columns_change_and_the_iteration_is_given_up_for_a_shorter_one(self, columns: int) -> None:
        self.source.churn(self.mix, commits=2)
        shorter_ts = self.source.ts
        for _ in range(columns):
            self.add_a_column()
        self.source.churn(self.mix, commits=1)
        data = self.iteration()

        def fault(_: str) -> None:
            raise Killed

        data.fault = fault
        with pytest.raises(Killed):
            self.consume(data)
        from_ts = self.consumer().committed_ts()
        self.consume(self.source.retriever(from_ts, shorter_ts))

    @rule(resync=st.booleans(), place=st.sampled_from(["begin", "next", "commit"]), columns=st.booleans())
    def overtake(self, resync: bool, place: str, columns: bool) -> None:
        """An iteration that was given up after it had looked goes on when another one is through."""
        zombie = self.consumer()
        zombie.committed_ts()
        given_up = self.iteration(resync=resync)
        if columns:
            self.add_a_column()
        self.source.churn(self.mix, commits=2)
        newer = self.iteration(resync=resync)
        begun: list[str] = []

        def meanwhile(*_: object) -> None:
            if not begun:
                begun.append("newer")
                self.consume(newer)

        if place == "begin":
            meanwhile()
        elif place == "next":
            given_up.fault = meanwhile
        with commits(meanwhile if place == "commit" else lambda *_: None), pytest.raises(Fenced):
            zombie.consume(given_up)

    @rule(place=st.sampled_from(["next", "commit"]))
    def a_stranger_compacts(self, place: str) -> None:
        """Somebody who knows nothing of markers, in the middle of an iteration."""
        data = self.iteration()
        begun: list[str] = []

        def meanwhile(*_: object) -> None:
            if not begun and (Path(self.uri) / "_versions").exists():
                begun.append("stranger")
                dataset = lance.dataset(self.uri)
                dataset.optimize.compact_files()
                dataset.cleanup_old_versions(retain_versions=4, error_if_tagged_old_versions=False)

        if place == "next":
            data.fault = meanwhile
        with commits(meanwhile if place == "commit" else lambda *_: None):
            self.consume(data)

    @invariant()
    def the_index_is_the_source_at_its_watermark(self) -> None:
        if not hasattr(self, "folder"):
            return
        consumer = self.consumer()
        serving = consumer.table.serving()
        if serving is None:
            assert not self.served_ts, "an index that was complete is not served any more"
            return
        standing, newest = serving
        assert standing.marker.watermark >= self.served_ts
        assert consumer.committed_ts() == (standing.marker.watermark if newest else 0)
        self.check(consumer, standing)

    def check(self, consumer: IndexConsumer, standing: IndexVersion) -> None:
        raise NotImplementedError

    def rows(self, standing: IndexVersion) -> dict[Any, Any]:
        table = self.source.versions.table_at(standing.marker.watermark)
        keys = [each.name for each in table.primary_key] or ["_handle"]
        there = standing.dataset.to_table(filter=ROWS_ONLY)
        wanted = [
            name for name in there.column_names if name in {*keys, *(each.name for each in table.columns)}
        ]
        return rows_by_key(there.select(wanted), keys, hidden="\0" if table.primary_key else "_handle")

    def found(
        self, consumer: IndexConsumer, standing: IndexVersion, question: SearchQuery
    ) -> list[dict[str, Any]]:
        asked = consumer.scan_arguments(standing, question)
        found: list[dict[str, Any]] = standing.dataset.to_table(
            columns=["name", asked.pop("score")], **asked
        ).to_pylist()
        return found


class FulltextTarget(Target):
    kind = EagerFulltext
    options = {"text_columns": "name"}  # noqa: RUF012 - never changed

    def check(self, consumer: IndexConsumer, standing: IndexVersion) -> None:
        source = self.source.at(standing.marker.watermark)
        assert self.rows(standing) == source
        for word in WORDS:
            found = self.found(consumer, standing, SearchQuery(words=word, k=1000))
            wanted = [row["name"] for row in source.values() if word in (row["name"] or "").split()]
            assert sorted(row["name"] for row in found) == sorted(wanted)


class VectorTarget(Target):
    kind = EagerVector
    options = {"text_columns": "name", "dimension": "8", "index": "hnsw", "partitions": "1"}  # noqa: RUF012 - never changed

    def check(self, consumer: IndexConsumer, standing: IndexVersion) -> None:
        source = self.source.at(standing.marker.watermark)
        assert self.rows(standing) == {key: row for key, row in source.items() if (row["name"] or "").strip()}
        names = {row["name"] for row in source.values() if row["name"] and "river" in row["name"]}
        for name in sorted(names):
            best = self.found(consumer, standing, SearchQuery(words=name, k=1))
            assert best[0]["_distance"] < 1e-5


TestFulltextTarget = FulltextTarget.TestCase
TestFulltextTarget.settings = settings(max_examples=examples(8, 20), stateful_step_count=12, deadline=None)
TestVectorTarget = VectorTarget.TestCase
TestVectorTarget.settings = settings(max_examples=examples(6, 15), stateful_step_count=10, deadline=None)
