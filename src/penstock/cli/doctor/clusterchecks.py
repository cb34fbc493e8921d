"""The cluster: whether it answers, what time it has, and whether captures follow it."""

import asyncio
import json
from dataclasses import dataclass

from penstock import eventloop
from penstock.cli.doctor.embedded import has_store
from penstock.cli.doctor.findings import Finding, bad, ok, refused, warn
from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import Invalid, PenstockError, Unavailable
from penstock.eventstore.capture.lease import PREFIX, CaptureLease
from penstock.eventstore.read.flight_client import FlightReader
from penstock.kv import AsyncClient
from penstock.settings import Settings
from penstock.tables.keys import prefix_end

__all__ = ["ClusterLook", "captured_tables", "cluster", "judge_clock", "look", "skew_ms"]

_ANSWER_S = 15.0
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
        async with asyncio.timeout(_ANSWER_S):
            async with await AsyncClient.connect(
                settings.pd_addrs, tls=settings.tls, settings=settings.kv
            ) as client:
                before_ms = clock.wall_ms()
                now_ts = await client.timestamp()
                skew = skew_ms(physical_ms(now_ts), before_ms, clock.wall_ms())
                rows = client.snapshot(now_ts).iter(PREFIX, prefix_end(PREFIX))
                leases = [CaptureLease.read(key, value) async for key, value in rows]
                live = (each for each in leases if each.expires_ms > physical_ms(now_ts))
                return ClusterLook(client.cluster_id, skew, tuple(live))
    except TimeoutError:
        raise Unavailable(
            f"the cluster at {', '.join(settings.pd_addrs)} does not answer within {_ANSWER_S:.0f} s;"
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
        columns = json.loads(reader.act("progress", b"", timeout_s=_FLIGHT_S))
    return len(next(iter(columns.values()), []))
