"""What may be reached by whom: names, addresses, accounts and certificates."""

import socket

import pytest

from penstock.api.security import TokenAccounts
from penstock.api.server import check_exposure, open_listener
from penstock.errors import Invalid
from penstock.settings import AccountSettings, ApiSettings
from penstock.settings.network import accepted_hosts, host_of

TOKEN = "0123456789abcdef"
GUARDED = {
    "tls": {"cert_path": "cert.pem", "key_path": "key.pem"},
    "accounts": {"root": {"token": TOKEN, "admin": True}},
}


@pytest.mark.parametrize("addr", ["127.0.0.1:8300", "localhost:0", "[::1]:8300", "127.8.8.8:1"])
def test_loopback_needs_nothing(addr: str) -> None:
    check_exposure(ApiSettings(addr=addr))


@pytest.mark.parametrize(
    ("more", "lacking"),
    [
        ({}, "api.tls and api.accounts"),
        ({"tls": GUARDED["tls"]}, "api.accounts"),
        ({"accounts": GUARDED["accounts"]}, "api.tls"),
    ],
)
def test_other_addresses_need_tls_and_accounts(more: dict[str, object], lacking: str) -> None:
    with pytest.raises(Invalid, match=f"set {lacking}, or listen") as refused:
        check_exposure(ApiSettings.model_validate({"addr": "10.0.0.5:8300", **more}))
    assert "\n" not in str(refused.value)


def test_an_address_of_any_name_needs_the_names_it_is_asked_by() -> None:
    with pytest.raises(Invalid, match=r"api\.hosts"):
        check_exposure(ApiSettings.model_validate({"addr": "0.0.0.0:8300", **GUARDED}))
    check_exposure(
        ApiSettings.model_validate({"addr": "0.0.0.0:8300", "hosts": ["penstock.example"], **GUARDED})
    )
    check_exposure(ApiSettings.model_validate({"addr": "10.0.0.5:8300", **GUARDED}))


def test_the_names_it_is_asked_by() -> None:
    assert accepted_hosts("10.0.0.5:1", ("A.example",)) == {"10.0.0.5", "a.example"}
    assert accepted_hosts("[::1]:1") == {"::1", "127.0.0.1", "localhost"}


@pytest.mark.parametrize(
    ("said", "host"),
    [
        ("localhost", "localhost"),
        ("LOCALHOST:80", "localhost"),
        ("[::1]:80", "::1"),
        ("evil.example#localhost", "evil.example"),
        ("localhost@evil.example", "evil.example"),
        ("[", ""),
        ("", ""),
    ],
)
def test_the_name_in_a_header(said: str, host: str) -> None:
    assert host_of(said) == host


def accounts(**more: str) -> TokenAccounts:
    return TokenAccounts(
        {name: AccountSettings.model_validate({"token": token}) for name, token in more.items()}
    )


def test_a_token_is_its_accounts() -> None:
    found = accounts(ann=TOKEN, bob=TOKEN[::-1])
    caller = found.caller(f"Bearer {TOKEN}")
    assert caller is not None
    assert (caller.name, caller.account, caller.admin) == ("ann", "ann", False)
    assert found.caller(f"bearer {TOKEN[::-1]}") is not None, "the scheme has no case"
    for header in (None, "", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer ", f"Digest {TOKEN}"):
        assert found.caller(header) is None


def test_without_accounts_anybody_is_an_admin() -> None:
    caller = accounts().caller(None)
    assert caller is not None
    assert (caller.name, caller.account, caller.admin) == ("sys", None, True)


def test_tokens_are_not_kept_nor_shown() -> None:
    assert TOKEN not in repr(vars(accounts(ann=TOKEN)))


def test_small_answers_are_sent_at_once() -> None:
    """asyncio sets TCP_NODELAY on sockets whose protocol is said to be TCP, and on no others."""
    with open_listener("127.0.0.1:0") as listener:
        assert listener.proto == socket.IPPROTO_TCP
