"""Rows of any version of a table, as they read in its last one, and their hashes. Pure."""

from dataclasses import dataclass, field

import pyarrow as pa

from penstock.columnar.row_hash import Hashes, hashes_of
from penstock.errors import Invalid
from penstock.eventstore.projection import Projection
from penstock.tables.schema import TableInfo

__all__ = ["HashedRows", "Shape"]


@dataclass(frozen=True, slots=True)
class HashedRows:
    """Rows by the hashes of their keys, and of all that they say."""

    keys: Hashes
    rows: Hashes

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(slots=True)
class Shape:
    """What rows of a table are compared by: the columns `names` of `table`, and those of its key.

    Columns of other versions are the same when their ids are. A row without a key is known by all it says.
    """

    table: TableInfo
    names: list[str]
    _projections: dict[int, Projection] = field(default_factory=dict)
    _versions: list[TableInfo] = field(default_factory=list)
    """Those of which there is a projection: so their ids in memory are not given to others."""

    @property
    def keys(self) -> list[str]:
        """The columns of the key; none: rows have none."""
        return [column.name for column in self.table.primary_key]

    def hashes(self, rows: pa.RecordBatch, version: TableInfo) -> HashedRows:
        """The hashes of rows of a version, as they read in the last one.

        Raises Invalid when the version has another key, Corrupt when a value does not fit.
        """
        found = self._projection(version).apply(rows)
        whole = hashes_of(found, self.names)
        return HashedRows(hashes_of(found, self.keys) if self.keys else whole, whole)

    def key_hashes(self, rows: pa.RecordBatch, version: TableInfo) -> Hashes:
        """The hashes of the keys alone, of rows that may have no other columns."""
        self._check_key(version)
        return hashes_of(Projection(version, self.table, self.keys).apply(rows), self.keys)

    def _projection(self, version: TableInfo) -> Projection:
        if id(version) not in self._projections:
            self._check_key(version)
            self._projections[id(version)] = Projection(version, self.table, self.names)
            self._versions.append(version)
        return self._projections[id(version)]

    def _check_key(self, version: TableInfo) -> None:
        ours = {column.id for column in self.table.primary_key}
        if ours != {column.id for column in version.primary_key}:
            raise Invalid(
                f"table {self.table.name} had another primary key before; its rows cannot be compared"
            )
