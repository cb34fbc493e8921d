"""Changes of any of a table's versions as pieces in the version that an iteration ends with. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from penstock.changes.batches import ChangeBatch
from penstock.changes.columns import key_names
from penstock.eventstore.projection import Projection
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import COMMIT_TS
from penstock.jobs.iteration.pieces import ConsumerBatch
from penstock.jobs.schema_changes import check_keys
from penstock.tables.schema import TableInfo


class _Sides(NamedTuple):
    inserts: Projection
    deletes: Projection


class PieceProjection:
    """Makes pieces with `columns`, the key's among them.

    A column that was added since reads as its default in older rows, one that was dropped is left out.
    """

    def __init__(self, schema: SchemaVersion, columns: Iterable[str]) -> None:
        self._table = schema.table
        self._inserts = [*columns, COMMIT_TS]
        self._deletes = [*key_names(schema.table), COMMIT_TS]
        self._known: dict[int, _Sides] = {}
        self._now = self._sides(self._table)

    @property
    def inserts(self) -> pa.Schema:
        """The schema of one side of all pieces."""
        return self._now.inserts.schema

    @property
    def deletes(self) -> pa.Schema:
        """The schema of the other."""
        return self._now.deletes.schema

    @property
    def nothing(self) -> ConsumerBatch:
        """A piece without rows."""
        return ConsumerBatch(
            pa.RecordBatch.from_pylist([], self.inserts), pa.RecordBatch.from_pylist([], self.deletes)
        )

    def piece(self, batch: ChangeBatch) -> ConsumerBatch:
        """The changes of a batch; raise SchemaRefused when its rows have another key than those now."""
        sides = self._known.get(batch.schema.version)
        if sides is None:
            check_keys(batch.schema.table, self._table)
            sides = self._known[batch.schema.version] = self._sides(batch.schema.table)
        return ConsumerBatch(sides.inserts.apply(batch.data), sides.deletes.apply(batch.tombstones))

    def _sides(self, old: TableInfo) -> _Sides:
        return _Sides(
            Projection(old, self._table, self._inserts), Projection(old, self._table, self._deletes)
        )
