"""`penstock store`: the embedded store in the foreground."""

import asyncio
import logging
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import settings as settings_
from penstock.cli.service import metrics_shown, say_ready
from penstock.errors import Invalid
from penstock.settings import Settings, StoreSettings
from penstock.store.cluster import Cluster

__all__ = ["StoreOptions", "serve", "store_settings"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """What the command line says; None leaves the settings file's value, or the default."""

    pd_addr: str | None = None
    data: Path | None = None
    stores: int | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    enable_faults: bool = False
    config: Path | None = None


def store_settings(options: StoreOptions) -> StoreSettings:
    """Put the command line over the settings file; raise Invalid for a value that is refused."""
    file = settings_.load(options.config) if options.config is not None else Settings()
    given: dict[str, Any] = {
        "pd_addr": options.pd_addr,
        "data": options.data,
        "stores": options.stores,
        "faults": options.enable_faults or None,
        "tls": _tls(options),
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    return settings_.parse({"store": {**file.store.model_dump(), **chosen}}, origin="command line").store


def _tls(options: StoreOptions) -> dict[str, Path | None] | None:
    if options.tls_ca is None and options.tls_cert is None and options.tls_key is None:
        return None
    if options.tls_cert is None or options.tls_key is None:
        raise Invalid("TLS needs the server's certificate and key; give --tls-cert and --tls-key")
    return {"cert_path": options.tls_cert, "key_path": options.tls_key, "ca_path": options.tls_ca}


async def serve(settings: StoreSettings, *, metrics_addr: str | None = None) -> None:
    """Serve until SIGTERM or SIGINT; print one line of JSON with the addresses when ready."""
    with metrics_shown(metrics_addr) as shown:
        await _serve(settings, shown)


async def _serve(settings: StoreSettings, shown: dict[str, str]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    cluster = await Cluster.start(settings)
    try:
        ready = {"cluster_id": cluster.cluster_id, "pd": cluster.pd_addr, "stores": cluster.store_addrs}
        say_ready(ready | shown)
        _log.info("store is ready", extra={"pd_addr": cluster.pd_addr, "data": str(settings.data)})
        await stopping.wait()
    finally:
        await cluster.stop()
        _log.info("store has stopped", extra={"data": str(settings.data)})
