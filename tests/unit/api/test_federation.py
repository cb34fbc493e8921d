"""One page of metrics for a whole deployment."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock.api.routes.status import federate_metrics
from penstock.cli.service import MetricServer
from penstock.clock import SYSTEM
from penstock.control.overview.part_metrics import read_pages
from penstock.control.part_states import PartKind, PartState, PartStatus
from penstock.settings.network import join_address


def part(name: str, metrics_addr: str | None) -> PartStatus:
    kind = PartKind(name.partition("-")[0])
    return PartStatus(name=name, kind=kind, state=PartState.RUNNING, metrics_addr=metrics_addr)


def counting(rows: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("penstock_rows_total", "Rows.", registry=registry).inc(rows)
    return registry


def read(page: bytes, name: str) -> dict[str, float]:
    return {
        sample.labels["part"]: sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.name == name
    }


@contextmanager
def listening(*answers: bytes) -> Iterator[str]:
    """A server that says the same to whoever comes, and then waits to be left."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            caller, _ = server.accept()
            with caller:
                for each in answers:
                    caller.sendall(each)
                while caller.recv(4096):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield join_address(*server.getsockname())
        thread.join()


def test_the_parts_of_a_deployment_are_told_apart_by_a_label() -> None:
    with (
        MetricServer.start("127.0.0.1:0", registry=counting(1)) as first,
        MetricServer.start("127.0.0.1:0", registry=counting(2)) as second,
    ):
        parts = [part("capture-1", first.addr), part("capture-2", second.addr), part("api", "127.0.0.1:1")]
        page = federate_metrics(generate_latest(counting(3)), parts)
    assert read(page, "penstock_rows_total") == {"capture-1": 1, "capture-2": 2, "api": 3}
    assert read(page, "penstock_part_up") == {"capture-1": 1, "capture-2": 1, "api": 1}


def test_a_part_that_shows_nothing_is_down_and_the_others_are_shown() -> None:
    with MetricServer.start("127.0.0.1:0", registry=counting(1)) as closed:
        pass
    with MetricServer.start("127.0.0.1:0", registry=counting(2)) as running:
        parts = [part("store", None), part("capture-1", closed.addr), part("jobs", running.addr)]
        page = federate_metrics(b"", parts)
    assert read(page, "penstock_part_up") == {"api": 1, "store": 0, "capture-1": 0, "jobs": 1}
    assert read(page, "penstock_rows_total") == {"jobs": 2}


def test_a_part_that_hangs_holds_nobody_for_long() -> None:
    with listening() as silent, listening(b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\na") as stuck:
        began = SYSTEM.monotonic()
        found = read_pages([part("store", silent), part("jobs", stuck)], timeout_s=0.1)
    assert found == {"store": None, "jobs": None}
    assert SYSTEM.monotonic() - began < 5


def test_what_is_no_page_of_metrics_is_not_believed() -> None:
    with (
        listening(b"HTTP/1.0 500 Oh\r\nContent-Length: 2\r\n\r\na 1") as failing,
        listening(b"SSH-2.0-OpenSSH\r\n") as other,
        listening(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xff") as torn,
    ):
        parts = [
            part("store", failing),
            part("jobs", other),
            part("changefeeds", torn),
            part("capture-1", "x"),
        ]
        assert set(read_pages(parts, timeout_s=5).values()) == {None}
