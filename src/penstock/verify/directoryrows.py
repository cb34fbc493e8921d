"""The changes of a directory, spilled by the hashes that rows have in the last version of their tables."""

from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changefeeds.codecs.decoded_changes import OP_DELETE, OP_INSERT, DecodedChanges
from penstock.changefeeds.directory.reader import TableChanges, TableVersion
from penstock.errors import Corrupt, Invalid
from penstock.tables.schema import TableInfo
from penstock.verify.key_changes import ADDED, PUT, REMOVED
from penstock.verify.lineage import Lineages
from penstock.verify.shapes import HashedRows, Shape
from penstock.verify.spilling import ComparisonSpill

__all__ = ["DirectoryRows"]

_FAULTS_MAX = 20


class DirectoryRows:
    """Takes deliveries, and hears of damage; `shapes` are those of lineages by number, others do not count.

    A row that does not fit is a fault of its table, whose other rows count.
    """

    def __init__(self, lineages: Lineages, shapes: Mapping[int, Shape], spill: ComparisonSpill) -> None:
        self.changes = 0
        self.repeated: Counter[int] = Counter()
        """How many changes of a lineage were there again."""
        self.untimed: set[int] = set()
        """Lineages with changes that do not tell their commits."""
        self.blind: set[int] = set()
        """Lineages without keys whose updates do not tell the row before."""
        self._lineages = lineages
        self._shapes = shapes
        self._spill = spill
        self._faults: dict[int, list[str]] = defaultdict(list)

    def faults(self, lineage: int) -> tuple[str, ...]:
        """What is wrong with the files of a lineage."""
        found = self._faults.get(lineage, [])
        more = len(found) - _FAULTS_MAX
        return (*found[:_FAULTS_MAX], *([f"and {more} more"] if more > 0 else []))

    def unreadable(self, of: TableVersion, what: str) -> None:
        """See Damage."""
        found = self._lineages.at(of)
        if found is not None:
            self._faults[found[0].number].append(what)

    def again(self, of: TableVersion, changes: int) -> None:
        """See Damage."""
        found = self._lineages.at(of)
        if found is not None:
            self.repeated[found[0].number] += changes

    def take(self, delivery: TableChanges) -> None:
        """Spill changes, which follow all that were taken of the table."""
        first, self.changes = self.changes, self.changes + len(delivery.changes)
        found = self._lineages.at(TableVersion(delivery.name, delivery.version))
        shape = None if found is None else self._shapes.get(found[0].number)
        if found is None or shape is None:
            return  # a table that is gone by the end
        number, version = found[0].number, found[1]
        if delivery.changes.commit_ts.null_count:
            self.untimed.add(number)
        try:
            self._take(number, shape, version, delivery.changes, first)
        except (Corrupt, Invalid) as error:
            if str(error) not in self._faults[number]:
                self._faults[number].append(str(error))

    def _take(
        self, number: int, shape: Shape, version: TableInfo, changes: DecodedChanges, first: int
    ) -> None:
        rows = shape.hashes(changes.rows, version)
        old_at = np.asarray(pc.indices_nonzero(changes.old.is_valid())).astype(np.int64)
        old = pa.RecordBatch.from_struct_array(changes.old.take(pa.array(old_at)))
        before = shape.hashes(old, version)
        ops = changes.ops
        ended, added = (np.asarray(pc.equal(ops, each)) for each in (OP_DELETE, OP_INSERT))
        kinds = np.where(ended, REMOVED, np.where(added, ADDED, PUT)).astype(np.uint8)
        orders = 2 * np.arange(first, first + len(changes), dtype=np.uint64)
        leaves = np.ones(len(old_at), np.bool_)
        if shape.keys:
            leaves = before.keys != rows.keys[old_at]
        elif (kinds == PUT).sum() > len(old_at):
            self.blind.add(number)
        gone = HashedRows(before.keys[leaves], before.rows[leaves])
        self._spill.change(number, gone, orders[old_at[leaves]], np.full(len(gone), REMOVED, np.uint8))
        self._spill.change(number, rows, orders + np.uint64(1), kinds)
