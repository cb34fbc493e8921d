"""The columns of an index: those of the source, those made of them, and the marker's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from lance.dataset import LanceDataset
from lance.udf import BatchUDF, batch_udf

from penstock.consumers.schema_evolution import (
    COLUMN_ID,
    Dialect,
    LakeEvolution,
    TargetColumns,
    column_id,
    evolve,
    key_columns,
)
from penstock.consumers.search_index.fragment_writer import RowMaker
from penstock.consumers.search_index.lance_table import MARKER
from penstock.errors import Invalid
from penstock.jobs.error_codes import SchemaRefused
from penstock.tables.schema import TableInfo

__all__ = ["RESERVED", "Layout", "follow_schema", "from_source", "key_names_of", "keys_of", "named"]

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
"""Names that Lance or the marker has."""


def _stored(kind: pa.DataType) -> pa.DataType:
    """The widest type of a kind, so that a column of the source can become wider with no row rewritten."""
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    return kind


_DIALECT = Dialect(stored=_stored, renames=True)


@dataclass(frozen=True, slots=True)
class Layout:
    """What an index of a table has: columns of the source as they are kept, and what is made of its rows."""

    columns: TargetColumns
    maker: RowMaker

    @classmethod
    def of(cls, table: TableInfo, columns: pa.Schema, keys: Sequence[str], maker: RowMaker) -> "Layout":
        """The layout; raise Invalid when a column of the source has a name that the index cannot have."""
        kept = pa.schema([each for each in columns if each.name not in maker.replaced])
        taken = sorted((RESERVED | set(maker.derived.names)).intersection(kept.names))
        if taken:
            raise Invalid(
                f"column {taken[0]} has a name that the index needs; leave it out of the job's columns"
            )
        parsed = sorted(name for name in kept.names if "." in name or "`" in name)
        if parsed:
            raise Invalid(
                f"column {parsed[0]} has a dot or a quote in its name, which Lance takes for a path;"
                " leave it out of the job's columns"
            )
        return cls(TargetColumns(kept, keys, table, _DIALECT), maker)

    @property
    def schema(self) -> pa.Schema:
        """A new dataset."""
        return pa.schema([*self.columns.schema, *self.maker.derived, pa.field(MARKER, pa.string())])


def named(names: Sequence[str], columns: pa.Schema, table: str) -> tuple[str, ...]:
    """Columns as the table calls them, whatever their case; raise Invalid when the job does not get one."""
    there = {name.lower(): name for name in columns.names}
    for name in names:
        if name.lower() not in there:
            raise Invalid(f"table {table} gives the job no column {name}; mend the job's options or columns")
    return tuple(there[name.lower()] for name in names)


def from_source(schema: pa.Schema) -> pa.Schema:
    """Those columns of a dataset that are the source's."""
    return pa.schema([each for each in schema if COLUMN_ID in (each.metadata or {})])


def key_names_of(schema: pa.Schema) -> tuple[str, ...]:
    """The columns of a dataset that identify a row."""
    return key_columns(from_source(schema))


def keys_of(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The keys of some rows as a dataset of this schema has them, each once."""
    names = list(key_names_of(schema))
    kept = pa.schema([pa.field(name, schema.field(name).type) for name in names])
    return rows.select(names).cast(kept).group_by(names).aggregate([])


def follow_schema(dataset: LanceDataset, last_id: int, wanted: TargetColumns) -> bool:
    """Give a dataset the columns that are wanted; whether anything changed.

    `last_id` is the source's greatest column id when the dataset was last written: newer columns are left of
    an attempt that failed, and begin anew. Each step is a commit of its own, and the next attempt goes on
    where one has ended. Raises SchemaRefused when it cannot be done.
    """
    columns = from_source(dataset.schema)
    left = [each.name for each in columns if column_id(each) > last_id]
    there = pa.schema([each for each in columns if each.name not in left])
    plan = evolve(there, last_id, wanted)
    _check_types(plan, there)
    if plan.schema.equals(there, check_metadata=True) and not left:
        return False
    kept = {source for source in plan.sources if isinstance(source, str)}
    dropped = [name for name in columns.names if name not in kept]
    if dropped:
        dataset.drop_columns(dropped)
    _rename(dataset, plan)
    _add(dataset, plan)
    return True


def _check_types(plan: LakeEvolution, there: pa.Schema) -> None:
    for source, to in zip(plan.sources, plan.schema, strict=True):
        if isinstance(source, str) and there.field(source).type != to.type:
            raise SchemaRefused(
                f"column {to.name} is {to.type} now, and {there.field(source).type} in the index;"
                " make it anew with `penstock job repair --rebuild`"
            )


def _rename(dataset: LanceDataset, plan: LakeEvolution) -> None:
    renames: list[Any] = [  # Lance declares each as a list of them
        {"path": source, "name": to.name}
        for source, to in zip(plan.sources, plan.schema, strict=True)
        if isinstance(source, str) and source != to.name
    ]
    if renames:
        dataset.alter_columns(*renames)


def _add(dataset: LanceDataset, plan: LakeEvolution) -> None:
    for origin, field in zip(plan.sources, plan.schema, strict=True):
        if isinstance(origin, str):
            continue
        if origin.is_valid:
            dataset.add_columns(_filled(field, origin), read_columns=[MARKER])
        else:
            dataset.add_columns(field)


def _filled(field: pa.Field, origin: pa.Scalar) -> BatchUDF:
    """A column that has one value in all rows but the marker."""
    schema = pa.schema([field])

    def fill(rows: pa.RecordBatch) -> pa.RecordBatch:
        places = [None if valid else 0 for valid in rows.column(MARKER).is_valid().to_pylist()]
        return pa.RecordBatch.from_arrays(
            [pa.array([origin.as_py()], field.type).take(pa.array(places, pa.int32()))], schema=schema
        )

    return batch_udf(output_schema=schema)(fill)
