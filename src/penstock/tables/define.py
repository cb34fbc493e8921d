"""Tables defined in Python.

define_table(
"orders",
[("id", "bigint primary key"), ("customer", "varchar(64) not null"), ("total", "decimal(12,2)")],
indexes=[Index("by_customer", ["customer"])],
)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.errors import Invalid
from penstock.tables.codec import collations
from penstock.tables.columns import ColumnInfo
from penstock.tables.fieldtypes import INTEGER_BITS, UNSPECIFIED, ColumnFlag, Tp
from penstock.tables.schema import IndexColumn, IndexInfo, TableInfo
from penstock.tables.typetext import parse_definition
from penstock.tables.values import to_datum, zero_value

PRIMARY = "PRIMARY"
_NAME_MAX = 64


@dataclass(frozen=True, slots=True)
class Index:
    """An index to define; a column may be limited to its first characters: `"title(20)"`."""

    name: str
    columns: Sequence[str]
    unique: bool = False


def define_table(
    name: str,
    columns: Iterable[tuple[str, str]],
    *,
    primary_key: Sequence[str] = (),
    indexes: Sequence[Index] = (),
    clustered: bool = True,
    comment: str = "",
) -> TableInfo:
    """A table that has no id yet: the catalog gives it one.

    Columns are pairs of a name and a MySQL definition. The primary key is said there or in
    `primary_key`; clustered, it is the key of the row. Raise Invalid for what is not understood.
    """
    check_name("table", name)
    defined, keys, unique = [], list(primary_key), list[Index]()
    for offset, (column_name, text) in enumerate(columns):
        column, is_primary, is_unique = _column(column_name, text, offset)
        defined.append(column)
        keys += [column_name] if is_primary else []
        unique += [Index(column_name, [column_name], unique=True)] if is_unique else []
    table = TableInfo(id=0, name=name, columns=tuple(defined), comment=comment, max_column_id=len(defined))
    _check_columns(table)
    table = _with_primary_key(table, keys, clustered=clustered)
    for index in (*unique, *indexes):
        table = with_index(table, index)
    return table


def _column(name: str, text: str, offset: int) -> tuple[ColumnInfo, bool, bool]:
    column, primary, unique = define_column(name, text, column_id=offset + 1)
    return replace(column, offset=offset), primary, unique


def define_column(name: str, text: str, *, column_id: int) -> tuple[ColumnInfo, bool, bool]:
    """A column, whether its definition says primary key, and whether it says unique."""
    check_name("column", name)
    definition = parse_definition(text)
    default = definition.default
    if isinstance(default, str) and not default.startswith("CURRENT_TIMESTAMP"):
        stored = to_datum(definition.type, default)
        default = stored.value if definition.type.tp is Tp.BIT else default
    column = ColumnInfo(
        id=column_id,
        name=name,
        offset=0,
        type=definition.type,
        default=default,
        comment=definition.comment,
    )
    return column, definition.primary, definition.unique


def with_origin_default(column: ColumnInfo) -> ColumnInfo:
    """A column that joins a table: rows from before read as its default, or as its type's zero."""
    if column.default is not None or not column.type.not_null:
        return replace(column, origin_default=column.default)
    zero = zero_value(column.type)
    return replace(column, origin_default=zero if isinstance(zero, str | int) else None)


def check_name(what: str, name: str) -> None:
    """Invalid unless a name is one that MySQL allows."""
    if not name or len(name) > _NAME_MAX or name != name.rstrip() or "." in name or "\x00" in name:
        raise Invalid(
            f"{what} name {name!r} must be 1 to {_NAME_MAX} characters without dots; choose another"
        )


def _check_columns(table: TableInfo) -> None:
    names = [column.name.lower() for column in table.columns]
    twice = {name for name in names if names.count(name) > 1}
    if not names or twice:
        fault = f"has column {min(twice)} twice" if twice else "has no columns"
        raise Invalid(f"table {table.name} {fault}; mend its definition")
    if sum(column.auto_increment for column in table.columns) > 1:
        raise Invalid(f"table {table.name} has two auto_increment columns; keep one")


def _with_primary_key(table: TableInfo, names: Sequence[str], *, clustered: bool) -> TableInfo:
    if not names:
        return table
    chosen = [table.column(_prefix(name)[0]) for name in names]
    flags = ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL
    columns = tuple(_flagged(column, flags) if column in chosen else column for column in table.columns)
    table = replace(table, columns=columns)
    if clustered and len(chosen) == 1 and chosen[0].type.tp in INTEGER_BITS:
        return replace(table, pk_is_handle=True)
    table = _add_index(table, Index(PRIMARY, names, unique=True), primary=True)
    return replace(table, is_common_handle=True, common_handle_version=1) if clustered else table


def with_index(table: TableInfo, index: Index) -> TableInfo:
    """The table with one more index; Invalid when its name is taken or a column unknown."""
    check_name("index", index.name)
    if any(index.name.lower() == other.name.lower() for other in table.indexes):
        raise Invalid(f"table {table.name} has an index {index.name} already; choose another name")
    table = _add_index(table, index, primary=False)
    first = table.columns[table.indexes[-1].columns[0].offset]
    flag = ColumnFlag.UNIQUE_KEY if index.unique and len(index.columns) == 1 else ColumnFlag.MULTIPLE_KEY
    columns = tuple(_flagged(column, flag) if column == first else column for column in table.columns)
    return replace(table, columns=columns)


def _add_index(table: TableInfo, index: Index, *, primary: bool) -> TableInfo:
    parts = []
    for name in index.columns:
        bare, length = _prefix(name)
        column = table.column(bare)
        if length != UNSPECIFIED and not column.type.is_string:
            raise Invalid(f"index {index.name} limits {column.name}, which is no string; drop the length")
        if column.type.is_string:
            collations.sort_key(column.type, b"")
        parts.append(IndexColumn(column.name, column.offset, length))
    if not parts:
        raise Invalid(f"index {index.name} has no columns; name at least one")
    made = IndexInfo(table.max_index_id + 1, index.name, tuple(parts), unique=index.unique, primary=primary)
    return replace(table, indexes=(*table.indexes, made), max_index_id=made.id)


def _prefix(name: str) -> tuple[str, int]:
    bare, bracket, length = name.partition("(")
    if not bracket:
        return name, UNSPECIFIED
    if not length.rstrip(")").isdigit():
        raise Invalid(f"index column {name!r} is not understood; write it as name or name(length)")
    return bare.strip(), int(length.rstrip(")"))


def _flagged(column: ColumnInfo, flag: ColumnFlag) -> ColumnInfo:
    return replace(column, type=replace(column.type, flag=column.type.flag | flag))
