"""Keeping in the cluster what a changefeed reads there at its next start: the DDLs after its checkpoint."""

import logging
from typing import Self

from penstock.clock import SYSTEM, Clock
from penstock.eventstore.capture.safe_point import ServiceSafePoint
from penstock.kv.pd import PdClient
from penstock.settings import Settings

_log = logging.getLogger(__name__)


class ClusterHold:
    """Holds back the cluster's garbage collection at a checkpoint, for a day after the last `hold`.

    Rows come from the event store, whatever the cluster collects. Of its tables' descriptions, collection
    leaves the newest alone: a changefeed that is behind could not tell what was there before.
    """

    def __init__(self, pd: PdClient, feed_id: str) -> None:
        self._pd = pd
        self._feed_id = feed_id
        self._point = ServiceSafePoint(pd, f"changefeed-{feed_id}")
        self._warned = False

    @classmethod
    async def connect(cls, settings: Settings, feed_id: str, *, clock: Clock = SYSTEM) -> Self:
        """Connect to the placement driver; raise Unavailable when it does not answer."""
        pd = await PdClient.connect(settings.pd_addrs, tls=settings.tls, settings=settings.kv, clock=clock)
        return cls(pd, feed_id)

    async def hold(self, ts: int) -> None:
        """Keep the DDLs after `ts`, as far as they are there. Raises Unavailable."""
        found = await self._point.hold(lambda: ts)
        if found is not None and found[1] > ts and not self._warned:
            self._warned = True
            _log.warning(
                "the cluster has collected history that a changefeed needs; of tables that were altered since"
                " its checkpoint it knows the last DDL only",
                extra={"changefeed": self._feed_id, "needed_ts": ts, "collected_ts": found[1]},
            )

    async def release(self) -> None:
        """Hold nothing any more. Raises Unavailable."""
        await self._point.release()

    async def close(self) -> None:
        """End the connection; what is held stays so for a day."""
        await self._pd.close()
