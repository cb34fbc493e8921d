"""A standalone cluster: its executors know nothing but what they are sent, and may die."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import __version__
from penstock.changes.admission import Limit
from penstock.clock import SYSTEM
from penstock.errors import Invalid
from penstock.jobs.reading.scanning import scan_tail
from penstock.spark import jobframes
from penstock.spark.failures import spark_errors
from penstock.spark.jobframes import SparkFrames
from penstock.testing.itemtables import item, item_table
from penstock.testing.servedworld import ServedWorld
from penstock.testing.sparkcluster import SparkCluster, is_alive

DEADLINE_S = 120


def wait_for(condition, what: str) -> None:
    deadline = SYSTEM.monotonic() + DEADLINE_S
    while not condition():
        assert SYSTEM.monotonic() < deadline, what
        SYSTEM.pause(0.05)


def test_the_package_is_shipped_to_executors_that_do_not_have_it(
    cluster: SparkCluster, cluster_spark: SparkSession
):
    bare = [str(cluster.python), "-c", "import pyarrow, penstock"]
    said = subprocess.run(bare, capture_output=True, text=True, timeout=60, check=False)
    assert "No module named 'penstock'" in said.stderr

    def found(batches):
        import pyarrow as pa

        import penstock
        from penstock.eventstore import manifest

        for _ in batches:
            yield pa.record_batch({"place": [manifest.__file__], "version": [penstock.__version__]})

    rows = cluster_spark.range(0, 2, 1, 2).mapInArrow(found, "place string, version string").collect()
    assert {row.version for row in rows} == {__version__}
    assert all(f"penstock-{__version__}-" in row.place and row.place.endswith(".pyc") for row in rows)


def test_reads_are_planned_with_the_package_that_is_shipped(cluster_spark: SparkSession):
    with pytest.raises(Invalid, match="unknown option 'tabel'; did you mean table"), spark_errors():
        cluster_spark.read.format("penstock").option("tabel", "a.b").load()


def test_frames_of_jobs_are_read_by_executors_alone(
    cluster_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jobframes, "LOCAL_ROWS", 0)
    with ServedWorld(tmp_path, item_table()) as world:
        start = world.commit(*(item("integer", each, "a") for each in range(20)))
        world.commit(item("integer", 1, "b"), delete=[(2,)])
        world.flush()
        world.commit(item("integer", 1, "c"))  # in another part: it is with the capture
        scan = scan_tail(world.view(world.flight_rows()), start, world.resolve(), Limit())
        frame = SparkFrames(lambda: cluster_spark).open(scan, None)
        found = {row["id"]: (row["name"], row["_deleted"]) for row in frame.dataframe.collect()}
        assert found == {1: ("c", False), 2: (None, True)}
        frame.release()


def test_a_job_survives_the_death_of_an_executor(
    cluster: SparkCluster, cluster_spark: SparkSession, tmp_path: Path
):
    folder = str(tmp_path)

    def doubled(batches):
        import os
        from pathlib import Path

        import pyarrow as pa
        import pyarrow.compute as pc

        from penstock.clock import SYSTEM

        Path(folder, f"{os.getpid()}.started").touch()
        deadline = SYSTEM.monotonic() + 120
        while not Path(folder, "go").exists() and SYSTEM.monotonic() < deadline:
            SYSTEM.pause(0.05)
        for batch in batches:
            yield pa.record_batch({"id": pc.multiply(batch.column(0), 2)})

    def total() -> int:
        rows = cluster_spark.range(0, 100, 1, 2).mapInArrow(doubled, "id long").groupBy().sum("id").collect()
        return rows[0][0]

    wait_for(lambda: len(cluster.executors()) == 2, "two executors did not start")
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(total)
        wait_for(lambda: len(list(tmp_path.glob("*.started"))) == 2, "the tasks did not start")
        victim = cluster.kill_executor()
        wait_for(lambda: not is_alive(victim), "the executor lives on")
        (tmp_path / "go").touch()
        assert job.result(timeout=DEADLINE_S) == 9900


@pytest.mark.timeout(300)
def test_a_cluster_stops_with_everything_that_it_started(tmp_path: Path):
    with SparkCluster(tmp_path / "own", workers=1) as running:
        members = running.processes()
        assert len(members) >= 4  # two servers, and the shell that watches over each
    assert not any(map(is_alive, members))
