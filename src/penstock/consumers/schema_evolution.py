"""How the columns of a target follow those of its source. Pure.

A column is identified by its id, whatever its name is: a renamed column keeps its values, and a column that
was dropped and added again under its old name is a new one. A column that was added since flows into the
target, with its default in older rows. A dropped column stays, and is NULL in later rows.

There are two kinds of targets:

* SQL targets (`postgres`, `kv`) keep a list of `TargetColumn` beside their watermark; `plan_evolution`
  returns the statements that change them.
* Arrow targets (lake tables and search indexes) keep the ids, and the places of columns in the key, in the
  metadata of their fields; `plan_arrow_evolution` returns the new schema and how older rows are converted.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

import pyarrow as pa

from penstock.errors import Corrupt
from penstock.jobs.error_codes import SchemaRefused
from penstock.jobs.schema_changes import fits
from penstock.tables.decoding.decoder import origin_scalar
from penstock.tables.impossible_dates import hide_scalar
from penstock.tables.schema import TableInfo

__all__ = [
    "COLUMN_ID",
    "HANDLE_ID",
    "KEY_PLACE",
    "REBUILD",
    "Alteration",
    "ArrowColumns",
    "ArrowEvolution",
    "ColumnChange",
    "Dialect",
    "SchemaEvolution",
    "TargetColumn",
    "column_id",
    "from_json",
    "key_columns",
    "parquet_type",
    "plan_arrow_evolution",
    "plan_evolution",
    "shape_rows",
    "to_json",
]


HANDLE_ID = 0
"""The id of `_handle` among columns; those of the source begin with 1."""
REBUILD = "rebuild the target with `penstock job repair --rebuild`"

# SQL targets.


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of a SQL target, with its type there. `id` is the source column's: it outlives the name.

    A column that is `gone` at the source stays in the target, and is NULL in rows that are written later.
    """

    id: int
    name: str
    type: str
    key: bool = False
    gone: bool = False


def to_json(columns: Iterable[TargetColumn]) -> list[dict[str, Any]]:
    """Return the columns as a target keeps them."""
    return [asdict(column) for column in columns]


def from_json(trees: Any) -> list[TargetColumn]:
    """Read what `to_json` made; raise Corrupt when it is damaged."""
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
    """One change of the target: `column` is the new column, `was` its former name."""

    act: ColumnChange
    column: TargetColumn
    was: str = ""


@dataclass(frozen=True, slots=True)
class SchemaEvolution:
    """Changes in the order in which they are made, and the columns that the target has afterwards."""

    alterations: tuple[Alteration, ...]
    columns: tuple[TargetColumn, ...]


def plan_evolution(
    known: Sequence[TargetColumn],
    seen_id: int,
    wanted: Sequence[TargetColumn],
    is_wider: Callable[[str, str], bool],
) -> SchemaEvolution:
    """Plan how a target with `known` columns gets the `wanted` ones; raise SchemaRefused when it cannot.

    `seen_id` is the greatest id of the source's columns when the target was last written. A wanted column
    that is older was left out until now, and the target's rows do not have its values. `is_wider` returns
    whether every value of the first type is an equal value of the second.
    """
    if [column.id for column in known if column.key] != [column.id for column in wanted if column.key]:
        raise SchemaRefused(f"the source has another primary key now; {REBUILD}")
    by_id = {column.id: column for column in known}
    for column in wanted:
        _check_column(by_id.get(column.id), column, seen_id, is_wider)
    ids, names = {column.id for column in wanted}, {column.name for column in wanted}
    left = [column for column in known if column.id not in ids]
    return SchemaEvolution(
        (
            *(Alteration(ColumnChange.DROP, column) for column in left if column.name in names),
            *_plan_renames(by_id, wanted),
            *(
                Alteration(ColumnChange.WIDEN, column)
                for column in wanted
                if by_id.get(column.id, column).type != column.type
            ),
            *(Alteration(ColumnChange.ADD, column) for column in wanted if column.id not in by_id),
        ),
        (*wanted, *(replace(column, gone=True) for column in left if column.name not in names)),
    )


def _check_column(
    known: TargetColumn | None, wanted: TargetColumn, seen_id: int, is_wider: Callable[[str, str], bool]
) -> None:
    if known is None:
        if wanted.id <= seen_id:
            raise SchemaRefused(f"column {wanted.name} was left out until now; {REBUILD}")
    elif known.gone:
        raise SchemaRefused(f"column {wanted.name} was left out for a while; {REBUILD}")
    elif known.type != wanted.type and not is_wider(known.type, wanted.type):
        raise SchemaRefused(
            f"column {wanted.name} is {known.type} in the target and needs {wanted.type} now; {REBUILD}"
        )


def _plan_renames(by_id: dict[int, TargetColumn], wanted: Sequence[TargetColumn]) -> list[Alteration]:
    """Plan renames by way of temporary names, because columns may have exchanged theirs."""
    renamed = [column for column in wanted if column.id in by_id and by_id[column.id].name != column.name]
    aside = [replace(column, name=f"penstock_column_{column.id}") for column in renamed]
    return [
        *(Alteration(ColumnChange.RENAME, column, by_id[column.id].name) for column in aside),
        *(
            Alteration(ColumnChange.RENAME, column, temporary.name)
            for column, temporary in zip(renamed, aside, strict=True)
        ),
    ]


# Arrow targets.

COLUMN_ID, KEY_PLACE = b"penstock.column", b"penstock.key"
"""Keys of a field's metadata: the id of its column, and its place in the primary key."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a format can do with columns."""

    stored: Callable[[pa.DataType], pa.DataType]
    """Return the type in which values of a type of the source are stored."""
    widens: Callable[[pa.DataType, pa.DataType], bool] = field(default=lambda _old, _new: False)
    """Return whether a column can get another type without rewriting its files."""
    renames: bool = False
    """Whether a column can get another name without that."""
    adds: bool = True
    """Whether a column can be added without that, and is NULL in existing rows."""


def parquet_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that every format has. Times may be negative or exceed a day: they are microseconds."""
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", kind.value_type))  # the name that the formats give to elements
    return pa.int64() if pa.types.is_duration(kind) else kind


class ArrowColumns:
    """The columns that a target should have: those of the source, key first, in the types of the format."""

    def __init__(self, columns: pa.Schema, keys: Sequence[str], table: TableInfo, dialect: Dialect) -> None:
        infos = {column.name: column for column in table.stored_columns}
        self.dialect = dialect
        self.ids = {name: infos[name].id if name in infos else HANDLE_ID for name in columns.names}
        self.schema = pa.schema([self._field(column, list(keys)) for column in columns])
        self.last_id = table.settled_column_id
        self._infos = infos

    def _field(self, given: pa.Field, keys: list[str]) -> pa.Field:
        metadata = {COLUMN_ID: str(self.ids[given.name])}
        if given.name in keys:
            metadata[KEY_PLACE] = str(keys.index(given.name))
        return pa.field(given.name, self.dialect.stored(given.type), metadata=metadata)

    def origin(self, name: str) -> pa.Scalar:
        """Return the value of a column in rows that were written before it was added."""
        kind = self.schema.field(name).type
        return (
            pa.scalar(None, kind)
            if self.ids[name] == HANDLE_ID
            else _cast(hide_scalar(origin_scalar(self._infos[name])), kind)
        )


def column_id(column: pa.Field) -> int:
    """Return the id of a column in the source."""
    return int(column.metadata[COLUMN_ID])


def key_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that identify a row of a target, in the key's order."""
    keys = [
        (int(column.metadata[KEY_PLACE]), column.name) for column in schema if KEY_PLACE in column.metadata
    ]
    return tuple(name for _, name in sorted(keys))


_Source = Any
"""The name of a column in the existing rows, or the scalar that fills a new column."""


@dataclass(frozen=True, slots=True)
class ArrowEvolution:
    """How the columns of a target change: the new schema, and where existing rows get each column from."""

    schema: pa.Schema
    sources: tuple[_Source, ...]
    rewrites: bool
    """Whether existing rows have to be rewritten."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return key_columns(self.schema)

    def convert(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return existing rows in the new schema."""
        arrays = [
            _cast(rows.column(source), column.type)
            if isinstance(source, str)
            else pa.repeat(source, rows.num_rows)
            for source, column in zip(self.sources, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def plan_arrow_evolution(current: pa.Schema, last_id: int, wanted: ArrowColumns) -> ArrowEvolution:
    """Plan how the `current` columns become the wanted ones; raise SchemaRefused when they cannot.

    `last_id` is the source's greatest column id that the target knew: a column with a greater one was added
    since.
    """
    _check_key(current, wanted.schema)
    before = {column_id(column): column for column in current}
    names = {column.name.lower() for column in current}
    planned: dict[int, tuple[pa.Field, _Source]] = {}
    rewrites = False
    for new in wanted.schema:
        old = before.get(column_id(new))
        if old is None:
            _check_new(new, last_id)
            origin = wanted.origin(new.name)
            planned[column_id(new)] = (new, origin)
            rewrites |= origin.is_valid or new.name.lower() in names or not wanted.dialect.adds
        else:
            kind = _choose_type(old, new)
            planned[column_id(new)] = (new.with_type(kind), old.name)
            rewrites |= kind != old.type and not wanted.dialect.widens(old.type, kind)
            rewrites |= old.name != new.name and not wanted.dialect.renames
    ordered = _order_columns(current, planned)
    schema = pa.schema([column for column, _ in ordered])
    return ArrowEvolution(schema, tuple(source for _, source in ordered), rewrites)


def _order_columns(
    current: pa.Schema, planned: dict[int, tuple[pa.Field, _Source]]
) -> list[tuple[pa.Field, _Source]]:
    """Keep existing columns in their places; keep dropped ones, unless a new column has their name."""
    taken = {column.name.lower() for column, _ in planned.values()}
    places: list[tuple[pa.Field, _Source]] = []
    for old in current:
        if column_id(old) in planned:
            places.append(planned.pop(column_id(old)))
        elif old.name.lower() not in taken:
            places.append((old, old.name))
    return [*places, *planned.values()]


def _check_new(new: pa.Field, last_id: int) -> None:
    if column_id(new) <= last_id:
        raise SchemaRefused(
            f"column {new.name} was not copied before, so it is missing in unchanged rows; {REBUILD}"
        )


def _choose_type(old: pa.Field, new: pa.Field) -> pa.DataType:
    if _fits(new.type, old.type):
        return old.type
    if _fits(old.type, new.type):
        return new.type
    raise SchemaRefused(
        f"column {new.name} is {new.type} now, and {old.type} in the target cannot become that; {REBUILD}"
    )


def _fits(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return what `fits` does; besides, an unsigned integer beyond 64 bits fits a decimal."""
    if pa.types.is_integer(narrow) and pa.types.is_decimal(wide):
        return bool(wide.precision - wide.scale >= len(str(1 << (narrow.bit_width - 1))))
    return fits(narrow, wide)


def _check_key(current: pa.Schema, wanted: pa.Schema) -> None:
    before = [column_id(current.field(name)) for name in key_columns(current)]
    if before != [column_id(wanted.field(name)) for name in key_columns(wanted)]:
        raise SchemaRefused(f"the primary key has other columns than in the target; {REBUILD}")


def shape_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of the source in the schema of a target, with NULLs in dropped columns."""
    names = set(rows.schema.names)
    arrays = [
        _cast(rows.column(column.name), column.type)
        if column.name in names
        else pa.nulls(rows.num_rows, column.type)
        for column in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(value: Any, kind: pa.DataType) -> Any:
    return value if value.type == kind else value.cast(kind)
