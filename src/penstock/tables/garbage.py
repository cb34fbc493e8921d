"""Garbage collection of a cluster that no TiDB looks after: old versions, and the keys of what was dropped.

A DDL that leaves keys behind records their ranges in its own transaction. Once the safe point has passed the
DDL, nobody reads those keys any more: a round deletes the ranges whose records a snapshot at the safe point
has. The record is deleted last, so that the next round repeats what a crash has interrupted.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock import metrics
from penstock.clock import SYSTEM, Clock, compose_ts, physical_ms
from penstock.errors import PenstockError
from penstock.kv import Client
from penstock.tables.codec.ordered import encode_uint
from penstock.tables.keys import index_prefix, prefix_end, table_prefix
from penstock.tables.meta import MetaReader, MetaWriter, parse_json
from penstock.tables.schema import TableInfo

_log = logging.getLogger(__name__)

DROPPED_RANGES = b"PenstockDroppedRanges"
"""The meta hash of ranges whose keys nobody needs any more."""
BOOTSTRAP = b"BootstrapKey"
"""TiDB sets this counter when it first starts on a cluster, which is from then on TiDB's to collect."""


class KeyRange(NamedTuple):
    """Keys from `lower` up to, not including, `upper`."""

    lower: bytes
    upper: bytes


def ranges_of_table(table: TableInfo) -> list[KeyRange]:
    """Return the ranges of all rows and index entries of a table, those of its partitions included."""
    prefixes = [table_prefix(table_id) for table_id in dict.fromkeys((table.id, *table.physical_ids))]
    return [KeyRange(prefix, prefix_end(prefix)) for prefix in prefixes]


def ranges_of_index(table: TableInfo, index_id: int) -> list[KeyRange]:
    """Return the ranges of an index's entries, in every partition of its table."""
    prefixes = [index_prefix(each, index_id) for each in dict.fromkeys((table.id, *table.physical_ids))]
    return [KeyRange(prefix, prefix_end(prefix)) for prefix in prefixes]


def record_dropped(meta: MetaWriter, job_id: int, ranges: Iterable[KeyRange]) -> None:
    """Let the keys of these ranges be deleted once no reader can see the cluster before this transaction."""
    for number, dropped in enumerate(ranges):
        field = encode_uint(job_id) + encode_uint(number)
        meta.put_field(DROPPED_RANGES, field, {"lower": dropped.lower.hex(), "upper": dropped.upper.hex()})


class GarbageCollector:
    """Collects what is older than a life time, in rounds. Blocking; one at a time for a cluster."""

    def __init__(self, client: Client, *, life_time_s: float, clock: Clock = SYSTEM) -> None:
        self._client = client
        self._life_time_ms = round(life_time_s * 1000)
        self._clock = clock
        self._left_alone = False

    def collect(self) -> int:
        """Run one round; return the safe point in force, 0 when the garbage is TiDB's to collect.

        Service safe points (of captures, changefeeds, backups) hold it back. Raises Unavailable when the
        cluster does not answer: the next round does what this one left.
        """
        now_ts = self._client.timestamp()
        if MetaReader(self._client.snapshot(now_ts)).number(BOOTSTRAP):
            if not self._left_alone:
                _log.info("a TiDB runs on this cluster and collects its garbage; the store leaves it to TiDB")
            self._left_alone = True
            return 0
        target_ms = physical_ms(now_ts) - self._life_time_ms
        safe_point = self._client.gc(compose_ts(max(0, target_ms)))
        metrics.STORE_GC_SAFE_POINT_SECONDS.set(physical_ms(safe_point) / 1000)
        ranges = self._delete_dropped(safe_point)
        _log.info("garbage collected", extra={"safe_point": safe_point, "ranges": ranges})
        return safe_point

    async def run(self, interval_s: float) -> None:
        """Run a round now and every so many seconds until cancelled; the next one follows one that failed."""
        while True:
            began = self._clock.monotonic()
            try:
                await asyncio.to_thread(self.collect)
            except PenstockError as error:
                metrics.STORE_GC_ROUNDS_TOTAL.labels("failed").inc()
                _log.warning(
                    "garbage was not collected; the next round tries again", extra={"error": str(error)}
                )
            else:
                metrics.STORE_GC_ROUNDS_TOTAL.labels("ok").inc()
            metrics.STORE_GC_SECONDS.observe(self._clock.monotonic() - began)
            await self._clock.sleep(interval_s)

    def _delete_dropped(self, safe_point: int) -> int:
        found = list(self._read_dropped(safe_point))
        for field, dropped in found:
            self._client.delete_range(*dropped)
            with self._client.begin() as txn:
                MetaWriter(txn).delete_field(DROPPED_RANGES, field)
            metrics.STORE_GC_DELETED_RANGES_TOTAL.inc()
        return len(found)

    def _read_dropped(self, safe_point: int) -> Iterator[tuple[bytes, KeyRange]]:
        """Yield the records of DDLs that were committed at the safe point or before."""
        for field, value in MetaReader(self._client.snapshot(safe_point)).fields(DROPPED_RANGES):
            tree = parse_json(value)
            yield field, KeyRange(bytes.fromhex(tree["lower"]), bytes.fromhex(tree["upper"]))
