"""`penstock init`, and services that show their metrics: as a person types them."""

import urllib.request
from pathlib import Path

from penstock.settings import Settings, read_file
from support.command import ServiceProcess, penstock


def test_a_settings_file_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "penstock.yaml"
    done = penstock("init", str(path), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{path} is written; edit it, then run: penstock up --config {path}\n"
    assert read_file(path) == Settings()
    secrets = tmp_path / "penstock-data" / "secrets"
    tokens = {file.name: file.read_text() for file in secrets.iterdir()}
    assert tokens.keys() == {"admin.token", "flight.token"}
    again = penstock("init", str(path), cwd=tmp_path)
    assert again.returncode == 2
    (line,) = again.stderr.splitlines()
    assert line == f"penstock: {path} exists already; choose another name, or overwrite it with --force"
    path.write_text("")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert penstock("init", str(path), "--force", cwd=elsewhere).returncode == 0
    assert read_file(path) == Settings(secrets_dir=secrets), "commands find the tokens from any directory"
    assert list(elsewhere.iterdir()) == []
    assert {file.name: file.read_text() for file in secrets.iterdir()} == tokens, "the tokens stay"


def test_a_service_shows_its_metrics_where_it_is_told(tmp_path: Path) -> None:
    arguments = (
        "--pd-addr",
        "127.0.0.1:0",
        "--data",
        str(tmp_path / "data"),
        "--metrics-addr",
        "127.0.0.1:0",
    )
    with ServiceProcess(tmp_path / "log", "store", *arguments) as store:
        with urllib.request.urlopen(f"http://{store.ready['metrics']}/metrics", timeout=10) as answer:
            assert b"penstock_store_" in answer.read()
        assert store.terminate() == 0
    refused = penstock("capture", "--metrics-addr", "nonsense", cwd=tmp_path)
    assert refused.returncode == 2
    assert "'nonsense' is not host:port" in refused.stderr
