"""Serves the API: its socket, its certificate, and a server that lets running requests end."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

import uvicorn
from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI

from penstock.api.app import create_app
from penstock.api.connections import Admission, ApiConnection, ConnectionWatch, Doorkeeper
from penstock.api.deployment import LateDeployment
from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid, Unavailable
from penstock.settings import ApiSettings, ServerTlsSettings, Settings
from penstock.settings.network import is_everywhere, is_loopback, join_address, split_address
from penstock.shares import Shares

__all__ = ["check_exposure", "open_listener", "run", "serve", "tls_context"]

_BACKLOG = 512
_END_S = 10
_SPARE_THREADS = 16  # for pages, probes and refusals, which no account is asked for


async def run(settings: Settings, *, ready: Callable[[str], None], clock: Clock = SYSTEM) -> None:
    """Serve until cancelled, then let running requests end. `ready` is called with the URL.

    While the cluster is away, requests are answered with 503. Raises Invalid when a setting cannot work,
    Unavailable when the address cannot be listened on.
    """
    check_exposure(settings.api)
    reach = LateDeployment(settings, clock=clock)
    try:
        async with serve(create_app(reach, clock=clock), settings.api) as url:
            ready(url)
            await asyncio.Event().wait()
    finally:
        await asyncio.to_thread(reach.close)


@asynccontextmanager
async def serve(app: FastAPI, api: ApiSettings) -> AsyncIterator[str]:
    """Serve an application during the block; yield its URL.

    The server handles no signals, because it does not run in the main thread. Raises Invalid when a setting
    cannot work, Unavailable when the address cannot be listened on.
    """
    threads = current_default_thread_limiter()  # of this loop, for all routes
    needed = Shares.of(api.requests_at_once).most + _SPARE_THREADS
    threads.total_tokens = max(threads.total_tokens, needed)
    context = None if api.tls is None else tls_context(api.tls)
    door = Doorkeeper(Admission(api.connections, api.connections_per_address), api.client_timeout_s, context)
    with open_listener(api.addr) as listener:
        config = uvicorn.Config(
            ConnectionWatch(app),
            http=cast("type[asyncio.Protocol]", partial(ApiConnection, door)),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # the client is the peer of the connection
            timeout_graceful_shutdown=_END_S,
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]), name="penstock-api")
        host, port = listener.getsockname()[:2]
        try:
            yield f"{'http' if context is None else 'https'}://{join_address(host, port)}"
        finally:
            server.should_exit = True
            door.close()
            try:
                await asyncio.shield(serving)
            except asyncio.CancelledError:  # a second cancellation: do not wait any longer
                server.force_exit = True
                await serving
                raise
            finally:
                await asyncio.to_thread(app.state.service.close)


def check_exposure(api: ApiSettings) -> None:
    """Raise Invalid when other machines could reach an API without TLS, accounts or host names."""
    if is_loopback(api.addr):
        return
    missing = [f"api.{name}" for name, given in (("tls", api.tls), ("accounts", api.accounts)) if not given]
    if is_everywhere(split_address(api.addr)[0]) and not api.hosts:
        missing.append("api.hosts")
    if missing:
        raise Invalid(
            f"api.addr {api.addr} can be reached from other machines; set {' and '.join(missing)}, or listen"
            " on 127.0.0.1"
        )


def tls_context(tls: ServerTlsSettings) -> ssl.SSLContext:
    """Return the TLS context of the server; raise Invalid when a file cannot be used."""
    tls.read()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.cert_path, tls.key_path)
        if tls.ca_path is not None:
            context.load_verify_locations(tls.ca_path)
            context.verify_mode = ssl.CERT_REQUIRED
    except (ssl.SSLError, OSError) as error:
        raise Invalid(
            "the files of api.tls are not a certificate with its key, or no authority; check api.tls.*_path"
        ) from error
    return context


def open_listener(addr: str) -> socket.socket:
    """Return a listening socket; raise Unavailable when the address cannot be listened on."""
    host, port = split_address(addr)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With IPPROTO_TCP named, asyncio sets TCP_NODELAY; without it small answers wait 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"api.addr {addr} cannot be listened on ({error.strerror}); stop the process that uses it, or"
            " choose another"
        ) from error
    return listener
