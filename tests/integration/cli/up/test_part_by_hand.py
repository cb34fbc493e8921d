"""A part, started by hand."""

import json
import subprocess
from pathlib import Path

from penstock.cli.up.parts import STOP, ServiceConfig
from penstock.cli.up.supervisor import part_command
from penstock.control.part_states import PartKind
from penstock.settings import parse


def test_a_part_without_an_order_says_so() -> None:
    done = subprocess.run(part_command("store"), input=b"", capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.decode().splitlines() == [
        "penstock: standard input has no configuration; start parts with `penstock up`"
    ]


def test_a_part_serves_until_its_input_ends(tmp_path: Path) -> None:
    tree = {"store": {"pd_addr": "127.0.0.1:0", "data": tmp_path / "data"}, "metrics_addr": "127.0.0.1:0"}
    order = ServiceConfig(kind=PartKind.STORE, settings=parse(tree), log_format="json")
    with subprocess.Popen(
        part_command("store"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as part:
        assert part.stdin is not None
        assert part.stdout is not None
        part.stdin.write(order.encode())
        part.stdin.flush()
        ready = json.loads(part.stdout.readline())
        assert set(ready) == {"cluster_id", "pd", "stores", "metrics"}
        rest, errors = part.communicate(STOP, timeout=60)
    assert (part.returncode, rest) == (0, b"")
    assert [json.loads(line)["message"] for line in errors.splitlines()] == [
        "store is ready",
        "store has stopped",
    ]
