"""A tenant's webhook is sent to the server that was allowed, at an address that was checked."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import SystemClock
from penstock.consumers.webhook import Webhook
from penstock.errors import Invalid, Unavailable
from penstock.jobs.consumer import JobContext, open_consumer
from penstock.settings import AccountSettings
from penstock.tables.define import define_table
from penstock.targets import TenantRefused, TenantTargets, is_public
from penstock.testing.consumers import SourceModel, job_context
from support.certificates import issue

ITEMS = replace(define_table("items", [("id", "int primary key")]), id=1)


@dataclass
class Server:
    """An HTTP server on loopback that remembers which hosts and paths it was asked for."""

    port: int = 0
    status: int = 200
    location: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)


@contextmanager
def http_server(
    address: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[Server]:
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            server.asked.append((self.headers["Host"], self.path))
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(server.status)
            if server.location:
                self.send_header("Location", server.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer((address, port), Handler) as listening:
        if tls is not None:
            listening.socket = tls.wrap_socket(listening.socket, server_side=True)
        server.port = listening.server_port
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()


class Hasty(SystemClock):
    """Does not wait between attempts."""

    def pause(self, seconds: float) -> None:
        del seconds


def context(folder: Path, tenant: TenantTargets, url: str, **options: str) -> JobContext:
    given = {"url": url, "attempts": "2", "timeout": "10s", **options}
    return replace(job_context(folder, "webhook", given), tenant=tenant, clock=Hasty())


def deliver(job: JobContext) -> None:
    source = SourceModel(ITEMS)
    source.commit({"id": 1})
    consumer = open_consumer(job)
    assert isinstance(consumer, Webhook)
    try:
        consumer.consume(source.retriever(0, source.ts))
    finally:
        consumer.close()


Names = dict[str, Callable[[], list[str]]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """Addresses of names, each time they are asked for: a test has no DNS of its own."""
    known: Names = {}
    real = socket.getaddrinfo

    def look_up(host: Any, *more: Any, **named: Any) -> Any:
        if host not in known:
            return real(host, *more, **named)
        return [found for address in known[host]() for found in real(address, *more, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.1.2.3", "0.0.0.0", "0.1.2.3", "10.1.2.3", "172.16.0.1", "192.168.1.1"),
        *("169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.192", "168.63.129.16", "198.18.0.1"),
        *("224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "203.0.113.9"),
        *("::", "::1", "fe80::1", "fd00:ec2::254", "fc00::1", "ff02::1", "2001:db8::1", "100::1"),
        *(
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
        ),
        *("64:ff9b:1::a00:1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001::7f00:1", "fec0::1", "3fff::1"),
    ],
)
def test_addresses_of_machines_and_networks_are_not_public(
    tmp_path: Path, names: Names, address: str
) -> None:
    assert not is_public(ip_address(address))
    names["hooks.example"] = lambda: ["93.184.216.34", address]
    job = context(tmp_path, TenantTargets("ann", ("http://hooks.example/ann",)), "http://hooks.example/ann")
    with pytest.raises(TenantRefused, match=r"api\.accounts\.ann\.networks"):
        deliver(job)


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "127.0.0.1."),
        *("localhost", "localhost.", "LOCALHOST", "hooks.example.", "hooks.example%2e", "hooks。example"),
        *("[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[fe80::1%25lo]", "0.0.0.0", "0"),
        *(
            "hooks.example@127.0.0.1",
            "127.0.0.1\\@hooks.example",
            "hooks.example,127.0.0.1",
            "hooks.example\t",
        ),
        *("hooks.example#@127.0.0.1", "hooks.example?@127.0.0.1", "169.254.169.254", "[fd00:ec2::254]"),
    ],
)
def test_a_tenant_names_no_other_server_however_it_is_spelled(tmp_path: Path, host: str) -> None:
    with http_server() as server:
        tenant = TenantTargets("ann", (f"http://hooks.example:{server.port}/ann",))
        for url in (f"http://{host}:{server.port}/ann", f"http://{host}/ann"):
            with pytest.raises(Invalid):
                deliver(context(tmp_path, tenant, url))
        assert server.asked == []


@pytest.mark.parametrize(
    "path",
    [
        "/bob",
        "/ann/../bob",
        "/ann/%2e%2e/bob",
        "/ann%2f..%2fbob",
        "/ann/..;/bob",
        "/ann\\..\\bob",
        "//bob",
        "/ann//x",
    ],
)
def test_a_tenant_names_no_other_path(tmp_path: Path, path: str) -> None:
    with http_server() as server:
        place = f"http://127.0.0.1:{server.port}"
        with pytest.raises(Invalid):
            deliver(context(tmp_path, TenantTargets("ann", (f"{place}/ann",)), f"{place}{path}"))
        assert server.asked == []


def test_a_redirect_leads_nowhere(tmp_path: Path) -> None:
    with http_server() as allowed, http_server() as inside:
        for status in (301, 302, 303, 307, 308):
            allowed.status, allowed.location = status, f"http://127.0.0.1:{inside.port}/"
            place = f"http://127.0.0.1:{allowed.port}/ann"
            with pytest.raises(Invalid, match="redirects are not followed"):
                deliver(context(tmp_path, TenantTargets("ann", (place,)), place))
        assert (len(allowed.asked), inside.asked) == (5, [])


def test_an_address_or_localhost_that_the_operator_wrote_is_meant(tmp_path: Path) -> None:
    with http_server() as server:
        for host in ("127.0.0.1", "localhost"):
            place = f"http://{host}:{server.port}/ann"
            deliver(context(tmp_path, TenantTargets("ann", (place,)), f"{place}/in?key=1"))
            assert server.asked[-1] == (f"{host}:{server.port}", "/ann/in?key=1")


def test_a_name_that_leads_elsewhere_after_its_check_is_not_followed(tmp_path: Path, names: Names) -> None:
    with http_server("127.0.0.1") as allowed, http_server("127.0.0.2", allowed.port) as inside:
        answers = iter([["127.0.0.1"], *([["127.0.0.2"]] * 100)])
        names["hooks.example"] = lambda: next(answers)
        place = f"http://hooks.example:{allowed.port}/ann"
        tenant = TenantTargets("ann", (place,), networks=("127.0.0.1/32",))
        deliver(context(tmp_path, tenant, place))
        assert allowed.asked == [(f"hooks.example:{allowed.port}", "/ann")], (
            "by its name, at the checked address"
        )
        with pytest.raises(TenantRefused):
            deliver(context(tmp_path, tenant, place))
        assert inside.asked == []


def test_all_addresses_of_a_name_are_tried(tmp_path: Path, names: Names) -> None:
    with http_server("127.0.0.2") as server:
        names["hooks.example"] = lambda: ["127.0.0.1", "127.0.0.2"]  # nobody listens at the first
        place = f"http://hooks.example:{server.port}/ann"
        deliver(context(tmp_path, TenantTargets("ann", (place,), networks=("127.0.0.0/8",)), place))
        assert server.asked == [(f"hooks.example:{server.port}", "/ann")]
        names["hooks.example"] = lambda: ["127.0.0.1"]
        with pytest.raises(Unavailable):
            deliver(context(tmp_path, TenantTargets("ann", (place,), networks=("127.0.0.0/8",)), place))


def test_a_certificate_is_checked_for_the_name_and_not_for_the_address(tmp_path: Path, names: Names) -> None:
    authority = issue(tmp_path, "authority")
    identity = issue(tmp_path, "server", authority)  # for 127.0.0.1
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(identity.cert_path, identity.key_path)
    names["other.example"] = lambda: ["127.0.0.1"]
    with http_server(tls=tls) as server:
        places = [f"https://{host}:{server.port}/ann" for host in ("127.0.0.1", "other.example")]
        tenant = TenantTargets("ann", tuple(places), networks=("127.0.0.0/8",))
        trusted = {"ca_path": str(authority.cert_path)}
        deliver(context(tmp_path, tenant, places[0], **trusted))
        assert server.asked == [(f"127.0.0.1:{server.port}", "/ann")]
        with pytest.raises(Invalid, match="certificate"):
            deliver(context(tmp_path, tenant, places[1], **trusted))
        assert len(server.asked) == 1


def test_networks_of_an_account_are_networks() -> None:
    AccountSettings(token="a-token-of-16-letters", networks=("10.0.0.0/8", "fd00::/8"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="networks"):
        AccountSettings(token="a-token-of-16-letters", networks=("10.0.0.1/8",))  # type: ignore[arg-type]
