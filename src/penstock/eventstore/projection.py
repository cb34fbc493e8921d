"""Rows of one schema version as rows of a later one. Pure.

Columns are the same when their ids are, whatever they are called. A change of schema rewrites no row, so
every stored value is a value of the later type; a column that was added since reads as it does in rows of
the cluster that were written before.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

import pyarrow as pa

from penstock.errors import Corrupt
from penstock.eventstore.sides import RESERVED, side_schema
from penstock.tables.arrow import arrow_field, arrow_type
from penstock.tables.columns import ColumnInfo
from penstock.tables.decoding.decoder import origin_scalar
from penstock.tables.fieldtypes import Tp
from penstock.tables.schema import TableInfo


class Projection:
    """Some columns of `new`, and system columns, out of rows of `old`.

    `reads` names the columns of `old` that this takes; `schema` is what it gives.
    """

    def __init__(self, old: TableInfo, new: TableInfo, names: Sequence[str]) -> None:
        system = side_schema(new, "data")
        before = {column.id: column for column in old.stored_columns}
        after = {column.name: column for column in new.stored_columns}
        self._sources = [
            _Stored(name) if name in RESERVED else _source(before.get(after[name].id), after[name])
            for name in names
        ]
        self.schema = pa.schema(
            [system.field(name) if name in RESERVED else arrow_field(after[name]) for name in names]
        )
        self.reads = tuple(dict.fromkeys(each.name for each in self._sources if isinstance(each, _Stored)))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of the new version; nothing is copied where nothing changed.

        Raises Corrupt when a value is none of its column's later type.
        """
        if not len(self.schema):
            return batch.select([])
        arrays = [
            _values(batch, source, field) for source, field in zip(self._sources, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def project(batch: pa.RecordBatch, old: TableInfo, new: TableInfo, names: Sequence[str]) -> pa.RecordBatch:
    """The named columns of `new`, and system columns, out of a batch of `old`; see Projection."""
    return Projection(old, new, names).apply(batch)


class _Stored(NamedTuple):
    """Values that a column of the old version holds."""

    name: str
    digits: int | None = None  # after the point, of decimals that are text and had another number of them


def _source(before: ColumnInfo | None, after: ColumnInfo) -> _Stored | pa.Scalar:
    """Where a column's values are, or the value that stands for them."""
    if before is None:
        return origin_scalar(after)
    wide = after.type.tp is Tp.NEW_DECIMAL and pa.types.is_string(arrow_type(after.type))
    same = before.type.scale == after.type.scale and arrow_type(before.type) == arrow_type(after.type)
    return _Stored(before.name, after.type.scale if wide and not same else None)


def _values(batch: pa.RecordBatch, source: _Stored | pa.Scalar, field: pa.Field) -> pa.Array:
    if not isinstance(source, _Stored):
        return pa.repeat(source, batch.num_rows)
    array = batch.column(source.name)
    if source.digits is not None:
        texts = (None if each is None else f"{Decimal(each):.{source.digits}f}" for each in array.to_pylist())
        return pa.array(texts, pa.string(), size=len(array))
    try:
        return array if array.type == field.type else array.cast(field.type)
    except pa.ArrowInvalid:  # whose words may show the value
        raise Corrupt(
            f"a value of column {field.name} is no {field.type}, as its column became; keep the object"
        ) from None
