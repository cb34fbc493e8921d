"""`penstock store`: run the embedded store in the foreground."""

import asyncio
import logging
import signal
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from penstock.cli.service import print_ready, serve_metrics
from penstock.clock import SYSTEM
from penstock.durable_files import keep_files_private
from penstock.errors import Invalid, PenstockError
from penstock.kv import Client
from penstock.settings import KvSettings, Settings, StoreSettings, TlsSettings, load, parse
from penstock.store.cluster import Cluster
from penstock.tables.garbage import GarbageCollector

__all__ = ["StoreClient", "StoreOptions", "serve", "store_client", "store_settings"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """The options of the command; None keeps the value of the settings file, or the default."""

    pd_addr: str | None = None
    data: Path | None = None
    stores: int | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    enable_faults: bool = False
    config: Path | None = None


def store_settings(options: StoreOptions) -> StoreSettings:
    """Return the store's settings of the file, overridden by the options; raise Invalid for a wrong value."""
    file = load(options.config) if options.config is not None else Settings()
    given: dict[str, Any] = {
        "pd_addr": options.pd_addr,
        "data": options.data,
        "stores": options.stores,
        "insecure": options.insecure or None,
        "faults": options.enable_faults or None,
        "tls": _tls(options),
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    return parse({"store": {**file.store.model_dump(), **chosen}}, origin="command line").store


def _tls(options: StoreOptions) -> dict[str, Path | None] | None:
    if options.tls_ca is None and options.tls_cert is None and options.tls_key is None:
        return None
    if options.tls_cert is None or options.tls_key is None:
        raise Invalid("TLS needs the server's certificate and key; give --tls-cert and --tls-key")
    return {"cert_path": options.tls_cert, "key_path": options.tls_key, "ca_path": options.tls_ca}


_FIRST_ROUND_S = 5.0  # after the start of the store, when its clients have connected


@dataclass(frozen=True, slots=True)
class StoreClient:
    """How the store's own garbage collection connects to the store."""

    kv: KvSettings
    tls: TlsSettings | None


def store_client(store: StoreSettings, file: Settings) -> StoreClient:
    """Return what the file says of clients; without certificates there, the server's own are used."""
    if store.tls is None or file.tls is not None:
        return StoreClient(file.kv, file.tls)
    server = store.tls
    authority = server.ca_path or server.cert_path  # without an authority the certificate vouches for itself
    own = TlsSettings(ca_path=authority, cert_path=server.cert_path, key_path=server.key_path)
    return StoreClient(file.kv, own)


async def serve(
    settings: StoreSettings,
    client: StoreClient,
    *,
    metrics_addr: str | None = None,
    hosts: Collection[str] = (),
) -> None:
    """Serve until SIGTERM or SIGINT; print one line of JSON with the addresses once ready."""
    keep_files_private()
    with serve_metrics(metrics_addr, hosts) as metrics:
        await _serve(settings, client, metrics)


async def _collect_garbage(pd_addr: str, connecting: StoreClient, settings: StoreSettings) -> None:
    """Collect garbage in rounds, with a client of the store, until cancelled.

    The first round comes soon, or a store that is started more often than it runs rounds would never collect.
    The client is opened when the round is due: a store that ends before has none to wait for.
    """
    connect = partial(Client.connect, [pd_addr], tls=connecting.tls, settings=connecting.kv)
    wait_s = min(settings.gc_run_interval_s, _FIRST_ROUND_S)
    while True:
        await SYSTEM.sleep(wait_s)
        try:
            client = await asyncio.to_thread(connect)
        except PenstockError as error:
            _log.warning("garbage is not collected: the store's client fails", extra={"error": str(error)})
            wait_s = settings.gc_run_interval_s
            continue
        try:
            collector = GarbageCollector(client, life_time_s=settings.gc_life_time_s)
            await collector.run(settings.gc_run_interval_s)
        finally:
            await asyncio.to_thread(client.close)


async def _serve(settings: StoreSettings, client: StoreClient, metrics: dict[str, str]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    collecting: asyncio.Task[None] | None = None
    cluster = await Cluster.start(settings)
    try:
        ready = {"cluster_id": cluster.cluster_id, "pd": cluster.pd_addr, "stores": cluster.store_addrs}
        print_ready(ready | metrics)
        _log.info("store is ready", extra={"pd_addr": cluster.pd_addr, "data": str(settings.data)})
        if settings.gc_life_time_s:
            collecting = asyncio.create_task(_collect_garbage(cluster.pd_addr, client, settings))
        await stopping.wait()
    finally:
        if collecting is not None:
            collecting.cancel()
            await asyncio.gather(collecting, return_exceptions=True)
        await cluster.stop()
        _log.info("store has stopped", extra={"data": str(settings.data)})
