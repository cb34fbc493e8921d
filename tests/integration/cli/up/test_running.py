"""A deployment for a while, from blocking code."""

from pathlib import Path

import pytest

from penstock.cli.up.parts import move_folders
from penstock.cli.up.supervisor import run_deployment
from penstock.control.part_states import PartState, UpStates
from penstock.errors import Invalid
from penstock.kv import Client
from penstock.settings import parse

SMALL = {
    "store": {"pd_addr": "127.0.0.1:0"},
    "capture": {"flight_addr": "127.0.0.1:0"},
    "up": {"changefeeds": False, "jobs": False, "api": False},
}


def test_it_is_ready_inside_the_block_and_gone_behind_it(tmp_path: Path) -> None:
    settings = move_folders(parse(SMALL), tmp_path)
    with run_deployment(settings, log_level="WARNING") as supervisor:
        assert supervisor.states == UpStates.read(tmp_path / "up")
        pids = [part.pid for part in supervisor.states.parts]
        with Client.connect(supervisor.settings.pd_addrs) as client, client.begin() as txn:
            txn.put(b"key", b"value")
        with pytest.raises(Invalid, match="another `penstock up`"), run_deployment(settings):
            pytest.fail("two supervisors share a folder")
        assert {part.state for part in supervisor.states.parts} == {PartState.RUNNING}
    assert {part.state for part in supervisor.states.parts} == {PartState.STOPPED}
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
