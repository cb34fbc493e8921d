"""Holding back the cluster's garbage collection for the history that a capture may have to pull again."""

import asyncio
from collections.abc import Callable

from penstock.errors import Unavailable
from penstock.kv.pd import PdClient

TTL_S = 24 * 3600
_ATTEMPTS = 5  # each fails only when collection has moved on since the one before


class ServiceSafePoint:
    """A service's safe point at the placement driver; it stays for `TTL_S` after the last `hold`."""

    def __init__(self, pd: PdClient, capture_id: str) -> None:
        self._pd = pd
        self._service = f"penstock-{capture_id}"
        self._turn = asyncio.Lock()  # a need found earlier must not replace one found later

    async def hold(self, needed: Callable[[], int | None]) -> tuple[int, int] | None:
        """Keep history from the needed timestamp on; return it and the one that is held.

        The latter is higher where history is given to collection already, whether or not that has published
        it: a safe point below the cluster's is not stored at all, and what is left must be kept. None:
        nothing is needed. Raises Unavailable.
        """
        async with self._turn:
            needed_ts = held = needed()
            if needed_ts is None or held is None:
                return None
            for _ in range(_ATTEMPTS):
                lowest = await self._pd.update_service_gc_safe_point(self._service, TTL_S, held)
                if lowest <= held:
                    return needed_ts, held
                held = lowest
        raise Unavailable("garbage collection moves faster than it can be held back; try again")

    async def release(self) -> None:
        """Hold nothing back any more."""
        await self._pd.update_service_gc_safe_point(self._service, 0, 0)

    async def published_ts(self) -> int:
        """The timestamp below which old versions may be gone, as collection has published it.

        It publishes late: only `hold` tells what it is about to collect.
        """
        return await self._pd.get_gc_safe_point()
