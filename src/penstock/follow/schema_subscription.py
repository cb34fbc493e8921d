"""A subscription of a cluster's meta keys, for readers that follow its schemas without a capture."""

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from penstock.clock import SYSTEM, Clock
from penstock.errors import PenstockError, Unavailable
from penstock.eventstore.schema_history import META_RANGE, SchemaHistory
from penstock.settings import Settings
from penstock.sources import KeySpan, SubscriptionClient

_FIRST_TS = 1  # a subscription from here delivers everything the cluster still has
_WAIT_S = 60.0
_POLL_S = 0.02


class MetaHistory(Protocol):
    """Learns from the changes of meta keys. Thread-safe; the same change may come again."""

    def consume_kv_events(self, raw: pa.RecordBatch, finish: Callable[[], None]) -> bool:
        """Take changes; return whether `finish` is called later, as the span pipeline demands."""

    def advance_resolved_ts(self, ts: int) -> None:
        """Note that every change up to `ts` has been taken."""

    def resolved_ts(self) -> int:
        """Return the timestamp up to which the history is complete."""


class MetaSubscription:
    """Feeds a history until it is closed, or until it fails: `failure` then has the reason."""

    def __init__(self, puller: SubscriptionClient, history: MetaHistory, clock: Clock) -> None:
        self._puller = puller
        self._history = history
        self._clock = clock
        self.failure: PenstockError | None = None

    @classmethod
    async def begin(
        cls, settings: Settings, history: MetaHistory, *, clock: Clock = SYSTEM
    ) -> "MetaSubscription":
        """Connect and subscribe; raise Unavailable when the cluster does not answer."""
        puller = await SubscriptionClient.connect(
            settings.pd_addrs, tls=settings.tls, kv=settings.kv, settings=settings.puller, clock=clock
        )
        subscription = cls(puller, history, clock)
        try:
            await puller.subscribe(
                KeySpan(0, *META_RANGE),
                _FIRST_TS,
                history.consume_kv_events,
                history.advance_resolved_ts,
                on_failure=subscription._record_failure,
            )
        except BaseException:
            await puller.close()
            raise
        return subscription

    def _record_failure(self, error: Exception) -> None:
        if not isinstance(error, PenstockError):
            error = PenstockError(f"the subscription of schemas failed: {error!r}")
        self.failure = error

    async def wait_until(self, ts: int) -> None:
        """Wait until the history is complete up to `ts`; raise Unavailable when that takes too long."""
        deadline = self._clock.monotonic() + _WAIT_S
        while self._history.resolved_ts() < ts:
            if self.failure is not None:
                raise self.failure
            if self._clock.monotonic() > deadline:
                raise Unavailable("the cluster's schemas did not arrive within a minute; check its stores")
            await self._clock.sleep(_POLL_S)

    async def close(self) -> None:
        """End the subscription; the history stays as it is."""
        await self._puller.close()


async def read_schemas(settings: Settings, upto_ts: int, *, clock: Clock = SYSTEM) -> SchemaHistory:
    """Return the history of schemas, complete up to `upto_ts`; raise Unavailable when that takes too long.

    Its versions have the numbers that a capture gives them, so that readers find objects written under these
    numbers as if a capture had written them.
    """
    history = SchemaHistory()
    subscription = await MetaSubscription.begin(settings, history, clock=clock)
    try:
        await subscription.wait_until(upto_ts)
    finally:
        await subscription.close()
    return history
