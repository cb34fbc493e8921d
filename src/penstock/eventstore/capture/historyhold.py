"""Keeping the cluster's history from a timestamp on, for as long as something reads there."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from penstock import eventloop
from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid, PenstockError
from penstock.eventstore.capture.safe_point import ServiceSafePoint
from penstock.kv.pd import PdClient
from penstock.settings import Settings

_log = logging.getLogger(__name__)

_RENEW_S = 600.0


@contextmanager
def history_held(
    settings: Settings, service: str, ts: int, *, kept_after: bool, clock: Clock = SYSTEM
) -> Iterator[None]:
    """Hold back garbage collection at `ts`; for blocking code.

    With `kept_after` it stays held for a day after the end, for whoever goes on from `ts`; an error or a
    crash inside leaves it held so too. Raises Invalid when history from `ts` on is collected already.
    """
    hold = eventloop.run(_Hold.begin(settings, service, ts, clock))
    try:
        yield
    except BaseException:
        eventloop.run(hold.end(release=False))
        raise
    eventloop.run(hold.end(release=not kept_after))


class _Hold:
    """A safe point at the placement driver that is renewed in the background."""

    def __init__(self, pd: PdClient, service: str, ts: int, clock: Clock) -> None:
        self._pd = pd
        self._point = ServiceSafePoint(pd, service)
        self._ts = ts
        self._clock = clock
        self._renewing: asyncio.Task[None] | None = None

    @classmethod
    async def begin(cls, settings: Settings, service: str, ts: int, clock: Clock) -> "_Hold":
        pd = await PdClient.connect(settings.pd_addrs, tls=settings.tls, settings=settings.kv, clock=clock)
        made = cls(pd, service, ts, clock)
        try:
            await made._take()
        except BaseException:
            await pd.close()
            raise
        made._renewing = asyncio.create_task(made._renew(), name="penstock-history-held")
        return made

    async def _take(self) -> None:
        held = await self._point.hold(lambda: self._ts)
        assert held is not None
        if held[1] > self._ts:
            await self._point.release()
            raise Invalid(
                f"history at {self._ts} is collected already, up to {held[1]}; take a newer timestamp"
            )

    async def _renew(self) -> None:
        while True:
            await self._clock.sleep(_RENEW_S)
            try:
                await self._point.hold(lambda: self._ts)
            except PenstockError as error:
                _log.warning("history is held for a day from the last success", extra={"reason": str(error)})

    async def end(self, *, release: bool) -> None:
        assert self._renewing is not None
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        try:
            if release:
                await self._point.release()
        finally:
            await self._pd.close()
