"""The embedded store has no users: other machines reach it with client certificates, or when told so."""

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import Invalid
from penstock.settings import StoreSettings
from penstock.store.server import check_exposure
from support.command import penstock

TLS = {"cert_path": "server.pem", "key_path": "server.key"}


@pytest.mark.parametrize("more", [{}, {"tls": TLS}], ids=["no TLS", "no client certificates"])
@pytest.mark.parametrize("addr", ["192.0.2.1:2379", "[2001:db8::1]:2379", "store.example:2379", "[::2]:0"])
def test_an_address_of_other_machines_is_refused(addr: str, more: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=r"set store\.tls with ca_path, .* or say store\.insecure: true"):
        check_exposure(StoreSettings.model_validate({"pd_addr": addr, **more}))


@pytest.mark.parametrize(
    "tree",
    [
        {"pd_addr": "127.0.0.1:2379"},
        {"pd_addr": "localhost:2379"},
        {"pd_addr": "[::1]:2379"},
        {"pd_addr": "192.0.2.1:2379", "tls": {**TLS, "ca_path": "ca.pem"}},
        {"pd_addr": "192.0.2.1:2379", "insecure": True},
    ],
    ids=str,
)
def test_loopback_certificates_and_an_explicit_word_pass(tree: dict[str, Any]) -> None:
    check_exposure(StoreSettings.model_validate(tree))


def test_the_command_says_so_in_one_line_and_opens_nothing(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    refused = penstock("store", "--pd-addr", "192.0.2.1:2379", "--data", data)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "store.pd_addr 192.0.2.1:2379 can be reached from other machines" in refused.stderr
    assert not (tmp_path / "data").exists()
    told = penstock("store", "--pd-addr", "192.0.2.1:2379", "--data", data, "--insecure")
    assert "cannot be bound" in told.stderr, "it is not this machine's; but it was tried"
