"""A page of another origin is told apart by what its browser sends."""

import pytest

from penstock.api.security import is_foreign

NAMES = frozenset({"127.0.0.1", "localhost", "penstock.example"})


@pytest.mark.parametrize(
    ("host", "origin", "scheme", "foreign"),
    [
        ("penstock.example", "https://penstock.example", "https", False),
        ("penstock.example", "https://penstock.example:443", "https", False),
        ("penstock.example:443", "https://PENSTOCK.example", "https", False),
        ("penstock.example:80", "http://penstock.example", "http", False),
        ("penstock.example", "http://penstock.example", "https", True),
        ("penstock.example", "https://penstock.example:8443", "https", True),
        ("penstock.example", "https://penstock.example.evil.example", "https", True),
        ("penstock.example", "https://penstock.example@evil.example", "https", True),
        ("penstock.example", "https://penstock.example:nine", "https", True),
        ("penstock.example", "https://[", "https", True),
        ("penstock.example", "", "https", True),
        ("", "", "http", True),
        ("penstock.example", "chrome-extension://penstock.example", "https", True),
    ],
)
def test_an_origin_is_its_scheme_its_host_and_its_port(
    host: str, origin: str, scheme: str, foreign: bool
) -> None:
    assert is_foreign({"host": host, "origin": origin}, scheme=scheme, names=NAMES) is foreign


def test_a_proxy_that_ends_tls_changes_the_scheme_and_the_browser_still_says_same_origin() -> None:
    headers = {
        "host": "penstock.example",
        "origin": "https://penstock.example",
        "sec-fetch-site": "same-origin",
    }
    assert not is_foreign(headers, scheme="http", names=NAMES)
