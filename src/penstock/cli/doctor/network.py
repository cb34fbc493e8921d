"""Checks the network: addresses to listen on, and the cluster with its clock and its captures."""

import asyncio
import errno
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection

from penstock import eventloop
from penstock.cli.doctor.findings import Finding, bad, from_error, ok, warn
from penstock.cli.up.parts import parts_of
from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.control.part_states import PartKind, UpStates
from penstock.errors import Invalid, PenstockError, Unavailable
from penstock.eventstore.capture.lease import PREFIX, CaptureLease
from penstock.eventstore.read.flight_client import FlightReader
from penstock.kv import AsyncClient
from penstock.settings import ServerTlsSettings, Settings
from penstock.settings.network import join_address, reachable_host, split_address
from penstock.tables.keys import prefix_end

__all__ = [
    "ClusterAnswer",
    "ListenAddress",
    "ask_cluster",
    "check_cluster",
    "check_port",
    "count_captured_tables",
    "has_store",
    "judge_clock",
    "listen_addresses",
    "skew_ms",
]


def has_store(settings: Settings) -> bool:
    """Return whether `penstock up` would run the embedded store; the port check reports a bad address."""
    try:
        return any(part.kind is PartKind.STORE for part in parts_of(settings))
    except Invalid:
        return False


_CLUSTER_ANSWER_S = 15.0
_FLIGHT_S = 5.0
SKEW_OK_MS, SKEW_MAX_MS = 500, 10_000


@dataclass(frozen=True, slots=True)
class ClusterAnswer:
    """What a cluster answered."""

    cluster_id: int
    skew_ms: int
    """By how much its clock is ahead of ours."""
    captures: tuple[CaptureLease, ...]
    """The captures with live leases."""


def check_cluster(settings: Settings, *, clock: Clock = SYSTEM) -> list[Finding]:
    """Check whether the cluster answers; if so, check its clock and its captures."""
    try:
        answer = eventloop.run(ask_cluster(settings, clock))
    except PenstockError as error:
        return [_describe_silence(settings, error)]
    addrs = ", ".join(settings.pd_addrs)
    return [
        ok("cluster", f"cluster {answer.cluster_id} answers at {addrs}"),
        judge_clock(answer.skew_ms),
        *_check_captures(settings, answer.captures),
    ]


async def ask_cluster(settings: Settings, clock: Clock) -> ClusterAnswer:
    """Ask the cluster; raise Unavailable when it does not answer in time."""
    try:
        async with asyncio.timeout(_CLUSTER_ANSWER_S):
            async with await AsyncClient.connect(
                settings.pd_addrs, tls=settings.tls, settings=settings.kv
            ) as client:
                before_ms = clock.wall_ms()
                now_ts = await client.timestamp()
                skew = skew_ms(physical_ms(now_ts), before_ms, clock.wall_ms())
                rows = client.snapshot(now_ts).iter(PREFIX, prefix_end(PREFIX))
                leases = [CaptureLease.read(key, value) async for key, value in rows]
                live = (lease for lease in leases if lease.record.is_held(physical_ms(now_ts)))
                return ClusterAnswer(client.cluster_id, skew, tuple(live))
    except TimeoutError:
        raise Unavailable(
            f"the cluster at {', '.join(settings.pd_addrs)} does not answer within {_CLUSTER_ANSWER_S:.0f} s;"
            " check that its stores run"
        ) from None


def _describe_silence(settings: Settings, error: PenstockError) -> Finding:
    embedded = has_store(settings)
    if embedded and isinstance(error, Unavailable):
        what = f"the embedded store does not answer at {settings.store.pd_addr}"
        return warn("cluster", what, "start it with `penstock up` or `penstock store`; a new store is empty")
    return from_error("cluster", error)


def skew_ms(cluster_ms: int, before_ms: int, after_ms: int) -> int:
    """Return by how much a clock, read between two moments of ours, is ahead; 0 when it may be equal."""
    if before_ms <= cluster_ms <= after_ms:
        return 0
    return cluster_ms - (before_ms if cluster_ms < before_ms else after_ms)


def judge_clock(skew: int) -> Finding:
    """Judge the difference between our clock and the cluster's."""
    if abs(skew) <= SKEW_OK_MS:
        return ok("clock", f"within {SKEW_OK_MS} ms of the cluster's")
    what = f"{abs(skew) / 1000:,.1f} s {'behind' if skew > 0 else 'ahead of'} the cluster's"
    remedy = "synchronize the clocks of both machines with NTP: `timedatectl set-ntp true`"
    if abs(skew) <= SKEW_MAX_MS:
        return warn("clock", f"{what}: displayed lags are wrong by that much", remedy)
    return bad("clock", what, remedy)


def _check_captures(settings: Settings, leases: tuple[CaptureLease, ...]) -> list[Finding]:
    if not leases:
        what = "no capture runs: new changes do not become readable"
        return [warn("captures", what, "start one with `penstock up`, or `penstock capture --config FILE`")]
    return [_check_capture(settings, lease) for lease in leases]


def _check_capture(settings: Settings, lease: CaptureLease) -> Finding:
    name = f"capture {lease.id}"
    try:
        count = count_captured_tables(lease.flight_addr, settings)
    except Invalid as error:
        return from_error(name, error)
    except PenstockError:
        what = f"has a live lease, but does not answer at {lease.flight_addr}"
        remedy = "check flight_advertise_addr, flight_client_tls and the firewall between it and this machine"
        return bad(name, what, remedy)
    return ok(name, f"has {count} tables, at {lease.flight_addr}")


def count_captured_tables(addr: str, settings: Settings) -> int:
    """Return the number of tables of the capture at an address; raise Unavailable when none answers."""
    capture = settings.capture
    token = capture.read_flight_token()
    with FlightReader(addr, tls=capture.flight_client_tls, token=token) as reader:
        columns = json.loads(reader.run_action("progress", b"", timeout_s=_FLIGHT_S))
    return len(next(iter(columns.values()), []))


_ANSWER_S = 5.0
_ANSWER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address of the settings to listen on; `kind` is None for metrics."""

    key: str
    addr: str
    kind: PartKind | None


def listen_addresses(settings: Settings) -> Iterator[ListenAddress]:
    """Yield the addresses that parts on this machine listen on; several captures choose free ports."""
    if has_store(settings):
        yield ListenAddress("store.pd_addr", settings.store.pd_addr, PartKind.STORE)
    if settings.up.captures == 1:
        yield ListenAddress("capture.flight_addr", settings.capture.flight_addr, PartKind.CAPTURE)
    if settings.up.api:
        yield ListenAddress("api.addr", settings.api.addr, PartKind.API)
    if settings.metrics_addr is not None:
        yield ListenAddress("metrics_addr", settings.metrics_addr, None)


def check_port(address: ListenAddress, settings: Settings) -> Finding:
    """Check that an address is free, or in use by the part that should listen there."""
    name = f"port {address.key}"
    try:
        host, number = split_address(address.addr)
    except Invalid:
        return bad(name, f"{address.addr} is not an address", f"write host:port in {address.key}")
    if number == 0:
        return ok(name, "a free port is chosen")
    error = _listen_error(host, number)
    if error is None:
        return ok(name, f"{address.addr} is free")
    if error.errno != errno.EADDRINUSE:
        what = f"{address.addr} cannot be listened on ({error.strerror})"
        return bad(name, what, f"give {address.key} an address of this machine, with a port of 1024 or above")
    service = _find_our_service(address, join_address(reachable_host(host), number), settings)
    if service is not None:
        return ok(name, f"{address.addr} is used by {service}")
    what = f"{address.addr} is used by another program"
    return bad(name, what, f"stop it (`ss -ltnp 'sport = :{number}'` shows it), or change {address.key}")


def _listen_error(host: str, number: int) -> OSError | None:
    """Return the error of listening on an address; None when it can be listened on."""
    try:
        family, kind, protocol, _, socket_address = socket.getaddrinfo(
            host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(socket_address)
            listener.listen(1)
    except OSError as error:
        return error
    return None


def _find_our_service(address: ListenAddress, addr: str, settings: Settings) -> str | None:
    """Return the part of Penstock that answers at an address; None when none does."""
    with suppress(PenstockError):  # the state file is damaged or unreadable: rely on who answers
        states = UpStates.read(settings.up.data)
        for part in states.parts if states is not None else ():
            if part.addr is not None and part.addr.rstrip("/").endswith(address.addr):
                return f"{part.name} of the running `penstock up`"
    try:
        match address.kind:
            case PartKind.STORE:
                return f"the store of cluster {eventloop.run(_cluster_id(addr, settings))}"
            case PartKind.CAPTURE:
                return f"a capture of {count_captured_tables(addr, settings)} tables"
            case PartKind.API:
                return "Penstock's API" if _answers(addr, settings.api.tls) else None
            case _:
                return "Penstock's metrics" if _answers(addr, None) else None
    except PenstockError:
        return None


async def _cluster_id(addr: str, settings: Settings) -> int:
    quick = settings.kv.model_copy(update={"pd_timeout_ms": int(_ANSWER_S * 1000)})
    async with await AsyncClient.connect([addr], tls=settings.tls, settings=quick) as client:
        return client.cluster_id


def _answers(addr: str, tls: ServerTlsSettings | None) -> bool:
    """Return whether a service at an address answers GET /health as ours do."""
    host, number = split_address(addr)
    connection: HTTPConnection | None = None
    try:
        connection = (
            HTTPConnection(host, number, timeout=_ANSWER_S)
            if tls is None
            else HTTPSConnection(host, number, timeout=_ANSWER_S, context=_pinned_context(tls))
        )
        connection.request("GET", "/health")
        answer = connection.getresponse()
        tree = json.loads(answer.read(_ANSWER_BYTES))
        return answer.status == HTTPStatus.OK and isinstance(tree, dict) and tree.get("status") == "ok"
    except (OSError, HTTPException, ValueError):
        return False
    finally:
        if connection is not None:
            connection.close()


def _pinned_context(tls: ServerTlsSettings) -> ssl.SSLContext:
    """Return a TLS context that trusts only the certificate of the settings, whatever host name it has."""
    context = ssl.create_default_context(cafile=str(tls.cert_path))
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
