"""An unmodified client written in Go against a store in a process of its own."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.warmstore import WarmStore

SOURCE = Path(__file__).parent / "go-client"
QUICKLY = ["-gcflags=all=-N -l -dwarf=false", "-ldflags=-s -w"]
"""The client and all of Go's library are compiled for one short run: optimizing them takes longer than it."""
CHECKS = [
    "optimistic",
    "conflict",
    "pessimistic",
    "async commit",
    "one phase",
    "split and scan",
    "batch get",
    "replica read",
    "deadlock",
    "abandoned locks",
    "large transaction",
    "raw",
]


@pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed, so its client cannot be built")
@pytest.mark.timeout(900)
def test_the_go_client_finds_what_it_expects(tmp_path: Path) -> None:
    fetched = subprocess.run(
        ["go", "mod", "download"], cwd=SOURCE, capture_output=True, check=False, timeout=300
    )
    if fetched.returncode:
        pytest.skip("the modules of Go's client cannot be downloaded from here")
    program = tmp_path / "client"
    build = ["go", "build", "-buildvcs=false", *QUICKLY, "-o", str(program), "."]
    without_c = {**os.environ, "CGO_ENABLED": "0"}
    subprocess.run(build, cwd=SOURCE, env=without_c, check=True, timeout=800)
    with WarmStore.start(tmp_path / "data", stores=3) as store:
        run = subprocess.run(
            [program, store.pd_addr], capture_output=True, text=True, timeout=90, check=False
        )
    assert run.returncode == 0, run.stderr
    assert [line for line in run.stdout.splitlines() if not line.startswith("[")] == CHECKS
