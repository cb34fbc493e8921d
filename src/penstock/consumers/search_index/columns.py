"""The columns of an index: those of the source, those made of them, and the marker's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from lance.dataset import LanceDataset
from lance.udf import BatchUDF, batch_udf

from penstock.consumers.schema_evolution import (
    COLUMN_ID,
    ArrowColumns,
    ArrowEvolution,
    Dialect,
    column_id,
    key_columns,
    plan_arrow_evolution,
)
from penstock.consumers.search_index.fragment_writer import RowMaker
from penstock.consumers.search_index.lance_table import MARKER
from penstock.errors import Invalid
from penstock.jobs.error_codes import SchemaRefused
from penstock.tables.schema import TableInfo

__all__ = ["RESERVED", "Layout", "find_columns", "follow_schema", "key_names_of", "keys_of", "source_columns"]

RESERVED = frozenset(
    {
        MARKER,
        "_distance",
        "_row_created_at_version",
        "_row_last_updated_at_version",
        "_rowaddr",
        "_rowid",
        "_rowoffset",
        "_score",
    }
)
"""Names that Lance or the marker uses."""


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the widest type of a kind, so that a source column can become wider without rewriting rows."""
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    return kind


_DIALECT = Dialect(stored=_stored_type, renames=True)


@dataclass(frozen=True, slots=True)
class Layout:
    """What an index of a table has: columns of the source, and columns that are made of its rows."""

    columns: ArrowColumns
    maker: RowMaker

    @classmethod
    def of(cls, table: TableInfo, columns: pa.Schema, keys: Sequence[str], maker: RowMaker) -> "Layout":
        """Return the layout; raise Invalid when a column has a name that the index cannot have."""
        kept = pa.schema([column for column in columns if column.name not in maker.replaced])
        taken = sorted((RESERVED | set(maker.derived.names)).intersection(kept.names))
        if taken:
            raise Invalid(
                f"column {taken[0]} has a name that the index uses; leave it out of the job's columns"
            )
        parsed = sorted(name for name in kept.names if "." in name or "`" in name)
        if parsed:
            raise Invalid(
                f"column {parsed[0]} has a dot or a quote in its name, which Lance reads as a path;"
                " leave it out of the job's columns"
            )
        return cls(ArrowColumns(kept, keys, table, _DIALECT), maker)

    @property
    def schema(self) -> pa.Schema:
        """The schema of a new dataset."""
        return pa.schema([*self.columns.schema, *self.maker.derived, pa.field(MARKER, pa.string())])


def find_columns(names: Sequence[str], columns: pa.Schema, table: str) -> tuple[str, ...]:
    """Return columns as the table spells them, in any case; raise Invalid for one the job does not get."""
    spelling = {name.lower(): name for name in columns.names}
    for name in names:
        if name.lower() not in spelling:
            raise Invalid(f"table {table} gives the job no column {name}; fix the job's options or columns")
    return tuple(spelling[name.lower()] for name in names)


def source_columns(schema: pa.Schema) -> pa.Schema:
    """Return those columns of a dataset that are the source's."""
    return pa.schema([column for column in schema if COLUMN_ID in (column.metadata or {})])


def key_names_of(schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns of a dataset that identify a row."""
    return key_columns(source_columns(schema))


def keys_of(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the keys of some rows in the types of a dataset, each once."""
    names = list(key_names_of(schema))
    kept = pa.schema([pa.field(name, schema.field(name).type) for name in names])
    return rows.select(names).cast(kept).group_by(names).aggregate([])


def follow_schema(dataset: LanceDataset, last_id: int, wanted: ArrowColumns) -> bool:
    """Give a dataset the wanted columns; return whether anything changed.

    `last_id` is the source's greatest column id when the dataset was last written: newer columns are left
    from a failed attempt, and are dropped first. Each step is a commit of its own; the next attempt continues
    after the last one. Raises SchemaRefused when it cannot be done.
    """
    columns = source_columns(dataset.schema)
    left = [column.name for column in columns if column_id(column) > last_id]
    current = pa.schema([column for column in columns if column.name not in left])
    plan = plan_arrow_evolution(current, last_id, wanted)
    _check_types(plan, current)
    if plan.schema.equals(current, check_metadata=True) and not left:
        return False
    kept = {source for source in plan.sources if isinstance(source, str)}
    dropped = [name for name in columns.names if name not in kept]
    if dropped:
        dataset.drop_columns(dropped)
    _rename(dataset, plan)
    _add(dataset, plan)
    return True


def _check_types(plan: ArrowEvolution, current: pa.Schema) -> None:
    for source, column in zip(plan.sources, plan.schema, strict=True):
        if isinstance(source, str) and current.field(source).type != column.type:
            raise SchemaRefused(
                f"column {column.name} is {column.type} now, and {current.field(source).type} in the index;"
                " rebuild it with `penstock job repair --rebuild`"
            )


def _rename(dataset: LanceDataset, plan: ArrowEvolution) -> None:
    renames: list[Any] = [  # Lance's annotation is too narrow
        {"path": source, "name": column.name}
        for source, column in zip(plan.sources, plan.schema, strict=True)
        if isinstance(source, str) and source != column.name
    ]
    if renames:
        dataset.alter_columns(*renames)


def _add(dataset: LanceDataset, plan: ArrowEvolution) -> None:
    for origin, field in zip(plan.sources, plan.schema, strict=True):
        if isinstance(origin, str):
            continue
        if origin.is_valid:
            dataset.add_columns(_make_filler(field, origin), read_columns=[MARKER])
        else:
            dataset.add_columns(field)


def _make_filler(field: pa.Field, origin: pa.Scalar) -> BatchUDF:
    """Return a function that fills a column with one value in all rows except the marker."""
    schema = pa.schema([field])

    def fill(rows: pa.RecordBatch) -> pa.RecordBatch:
        places = [None if valid else 0 for valid in rows.column(MARKER).is_valid().to_pylist()]
        return pa.RecordBatch.from_arrays(
            [pa.array([origin.as_py()], field.type).take(pa.array(places, pa.int32()))], schema=schema
        )

    return batch_udf(output_schema=schema)(fill)
