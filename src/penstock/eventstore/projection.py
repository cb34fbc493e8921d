"""Rows of one schema version as rows of a later one. Pure.

Columns are the same when their ids are, whatever they are called. A change of schema rewrites no row, so
every stored value is a value of the later type; a column that was added since reads as it does in rows of
the cluster that were written before.
"""

from collections.abc import Sequence

import pyarrow as pa

from penstock.errors import Corrupt
from penstock.eventstore.sides import RESERVED, side_schema
from penstock.tables.arrow import arrow_field
from penstock.tables.decoding.decoder import origin_scalar
from penstock.tables.schema import ColumnInfo, TableInfo


class Projection:
    """Some columns of `new`, and system columns, out of rows of `old`.

    `reads` names the columns of `old` that this takes; `schema` is what it gives.
    """

    def __init__(self, old: TableInfo, new: TableInfo, names: Sequence[str]) -> None:
        system = side_schema(new, "data")
        before = {column.id: column for column in old.stored_columns}
        after = {column.name: column for column in new.stored_columns}
        self._sources = [name if name in RESERVED else _source(before, after[name]) for name in names]
        self.schema = pa.schema(
            [system.field(name) if name in RESERVED else arrow_field(after[name]) for name in names]
        )
        self.reads = tuple(each for each in self._sources if isinstance(each, str))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of the new version; nothing is copied where nothing changed.

        Raises Corrupt when a value is none of its column's later type.
        """
        if not len(self.schema):
            return batch.select([])
        arrays = [
            _as_type(batch.column(source), field)
            if isinstance(source, str)
            else pa.repeat(source, len(batch))
            for source, field in zip(self._sources, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def project(batch: pa.RecordBatch, old: TableInfo, new: TableInfo, names: Sequence[str]) -> pa.RecordBatch:
    """The named columns of `new`, and system columns, out of a batch of `old`; see Projection."""
    return Projection(old, new, names).apply(batch)


def _source(before: dict[int, ColumnInfo], column: ColumnInfo) -> str | pa.Scalar:
    """Where a column's values are, or the value that stands for them."""
    found = before.get(column.id)
    return origin_scalar(column) if found is None else found.name


def _as_type(array: pa.Array, field: pa.Field) -> pa.Array:
    if array.type == field.type:
        return array
    try:
        if pa.types.is_decimal(array.type) and pa.types.is_string(field.type):
            # Arrow would write small numbers with an exponent; the row decoder does not.
            texts = (None if value is None else f"{value:f}" for value in array.to_pylist())
            return pa.array(texts, pa.string(), size=len(array))
        return array.cast(field.type)
    except pa.ArrowInvalid as error:
        raise Corrupt(
            f"a value of column {field.name} is no {field.type}, as its column became; keep the object"
        ) from error
