"""A target that was damaged in any way is found out, and is what its source says after a repair."""

import random  # noqa: TID251 - seeded by Hypothesis
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changes.batches import ChangeBatch, ChangesHandle, Hint
from penstock.changes.columns import choose_columns, key_names
from penstock.changes.limits import ReadLimit
from penstock.errors import Fenced, Invalid, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.source import ScanSource, TableScan
from penstock.jobs.consumer import Consumer, DataRetriever, JobContext
from penstock.jobs.job import Job, JobState, JobStatus
from penstock.jobs.spec import JobSpec
from penstock.tables.define import define_table
from penstock.testing.consumers import SourceModel, job_context
from penstock.verify import target
from penstock.verify.target import Verifier
from support.campaign import examples

Row = dict[str, Any]
TABLES = {
    "one key": define_table("items", [("id", "bigint primary key"), ("name", "varchar(20)"), ("n", "int")]),
    "two keys": define_table(
        "items", [("a", "varchar(9)"), ("b", "int"), ("v", "decimal(9,2)")], primary_key=["b", "a"]
    ),
    "no key": define_table("items", [("name", "varchar(20)"), ("n", "double")]),
}


class ModelSource:
    """The part of a ScanSource that is asked here, over a model."""

    def __init__(self, model: SourceModel) -> None:
        self.model = model
        self.scans: list[int] = []

    def scan(self, _table_id: int, from_ts: int, to_ts: int, _limit: ReadLimit) -> TableScan:
        self.scans.append(to_ts)
        schema = self.model.retriever(0, to_ts).schema
        view = cast("Any", None)
        return TableScan(view=view, from_ts=from_ts, to_ts=to_ts, schema=schema, rows=0, nbytes=0)

    def open(
        self,
        scan: TableScan,
        columns: Collection[str] | None,
        *,
        impossible_dates: bool = False,
    ) -> ChangesHandle:
        def batches() -> Iterator[ChangeBatch]:
            for inserts, deletes in self.model.retriever(0, scan.to_ts, batch_rows=3).batches:
                shown = [*(columns or ()), "_commit_ts"]
                yield ChangeBatch(inserts.select(shown), deletes, Hint.SNAPSHOT, scan.schema, scan.to_ts)

        return ChangesHandle(cast("Any", (each for each in batches())))


class Bag(Consumer):
    """A target that is a list of rows; `moves` says how often it is ahead when it is asked for something."""

    def __init__(self, job: JobContext, schema: SchemaVersion, ts: int, moves: int = 0) -> None:
        super().__init__(job)
        self.columns = choose_columns(schema.table, job.info.columns)
        self.keys = key_names(schema.table)
        self.rows: list[Row] = []
        self.ts = ts
        self.moves = moves
        self.commits = 0

    def consume(self, data: DataRetriever) -> None:
        raise NotImplementedError

    def committed_ts(self) -> int | None:
        return self.ts

    def expected(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        assert rows.schema.names == self.columns.names
        return rows

    def present(self, at_ts: int) -> Iterator[pa.RecordBatch]:
        self._check(at_ts)
        yield from pa.Table.from_pylist(self.rows, self.columns).to_batches(max_chunksize=4)

    def repair(self, upserts: pa.Table, deletes: pa.Table, at_ts: int) -> None:
        self._check(at_ts)
        put = {self.key(row): row for row in upserts.to_pylist()}
        gone = {self.key(row) for row in deletes.to_pylist()}
        assert not put.keys() & gone
        there = {self.key(row) for row in self.rows}
        self.rows = [put.get(self.key(row), row) for row in self.rows if self.key(row) not in gone]
        self.rows += [row for key, row in put.items() if key not in there]
        self.commits += 1

    def key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.keys)

    def _check(self, at_ts: int) -> None:
        if self.moves:
            self.moves -= 1
            raise Fenced("the target is elsewhere")
        assert at_ts == self.ts


def a_job(context: JobContext, columns: tuple[str, ...] | None) -> Job:
    spec = JobSpec.parse({"detail": {"consumer": {"consumer": "bag", "columns": columns}}})
    return Job(
        key=context.key,
        id=context.id,
        account="sys",
        spec=spec,
        state=JobState.COMPLETED,
        watermark=0,
        status=JobStatus(),
        create_at=0,
    )


def world(
    folder: Path, kind: str, mix: random.Random, *, columns: tuple[str, ...] | None = None, moves: int = 0
) -> tuple[Bag, Verifier, list[Row]]:
    """A target as it should be, who verifies it, and its rows."""
    model = SourceModel(TABLES[kind])
    at_ts = model.churn(mix, commits=mix.randrange(12), numbers=12)
    context = job_context(folder, "bag", {}, columns=columns)
    data = model.retriever(0, at_ts, columns=columns)
    bag = Bag(context, data.schema, at_ts, moves)
    for inserts, _ in data.batches:
        bag.rows += inserts.select(bag.columns.names).to_pylist()
    model.churn(mix, commits=3)  # the source has gone on
    verifier = Verifier(
        a_job(context, columns),
        bag,
        cast("ScanSource", ModelSource(model)),
        folder / "scratch",
        log_ts=lambda: 0,
        same_ts=lambda ts: ts,
    )
    return bag, verifier, list(bag.rows)


def damage(bag: Bag, mix: random.Random) -> int:
    """Do something to some rows; how many differences that should be."""
    done = 0
    for row in list(bag.rows):
        what = mix.choice(["nothing", "nothing", "lose", "change", "double"])
        other = next(name for name in reversed(bag.columns.names) if name not in bag.keys)
        if what == "lose":
            bag.rows.remove(row)
        elif what == "change":
            bag.rows[bag.rows.index(row)] = {**row, other: None if row[other] is not None else 7}
        elif what == "double":
            bag.rows.append(dict(row))
        done += what != "nothing"
    return done


def shown(rows: list[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(sorted(TABLES)),
    st.integers(0, 1 << 32),
    st.sampled_from([1, 3, 50_000]),
    st.integers(0, 2),
)
def test_a_damaged_target_is_found_out_and_mended(
    tmp_path_factory: pytest.TempPathFactory, kind: str, seed: int, chunk: int, moves: int
) -> None:
    mix = random.Random(seed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(target, "_REPAIR_ROWS", chunk)
        bag, verifier, rows = world(tmp_path_factory.mktemp("repair"), kind, mix)
        done = damage(bag, mix)
        bag.moves = moves
        report = verifier.verify()
        assert (report.counts.total, report.same) == (done, not done)
        assert (report.source_rows, report.target_rows, report.at_ts) == (len(rows), len(bag.rows), bag.ts)
        assert bag.commits == 0, "nothing was changed"
        bag.moves = moves
        assert verifier.repair().counts == report.counts, "what it was before"
        assert shown(bag.rows) == shown(rows)
        assert verifier.verify().same
        before = bag.commits
        verifier.repair()
        assert bag.commits == before, "where nothing is wrong, nothing is done"


def test_rows_that_do_not_belong_there_go(tmp_path: Path) -> None:
    bag, verifier, rows = world(tmp_path, "one key", random.Random(3))
    bag.rows += [{"id": 1000 + number, "name": "x", "n": 1} for number in range(30)]
    bag.rows.append({"id": 1000, "name": "again", "n": 2})
    report = verifier.repair()
    assert (report.counts.extra, report.counts.total) == (31, 31)
    assert len(report.samples["extra"]) == 20, "a sample is bounded"
    assert all(len(digest) == 16 for digest in report.samples["extra"])
    assert shown(bag.rows) == shown(rows)


def test_a_job_of_some_columns_is_compared_in_these(tmp_path: Path) -> None:
    bag, verifier, rows = world(tmp_path, "one key", random.Random(5), columns=("n",))
    assert bag.columns.names == ["id", "n"]
    assert rows
    assert verifier.verify().same
    bag.rows[0] = {**bag.rows[0], "n": 12345}
    assert verifier.repair().counts.different == 1
    assert shown(bag.rows) == shown(rows)


def test_a_target_that_never_rests_is_given_up_with_a_remedy(tmp_path: Path) -> None:
    _, verifier, _ = world(tmp_path, "one key", random.Random(5), moves=100)
    with pytest.raises(Unavailable, match=r"job shop.items/job moved on each time .* pause the job"):
        verifier.verify()


def test_more_damage_than_can_be_mended_asks_for_a_rebuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "_REPAIR_MAX", 0)
    bag, verifier, _ = world(tmp_path, "one key", random.Random(5))
    bag.rows.clear()
    with pytest.raises(
        Invalid, match=r"fill the target anew with `penstock job repair --rebuild shop.items/job`"
    ):
        verifier.repair()


def test_a_job_without_a_first_iteration_has_nothing_to_compare(tmp_path: Path) -> None:
    bag, verifier, _ = world(tmp_path, "one key", random.Random(5))
    bag.ts = 0
    with pytest.raises(Invalid, match="has not finished its first iteration"):
        verifier.verify()


def test_a_consumer_that_cannot_be_compared_says_what_can_be_done(tmp_path: Path) -> None:
    class Blind(Consumer):
        def consume(self, data: DataRetriever) -> None:
            raise NotImplementedError

    context = job_context(tmp_path, "blind", {})
    with pytest.raises(Invalid, match=r"a target of consumer bag cannot be compared; .* --rebuild"):
        Verifier(
            a_job(context, None),
            Blind(context),
            cast("ScanSource", None),
            tmp_path,
            log_ts=lambda: 0,
            same_ts=lambda ts: ts,
        )
