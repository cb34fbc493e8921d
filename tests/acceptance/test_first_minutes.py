"""What a newcomer types first: the demonstration, the README's example, the check for Java."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing.store import StoreProcess

ROOT = Path(__file__).parent.parent.parent
PENSTOCK = [sys.executable, "-m", "penstock.app.cli"]


def test_the_demonstration_ends_by_itself_with_its_invariant_checked() -> None:
    done = subprocess.run(
        [*PENSTOCK, "demo", "--seconds", "2"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "holds" in done.stdout
    committed = re.search(r"transfers committed\s*│\s*([\d,]+)", done.stdout)
    assert committed is not None
    assert int(committed[1].replace(",", "")) > 0


def test_the_example_of_the_readme_runs_as_it_is_written(tmp_path: Path) -> None:
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert example is not None
    with StoreProcess.start(tmp_path) as store:
        code = example[1].replace("127.0.0.1:2379", store.pd_addr)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    assert "b'visitor/1' b'first and second'" in done.stdout


def java(directory: Path, version: str) -> None:
    script = directory / "java"
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    script.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "enough"),
    [("17.0.15", True), ("21", True), ("11.0.2", False), ("1.8.0_392", False), (None, False)],
)
def test_java_17_is_made_sure_of_or_asked_for_in_one_line(
    tmp_path: Path, version: str | None, enough: bool
) -> None:
    for tool in ("bash", "id", "sed", "head"):
        (tmp_path / tool).symlink_to(Path("/usr/bin") / tool)
    if version is not None:
        java(tmp_path, version)
    environment = {**os.environ, "PATH": str(tmp_path)}  # no apt-get here: nothing is installed
    done = subprocess.run(
        [ROOT / "tools" / "ensure-java"], env=environment, capture_output=True, text=True, check=False
    )
    if enough:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 2
        assert "Java 17 or newer is needed; install it" in done.stderr
        assert done.stderr.count("\n") == 1
