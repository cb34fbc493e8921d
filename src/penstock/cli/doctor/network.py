"""Addresses to listen on: whether they are free, or taken by what should listen there.

The cluster: whether it answers, what time it has, and whether captures follow it.

Whether the embedded store is part of a deployment.
"""

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
from penstock.cli.doctor.findings import Finding, bad, ok, refused, warn
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
    "ClusterLook",
    "Listening",
    "captured_tables",
    "cluster",
    "has_store",
    "judge_clock",
    "listened",
    "look",
    "port",
    "skew_ms",
]


def has_store(settings: Settings) -> bool:
    """Whether `penstock up` would run it; an address that is none is told by the check of the ports."""
    try:
        return any(part.kind is PartKind.STORE for part in parts_of(settings))
    except Invalid:
        return False


_CLUSTER_ANSWER_S = 15.0
_FLIGHT_S = 5.0
SKEW_FINE_MS, SKEW_MAX_MS = 500, 10_000


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """What a cluster says."""

    cluster_id: int
    skew_ms: int
    """How far its time is ahead of ours."""
    captures: tuple[CaptureLease, ...]
    """Those whose leases run."""


def cluster(settings: Settings, *, clock: Clock = SYSTEM) -> list[Finding]:
    """Whether the cluster of the settings answers; if so, its clock and its captures."""
    try:
        found = eventloop.run(look(settings, clock))
    except PenstockError as error:
        return [_silent(settings, error)]
    addrs = ", ".join(settings.pd_addrs)
    return [
        ok("cluster", f"cluster {found.cluster_id} answers at {addrs}"),
        judge_clock(found.skew_ms),
        *_captures(settings, found.captures),
    ]


async def look(settings: Settings, clock: Clock) -> ClusterLook:
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
                live = (each for each in leases if each.record.is_held(physical_ms(now_ts)))
                return ClusterLook(client.cluster_id, skew, tuple(live))
    except TimeoutError:
        raise Unavailable(
            f"the cluster at {', '.join(settings.pd_addrs)} does not answer within {_CLUSTER_ANSWER_S:.0f} s;"
            " look at its stores"
        ) from None


def _silent(settings: Settings, error: PenstockError) -> Finding:
    embedded = has_store(settings)
    if embedded and isinstance(error, Unavailable):
        what = f"the embedded store does not answer at {settings.store.pd_addr}"
        return warn("cluster", what, "start it: `penstock up`, or `penstock store`; it starts with nothing")
    return refused("cluster", error)


def skew_ms(cluster_ms: int, before_ms: int, after_ms: int) -> int:
    """How far a clock is ahead of ours that was asked between two moments; 0 when it may be the same."""
    if before_ms <= cluster_ms <= after_ms:
        return 0
    return cluster_ms - (before_ms if cluster_ms < before_ms else after_ms)


def judge_clock(skew: int) -> Finding:
    """Whether our clock is right enough."""
    if abs(skew) <= SKEW_FINE_MS:
        return ok("clock", f"within {SKEW_FINE_MS} ms of the cluster's")
    what = f"{abs(skew) / 1000:,.1f} s {'behind' if skew > 0 else 'ahead of'} the cluster's"
    remedy = "let both machines keep time by NTP: `timedatectl set-ntp true`"
    if abs(skew) <= SKEW_MAX_MS:
        return warn("clock", f"{what}: lags are shown wrong by that much", remedy)
    return bad("clock", what, remedy)


def _captures(settings: Settings, leases: tuple[CaptureLease, ...]) -> list[Finding]:
    if not leases:
        what = "none is alive: nothing that is written becomes readable"
        return [warn("captures", what, "start one: `penstock up`, or `penstock capture --config FILE`")]
    return [_capture(settings, lease) for lease in leases]


def _capture(settings: Settings, lease: CaptureLease) -> Finding:
    name = f"capture {lease.id}"
    try:
        count = captured_tables(lease.flight_addr, settings)
    except Invalid as error:
        return refused(name, error)
    except PenstockError:
        what = f"is alive, and does not answer at {lease.flight_addr}"
        remedy = "let this machine reach it: flight_advertise_addr, flight_client_tls, the firewall"
        return bad(name, what, remedy)
    return ok(name, f"has {count} tables, at {lease.flight_addr}")


def captured_tables(addr: str, settings: Settings) -> int:
    """How many tables the capture at an address has; raise Unavailable when none answers there."""
    capture = settings.capture
    token = capture.read_flight_token()
    with FlightReader(addr, tls=capture.flight_client_tls, token=token) as reader:
        columns = json.loads(reader.run_action("progress", b"", timeout_s=_FLIGHT_S))
    return len(next(iter(columns.values()), []))


_ANSWER_S = 5.0
_ANSWER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Listening:
    """An address of the settings; `kind` None: metrics."""

    key: str
    addr: str
    kind: PartKind | None


def listened(settings: Settings) -> Iterator[Listening]:
    """Where parts of this machine listen, by the settings; several captures take free ports."""
    if has_store(settings):
        yield Listening("store.pd_addr", settings.store.pd_addr, PartKind.STORE)
    if settings.up.captures == 1:
        yield Listening("capture.flight_addr", settings.capture.flight_addr, PartKind.CAPTURE)
    if settings.up.api:
        yield Listening("api.addr", settings.api.addr, PartKind.API)
    if settings.metrics_addr is not None:
        yield Listening("metrics_addr", settings.metrics_addr, None)


def port(wanted: Listening, settings: Settings) -> Finding:
    """Whether it can be listened on, or is by the part that should."""
    name = f"port {wanted.key}"
    try:
        host, number = split_address(wanted.addr)
    except Invalid:
        return bad(name, f"{wanted.addr} is no address", f"write host:port in {wanted.key}")
    if number == 0:
        return ok(name, "a free one is taken")
    trouble = _trouble(host, number)
    if trouble is None:
        return ok(name, f"{wanted.addr} is free")
    if trouble.errno != errno.EADDRINUSE:
        what = f"{wanted.addr} cannot be listened on ({trouble.strerror})"
        return bad(name, what, f"give {wanted.key} an address of this machine, with a port from 1024 on")
    whose = _ours(wanted, join_address(reachable_host(host), number), settings)
    if whose is not None:
        return ok(name, f"{wanted.addr} is taken by {whose}")
    what = f"{wanted.addr} is taken by another program"
    return bad(name, what, f"end it (`ss -ltnp 'sport = :{number}'` shows it), or change {wanted.key}")


def _trouble(host: str, number: int) -> OSError | None:
    """What keeps us from listening there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
            tried.listen(1)
    except OSError as error:
        return error
    return None


def _ours(wanted: Listening, addr: str, settings: Settings) -> str | None:
    """Which part of Penstock answers there; None: none does."""
    with suppress(PenstockError):  # damaged or unreadable: whoever answers decides
        running = UpStates.read(settings.up.data)
        for part in running.parts if running is not None else ():
            if part.addr is not None and part.addr.rstrip("/").endswith(wanted.addr):
                return f"{part.name} of the `penstock up` that runs"
    try:
        match wanted.kind:
            case PartKind.STORE:
                return f"the store of cluster {eventloop.run(_cluster_id(addr, settings))}"
            case PartKind.CAPTURE:
                return f"a capture of {captured_tables(addr, settings)} tables"
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
    """Whether there is a service that says that it is well, the way ours do."""
    host, number = split_address(addr)
    connection: HTTPConnection | None = None
    try:
        connection = (
            HTTPConnection(host, number, timeout=_ANSWER_S)
            if tls is None
            else HTTPSConnection(host, number, timeout=_ANSWER_S, context=_trusting(tls))
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


def _trusting(tls: ServerTlsSettings) -> ssl.SSLContext:
    """A context that accepts the certificate of the settings, whatever name it is for, and no other."""
    context = ssl.create_default_context(cafile=str(tls.cert_path))
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
