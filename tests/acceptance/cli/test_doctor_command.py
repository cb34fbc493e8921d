"""`penstock doctor` as a person runs it."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

PENSTOCK = [sys.executable, "-m", "penstock.cli.main", "doctor"]
SECRET = "a-very-secret-token-nobody-may-see"


def doctor(
    *arguments: str, folder: Path, path: str | None = None, columns: int = 200
) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "COLUMNS": str(columns)}
    environment |= {"PATH": path} if path is not None else {}
    environment.pop("JAVA_HOME", None)
    return subprocess.run(
        [*PENSTOCK, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def findings(done: "subprocess.CompletedProcess[str]") -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in json.loads(done.stdout)["findings"]}


def test_a_machine_that_is_well_is_told_so_and_left_as_it_was(tmp_path: Path) -> None:
    config = {
        "pd_addrs": ["127.0.0.1:0"],
        "store": {"pd_addr": "127.0.0.1:0"},
        "capture": {"flight_addr": "127.0.0.1:0"},
        "api": {"addr": "127.0.0.1:0"},
    }
    (tmp_path / "penstock.yaml").write_text(yaml.safe_dump(config))
    done = doctor("--config", "penstock.yaml", "--json", folder=tmp_path)
    found = findings(done)
    wrong = {name: each for name, each in found.items() if each["verdict"] == "bad"}
    assert not wrong
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["healthy"] is True
    assert {"settings", "python", "java", "packages", "memory", "open files", "cluster"} < found.keys()
    assert [each.name for each in tmp_path.iterdir()] == ["penstock.yaml"]


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A folder with settings in which much is wrong."""
    (tmp_path / "penstock-data").write_text("a file where a folder should be")
    (tmp_path / "token").write_text(SECRET)
    (tmp_path / "token").chmod(0o644)
    (tmp_path / "bin").mkdir()
    return tmp_path


def test_everything_that_is_wrong_is_told_at_once_with_the_remedy(broken: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        config = {
            "pd_addrs": [f"127.0.0.1:{silent.getsockname()[1]}"],
            "capture": {"flight_addr": "127.0.0.1:0", "flight_token_path": "token"},
            "api": {
                "addr": f"127.0.0.1:{other.getsockname()[1]}",
                "tls": {"cert_path": "none.pem", "key_path": "none.key"},
            },
            "changefeeds": {"lake": {"sink_uri": f"s3://b/c?protocol=csvv&secret-access-key={SECRET}"}},
        }
        (broken / "penstock.yaml").write_text(yaml.safe_dump(config))
        (broken / "penstock.yaml").chmod(0o644)
        done = doctor("--config", "penstock.yaml", folder=broken, path=str(broken / "bin"))
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    told = {" ".join(words[1:3]): words[0] for words in lines if words and words[0] in {"ok", "warn", "bad"}}
    for name in ("java Spark", "folder capture.data", "port api.addr", "storage changefeeds.lake.sink_uri"):
        assert told[name] == "bad", done.stdout
    assert any(line.startswith("bad") and "cluster" in line for line in done.stdout.splitlines())
    assert "chmod 600 token" in done.stdout
    assert done.stdout.count("→") >= 8
    assert done.stdout.rstrip().endswith("to fix")


def test_settings_that_cannot_be_read_are_a_finding(tmp_path: Path) -> None:
    done = doctor("--config", "none.yaml", "--json", folder=tmp_path)
    assert done.returncode == 1
    found = findings(done)["settings"]
    assert (found["verdict"], "none.yaml cannot be read" in found["what"]) == ("bad", True)
    assert found["remedy"] == "check --config"
