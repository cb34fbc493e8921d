"""Memory of flushes and of reads over Flight, each measured in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1 << 20
PROGRAM = Path(__file__).parent / "measured_flush.py"


@pytest.mark.parametrize("shape", ["many rows", "large rows", "one transaction"])
def test_memory_is_bounded_by_the_settings_and_not_by_the_rows(tmp_path: Path, shape: str) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path), shape]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    assert found["bytes"] > 190 * MIB
    assert found["seen"] == [found["rows"]] * 2
    # A sort of 16 MiB, a transaction of 16 MiB and row groups; for a read also both ends of Flight.
    assert found["flush"] < 200 * MIB
    assert found["unflushed"] < 200 * MIB
    assert found["flushed"] < 230 * MIB
