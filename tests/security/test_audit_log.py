"""Who did what through the API and with commands can be read afterwards, and no value with it."""

import inspect
import json
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from penstock.audit import open_audit_file
from penstock.cli import changefeed, job, secrets, table
from penstock.clock import SYSTEM
from penstock.errors import Invalid
from support.apiworld import TOKENS
from support.command import ServiceProcess, penstock
from support.warmstore import WarmStore

WAIT_S = 60.0
SECRET = "hunter2-of-ann"


class Audited:
    """`penstock api` with two accounts and an audit log."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self.path = path

    def ask(self, account: str | None, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {TOKENS[account]}"} if account else {}
        return httpx.request(
            method, self.url + path, headers={**headers, **more.pop("headers", {})}, timeout=WAIT_S, **more
        )

    def entries(self, count: int) -> list[dict[str, Any]]:
        """The entries, once there are so many: they are written after the answer."""
        deadline = SYSTEM.monotonic() + WAIT_S
        while not self.path.exists() or len(lines := self.path.read_text().splitlines()) < count:
            assert SYSTEM.monotonic() < deadline, f"there are no {count} entries"
            SYSTEM.pause(0.02)
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    folder = tmp_path_factory.mktemp("audit")
    (folder / "store.yaml").write_text(yaml.safe_dump({"store": {"sync": False}}))
    with WarmStore.start(folder / "kv", stores=1, config=folder / "store.yaml") as store:
        accounts = {
            "root": {"token": TOKENS["root"], "admin": True},
            "ann": {"token": TOKENS["ann"], "targets": [f"file://{folder}/ann"]},
        }
        tree = {
            "pd_addrs": [store.pd_addr],
            "api": {"addr": "127.0.0.1:0", "accounts": accounts, "audit_path": str(folder / "audit.log")},
            "capture": {"storage": f"file://{folder}/events"},
            "up": {"data": str(folder / "up")},
            "secrets_dir": str(folder / "secrets"),
        }
        (folder / "penstock.yaml").write_text(yaml.safe_dump(tree))
        with ServiceProcess(
            folder / "api.log", "api", "--config", str(folder / "penstock.yaml"), cwd=folder
        ) as api:
            yield Audited(api.ready["api"], folder / "audit.log")
            assert api.terminate() == 0


def test_changes_reads_and_refusals_are_noted_with_account_action_object_and_outcome(
    audited: Audited,
) -> None:
    sink = f"file://{audited.path.parent}/lake/{SECRET}?protocol=csv"
    feed = {"id": "orders", "sink_uri": sink, "tables": ["shop.*"]}
    asked = [
        ("root", "POST", "/api/v1/changefeeds", {"json": feed}),
        ("root", "POST", "/api/v1/changefeeds/orders/pause", {}),
        ("ann", "POST", "/api/v1/changefeeds", {"json": feed}),
        ("ann", "DELETE", "/api/v1/changefeeds/orders", {}),
        ("root", "GET", f"/api/v1/search/shop.orders/index?q={SECRET}", {}),
        ("root", "DELETE", "/api/v1/changefeeds/orders", {}),
        (None, "GET", "/api/v1/tables", {}),
        ("root", "POST", "/api/v1/changefeeds/x/pause", {"headers": {"Origin": "https://evil.example"}}),
        ("root", "GET", "/api/v1/overview", {}),
        ("root", "GET", "/api/v1/changefeeds", {}),
        ("root", "POST", "/api/v1/changefeeds/x%0A%1B[2Jforged/pause", {}),
    ]
    statuses = [
        audited.ask(account, method, path, **more).status_code for account, method, path, more in asked
    ]
    told = audited.entries(9)
    assert [(each["account"], each["action"], each["object"], each["outcome"]) for each in told] == [
        ("root", "create_changefeed", "orders", "done"),
        ("root", "pause_changefeed", "orders", "done"),
        ("ann", "create_changefeed", "orders", "refused"),
        ("ann", "remove_changefeed", "orders", "refused"),
        ("root", "search_by_words", "shop.orders/index", "refused"),
        ("root", "remove_changefeed", "orders", "done"),
        (None, "list_tables", None, "refused"),
        (None, "unknown", None, "refused"),
        ("root", "pause_changefeed", "x\n\x1b[2Jforged", "refused"),
    ], statuses
    assert [each["admin"] for each in told[:3]] == [True, True, False]
    assert {each["client"] for each in told} == {"127.0.0.1"}
    text = audited.path.read_text()
    assert SECRET not in text
    assert "lake" not in text
    assert not any(token in text for token in TOKENS.values())
    assert text.isascii()
    assert len(text.splitlines()) == len(told), "no name forges an entry"
    assert stat.S_IMODE(audited.path.stat().st_mode) == 0o600


def test_a_file_that_is_moved_away_is_followed_by_a_new_one(audited: Audited) -> None:
    before = audited.entries(0)
    audited.ask("root", "DELETE", "/api/v1/changefeeds/none")
    before = audited.entries(len(before) + 1)
    audited.path.rename(audited.path.with_name("audit.log.1"))
    audited.ask("root", "DELETE", "/api/v1/changefeeds/none")
    assert len(audited.entries(1)) == 1
    assert stat.S_IMODE(audited.path.stat().st_mode) == 0o600
    assert len(audited.path.with_name("audit.log.1").read_text().splitlines()) == len(before)


def test_commands_that_change_something_are_noted_with_the_user_who_ran_them(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOGNAME", "USER"):  # whoever runs the command may set them
        monkeypatch.setenv(name, "somebody-else")
    before = len(audited.entries(0))
    config = str(audited.path.parent / "penstock.yaml")
    sink = f"file://{audited.path.parent}/lake/{SECRET}?protocol=csv"
    made = penstock("changefeed", "create", "typed", "--sink-uri", sink, "--config", config)
    assert made.returncode == 0, made.stderr
    assert penstock("job", "pause", "shop.none/none", "--config", config).returncode == 2
    told = audited.entries(before + 2)[before:]
    assert [(each["part"], each["action"], each["object"], each["outcome"]) for each in told] == [
        ("command", "create_changefeed", "typed", "done"),
        ("command", "pause_job", "shop.none/none", "refused"),
    ]
    assert {each["user"] for each in told} == {pwd.getpwuid(os.getuid()).pw_name}
    assert SECRET not in audited.path.read_text()


def test_every_command_is_noted_that_may_change_something() -> None:
    only_read = {"list", "query", "status", "usage", "verify", "run"}
    for module in (changefeed, job, secrets, table):
        for command in module.app.registered_commands:
            assert command.callback is not None
            name = (command.name or command.callback.__name__).rstrip("_")
            noted = "audit_command(" in inspect.getsource(command.callback)
            assert noted == (name not in only_read), f"{module.__name__} {name}"


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "none").write_text("in the way")
    with pytest.raises(Invalid, match=r"audit log .*none/audit\.log cannot be written .*api\.audit_path"):
        open_audit_file(tmp_path / "none" / "audit.log", "api")
