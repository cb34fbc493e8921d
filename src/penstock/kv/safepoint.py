"""Reads below the safe point of garbage collection are refused, not answered wrongly.

Collecting waits for twice `safe_point_refresh_ms` after its safe point was published, and no
reader trusts what it knows of the safe point for longer than that. So a read that garbage
collection may have touched is checked, after it was answered, against a safe point that is new
enough to tell.
"""

from penstock.clock import TS_MAX, Clock
from penstock.errors import Invalid
from penstock.kv.pd import PdClient
from penstock.settings import KvSettings


class SafePoint:
    """The newest safe point that this client knows of."""

    def __init__(self, pd: PdClient, *, settings: KvSettings, clock: Clock) -> None:
        self._pd = pd
        self._clock = clock
        self._trusted_s = 2 * settings.safe_point_refresh_ms / 1000
        self._ts = 0
        self._asked_at = float("-inf")

    async def check(self, read_ts: int) -> None:
        """Raise Invalid when what was read at `read_ts` may have been collected.

        To be called after the answer came. Asks the placement driver when the last answer is too
        old to rely on, and raises Unavailable when it does not answer.
        """
        if read_ts == TS_MAX:
            return
        if self._clock.monotonic() - self._asked_at > self._trusted_s:
            await self._refresh()
        if read_ts < self._ts:
            raise Invalid(
                f"timestamp {read_ts} is older than the safe point of garbage collection ({self._ts});"
                " read at a newer one, or hold a service safe point while you read the past"
            )

    async def published(self, ts: int) -> None:
        """Note a safe point that this client published, and wait until every reader must know it."""
        self._ts = max(self._ts, ts)
        await self._clock.sleep(self._trusted_s)

    async def _refresh(self) -> None:
        asked_at = self._clock.monotonic()
        self._ts = max(self._ts, await self._pd.get_gc_safe_point())
        self._asked_at = max(self._asked_at, asked_at)
