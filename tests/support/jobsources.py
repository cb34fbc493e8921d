"""A table that jobs read: its objects, its newest rows over Flight, and the schemas of its database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.follow.cluster_tables import FollowedTables
from penstock.follow.ddl_history import DdlHistory
from penstock.follow.follower import ScanFollower
from support.rawbatches import Change, raw
from support.sourceworld import SourceWorld

__all__ = ["HandFed", "JobSourceWorld"]


class HandFed:
    """Feeds schemas when it is told to; stands for a subscription of them. `begun` counts subscriptions."""

    def __init__(self, meta: list[Change]) -> None:
        self.meta = meta
        self.begun = 0
        self.ts = 0
        self.failure: PenstockError | None = None
        self.closed = False
        self._history: DdlHistory | None = None

    async def subscribe(self, history: DdlHistory) -> "HandFed":
        """Begin to feed a history, with everything from the beginning."""
        self.begun += 1
        self.failure, self._history = None, history
        self.feed(self.ts)
        return self

    def feed(self, upto_ts: int) -> None:
        """All changes up to `upto_ts` are known now."""
        assert self._history is not None, "nobody has subscribed"
        self.ts = upto_ts
        self._history.consume_kv_events(
            raw([change for change in self.meta if change[0] <= upto_ts]), lambda: None
        )
        self._history.advance_resolved_ts(upto_ts)

    async def close(self) -> None:
        """Close the subscription."""
        self.closed = True


class JobSourceWorld(SourceWorld):
    """A SourceWorld for jobs. `fed` feeds the schemas; `job_source` begins with all there are."""

    fed: HandFed

    @asynccontextmanager
    async def job_source(self, *, clock: Clock | None = None) -> AsyncIterator[ScanFollower]:
        """Return a source of jobs over the table."""
        self.fed = HandFed(self.meta)
        self.fed.ts = self.ts
        tables = FollowedTables(self.fed.subscribe, clock=clock or self.clock)
        await tables.start()

        async with ScanFollower(self.access(), tables, clock=clock or self.clock) as source:
            yield source

    def resolve_all(self) -> int:
        """Resolve all rows and schemas so far; return up to when."""
        ts = self.resolve()
        self.fed.feed(ts)
        return ts
