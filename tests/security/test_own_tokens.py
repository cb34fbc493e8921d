"""A deployment nobody has configured has no open door: it makes its tokens, and its own parts find them."""

import io
import json
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from rich.console import Console

from penstock.cli.up.display import LogDisplay, TerminalDisplay
from penstock.clock import SYSTEM
from penstock.control.part_states import PartKind, PartState, PartStatus, UpStates
from penstock.errors import Invalid
from penstock.eventstore.read.flight_client import FlightReader
from penstock.settings import Settings, load, parse, with_tokens
from penstock.settings.tokens import ADMIN_TOKEN, FLIGHT_TOKEN, make_tokens
from penstock.spark.options import parse_options
from support.command import ServiceProcess, penstock

FREE = "127.0.0.1:0"
WAIT_S = 60.0
QUICK: dict[str, Any] = {
    "store": {"pd_addr": FREE, "sync": False},
    "capture": {"flight_addr": FREE},
    "api": {"addr": FREE},
    "up": {"changefeeds": False, "jobs": False},
}


class Deployment:
    """`penstock up` in a directory of its own, as somebody starts it who has read nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secrets = folder / "penstock-data" / "secrets"
        (folder / "penstock.yaml").write_text(yaml.safe_dump(QUICK))
        self.up = ServiceProcess(folder / "up.log", "up", "--config", "penstock.yaml", cwd=folder)

    def token(self, name: str) -> str:
        return (self.secrets / name).read_text().strip()


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = Deployment(tmp_path_factory.mktemp("own"))
    with made.up:
        yield made
        assert made.up.terminate() == 0


def test_only_its_user_can_read_the_tokens(deployment: Deployment) -> None:
    assert stat.S_IMODE(deployment.secrets.stat().st_mode) == 0o700
    files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in deployment.secrets.iterdir()}
    assert files == {ADMIN_TOKEN: 0o600, FLIGHT_TOKEN: 0o600}
    assert deployment.token(ADMIN_TOKEN) != deployment.token(FLIGHT_TOKEN)
    assert min(len(deployment.token(name)) for name in files) >= 43


def test_the_api_answers_nobody_without_the_token(deployment: Deployment) -> None:
    url = deployment.up.ready["api"]
    assert deployment.up.ready["admin_token_path"] == f"penstock-data/secrets/{ADMIN_TOKEN}"
    for headers in ({}, {"Authorization": f"Bearer {deployment.token(FLIGHT_TOKEN)}"}):
        for path in ("/api/v1/me", "/api/v1/overview", "/api/v1/jobs", "/metrics"):
            refused = httpx.get(url + path, headers=headers, timeout=WAIT_S)
            assert refused.status_code == 401
            assert "admin.token" in refused.json()["detail"] or headers
        code = {"job": "shop.orders/x", "spec": {"detail": {"consumer": {"consumer": "os:system"}}}}
        assert httpx.post(f"{url}/api/v1/jobs", json=code, headers=headers).status_code == 401
    admin = {"Authorization": f"Bearer {deployment.token(ADMIN_TOKEN)}"}
    assert httpx.get(f"{url}/api/v1/me", headers=admin).json() == {"account": "sys", "admin": True}
    assert "penstock_part_up" in httpx.get(f"{url}/metrics", headers=admin, timeout=WAIT_S).text


def test_the_capture_answers_nobody_without_the_token(deployment: Deployment) -> None:
    with (
        FlightReader(deployment.up.ready["parts"]["capture-1"]) as stranger,
        pytest.raises(Invalid, match="needs a token"),
    ):
        stranger.tables()


def test_commands_and_spark_find_the_tokens_by_themselves(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def status() -> dict[str, Any]:
        told = penstock("status", "--json", "--config", "penstock.yaml", cwd=deployment.folder)
        assert told.returncode in {0, 1}, told.stderr
        overview: dict[str, Any] = json.loads(told.stdout)
        return overview

    deadline = SYSTEM.monotonic() + WAIT_S
    while (overview := status())["problems"]:
        assert SYSTEM.monotonic() < deadline, f"a command has no access: {overview['problems']}"
    assert len(overview["parts"]) == 3
    monkeypatch.chdir(deployment.folder)
    options = parse_options({"table": "shop.orders", "config": "penstock.yaml"})
    token = options.settings.capture.flight_token
    assert token is not None
    assert token.get_secret_value() == deployment.token(FLIGHT_TOKEN)
    addr = deployment.up.ready["parts"]["capture-1"]
    with FlightReader(addr, token=load(Path("penstock.yaml")).capture.read_flight_token()) as reader:
        assert isinstance(reader.tables(), list)


def test_no_token_is_written_anywhere_else(deployment: Deployment) -> None:
    tokens = [deployment.token(name).encode() for name in (ADMIN_TOKEN, FLIGHT_TOKEN)]
    assert not any(token.decode() in json.dumps(deployment.up.ready) for token in tokens)
    for path in deployment.folder.rglob("*"):
        if path.is_file() and path.parent != deployment.secrets:
            content = path.read_bytes()
            assert not any(token in content for token in tokens), path


def test_an_api_and_a_capture_that_run_alone_have_tokens_too(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text(yaml.safe_dump({"pd_addrs": ["127.0.0.1:1"], **QUICK}))
    service = ServiceProcess(tmp_path / "log", "api", "--config", "penstock.yaml", cwd=tmp_path)
    with service:
        url = service.ready["api"]
        assert httpx.get(f"{url}/api/v1/me").status_code == 401
        token = (tmp_path / service.ready["admin_token_path"]).read_text().strip()
        assert httpx.get(f"{url}/api/v1/me", headers={"Authorization": f"Bearer {token}"}).status_code == 200
        assert service.terminate() == 0


def ready(url: str) -> UpStates:
    return UpStates(1, (PartStatus(name="api", kind=PartKind.API, state=PartState.RUNNING, addr=url),))


def test_a_terminal_shows_a_link_that_signs_in_and_a_log_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    make_tokens(tmp_path)
    token = (tmp_path / ADMIN_TOKEN).read_text().strip()
    shown = io.StringIO()
    console = Console(file=shown, width=60, force_terminal=False)
    terminal = TerminalDisplay(console, token_path=tmp_path / ADMIN_TOKEN)
    terminal.show_all_ready(ready("http://127.0.0.1:8300"), ("127.0.0.1:2379",))
    assert f"http://127.0.0.1:8300/#token={token}\n" in shown.getvalue(), (
        "in one piece, also where it is long"
    )
    caplog.set_level("DEBUG")
    log = LogDisplay(announce=True, token_path=tmp_path / ADMIN_TOKEN)
    log.show_all_ready(ready("http://127.0.0.1:8300"), ("127.0.0.1:2379",))
    printed = capsys.readouterr().out
    assert json.loads(printed)["admin_token_path"] == f"{tmp_path}/{ADMIN_TOKEN}"
    assert token not in printed + caplog.text


def test_tokens_of_the_settings_come_first(tmp_path: Path) -> None:
    make_tokens(tmp_path)
    own = with_tokens(parse({"secrets_dir": str(tmp_path)}))
    assert own.capture.flight_token_path == tmp_path / FLIGHT_TOKEN
    assert own.admin_token_path == tmp_path / ADMIN_TOKEN
    assert with_tokens(own) == own
    tree = {
        "secrets_dir": str(tmp_path),
        "capture": {"flight_token": "a-token-of-the-settings"},
        "api": {"accounts": {"sys": {"token": "another-token-of-the-settings", "admin": True}}},
    }
    assert with_tokens(parse(tree), make=True) == parse(tree)
    assert parse(tree).admin_token_path is None


def test_addresses_of_other_machines_need_tokens_of_the_settings(tmp_path: Path) -> None:
    """Their clients do not have the files; services refuse such an address without them, as before."""
    tree = {
        "secrets_dir": str(tmp_path / "secrets"),
        "capture": {"flight_addr": "192.0.2.1:8815"},
        "api": {"addr": "192.0.2.1:8300"},
    }
    assert with_tokens(parse(tree), make=True) == parse(tree)
    assert not (tmp_path / "secrets").exists()


def test_whoever_makes_tokens_at_once_gets_the_same_ones(tmp_path: Path) -> None:
    seen: list[str] = []
    barrier = threading.Barrier(16)

    def make() -> None:
        barrier.wait()
        make_tokens(tmp_path / "a" / "b")
        seen.append((tmp_path / "a" / "b" / ADMIN_TOKEN).read_text())

    threads = [threading.Thread(target=make) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 16
    assert len(set(seen)) == 1
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == [ADMIN_TOKEN, FLIGHT_TOKEN]


def test_a_folder_that_cannot_hold_tokens_is_named(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("in the way")
    with pytest.raises(Invalid, match=r"tokens cannot be kept in .*secrets.*check secrets_dir"):
        make_tokens(tmp_path / "secrets")
    settings = Settings(secrets_dir=tmp_path / "none")
    assert with_tokens(settings) == settings, "where there are none, nothing changes"
