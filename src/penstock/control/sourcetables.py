"""The tables of a deployment as a comparison reads them: at a timestamp, and what changed after one."""

from collections.abc import Iterator, Sequence
from itertools import chain

import pyarrow as pa

from penstock.changes.limits import ReadLimit
from penstock.clock import SYSTEM, Clock
from penstock.control.deployment import Deployment
from penstock.errors import Invalid, StaleRead, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.kv.cluster_ref import ClusterRef
from penstock.tables.kv_scan import ranges_of, scan_of

__all__ = ["DeploymentTables"]

_PATIENCE_S = 15.0
_AGAIN_S = 0.1


class DeploymentTables:
    """Implements SourceTables. Rows come from the event store, or from the cluster where that has none."""

    def __init__(self, deployment: Deployment, *, clock: Clock = SYSTEM) -> None:
        self._deployment = deployment
        self._clock = clock

    def tables(self, at_ts: int) -> Sequence[SchemaVersion]:
        """See SourceTables. Raises Invalid when the cluster has collected what it was then."""
        schema = self._deployment.catalog.schema(at_ts)
        return [
            SchemaVersion(0, 0, table, database.name)
            for database in schema.databases.values()
            for table in schema.tables[database.id].values()
            if table.is_base_table
        ]

    def rows(self, schema: SchemaVersion, at_ts: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See SourceTables."""
        captured = self._captured(schema, at_ts, columns)
        try:
            first = next(captured, None)
        except (StaleRead, Unavailable) as error:
            yield from self._stored(schema, at_ts, columns, error)
        else:
            yield from () if first is None else chain([first], captured)

    def touched(
        self, schema: SchemaVersion, after_ts: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """See SourceTables. Raises Unavailable when nobody captures the table up to now."""
        source, table_id = self._deployment.source, schema.table.id
        to_ts = self._deployment.now_ts()
        if self._same_ts(table_id, after_ts, upto_ts=to_ts) >= to_ts:
            return
        from_ts = after_ts
        while from_ts < to_ts:
            scan = source.scan(table_id, from_ts, to_ts, ReadLimit())
            with source.open(scan, columns) as changes:
                for batch in changes:
                    yield batch.data.select(columns)
                    yield batch.tombstones.select(columns)
            from_ts = scan.to_ts

    def _captured(
        self, schema: SchemaVersion, at_ts: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        source, table_id = self._deployment.source, schema.table.id
        scan = source.scan(table_id, 0, self._same_ts(table_id, at_ts, upto_ts=at_ts), ReadLimit())
        with source.open(scan, columns) as changes:
            for batch in changes:
                yield batch.data.select(columns)

    def _stored(
        self, schema: SchemaVersion, at_ts: int, columns: Sequence[str], why: StaleRead | Unavailable
    ) -> Iterator[pa.RecordBatch]:
        """The same rows out of the cluster; if they are gone there too, raise why they are not captured."""
        cluster = ClusterRef.of(self._deployment.settings)
        try:
            place = self._deployment.catalog.schema(at_ts).place(schema.name)
            scan = scan_of(cluster, place, at_ts, columns)
            for part in ranges_of(cluster.client(), scan):
                yield from part.read()
        except Invalid:
            raise why from None

    def _same_ts(self, table_id: int, at_ts: int, *, upto_ts: int) -> int:
        """The newest timestamp at which a table is what it was at `at_ts`, known up to `upto_ts` at least.

        There history is surely kept. Waits a while for whoever reads the table to have come so far.
        """
        deadline = self._clock.monotonic() + _PATIENCE_S
        while self._clock.monotonic() < deadline:
            look = self._deployment.looks([table_id]).get(table_id)
            if look is None:
                return at_ts
            if look.readable_ts >= upto_ts:
                return look.readable_ts if look.changed_ts <= at_ts else at_ts
            self._clock.pause(_AGAIN_S)
        return at_ts
