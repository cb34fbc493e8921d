"""Without executors nobody is kept waiting, and a lost master costs a session, not the service."""

import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from penstock.spark.jvm import MasterWatch, quick_home
from support.sparkcluster import SparkCluster

pytestmark = pytest.mark.timeout(600)
PROGRAM = Path(__file__).with_name("lost_master_program.py")


def test_jobs_without_executors_are_cancelled_and_stopped_and_a_lost_master_is_noticed(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    with SparkCluster(tmp_path / "cluster", workers=0) as cluster, log.open("w") as errors:
        service = subprocess.Popen(
            [sys.executable, str(PROGRAM), cluster.url],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "SPARK_HOME": quick_home()},
        )
        assert service.stdout is not None
        try:
            with service.stdout as lines:
                said = iter(lines)
                cancelled = [next(said).rstrip() for _ in range(3)]
                assert cancelled[1:] == ["cancelled: True", "kill the master"], log.read_text()
                assert cancelled[0].startswith("given back:")
                cluster.kill_master()
                cluster.start_master()  # at once, and without a memory of the application
                assert next(said).rstrip() == "given back: Unavailable"
                assert next(said).rstrip() == "lost: True 1.0"
                assert next(said).rstrip() == "waiting again"
                assert "stopped: True" in [line.rstrip() for line in said]
            assert service.wait(60) == 0
        finally:
            service.kill()
            service.wait()
    text = log.read_text()
    assert "reason=its master is lost" in text
    assert "Traceback" not in text


def test_a_master_is_lost_when_it_ends_also_when_another_takes_its_address() -> None:
    first = socket.create_server(("127.0.0.1", 0))
    second = socket.create_server(("127.0.0.1", 0))
    port, other_port = (server.getsockname()[1] for server in (first, second))
    masters = f"spark://127.0.0.1:{port},127.0.0.1:{other_port}"
    with closing(MasterWatch(f"spark://127.0.0.1:{port}")) as one, closing(MasterWatch(masters)) as both:
        accepted = [server.accept()[0] for server in (first, first, second)]
        assert not one.is_lost()
        assert not both.is_lost()
        for end in (*accepted[:2], first):
            end.close()
        with socket.create_server(("127.0.0.1", port)):
            assert one.is_lost()
            assert one.is_lost()
            assert not both.is_lost()  # the second of two runs
        accepted[2].close()
        second.close()
        assert both.is_lost()
    assert not one.is_lost()
    with closing(MasterWatch("local[2]")) as local, closing(MasterWatch("k8s://https://a:1")) as other:
        assert not local.is_lost()
        assert not other.is_lost()
