"""What becomes of a target's columns when those of its source have changed. Pure.

Columns are known by their ids: one that was renamed keeps its values, and one that was dropped and added
again under its old name begins anew. A target keeps what it has of them beside its watermark.

The columns of a copy, and how they follow those of the source. Pure.

A column is the same while its id is, whatever it is called. What was added since flows, with the value that
it reads as in older rows; what was dropped stays, and is NULL from then on. The ids are kept with the copy,
in the metadata of its fields, and so is the place of a column in the key.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

import pyarrow as pa

from penstock.errors import Corrupt, Invalid
from penstock.eventstore.sides import HANDLE
from penstock.jobs.error_codes import SchemaRefused
from penstock.jobs.schema_changes import fits
from penstock.tables.decoding.decoder import origin_scalar
from penstock.tables.schema import TableInfo

__all__ = [
    "COLUMN_ID",
    "HANDLE_ID",
    "KEY_PLACE",
    "REBUILD",
    "Alteration",
    "ColumnChange",
    "Dialect",
    "LakeEvolution",
    "SchemaEvolution",
    "TargetColumn",
    "TargetColumns",
    "column_id",
    "evolve",
    "evolved",
    "from_json",
    "key_columns",
    "parquet_type",
    "shaped",
    "to_json",
]


HANDLE_ID = 0
"""The id of `_handle` among columns; those of the source begin with 1."""

REBUILD = "rebuild the target with `penstock job repair --rebuild`"


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of the target, with its type there. `id` is that of the source's column: it outlives the name.

    One that is `gone` at the source stays, and is NULL in rows that are written from then on.
    """

    id: int
    name: str
    type: str
    key: bool = False
    gone: bool = False


def to_json(columns: Iterable[TargetColumn]) -> list[dict[str, Any]]:
    """As a target keeps them."""
    return [asdict(column) for column in columns]


def from_json(trees: Any) -> list[TargetColumn]:
    """What `to_json` made; raise Corrupt when it is something else."""
    try:
        return [
            TargetColumn(
                int(tree["id"]), str(tree["name"]), str(tree["type"]), bool(tree["key"]), bool(tree["gone"])
            )
            for tree in trees
        ]
    except (KeyError, TypeError, ValueError):
        raise Corrupt(f"the columns kept beside the watermark are damaged; {REBUILD}") from None


class ColumnChange(Enum):
    """What is done to a column of the target."""

    DROP = "drop"
    RENAME = "rename"
    WIDEN = "widen"
    ADD = "add"


@dataclass(frozen=True, slots=True)
class Alteration:
    """One change of the target: `column` is what it becomes, `was` what it was called."""

    act: ColumnChange
    column: TargetColumn
    was: str = ""


@dataclass(frozen=True, slots=True)
class SchemaEvolution:
    """Changes in the order in which they are made, and the columns that the target has afterwards."""

    alterations: tuple[Alteration, ...]
    columns: tuple[TargetColumn, ...]


def evolved(
    known: Sequence[TargetColumn],
    seen_id: int,
    wanted: Sequence[TargetColumn],
    is_wider: Callable[[str, str], bool],
) -> SchemaEvolution:
    """How a target with `known` columns gets `wanted` ones; raise Invalid when its rows do not allow that.

    `seen_id` is the greatest id of the source's columns when the target was last written. A column that is
    wanted now and is older was left out until now: the target's rows do not have its values. `is_wider` tells
    whether every value of a type is one of another, and stays the same.
    """
    if [column.id for column in known if column.key] != [column.id for column in wanted if column.key]:
        raise Invalid(f"the source has another primary key now; {REBUILD}")
    by_id = {column.id: column for column in known}
    for column in wanted:
        _check(by_id.get(column.id), column, seen_id, is_wider)
    ids, names = {column.id for column in wanted}, {column.name for column in wanted}
    left = [column for column in known if column.id not in ids]
    return SchemaEvolution(
        (
            *(Alteration(ColumnChange.DROP, each) for each in left if each.name in names),
            *_renames(by_id, wanted),
            *(
                Alteration(ColumnChange.WIDEN, each)
                for each in wanted
                if by_id.get(each.id, each).type != each.type
            ),
            *(Alteration(ColumnChange.ADD, each) for each in wanted if each.id not in by_id),
        ),
        (*wanted, *(replace(each, gone=True) for each in left if each.name not in names)),
    )


def _check(
    known: TargetColumn | None, wanted: TargetColumn, seen_id: int, is_wider: Callable[[str, str], bool]
) -> None:
    if known is None:
        if wanted.id <= seen_id:
            raise Invalid(f"column {wanted.name} was left out until now; {REBUILD}")
    elif known.gone:
        raise Invalid(f"column {wanted.name} was left out for a while; {REBUILD}")
    elif known.type != wanted.type and not is_wider(known.type, wanted.type):
        raise Invalid(
            f"column {wanted.name} is {known.type} in the target and needs {wanted.type} now; {REBUILD}"
        )


def _renames(by_id: dict[int, TargetColumn], wanted: Sequence[TargetColumn]) -> list[Alteration]:
    """By way of names that nobody has, because columns may have exchanged theirs."""
    renamed = [each for each in wanted if each.id in by_id and by_id[each.id].name != each.name]
    aside = [replace(each, name=f"penstock_column_{each.id}") for each in renamed]
    return [
        *(Alteration(ColumnChange.RENAME, each, by_id[each.id].name) for each in aside),
        *(
            Alteration(ColumnChange.RENAME, each, held.name)
            for each, held in zip(renamed, aside, strict=True)
        ),
    ]


COLUMN_ID, KEY_PLACE = b"penstock.column", b"penstock.key"
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
