"""Holding back the cluster's garbage collection: for a capture, and for as long as something reads there.

A capture keeps the history that it may have to pull again. `hold_history` keeps history from a timestamp on
around a block of code.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock import eventloop
from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid, PenstockError, Unavailable
from penstock.eventstore.history_holds import HOLD_TTL_S
from penstock.kv.pd import PdClient
from penstock.settings import Settings

_ATTEMPTS = 5  # each fails only when collection has moved on since the one before


class ServiceSafePoint:
    """A service's safe point at the placement driver; it lasts for `HOLD_TTL_S` after the last `hold`."""

    def __init__(self, pd: PdClient, capture_id: str) -> None:
        self._pd = pd
        self._service = f"penstock-{capture_id}"
        self._turn = asyncio.Lock()  # so that an older need does not replace a newer one

    async def hold(self, needed: Callable[[], int | None]) -> tuple[int, int] | None:
        """Keep history from the needed timestamp on; return that timestamp and the one that is held.

        The held one is higher where history is given to collection already, whether or not collection has
        published that: the placement driver stores no safe point below the cluster's, and the rest must be
        kept. None: nothing is needed. Raises Unavailable when the placement driver does not answer.
        """
        async with self._turn:
            needed_ts = held = needed()
            if needed_ts is None or held is None:
                return None
            for _ in range(_ATTEMPTS):
                lowest = await self._pd.update_service_gc_safe_point(self._service, HOLD_TTL_S, held)
                if lowest <= held:
                    return needed_ts, held
                held = lowest
        raise Unavailable("garbage collection moves faster than it can be held back; try again")

    async def release(self) -> None:
        """Hold nothing back any more."""
        await self._pd.update_service_gc_safe_point(self._service, 0, 0)

    async def read_published_ts(self) -> int:
        """Return the timestamp below which old versions may be gone, as collection has published it.

        Collection publishes late: only `hold` shows what is about to be collected.
        """
        return await self._pd.get_gc_safe_point()


_log = logging.getLogger(__name__)

_RENEW_S = 600.0


@contextmanager
def hold_history(
    settings: Settings, service: str, ts: int, *, kept_after: bool, clock: Clock = SYSTEM
) -> Iterator[None]:
    """Hold back garbage collection at `ts`; for blocking code.

    With `kept_after` it stays held for a day after the end, for a reader that goes on from `ts`; after an
    error or a crash inside it stays held too. Raises Invalid when history from `ts` on is collected already.
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
                _log.warning(
                    "renewing the hold on history failed; it lasts for a day from the last success",
                    extra={"reason": str(error)},
                )

    async def end(self, *, release: bool) -> None:
        assert self._renewing is not None
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        try:
            if release:
                await self._point.release()
        finally:
            await self._pd.close()
