"""A page of another origin, in the browser of somebody who may use the API, gets nothing out of it."""

from collections.abc import Iterator

import httpx
import pytest

from penstock.api.app import create_app, describe_api
from penstock.api.deployment import LateDeployment
from penstock.api.security import is_foreign
from penstock.api.server import serve
from penstock.settings import parse
from support.apiworld import TOKENS, blocking

NAMES = frozenset({"127.0.0.1", "localhost", "penstock.example"})
FOREIGN = (
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    {"Sec-Fetch-Site": "same-site"},  # another port of the same machine: a notebook, a dashboard
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://127.0.0.1"},
    {"Origin": "https://127.0.0.1:{port}"},
    {"Origin": "http://localhost:{port}"},
    {"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"},
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The API of a cluster that is away: what stands before the routes needs none."""
    accounts = {"root": {"token": TOKENS["root"], "admin": True}}
    settings = parse(
        {
            "pd_addrs": ["127.0.0.1:1"],
            "api": {"addr": "127.0.0.1:0", "accounts": accounts, "requests_burst": 10_000},
        }
    )
    with blocking(serve(create_app(LateDeployment(settings)), settings.api)) as made:
        yield made


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKENS['root']}"}) as made:
        yield made


def named(headers: dict[str, str], url: str) -> dict[str, str]:
    return {name: value.format(port=httpx.URL(url).port) for name, value in headers.items()}


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_no_route_of_the_description_answers_a_page_of_another_origin(
    client: httpx.Client, url: str, headers: dict[str, str]
) -> None:
    """Also reads: a search or a listing costs the deployment something, whoever sees the answer."""
    open_to_all = {"/health", "/ready"}
    paths = {
        (method.upper(), path.replace("{", "").replace("}", ""))
        for path, methods in describe_api()["paths"].items()
        for method in methods
        if path not in open_to_all
    }
    assert len(paths) > 20
    for method, path in sorted(paths | {("GET", "/openapi.json"), ("GET", "/api/nothing"), ("HEAD", "/api")}):
        refused = client.request(method, path, headers=named(headers, url))
        assert refused.status_code == 403, f"{method} {path}"
        if method != "HEAD":
            assert "another origin" in refused.json()["detail"]


def test_links_of_other_sites_open_the_pages(client: httpx.Client) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.get("/", headers=link).status_code == 200
    assert client.head("/", headers=link).status_code == 200
    assert client.get("/health", headers=link).status_code == 200
    assert client.post("/health", headers=link).status_code == 403, "but a form of another site posts nothing"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:{port}"},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"},  # typed into the address bar
        {"Origin": "http://127.0.0.1:{port}"},
    ],
    ids=str,
)
def test_our_own_pages_and_programs_get_answers(
    client: httpx.Client, url: str, headers: dict[str, str]
) -> None:
    assert client.get("/api/v1/me", headers=named(headers, url)).status_code == 200
    assert client.post("/api/v1/me", headers=named(headers, url)).status_code == 405


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
