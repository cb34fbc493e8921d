"""Processes that are forked are what the same command is when it is started."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import __version__
from support.warmstart import WarmStart


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmStart]:
    with WarmStart("penstock.cli.main") as started:
        yield started


def test_it_runs_the_command_line_and_tells_how_it_ended(warm: WarmStart, tmp_path: Path) -> None:
    with (tmp_path / "log").open("a") as log:
        version = warm.fork(["--version"], log)
        refused = warm.fork(["no-such-command"], log)
    with version.stdout, refused.stdout:
        assert version.stdout.read() == f"penstock {__version__}\n"
        assert (version.wait(20), refused.wait(20), version.poll()) == (0, 2, 0)
    assert "no-such-command" in (tmp_path / "log").read_text()


def test_one_that_does_not_end_is_waited_for_and_killed(warm: WarmStart, tmp_path: Path) -> None:
    with (tmp_path / "log").open("a") as log:
        service = warm.fork(["store", "--pd-addr", "127.0.0.1:0", "--data", str(tmp_path / "data")], log)
    with service.stdout:
        assert service.stdout.readline().startswith("{"), (tmp_path / "log").read_text()
        assert service.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            service.wait(0.01)
        os.kill(service.pid, signal.SIGKILL)
        assert service.wait(20) == -signal.SIGKILL
