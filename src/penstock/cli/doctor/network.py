"""Addresses to listen on: whether they are free, or taken by what should listen there."""

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
from penstock.cli.doctor.clusterchecks import captured_tables
from penstock.cli.doctor.embedded import has_store
from penstock.cli.doctor.findings import Finding, bad, ok
from penstock.control.part_states import PartKind, UpStates
from penstock.errors import Invalid, PenstockError
from penstock.kv import AsyncClient
from penstock.settings import ServerTlsSettings, Settings
from penstock.settings.network import asked_host, joined, parted

__all__ = ["Listening", "listened", "port"]

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
        host, number = parted(wanted.addr)
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
    whose = _ours(wanted, joined(asked_host(host), number), settings)
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
    host, number = parted(addr)
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
