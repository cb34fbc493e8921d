"""kill -9 under writes, again and again: nothing acknowledged is lost, nothing is there twice."""

import importlib.util
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

from penstock.clock import SYSTEM
from support.campaign import length
from support.events import replay_objects
from support.rawbatches import changes

SCRIPT = Path(__file__).with_name("killed_writer.py")
ROUNDS = length(2, 4)


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("killed_writer", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


writer = _load()


def write_until_killed(data: Path, storage: str, *, acknowledged: bool) -> tuple[int, int]:
    """Let a process write for a moment; return from where it resumed and the last acknowledged change.

    The moment may be over before any change is acknowledged, unless one has to be.
    """
    command = [sys.executable, str(SCRIPT), str(data), storage]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        assert first.startswith("resumes"), first
        lines = [child.stdout.readline()] if acknowledged else []
        threading.Timer(0.05 + SYSTEM.random() * 0.5, child.kill).start()
        lines += [line for line in child.stdout if line.endswith("\n")]
    return int(first.split()[1]), max((int(line.split()[1]) for line in lines), default=0)


def test_nothing_acknowledged_is_lost_and_nothing_is_there_twice(tmp_path: Path) -> None:
    data, storage_url = tmp_path / "data", f"file://{tmp_path}/objects"
    acknowledged = flushed = 0
    for number in range(ROUNDS):
        resumed, last = write_until_killed(data, storage_url, acknowledged=number % 2 == 0)
        acknowledged = max(acknowledged, last)
        assert resumed >= flushed
        store = writer.open_store(data, storage_url)
        store.start()
        try:
            table = store.open_table(writer.TABLE.id)
            flushed = (table.flushed_ts - writer.START) // 2 if table.flushed_ts else 0
            held = table.load(table.list_held(table.flushed_ts, 1 << 62), table.flushed_ts, 1 << 62)
            in_log = {change[0] for batch in held for change in changes(batch)}
            assert in_log >= {writer.commit_ts(number) for number in range(flushed + 1, acknowledged + 1)}
            assert store.flush(writer.TABLE.id)
            complete = (table.flushed_ts - writer.START) // 2
            found = replay_objects(store._storage, writer.TABLE.id, table.flushed_ts)
            assert {row["id"]: row["name"] for row in found.values()} == writer.state_after(complete)
        finally:
            store.close(flush=False)
    assert acknowledged > 0
