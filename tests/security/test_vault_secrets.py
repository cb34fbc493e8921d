"""Secrets of a Vault server, over HTTP as its KV version 2 engine answers."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from penstock.secret_masks import SecretMask
from penstock.secret_references import UnresolvedReference, resolve_references

TOKEN, SECRET = "hvs.token-of-the-runner", "pa55word-in-the-vault"


class Vault(ThreadingHTTPServer):
    """Has secrets by their paths; answers as Vault does, or with `status`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.secrets: dict[str, dict[str, object]] = {"/v1/kv/data/shop/db": {"password": SECRET, "port": 5}}
        self.status = 0
        self.seen: list[dict[str, str]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Vault

    def do_GET(self) -> None:
        self.server.seen.append(dict(self.headers))
        found = self.server.secrets.get(self.path)
        status = self.server.status or (404 if found is None else 200)
        if self.headers.get("X-Vault-Token") != TOKEN:
            status = 403
        told = {"data": {"data": found}} if status == 200 else {"errors": [f"no {SECRET}"]}
        body = json.dumps(told).encode()
        self.send_response(status)
        if status == 307:
            self.send_header("Location", f"{self.server.address}/v1/kv/data/shop/db")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def vault(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vault]:
    with Vault() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        monkeypatch.setenv("VAULT_ADDR", server.address)
        monkeypatch.setenv("VAULT_TOKEN", TOKEN)
        for name in ("VAULT_TOKEN_FILE", "VAULT_NAMESPACE", "VAULT_CACERT"):
            monkeypatch.delenv(name, raising=False)
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_a_secret_is_read_where_it_is_used_and_anew_after_it_was_replaced(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = {"dsn": "postgresql://shop:${vault:kv/shop/db#password}@db/shop"}
    assert resolve_references(options["dsn"]) == f"postgresql://shop:{SECRET}@db/shop"
    assert SecretMask(options)(f"{SECRET} is wrong") == "*** is wrong"
    assert len(vault.seen) == 1, "an error asks nobody"
    vault.secrets["/v1/kv/data/shop/db"]["password"] = "the-next-one"
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    monkeypatch.delenv("VAULT_TOKEN")
    monkeypatch.setenv("VAULT_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("VAULT_NAMESPACE", "team")
    assert "the-next-one" in resolve_references(options["dsn"])
    assert vault.seen[-1]["X-Vault-Namespace"] == "team"
    vault.status = 503
    told = SecretMask(options)(f"neither {SECRET} nor the-next-one")
    assert told == "neither *** nor ***", "who began before may still name the former one"


@pytest.mark.parametrize(
    ("place", "status", "words"),
    [
        ("kv/shop/db#user", 0, "no such field"),
        ("kv/shop/db#port", 0, "no text"),
        ("kv/shop/db", 0, "MOUNT/PATH#FIELD"),
        ("kv/none#password", 0, "no such secret"),
        ("kv/../sys/raw#password", 0, "MOUNT/PATH#FIELD"),
        ("kv/shop/db#password", 403, "may not read it"),
        ("kv/shop/db#password", 503, "unseal it"),
        ("kv/shop/db#password", 307, "answered 307"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line_without_a_value(
    vault: Vault, place: str, status: int, words: str
) -> None:
    vault.status = status
    with pytest.raises(UnresolvedReference) as error:
        resolve_references(f"${{vault:{place}}}")
    told = str(error.value)
    assert words in told
    assert told.startswith(f"${{vault:{place}}} ")
    assert not {SECRET, TOKEN, "\n"} & {part for part in (SECRET, TOKEN, "\n") if part in told}
    assert len(vault.seen) <= 1, "the token goes nowhere else"


def test_a_process_without_vaults_settings_says_what_to_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VAULT_ADDR", raising=False)
    with pytest.raises(UnresolvedReference, match="export it"):
        resolve_references("${vault:kv/a#b}")
    monkeypatch.setenv("VAULT_ADDR", "http://127.0.0.1:1")
    monkeypatch.delenv("VAULT_TOKEN", raising=False)
    monkeypatch.delenv("VAULT_TOKEN_FILE", raising=False)
    with pytest.raises(UnresolvedReference, match="VAULT_TOKEN"):
        resolve_references("${vault:kv/a#b}")
    monkeypatch.setenv("VAULT_TOKEN", TOKEN)
    with pytest.raises(UnresolvedReference, match="check VAULT_ADDR"):
        resolve_references("${vault:kv/a#b}")


def test_a_long_answer_and_a_proxy_of_the_environment_are_not_used(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert resolve_references("${vault:kv/shop/db#password}") == SECRET
    vault.secrets["/v1/kv/data/shop/db"]["other"] = "x" * (1 << 20)
    with pytest.raises(UnresolvedReference, match="no answer of a Vault server"):
        resolve_references("${vault:kv/shop/db#password}")
