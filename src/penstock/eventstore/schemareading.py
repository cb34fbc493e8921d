"""Every schema of a cluster up to a timestamp, read once: what a capture learns from its subscription."""

import asyncio

from penstock.clock import SYSTEM, Clock
from penstock.errors import Unavailable
from penstock.eventstore.schemas import META_RANGE, SchemaHistory
from penstock.puller import Span, SubscriptionClient
from penstock.settings import Settings

_FIRST_TS = 1  # a subscription from here delivers everything the cluster still has
_WAIT_S = 60.0
_POLL_S = 0.02


async def read_schemas(settings: Settings, upto_ts: int, *, clock: Clock = SYSTEM) -> SchemaHistory:
    """The history of schemas, complete up to `upto_ts`; raise Unavailable when it does not come.

    Its versions have the numbers that a capture's would have, so that what is written under them reads as
    if a capture had written it.
    """
    history = SchemaHistory()
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(error: Exception) -> None:
        if not failed.done():
            failed.set_exception(error)

    puller = await SubscriptionClient.connect(
        settings.pd_addrs, tls=settings.tls, kv=settings.kv, settings=settings.puller, clock=clock
    )
    try:
        await puller.subscribe(
            Span(0, *META_RANGE),
            _FIRST_TS,
            history.consume_kv_events,
            history.advance_resolved_ts,
            on_failure=fail,
        )
        deadline = clock.monotonic() + _WAIT_S
        while history.resolved_ts() < upto_ts:
            if failed.done():
                await failed
            if clock.monotonic() > deadline:
                raise Unavailable("the cluster's schemas did not arrive within a minute; check its stores")
            await clock.sleep(_POLL_S)
    finally:
        failed.cancel()
        await puller.close()
    return history
