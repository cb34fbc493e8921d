"""Metrics of a process over HTTP."""

import json
import socket
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from penstock.cli import service
from penstock.cli.service import MetricServer
from penstock.errors import Invalid
from penstock.settings.network import is_loopback, join_address, split_address


@pytest.fixture
def server() -> Iterator[MetricServer]:
    registry = CollectorRegistry()
    Counter("penstock_rows_total", "Rows.", registry=registry).inc(3)
    with MetricServer.start("127.0.0.1:0", registry=registry) as running:
        yield running


def get(server: MetricServer, path: str, **headers: str) -> tuple[str, str]:
    with urlopen(Request(f"http://{server.addr}{path}", headers=headers), timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_metrics_are_shown_as_prometheus_reads_them(server: MetricServer) -> None:
    content_type, text = get(server, "/metrics")
    assert content_type.startswith("text/plain")
    assert {s.name: s.value for family in plain(text) for s in family.samples}["penstock_rows_total"] == 3


def test_who_accepts_openmetrics_gets_it(server: MetricServer) -> None:
    content_type, text = get(server, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert [family.name for family in openmetrics(text)] == ["penstock_rows"]


def test_the_process_says_that_it_is_well(server: MetricServer) -> None:
    content_type, text = get(server, "/health")
    assert (content_type, json.loads(text)) == ("application/json", {"status": "ok"})


def test_there_is_nothing_else_to_see(server: MetricServer) -> None:
    with pytest.raises(HTTPError) as refused:
        get(server, "/../etc/passwd")
    refused.value.close()
    assert refused.value.code == 404


def test_only_get_is_answered(server: MetricServer) -> None:
    with pytest.raises(HTTPError) as refused:
        urlopen(Request(f"http://{server.addr}/metrics", data=b"x", method="POST"), timeout=10)
    refused.value.close()
    assert refused.value.code == 501


@pytest.mark.parametrize("path", ["/metrics", "/health"])
def test_a_page_that_points_its_own_name_here_reads_nothing(server: MetricServer, path: str) -> None:
    """DNS rebinding: to the browser it is the page's own server."""
    port = split_address(server.addr)[1]
    for host in (f"evil.example:{port}", "localhost@evil.example", "127.0.0.1.evil.example", "", "["):
        with pytest.raises(HTTPError) as refused:
            get(server, path, Host=host)
        assert b"penstock_rows" not in refused.value.read()
        refused.value.close()
        assert refused.value.code == 421, host
    for host in (f"LOCALHOST:{port}", f"[::1]:{port}", "10.0.0.5", socket.gethostname()):
        assert get(server, path, Host=host)


def test_a_name_of_the_settings_is_accepted() -> None:
    with MetricServer.start("0.0.0.0:0", allow_remote=True, hosts=["Db1.internal"]) as server:
        port = split_address(server.addr)[1]
        request = Request(f"http://127.0.0.1:{port}/metrics", headers={"Host": f"db1.internal:{port}"})
        with urlopen(request, timeout=10) as answer:
            assert answer.status == 200


def test_a_header_that_makes_no_sense_harms_its_sender_only(server: MetricServer) -> None:
    with socket.create_connection(split_address(server.addr), timeout=10) as caller:
        caller.sendall(b"GET /metrics HTTP/1.0\r\nAccept: text/plain;version=;escaping\r\n\r\n")
        while caller.recv(4096):
            pass
    assert get(server, "/health")[1] == '{"status":"ok"}'


def test_a_new_caller_takes_the_place_of_the_oldest(server: MetricServer) -> None:
    idle = [
        socket.create_connection(split_address(server.addr), timeout=10) for _ in range(service._REQUESTS_MAX)
    ]
    try:
        assert get(server, "/health")[1] == '{"status":"ok"}'
        assert idle[0].recv(64) == b"", "the oldest was ended"
        idle[-1].sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert idle[-1].recv(64).startswith(b"HTTP/1.0 200 "), "the others were not"
    finally:
        for each in idle:
            each.close()


def test_a_closed_server_listens_no_more_and_may_be_closed_again() -> None:
    server = MetricServer.start("127.0.0.1:0")
    server.close()
    server.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(split_address(server.addr), timeout=10)


@pytest.mark.parametrize("addr", ["0.0.0.0:0", "[::]:0", "192.0.2.1:9100", "metrics.example:9100"])
def test_other_machines_see_metrics_only_when_somebody_said_so(addr: str) -> None:
    with pytest.raises(Invalid, match="metrics_addr"):
        MetricServer.start(addr)


def test_somebody_may_say_so() -> None:
    with MetricServer.start("0.0.0.0:0", allow_remote=True) as server:
        port = split_address(server.addr)[1]
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            assert answer.status == 200


def test_a_port_that_is_taken_is_named(server: MetricServer) -> None:
    with pytest.raises(Invalid, match=server.addr):
        MetricServer.start(server.addr)


@pytest.mark.parametrize("addr", ["127.0.0.1", "127.0.0.1:", "127.0.0.1:70000", ":9100", "127.0.0.1:-1"])
def test_what_is_no_address_is_refused(addr: str) -> None:
    with pytest.raises(Invalid, match="host:port"):
        split_address(addr)


def test_an_address_is_parted_and_joined() -> None:
    assert split_address("[::1]:9100") == ("::1", 9100)
    assert join_address("::1", 9100) == "[::1]:9100"
    assert join_address(*split_address("127.0.0.1:1")) == "127.0.0.1:1"


def test_loopback_is_known_by_its_names() -> None:
    assert all(map(is_loopback, ("localhost:1", "127.0.0.1:1", "127.9.9.9:1", "[::1]:1")))
    assert not any(map(is_loopback, ("0.0.0.0:1", "[::]:1", "example.com:1", "10.0.0.1:1")))
