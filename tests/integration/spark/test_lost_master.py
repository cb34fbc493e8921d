"""Without executors nobody is kept waiting, and a lost master costs a session, not the service."""

import os
import socket
import subprocess
import sys
from contextlib import closing
from itertools import takewhile
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
                assert next(said).rstrip() == "executors are missing: 1.0", log.read_text()
                cancelled = [next(said).rstrip() for _ in range(4)]
                assert cancelled[1:] == [
                    "cancelled: True",
                    "executors are missing: 0.0",
                    "waiting again",
                ], log.read_text()
                assert cancelled[0].startswith("given back:")
                # From here on bulk work, as `penstock table verify` runs it.
                stopped = list(takewhile(lambda line: line != "kill the master\n", said))
                assert "stopped: True\n" in stopped, log.read_text()
                cluster.kill_master()
                cluster.start_master()  # at once, and without a memory of the application
                assert next(said).startswith("given back: the Spark session has ended"), log.read_text()
                assert next(said).rstrip() == "lost: 1.0"
                assert next(said).rstrip() == "ended: None", log.read_text()
            assert service.wait(60) == 0
        finally:
            service.kill()
            service.wait()
    text = log.read_text()
    assert "reason=its master is lost" in text
    assert "Spark has no executors: jobs wait" in text
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


def test_a_master_that_closes_silent_connections_is_lost_when_it_accepts_no_other() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with closing(MasterWatch(f"spark://127.0.0.1:{port}", tls=True)) as watch:
            for _ in range(3):  # as Netty does after ten seconds without a TLS handshake
                server.accept()[0].close()
                assert not watch.is_lost()
            last, _ = server.accept()
            server.close()
            last.close()
            assert watch.is_lost()


def test_a_machine_that_vanished_is_noticed_by_the_system() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with closing(MasterWatch(f"spark://127.0.0.1:{port}")) as watch, server.accept()[0]:
            (connection,) = watch._sockets.values()
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            asked_s = [
                connection.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            ]
            assert asked_s == [10, 10, 3]
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 40_000


def test_a_server_of_spark_connect_is_lost_when_it_refuses_two_connections_in_a_row() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with closing(MasterWatch(f"sc://127.0.0.1:{port}/;token=x")) as watch:
            assert not watch.is_lost()
            server.close()
            assert not watch.is_lost()
            with socket.create_server(("127.0.0.1", port)):
                assert not watch.is_lost()
            assert not watch.is_lost()
            assert watch.is_lost()
