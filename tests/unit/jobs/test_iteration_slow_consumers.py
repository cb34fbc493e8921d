"""Consumers that do not keep up with their siblings."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from penstock.jobs.job import JobState
from support.itemtables import item
from support.iterationbench import Bench, item_bench
from support.jobdoubles import Copy, job_row, until


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with item_bench(tmp_path) as made:
        yield made


def _in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def _many_rows(bench: Bench) -> None:
    bench.world.commit(*(item("integer", 1000 + number, f"row {number}") for number in range(400)))
    bench.world.resolve()
    bench.source.batch_rows = 8


def test_a_slow_consumer_detaches_and_ends_at_its_own_speed(bench: Bench) -> None:
    _many_rows(bench)
    bench.settings = {"consumer_batches": 2, "consumer_patience_s": 0.0}
    go_on, quick, slow = threading.Event(), Copy(), Copy()

    def wait(step: str) -> None:
        if step == "begin":
            assert go_on.wait(20)

    bench.consumers = {"quick": quick.consumer(), "slow": slow.consumer(wait)}
    before = REGISTRY.get_sample_value("penstock_jobs_detached_total") or 0.0
    spooled = REGISTRY.get_sample_value("penstock_jobs_spool_bytes") or 0.0  # others left some
    running = _in_background(lambda: bench.run(job_row("quick", "quick"), job_row("slow", "slow")))
    until(lambda: "quick" in bench.ends)
    assert bench.end("quick").watermark == bench.world.ts  # while the slow one has not begun
    assert (REGISTRY.get_sample_value("penstock_jobs_spool_bytes") or 0.0) > spooled
    go_on.set()
    until(lambda: not running.is_alive())
    assert slow.rows == quick.rows == bench.world.versions.at(bench.world.ts)
    assert bench.end("slow").watermark == bench.world.ts
    assert len(bench.source.opens) == 1
    assert (REGISTRY.get_sample_value("penstock_jobs_detached_total") or 0.0) == before + 1
    assert REGISTRY.get_sample_value("penstock_jobs_spool_bytes") == spooled


@pytest.mark.parametrize("whose", ["its own", "its account's"])
def test_a_consumer_behind_by_more_than_its_disk_is_cut_off_and_catches_up_alone(
    bench: Bench, whose: str
) -> None:
    _many_rows(bench)
    bench.settings = {"consumer_batches": 2, "consumer_patience_s": 0.0}
    if whose == "its own":
        bench.settings["spool_bytes"] = 5000
    else:
        bench.accounts = {"sys": {"token": "token-of-sys-0123456789", "spool_bytes_max": 5000}}
    go_on, quick, slow = threading.Event(), Copy(), Copy()

    def wait(step: str) -> None:
        if step == "begin":
            assert go_on.wait(20)

    bench.consumers = {"quick": quick.consumer(), "slow": slow.consumer(wait)}
    running = _in_background(lambda: bench.run(job_row("quick", "quick"), job_row("slow", "slow")))
    until(lambda: "quick" in bench.ends)
    go_on.set()
    until(lambda: not running.is_alive())
    row = bench.end("slow")
    assert (row.status.error_code, row.state, row.watermark) == (2, JobState.COMPLETED, 0)
    bench.run(row)
    assert slow.rows == quick.rows
    assert bench.end("slow").watermark == bench.world.ts
