"""A Spark session that dies comes back, and one that is to end does not outlive its process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.clock import SYSTEM
from support.sparkcluster import is_alive, java_of

pytestmark = pytest.mark.timeout(600)
PROGRAM = Path(__file__).with_name("supervised_program.py")
ENDED = "given back: the Spark session has ended; build a new one and repeat the call"
STARTING_STOP_S = 10.0  # nothing but a kill: 5 s on a machine with nothing else to do
STOP_S = 60.0  # of a machine that is busy; without the bound a job of an hour would be waited for


class Service:
    """The program in a process group of its own, as a shell starts a command."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        # A user's own defaults: the settings of the program name the master, and neither name nor time zone.
        defaults = "spark.master local[7]\nspark.app.name theirs\nspark.sql.session.timeZone Europe/Berlin\n"
        (folder / "spark-defaults.conf").write_text(defaults)
        environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "SPARK_CONF_DIR": str(folder)}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,
                env={**os.environ, **environment},
            )

    def lines(self, count: int) -> list[str]:
        """Return its next lines."""
        assert self.process.stdout is not None
        return [self.process.stdout.readline().rstrip() for _ in range(count)]

    def press_ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def java(self) -> int:
        """Wait for its Java; return the process id."""
        return wait_until(lambda: java_of(self.process.pid))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def wait_until(find):
    deadline = SYSTEM.monotonic() + 300
    while not (found := find()):
        assert SYSTEM.monotonic() < deadline
        SYSTEM.pause(0.02)
    return found


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    try:
        yield service
    finally:
        service.end()


def test_a_session_whose_java_or_context_ends_or_hangs_is_replaced_and_ctrl_c_ends_a_job(
    service: Service,
) -> None:
    assert service.lines(1) == ["started: 0.0"]
    log = service.log.read_text()
    assert "Spark has started" in log
    assert "not warmed up" not in log
    assert service.lines(3) == ["own session: True", "conf: local[2] theirs Europe/Berlin", ENDED]
    assert service.lines(2) == ["after the kill: 3 1.0 0.0", "after the stop: 3 2.0 0.0"]
    assert service.lines(1) == ["after the hang: 3 3.0 0.0"]
    (java,) = service.lines(1)
    service.press_ctrl_c()
    assert set(service.lines(2)) <= {ENDED, "stopped"}
    assert service.process.wait(STOP_S) == 0
    wait_until(lambda: not is_alive(int(java.split()[1])))
    log = service.log.read_text()
    assert log.count("the Spark session died; a new one is built") == 3
    assert "reason=Java was killed by SIGKILL" in log
    assert "Traceback" not in log


def test_ctrl_c_while_spark_starts_ends_it_and_java_ends_with_a_killed_process(
    service: Service, tmp_path: Path
) -> None:
    starting = service.java()
    os.kill(starting, signal.SIGSTOP)  # it will never have started: whoever waits for it waits for ever
    service.press_ctrl_c()
    assert service.process.wait(STARTING_STOP_S) == 0
    wait_until(lambda: not is_alive(starting))
    assert "Spark has started" not in service.log.read_text()
    assert "Traceback" not in service.log.read_text()

    orphaned = Service(tmp_path)
    try:
        java = orphaned.java()
    finally:
        orphaned.end()
    wait_until(lambda: not is_alive(java))
