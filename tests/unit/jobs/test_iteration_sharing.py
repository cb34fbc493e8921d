"""Jobs of one iteration share a scan."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from penstock.jobs.job import JobState
from support.itemtables import item, item_table
from support.iterationbench import Bench, item_bench
from support.jobdoubles import Copy, WorldSource, job_row
from support.tableworld import TableWorld


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with item_bench(tmp_path) as made:
        yield made


def _scans(kind: str = "batches") -> float:
    return REGISTRY.get_sample_value("penstock_jobs_scans_total", {"kind": kind}) or 0.0


def test_many_consumers_share_one_scan_and_each_has_all_rows(bench: Bench) -> None:
    copies = {f"copy{number}": Copy() for number in range(8)}
    bench.consumers = {name: copy.consumer() for name, copy in copies.items()}
    before = _scans()
    assert bench.run(*(job_row(name, name) for name in copies)) == []
    assert _scans() - before == 1
    assert len(bench.source.opens) == 1
    for name, copy in copies.items():
        assert copy.rows == bench.world.versions.at(bench.world.ts)
        assert bench.end(name).watermark == copy.ts == bench.world.ts
        assert bench.log.states(name) == [JobState.RUNNING, JobState.COMPLETED]


def test_first_syncs_that_begin_together_are_one_scan(bench: Bench) -> None:
    bench.consumers = {"a": Copy().consumer(), "b": Copy().consumer()}
    bench.run(job_row("a", "a"), job_row("b", "b"))
    assert [scan.from_ts for scan in bench.source.scans] == [0]
    assert {bench.end(name).watermark for name in "ab"} == {bench.world.ts}


def test_a_tail_has_the_changes_since_and_moves_the_watermark_to_its_end(bench: Bench) -> None:
    copy = Copy()
    bench.consumers = {"copy": copy.consumer()}
    bench.run(job_row("j"))
    first = bench.end("j")
    bench.world.commit(item("integer", 1, "changed"), delete=[(2,)])
    bench.run(first, from_ts=first.watermark)
    second = bench.end("j")
    assert copy.rows == bench.world.versions.at(bench.world.ts)
    assert copy.commits == [first.watermark, second.watermark]
    assert (second.status.from_ts, second.status.to_ts) == (first.watermark, second.watermark)
    assert bench.source.scans[-1].from_ts == first.watermark  # nothing is skipped, nothing repeated


def test_a_range_without_changes_still_ends(bench: Bench) -> None:
    copy = Copy()
    bench.consumers = {"copy": copy.consumer()}
    bench.run(job_row("j"))
    bench.world.tick(1000)
    bench.run(bench.end("j"), from_ts=copy.ts)
    assert bench.end("j").watermark == bench.world.ts == copy.ts


def test_caps_end_an_iteration_early_for_all_of_its_jobs(bench: Bench) -> None:
    copies = Copy(), Copy()
    bench.consumers = {"a": copies[0].consumer(), "b": copies[1].consumer()}
    jobs = [job_row("a", "a", detail={"rows_max": 3}), job_row("b", "b")]
    bench.run(*jobs)
    done = [bench.end("a"), bench.end("b")]
    from_ts = bench.world.ts
    for number in range(10):
        bench.world.commit(item("integer", 100 + number, "more"))
    bench.run(*done, from_ts=from_ts)
    assert bench.end("a").watermark == bench.end("b").watermark < bench.world.ts
    assert [len(copy.rows) for copy in copies] == [8, 8]
    assert bench.end("a").status.to_ts == copies[0].ts


def test_a_large_transaction_is_taken_whole_and_in_order(bench: Bench) -> None:
    copy = Copy()
    bench.consumers = {"copy": copy.consumer()}
    bench.source.batch_rows = 2
    bench.run(job_row("j"))
    bench.world.commit(
        *(item("integer", number, "again") for number in range(4)),
        *(item("integer", 50 + number, "new") for number in range(9)),
        delete=[(4,)],
    )
    batches = bench.world.changes(copy.ts, bench.world.resolve(), batch_rows=2)
    assert "tail_wip" in {batch.hint.value for batch in batches}  # else this shows nothing
    bench.run(bench.end("j"), from_ts=copy.ts)
    assert copy.rows == bench.world.versions.at(bench.world.ts)


@pytest.mark.parametrize("kind", ["integer", "composite", "not clustered", "no key"])
def test_every_kind_of_key_is_carried(tmp_path: Path, kind: str) -> None:
    with TableWorld(tmp_path / "world", item_table(kind)) as world:
        copy = Copy()
        bench = Bench(world, WorldSource(world, batch_rows=3), tmp_path, consumers={"copy": copy.consumer()})
        for number in range(6):
            world.commit(item(kind, number, f"n{number}"))
        bench.run(job_row("j"))
        assert copy.rows == world.versions.at(world.ts)
        key = world.key(item(kind, 3, ""))
        world.commit(item(kind, 1, "changed"), item(kind, 77, "new"), delete=[key])
        bench.run(bench.end("j"), from_ts=copy.ts)
        assert copy.rows == world.versions.at(world.ts)
