"""The columns of a copy, and how they follow those of the source. Pure.

A column is the same while its id is, whatever it is called. What was added since flows, with the value that
it reads as in older rows; what was dropped stays, and is NULL from then on. The ids are kept with the copy,
in the metadata of its fields, and so is the place of a column in the key.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.eventstore.sides import HANDLE
from penstock.jobs.error_codes import SchemaRefused
from penstock.jobs.schema_changes import fits
from penstock.tables.decoding.decoder import origin_scalar
from penstock.tables.schema import TableInfo

__all__ = ["Dialect", "LakeEvolution", "TargetColumns", "evolve", "shaped"]

COLUMN_ID, KEY_PLACE = b"penstock.column", b"penstock.key"
HANDLE_ID = 0
_REMEDY = "make the copy anew with `penstock job repair --rebuild`"


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a format can do with columns."""

    stored: Callable[[pa.DataType], pa.DataType]
    """The type in which values of a type of the source are kept."""
    widens: Callable[[pa.DataType, pa.DataType], bool] = field(default=lambda _old, _new: False)
    """Whether a column takes another type without its files being written again."""
    renames: bool = False
    """Whether one takes another name like that."""
    adds: bool = True
    """Whether one comes like that, and is NULL in rows that are there."""


def parquet_type(kind: pa.DataType) -> pa.DataType:
    """The type that every format has. Times may be negative, or longer than a day: they are microseconds."""
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", kind.value_type))  # what the formats call it
    return pa.int64() if pa.types.is_duration(kind) else kind


class TargetColumns:
    """The columns that a copy should have: those of the source, key first, in the types of the format."""

    def __init__(self, columns: pa.Schema, keys: Sequence[str], table: TableInfo, dialect: Dialect) -> None:
        infos = {column.name: column for column in table.stored_columns}
        self.dialect = dialect
        self.ids = {each.name: infos[each.name].id if each.name in infos else HANDLE_ID for each in columns}
        self.schema = pa.schema([self._field(each, list(keys)) for each in columns])
        self.last_id = table.max_column_id
        self._infos = infos

    def _field(self, given: pa.Field, keys: list[str]) -> pa.Field:
        metadata = {COLUMN_ID: str(self.ids[given.name])}
        if given.name in keys:
            metadata[KEY_PLACE] = str(keys.index(given.name))
        return pa.field(given.name, self.dialect.stored(given.type), metadata=metadata)

    def origin(self, name: str) -> pa.Scalar:
        """What a column is in rows that were written before it was there."""
        kind = self.schema.field(name).type
        return pa.scalar(None, kind) if name == HANDLE else _cast(origin_scalar(self._infos[name]), kind)


def column_id(of: pa.Field) -> int:
    """The id of a column in the source."""
    return int(of.metadata[COLUMN_ID])


def key_columns(schema: pa.Schema) -> tuple[str, ...]:
    """The columns that identify a row of a copy, in the key's order."""
    keys = [(int(each.metadata[KEY_PLACE]), each.name) for each in schema if KEY_PLACE in each.metadata]
    return tuple(name for _, name in sorted(keys))


_Source = Any
"""The name of a column of the rows before, or the value that stands for it."""


@dataclass(frozen=True, slots=True)
class LakeEvolution:
    """How a copy's columns change: what they are then, and where rows that are there have them from."""

    schema: pa.Schema
    sources: tuple[_Source, ...]
    rewrites: bool
    """Whether rows that are there have to be written again for it."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return key_columns(self.schema)

    def carried(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the copy as they are from now on."""
        arrays = [
            _cast(rows.column(source), to.type)
            if isinstance(source, str)
            else pa.repeat(source, rows.num_rows)
            for source, to in zip(self.sources, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def evolve(there: pa.Schema, last_id: int, wanted: TargetColumns) -> LakeEvolution:
    """How the columns of a copy become those that are wanted; raise SchemaRefused when they cannot.

    `last_id` is the source's greatest column id of which the copy knew: a greater one was added since.
    """
    _check_key(there, wanted.schema)
    before = {column_id(each): each for each in there}
    names = {each.name.lower() for each in there}
    found: dict[int, tuple[pa.Field, _Source]] = {}
    rewrites = False
    for new in wanted.schema:
        old = before.get(column_id(new))
        if old is None:
            _check_new(new, last_id)
            origin = wanted.origin(new.name)
            found[column_id(new)] = (new, origin)
            rewrites |= origin.is_valid or new.name.lower() in names or not wanted.dialect.adds
        else:
            kind = _kept_type(old, new)
            found[column_id(new)] = (new.with_type(kind), old.name)
            rewrites |= kind != old.type and not wanted.dialect.widens(old.type, kind)
            rewrites |= old.name != new.name and not wanted.dialect.renames
    merged = _in_order(there, found)
    schema = pa.schema([each for each, _ in merged])
    return LakeEvolution(schema, tuple(source for _, source in merged), rewrites)


def _in_order(there: pa.Schema, found: dict[int, tuple[pa.Field, _Source]]) -> list[tuple[pa.Field, _Source]]:
    """Columns that are there keep their places; those dropped stay, unless another has their name now."""
    taken = {each.name.lower() for each, _ in found.values()}
    places: list[tuple[pa.Field, _Source]] = []
    for old in there:
        if column_id(old) in found:
            places.append(found.pop(column_id(old)))
        elif old.name.lower() not in taken:
            places.append((old, old.name))
    return [*places, *found.values()]


def _check_new(new: pa.Field, last_id: int) -> None:
    if column_id(new) <= last_id:
        raise SchemaRefused(
            f"column {new.name} was not copied before, so rows that did not change would lack it; {_REMEDY}"
        )


def _kept_type(old: pa.Field, new: pa.Field) -> pa.DataType:
    if _fits(new.type, old.type):
        return old.type
    if _fits(old.type, new.type):
        return new.type
    raise SchemaRefused(
        f"column {new.name} is {new.type} now, which {old.type}, as the copy has it, cannot become; {_REMEDY}"
    )


def _fits(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """As `fits`; a number without a sign that outgrows 64 bits becomes a decimal, and its values stay."""
    if pa.types.is_integer(narrow) and pa.types.is_decimal(wide):
        return bool(wide.precision - wide.scale >= len(str(1 << (narrow.bit_width - 1))))
    return fits(narrow, wide)


def _check_key(there: pa.Schema, wanted: pa.Schema) -> None:
    before = [column_id(there.field(name)) for name in key_columns(there)]
    if before != [column_id(wanted.field(name)) for name in key_columns(wanted)]:
        raise SchemaRefused(f"the primary key has other columns than in the copy; {_REMEDY}")


def shaped(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of the source as a copy has them: NULL where a column was dropped."""
    names = set(rows.schema.names)
    arrays = [
        _cast(rows.column(each.name), each.type) if each.name in names else pa.nulls(rows.num_rows, each.type)
        for each in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(value: Any, kind: pa.DataType) -> Any:
    return value if value.type == kind else value.cast(kind)
