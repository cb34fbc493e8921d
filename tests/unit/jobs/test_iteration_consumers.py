"""What a consumer knows and uses."""

import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from penstock.errors import Invalid
from penstock.follow.source import TableScan
from penstock.jobs.consumer import DataRetriever, JobContext
from support.iterationbench import Bench, all_rows, item_bench
from support.jobdoubles import Copy, TaggedSession, consumer_of, job_row
from support.rowcounts import RowCounts


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with item_bench(tmp_path) as made:
        yield made


def _scans(kind: str = "batches") -> float:
    return REGISTRY.get_sample_value("penstock_jobs_scans_total", {"kind": kind}) or 0.0


def test_a_consumer_knows_its_job_and_its_scratch_is_gone_afterwards(bench: Bench) -> None:
    seen: list[JobContext] = []

    def consume(job: JobContext, data: DataRetriever) -> None:
        job.scratch.mkdir(parents=True)
        (job.scratch / "file").write_text("x")
        seen.append(job)
        all_rows(data)

    bench.consumers = {"copy": consumer_of(consume)}
    job = job_row("j", account="shop")
    bench.run(job)
    (context,) = seen
    assert (context.id, context.key, context.account) == (job.id, job.key, "shop")
    assert not context.scratch.exists()
    assert not list((bench.folder / "jobs").iterdir())
    with pytest.raises(Invalid, match="engine: spark"):
        context.spark()


def test_more_data_is_none_however_often_one_asks(bench: Bench) -> None:
    sizes: list[tuple[int, int, bool]] = []

    def consume(_job: JobContext, data: DataRetriever) -> None:
        all_rows(data)
        for _ in range(2):
            inserts, deletes, no_more_data = data.next()
            sizes.append((inserts.num_rows, deletes.num_rows, no_more_data))
            assert inserts.schema.names == [*data.columns.names, "_commit_ts"]

    bench.consumers = {"copy": consumer_of(consume)}
    bench.run(job_row("j"))
    assert sizes == [(0, 0, True), (0, 0, True)]


def test_usage_is_counted_for_the_account(bench: Bench) -> None:
    bench.consumers = {"a": Copy().consumer(), "b": Copy().consumer()}
    counts = RowCounts("local")
    bench.run(job_row("a", "a", account="shop"), job_row("b", "b", account="shop"))
    assert counts.new == {"read": 5, "consume": 10}, "both share what was read"
    assert set(bench.used) == {"shop"}
    assert bench.used["shop"].rows == 10  # what each consumer was given
    assert bench.used["shop"].nbytes > 0
    assert bench.used["shop"].task_seconds > 0


class _Frame:
    columns = ("id", "name", "_commit_ts", "_deleted")

    def __init__(self) -> None:
        self.dataframe = self
        self.rows = 7
        self.selected: list[tuple[str, ...]] = []
        self.released = 0

    def select(self, *names: str) -> "_Frame":
        self.selected.append(names)
        return self

    def release(self) -> None:
        self.released += 1


class _Frames:
    def __init__(self) -> None:
        self.frame = _Frame()
        self.opened: list[Collection[str] | None] = []

    def open(self, _scan: TableScan, columns: Collection[str] | None) -> _Frame:
        self.opened.append(columns)
        return self.frame


def test_consumers_on_executors_share_one_frame_and_the_others_one_scan(bench: Bench) -> None:
    frames, copy, session = _Frames(), Copy(), TaggedSession()
    pools: list[tuple[str, str]] = []

    def enter(account: str) -> TaggedSession:
        pools.append((account, threading.current_thread().name))
        return session

    def consume(job: JobContext, data: DataRetriever) -> None:
        assert data.on_spark
        job.spark()
        data.dataframe()

    bench.options = {"frames": frames, "spark": enter}
    bench.consumers = {"a": consumer_of(consume), "b": consumer_of(consume), "copy": copy.consumer()}
    before = _scans("frame"), _scans("batches")
    on_spark, local = RowCounts("spark"), RowCounts("local")
    again = bench.run(
        job_row("a", "a", account="shop"), job_row("b", "b", account="shop"), job_row("copy", account="shop")
    )
    assert again == []
    assert (_scans("frame") - before[0], _scans("batches") - before[1]) == (1, 1)
    assert on_spark.new == {"consume": 2 * frames.frame.rows}, "the double reads nothing"
    assert local.new["read"] == local.new["consume"], "one job takes batches"
    assert frames.opened == [None]
    assert frames.frame.selected == [("`id`", "`name`", "`_commit_ts`", "`_deleted`")] * 2
    assert frames.frame.released == 1
    assert set(pools) == {("shop", "penstock-job-a"), ("shop", "penstock-job-b")}
    assert len(session.tags) == 2, "each run can be ended by itself"
    assert copy.rows == bench.world.versions.at(bench.world.ts)
    assert {bench.end(name).watermark for name in ("a", "b", "copy")} == {bench.world.ts}


@pytest.mark.parametrize("there_is_spark", [False, True])
def test_the_engine_decides_about_executors_and_no_number_of_rows(bench: Bench, there_is_spark: bool) -> None:
    seen: list[tuple[bool, bool]] = []

    def consume(_job: JobContext, data: DataRetriever) -> None:
        seen.append((data.on_spark, data.large))
        all_rows(data)

    bench.options = {"frames": _Frames()} if there_is_spark else {}
    bench.consumers = {"copy": consumer_of(consume)}
    bench.run(job_row("j"))
    assert seen == [(there_is_spark, there_is_spark)]
