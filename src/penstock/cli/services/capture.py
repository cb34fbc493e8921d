"""`penstock capture`: log puller and event store in the foreground."""

import asyncio
import signal

from penstock import tracing
from penstock.cli.service import metrics_shown, say_ready
from penstock.eventstore.capture.capture import Capture
from penstock.settings import Settings

__all__ = ["serve"]


async def serve(settings: Settings) -> None:
    """Capture until SIGTERM or SIGINT, then flush and stop; raise what made it impossible to go on.

    Prints one line of JSON with the address of the Flight service when it is ready, and with that of its
    metrics when settings have one for them.
    """
    with metrics_shown(settings.metrics_addr) as shown:
        await _serve(settings, shown)


async def _serve(settings: Settings, shown: dict[str, str]) -> None:
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
            say_ready(ready | shown)
            asked = asyncio.create_task(stopping.wait())
            await asyncio.wait((asked, capture.failed), return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
        finally:
            await capture.stop()
    if capture.failed.done():
        await capture.failed
