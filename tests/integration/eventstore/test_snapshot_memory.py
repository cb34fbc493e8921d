"""Memory of snapshot reads, measured in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

MIB = 1 << 20
PROGRAM = Path(__file__).parent / "measured_snapshot.py"


def test_a_snapshot_takes_the_memory_of_a_few_row_groups_whatever_the_table(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path), "10"]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    assert found["bytes"] > 700 * MIB
    assert found["seen"] == [900_000, 900_000]
    # Row groups have 32 MiB; a quarter is read, in buffers that may be half empty, while another is filtered.
    assert found["whole"] < 220 * MIB
    assert found["parts"] < 220 * MIB
