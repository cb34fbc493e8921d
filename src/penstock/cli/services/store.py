"""`penstock store`: run the embedded store in the foreground."""

import asyncio
import logging
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.cli.service import print_ready, serve_metrics
from penstock.errors import Invalid
from penstock.settings import Settings, StoreSettings, load, parse
from penstock.store.cluster import Cluster

__all__ = ["StoreOptions", "serve", "store_settings"]

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
    enable_faults: bool = False
    config: Path | None = None


def store_settings(options: StoreOptions) -> StoreSettings:
    """Return the store's settings of the file, overridden by the options; raise Invalid for a wrong value."""
    file = load(options.config) if options.config is not None else Settings()
    given: dict[str, Any] = {
        "pd_addr": options.pd_addr,
        "data": options.data,
        "stores": options.stores,
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


async def serve(settings: StoreSettings, *, metrics_addr: str | None = None) -> None:
    """Serve until SIGTERM or SIGINT; print one line of JSON with the addresses once ready."""
    with serve_metrics(metrics_addr) as metrics:
        await _serve(settings, metrics)


async def _serve(settings: StoreSettings, metrics: dict[str, str]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    cluster = await Cluster.start(settings)
    try:
        ready = {"cluster_id": cluster.cluster_id, "pd": cluster.pd_addr, "stores": cluster.store_addrs}
        print_ready(ready | metrics)
        _log.info("store is ready", extra={"pd_addr": cluster.pd_addr, "data": str(settings.data)})
        await stopping.wait()
    finally:
        await cluster.stop()
        _log.info("store has stopped", extra={"data": str(settings.data)})
