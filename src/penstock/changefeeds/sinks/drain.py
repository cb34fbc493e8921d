"""A mark in a dispatcher's queue: when it comes out at the far end, everything before it is on the remote."""

import asyncio

from penstock.follow.slices import TableSpan


class DrainMarker:
    """Follows a dispatcher's events through shard, spool and writer, for the DDL at `commit_ts`.

    Ends once: acknowledged, or failed with a reason. Any number may wait for it, before or after.
    """

    def __init__(self, dispatcher: TableSpan, commit_ts: int, *, at: float) -> None:
        self.dispatcher = dispatcher
        self.commit_ts = commit_ts
        self.begun_at = at
        self.encoded_at = at
        self._ended = asyncio.Event()
        self._error: BaseException | None = None

    @property
    def ended(self) -> bool:
        """Whether it was acknowledged or has failed."""
        return self._ended.is_set()

    def encoded(self, at: float) -> None:
        """Everything before it is in the spool."""
        self.encoded_at = at

    def acknowledge(self) -> None:
        """Everything before it is on the remote."""
        self._ended.set()

    def fail(self, error: BaseException) -> None:
        """Something before it will not get there; nothing happens to a marker that has ended."""
        if not self.ended:
            self._error = error
            self._ended.set()

    async def wait(self) -> None:
        """Return when it is acknowledged; raise what made it fail."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error
