"""Heart beats: a client keeps the primary lock of a long transaction alive while it runs."""

import asyncio
import logging
from enum import Enum, auto

from penstock import metrics
from penstock.errors import PenstockError
from penstock.kv import backoff
from penstock.kv.scope import TxnScope
from penstock.proto import kvrpcpb_pb2 as kvrpcpb

_FAILURES_MAX = 10
_log = logging.getLogger(__name__)


class Beat(Enum):
    """How a heart beat went."""

    OK = auto()
    FAILED = auto()  # no answer; the next one may do better
    GONE = auto()  # the store says that there is no such lock any more


class Heart:
    """Refreshes the primary lock of one transaction until it is stopped.

    `expired` is set when the transaction has lived longer than it may, or its lock is gone.
    """

    def __init__(self, scope: TxnScope) -> None:
        self._scope = scope
        self._task: asyncio.Task[None] | None = None
        self.expired = False

    @property
    def beating(self) -> bool:
        """Whether the lock is being refreshed."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Begin to beat; a heart that beats already goes on."""
        if not self.beating and not self.expired:
            self._task = self._scope.session.background.assist(self._run(), "heart beat")

    def stop(self) -> None:
        """Let the lock live out its time."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        session = self._scope.session
        interval_s = session.settings.lock_ttl_ms / 2 / 1000
        failures = 0
        while failures < _FAILURES_MAX:
            await session.clock.sleep(interval_s)
            if self._scope.elapsed_ms() > session.settings.txn_ttl_max_ms:
                metrics.KV_TTL_LIFETIME_REACH_TOTAL.inc()
                _log.warning(
                    "a transaction is too old for its locks to be kept",
                    extra={"start_ts": self._scope.start_ts},
                )
                self.expired = True
                return
            beat = await self._beat()
            if beat is Beat.GONE:
                self.expired = True
                return
            failures = 0 if beat is Beat.OK else failures + 1

    async def _beat(self) -> Beat:
        scope = self._scope
        assert scope.primary is not None
        session = scope.session
        request = kvrpcpb.TxnHeartBeatRequest(
            primary_lock=scope.primary,
            start_version=scope.start_ts,
            advise_lock_ttl=scope.elapsed_ms() + session.settings.lock_ttl_ms,
        )
        bo = session.backoffer(backoff.HEART_BEAT_MS, "heart beat")
        began, result = session.clock.monotonic(), "err"
        try:
            answer = await session.router.send_to_key(
                bo, "KvTxnHeartBeat", request, scope.primary, kvrpcpb.TxnHeartBeatResponse
            )
            if answer.HasField("error"):
                return Beat.GONE
            result = "ok"
        except PenstockError as error:
            _log.warning("a heart beat failed", extra={"start_ts": scope.start_ts, "error": str(error)})
            return Beat.FAILED
        finally:
            metrics.KV_TXN_HEART_BEAT.labels(result).observe(session.clock.monotonic() - began)
        return Beat.OK
