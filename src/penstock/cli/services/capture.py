"""`penstock capture`: run the log puller and the event store in the foreground."""

import asyncio
import signal

from penstock import tracing
from penstock.audit import open_audit_file
from penstock.cli.service import print_ready, serve_metrics
from penstock.durable_files import keep_files_private
from penstock.eventstore.capture.capture import Capture
from penstock.settings import Settings, with_tokens

__all__ = ["serve"]


async def serve(settings: Settings) -> None:
    """Capture until SIGTERM or SIGINT, then flush and stop; raise the error of a capture that failed.

    Once it is ready, prints one line of JSON with the address of the Flight service, and of its metrics when
    the settings have an address for them.
    """
    keep_files_private()
    settings = with_tokens(settings, make=True)
    if settings.api.audit_path is not None:
        open_audit_file(settings.api.audit_path, "capture")
    with serve_metrics(settings.metrics_addr, settings.api.hosts) as metrics:
        await _serve(settings, metrics)


async def _serve(settings: Settings, metrics: dict[str, str]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    capture = await Capture.start(settings)
    traced = tracing.configure(
        settings.tracing, cluster_id=capture.cluster_id, service="capture", instance=settings.capture.id
    )
    with traced:
        try:
            ready = {
                "capture": settings.capture.id,
                "flight": capture.flight_addr,
                "tables": sorted(capture.tables),
            }
            print_ready(ready | metrics)
            stopped = asyncio.create_task(stopping.wait())
            await asyncio.wait((stopped, capture.failed), return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
        finally:
            await capture.stop()
    if capture.failed.done():
        await capture.failed
