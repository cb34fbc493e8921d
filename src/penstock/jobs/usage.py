"""What each account has used: counted for metrics, and kept in the key-value store for billing."""

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from penstock import metrics
from penstock.clock import SYSTEM, Clock
from penstock.errors import Corrupt, PenstockError
from penstock.kv import Client, Transaction
from penstock.kv.transact import transact
from penstock.tables.keys import prefix_end

_log = logging.getLogger(__name__)

PREFIX = b"penstock/jobs/usage/"
_ADDITIONS = 8  # ids that are remembered: so many runners may have made an addition whose answer got lost


@dataclass(frozen=True, slots=True)
class Usage:
    """Changes that consumers were given, and the seconds that consumers and readers worked."""

    rows: int = 0
    nbytes: int = 0
    task_seconds: float = 0.0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.rows + other.rows, self.nbytes + other.nbytes, self.task_seconds + other.task_seconds
        )


@dataclass(frozen=True, slots=True)
class _StoredUsage:
    """The usage of an account in the store.

    `additions` are the ids of the last additions, by all runners, so that none is made twice.
    """

    usage: Usage = Usage()
    additions: tuple[str, ...] = ()

    def write(self) -> bytes:
        used = self.usage
        tree = {"rows": used.rows, "bytes": used.nbytes, "task_seconds": round(used.task_seconds, 6)}
        return json.dumps({**tree, "additions": self.additions}).encode()

    @classmethod
    def read(cls, value: bytes) -> "_StoredUsage":
        try:
            tree = json.loads(value)
            usage = Usage(int(tree["rows"]), int(tree["bytes"]), float(tree["task_seconds"]))
            return cls(usage, tuple(map(str, tree["additions"])))
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                "the usage of an account is damaged in the store; delete its row below penstock/jobs/usage/"
            ) from error


@dataclass(frozen=True, slots=True)
class _Addition:
    """Usage that is added once; its id tells whether it was."""

    id: str
    usage: Usage


class UsageMeter:
    """Counts usage by account; `flush` adds the counts to the store. Thread-safe.

    A process that is killed loses what it has counted since its last flush. Without a client nothing is kept.
    """

    def __init__(self, client: Client | None = None, *, clock: Clock = SYSTEM) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._counted: dict[str, Usage] = {}
        self._flushing = threading.Lock()
        self._uncertain: dict[str, _Addition] = {}  # additions that may have been made

    def add(self, account: str, usage: Usage) -> None:
        """Count what an account has used."""
        metrics.JOBS_USAGE_ROWS_TOTAL.labels(account).inc(usage.rows)
        metrics.JOBS_USAGE_BYTES_TOTAL.labels(account).inc(usage.nbytes)
        metrics.JOBS_USAGE_TASK_SECONDS_TOTAL.labels(account).inc(usage.task_seconds)
        if self._client is not None:
            with self._lock:
                self._counted[account] = self._counted.get(account, Usage()) + usage

    def flush(self) -> None:
        """Add the counts to the store; keep for the next time what the store does not accept now."""
        with self._flushing:
            with self._lock:
                counted, self._counted = self._counted, {}
            for account in {*counted, *self._uncertain}:
                self._flush(account, counted.get(account, Usage()))

    def _flush(self, account: str, counted: Usage) -> None:
        before = self._uncertain.pop(account, None)
        additions = [] if before is None else [before]
        if counted != Usage():
            additions.append(_Addition(self._clock.unique_id(), counted))
        for position, addition in enumerate(additions):
            try:
                self._add(account, addition)
            except PenstockError as error:
                _log.warning(
                    "the usage of an account could not be kept",
                    extra={"account": account, "error": str(error)},
                )
                left = additions[position:]
                # The first may have been made, so it is repeated with its id; the others are counted again.
                self._uncertain[account] = left[0]
                with self._lock:
                    for later in left[1:]:
                        self._counted[account] = self._counted.get(account, Usage()) + later.usage
                return

    def _add(self, account: str, addition: _Addition) -> None:
        assert self._client is not None, "nothing is counted without a client"
        key = PREFIX + account.encode()

        def add(txn: Transaction) -> None:
            value = txn.get(key)
            stored = _StoredUsage() if value is None else _StoredUsage.read(value)
            if addition.id not in stored.additions:
                additions = (*stored.additions, addition.id)[-_ADDITIONS:]
                txn.put(key, _StoredUsage(stored.usage + addition.usage, additions).write())

        transact(self._client.begin, add, repeatable=True, clock=self._clock)


def read_usage(client: Client) -> Mapping[str, Usage]:
    """Return what every account has used, as far as it is stored; raise Corrupt when a row is damaged."""
    rows = client.snapshot(client.timestamp()).iter(PREFIX, prefix_end(PREFIX))
    return {key.removeprefix(PREFIX).decode(): _StoredUsage.read(value).usage for key, value in rows}
