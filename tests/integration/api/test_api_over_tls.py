"""The API over TLS: its certificate, that of its clients, and what it refuses."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock.api.app import create_app
from penstock.api.deployment import LateDeployment
from penstock.api.server import serve, tls_context
from penstock.errors import Invalid, Unavailable
from penstock.settings import ServerTlsSettings, Settings
from support.apiworld import TOKENS, blocking
from support.certificates import Identity, issue


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return issue(tmp_path_factory.mktemp("certificates"), "authority")


def settings(server: Identity, authority: Identity | None) -> Settings:
    tls = {"cert_path": server.cert_path, "key_path": server.key_path}
    if authority is not None:
        tls["ca_path"] = authority.cert_path
    accounts = {"root": {"token": TOKENS["root"], "admin": True}}
    return Settings.model_validate(
        {
            "pd_addrs": ["127.0.0.1:1"],
            "kv": {"pd_timeout_ms": 200},
            "api": {"addr": "127.0.0.1:0", "tls": tls, "accounts": accounts},
        }
    )


@pytest.fixture(scope="module")
def guarded(authority: Identity) -> Iterator[str]:
    """An API that wants certificates of its clients; its cluster is away."""
    made = settings(issue(authority.cert_path.parent, "server", authority), authority)
    with blocking(serve(create_app(LateDeployment(made)), made.api)) as url:
        yield url


def asked(url: str, path: str, authority: Identity, client: Identity | None) -> httpx.Response:
    context = ssl.create_default_context(cafile=str(authority.cert_path))
    if client is not None:
        context.load_cert_chain(client.cert_path, client.key_path)
    with httpx.Client(verify=context, headers={"Authorization": f"Bearer {TOKENS['root']}"}) as asking:
        return asking.get(f"{url}{path}")


def test_a_client_with_a_certificate_is_answered(guarded: str, authority: Identity) -> None:
    client = issue(authority.cert_path.parent, "client", authority)
    answer = asked(guarded, "/health", authority, client)
    assert answer.status_code == 200
    assert "max-age" in answer.headers["strict-transport-security"]


def test_a_client_without_one_is_not(guarded: str, authority: Identity) -> None:
    with pytest.raises(httpx.TransportError):
        asked(guarded, "/health", authority, None)
    stranger = issue(authority.cert_path.parent, "stranger")
    with pytest.raises(httpx.TransportError):
        asked(guarded, "/health", authority, stranger)


def test_while_the_cluster_is_away_requests_are_told_so(guarded: str, authority: Identity) -> None:
    client = issue(authority.cert_path.parent, "client", authority)
    ready = asked(guarded, "/ready", authority, client)
    assert (ready.status_code, ready.json()["ready"], len(ready.json()["reasons"])) == (503, False, 1)
    for path in ("/api/v1/tables", "/api/v1/overview", "/api/v1/changefeeds/x", "/api/v1/jobs"):
        answer = asked(guarded, path, authority, client)
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
        assert int(answer.headers["retry-after"]) >= 1
    assert asked(guarded, "/api/v1/me", authority, client).status_code == 200, "which needs no cluster"


def test_files_that_are_no_certificates_are_refused(tmp_path: Path, authority: Identity) -> None:
    other = issue(tmp_path, "other")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    for cert, key in (
        (authority.cert_path, other.key_path),
        (nonsense, other.key_path),
        (tmp_path / "none.pem", other.key_path),
    ):
        with pytest.raises(Invalid):
            tls_context(ServerTlsSettings(cert_path=cert, key_path=key))
    with pytest.raises(Invalid):
        tls_context(ServerTlsSettings(cert_path=other.cert_path, key_path=other.key_path, ca_path=nonsense))


def test_an_address_that_somebody_has_is_told(authority: Identity) -> None:
    made = settings(authority, None)
    app = create_app(LateDeployment(made))
    with blocking(serve(app, made.api)) as url:
        taken = made.api.model_copy(update={"addr": url.removeprefix("https://")})
        with (
            pytest.raises(Unavailable, match=r"api\.addr .* cannot be listened on"),
            blocking(serve(app, taken)),
        ):
            pass
