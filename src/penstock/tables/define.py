"""Defines tables in Python, with MySQL's column definitions.

    define_table(
        "orders",
        [("id", "bigint primary key"), ("customer", "varchar(64) not null"), ("total", "decimal(12,2)")],
        indexes=[Index("by_customer", ["customer"])],
    )

A column definition is such as `bigint unsigned not null default 5 comment 'so many'`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from penstock.clock import physical_ms
from penstock.errors import Invalid
from penstock.tables.codec import collations
from penstock.tables.columns import (
    BLOBS,
    CURRENT_DATE,
    INTEGER_BITS,
    NO_FLAGS,
    UNSPECIFIED,
    ColumnFlag,
    ColumnInfo,
    FieldType,
    SchemaState,
    Tp,
)
from penstock.tables.partitions import PartitionBy, Partitions, check_unique
from penstock.tables.schema import IndexColumn, IndexInfo, TableInfo
from penstock.tables.values import VECTOR_DIMENSION_MAX, to_datum, zero_value

CHARSET, COLLATE = "utf8mb4", "utf8mb4_bin"
_TOKEN = re.compile(r"\s*(?:(?P<quoted>'(?:[^'\\]|\\.|'')*')|(?P<word>[\w.+-]+)|(?P<mark>[(),]))")
_COLLATIONS = {"binary": "binary"} | {name: f"{name}_bin" for name in ("utf8mb4", "utf8", "ascii", "latin1")}
_TEXT_BYTES = {"tiny": 255, "": 65_535, "medium": 16_777_215, "long": 4_294_967_295}
_TEXT_TYPES = {"tiny": Tp.TINY_BLOB, "": Tp.BLOB, "medium": Tp.MEDIUM_BLOB, "long": Tp.LONG_BLOB}
_INT_WIDTHS = {Tp.TINY: (4, 3), Tp.SHORT: (6, 5), Tp.INT24: (9, 8), Tp.LONG: (11, 10), Tp.LONGLONG: (20, 20)}
_INTEGERS = {
    "tinyint": Tp.TINY,
    "smallint": Tp.SHORT,
    "mediumint": Tp.INT24,
    "int": Tp.LONG,
    "integer": Tp.LONG,
    "bigint": Tp.LONGLONG,
    "bool": Tp.TINY,
    "boolean": Tp.TINY,
}
_TIMES = {"datetime": (Tp.DATETIME, 19), "timestamp": (Tp.TIMESTAMP, 19), "time": (Tp.DURATION, 10)}


@dataclass(slots=True)
class Definition:
    """A parsed column definition."""

    type: FieldType
    default: Any = None
    comment: str = ""
    primary: bool = False
    unique: bool = False


def parse_definition(text: str) -> Definition:
    """Parse a column definition; raise Invalid for a part that is not understood."""
    tokens = _Tokens(text)
    definition = Definition(_type(tokens))
    while not tokens.done:
        _attribute(tokens, definition)
    kind = definition.type
    if kind.not_null and definition.default is None and not kind.flag & ColumnFlag.AUTO_INCREMENT:
        definition.type = _flags_of(kind, ColumnFlag.NO_DEFAULT_VALUE)
    return definition


class _Tokens:
    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens: list[str] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            token = _TOKEN.match(text, at)
            if not token:
                raise Invalid(f"column definition {text!r} is not understood from {text[at:].strip()!r} on")
            self._tokens.append(token[0].strip())
            at = token.end()
        self._tokens.reverse()

    @property
    def done(self) -> bool:
        return not self._tokens

    def peek(self) -> str:
        return self._tokens[-1].lower() if self._tokens else ""

    def next(self) -> str:
        if not self._tokens:
            raise Invalid(f"column definition {self.text!r} ends too early")
        return self._tokens.pop()

    def accept(self, *words: str) -> bool:
        if [token.lower() for token in reversed(self._tokens[-len(words) :])] != list(words):
            return False
        del self._tokens[-len(words) :]
        return True

    def arguments(self) -> list[str]:
        arguments: list[str] = []
        if not self.accept("("):
            return arguments
        while not self.accept(")"):
            arguments.append(self.next())
            self.accept(",")
        return arguments


def _type(tokens: _Tokens) -> FieldType:
    name = tokens.next().lower()
    arguments = tokens.arguments()
    if name in _INTEGERS:
        return FieldType(_INTEGERS[name], ColumnFlag.BINARY, _INT_WIDTHS[_INTEGERS[name]][0], 0)
    if name in _TIMES:
        code, width = _TIMES[name]
        fsp = _number(tokens, arguments, 0, 0, 6)
        return FieldType(code, ColumnFlag.BINARY, width + (fsp and fsp + 1), fsp)
    text = re.fullmatch(r"(tiny|medium|long|)(text|blob)", name)
    if text:
        charset = ("binary", "binary") if text[2] == "blob" else (CHARSET, COLLATE)
        return FieldType(_TEXT_TYPES[text[1]], NO_FLAGS, _TEXT_BYTES[text[1]], 0, *charset)
    if name not in _TYPES:
        raise Invalid(f"column type {name!r} in {tokens.text!r} is unknown; use a MySQL type such as bigint")
    return _TYPES[name](tokens, arguments)


def _number(tokens: _Tokens, arguments: list[str], default: int, low: int, high: int) -> int:
    size = arguments[0] if arguments else str(default)
    if not size.isdigit() or not low <= int(size) <= high:
        raise Invalid(f"size {size} in column definition {tokens.text!r} must be {low} to {high}")
    return int(size)


def _decimal(tokens: _Tokens, arguments: list[str]) -> FieldType:
    precision = _number(tokens, arguments, 10, 1, 65)
    scale = _number(tokens, arguments[1:], 0, 0, min(30, precision))
    return FieldType(Tp.NEW_DECIMAL, ColumnFlag.BINARY, precision, scale)


def _string(code: Tp, charset: str, collate: str, longest: int) -> Callable[[_Tokens, list[str]], FieldType]:
    def build(tokens: _Tokens, arguments: list[str]) -> FieldType:
        if code is Tp.VARCHAR and not arguments:
            raise Invalid(f"column definition {tokens.text!r} needs a length, such as varchar(64)")
        return FieldType(code, NO_FLAGS, _number(tokens, arguments, 1, 0, longest), 0, charset, collate)

    return build


def _elements(code: Tp) -> Callable[[_Tokens, list[str]], FieldType]:
    def build(tokens: _Tokens, arguments: list[str]) -> FieldType:
        elems = tuple(map(_unquote, arguments))
        if not elems or (code is Tp.SET and len(elems) > 64):
            raise Invalid(
                f"column definition {tokens.text!r} needs elements, such as enum('a','b'); a set at most 64"
            )
        width = max(map(len, elems)) if code is Tp.ENUM else sum(map(len, elems)) + len(elems) - 1
        return FieldType(code, NO_FLAGS, width, 0, CHARSET, COLLATE, elems)

    return build


_TYPES: dict[str, Callable[[_Tokens, list[str]], FieldType]] = {
    "decimal": _decimal,
    "numeric": _decimal,
    "float": lambda *_: FieldType(Tp.FLOAT, ColumnFlag.BINARY, 12, -1),
    "double": lambda *_: FieldType(Tp.DOUBLE, ColumnFlag.BINARY, 22, -1),
    "date": lambda *_: FieldType(Tp.DATE, ColumnFlag.BINARY, 10, 0),
    "year": lambda *_: FieldType(
        Tp.YEAR, ColumnFlag.BINARY | ColumnFlag.UNSIGNED | ColumnFlag.ZEROFILL, 4, 0
    ),
    "json": lambda *_: FieldType(Tp.JSON, ColumnFlag.BINARY, 4_294_967_295, 0),
    "bit": lambda tokens, args: FieldType(Tp.BIT, ColumnFlag.UNSIGNED, _number(tokens, args, 1, 1, 64), 0),
    "vector": lambda tokens, args: FieldType(
        Tp.VECTOR_FLOAT32, NO_FLAGS, _number(tokens, args, 0, 1, VECTOR_DIMENSION_MAX) if args else -1, 0
    ),
    "char": _string(Tp.STRING, CHARSET, COLLATE, 255),
    "varchar": _string(Tp.VARCHAR, CHARSET, COLLATE, 16_383),
    "binary": _string(Tp.STRING, "binary", "binary", 255),
    "varbinary": _string(Tp.VARCHAR, "binary", "binary", 65_535),
    "enum": _elements(Tp.ENUM),
    "set": _elements(Tp.SET),
}


def _attribute(tokens: _Tokens, definition: Definition) -> None:
    kind = definition.type
    if tokens.accept("unsigned"):
        width = _INT_WIDTHS.get(kind.tp, (0, kind.flen))[1]
        definition.type = replace(_flags_of(kind, ColumnFlag.UNSIGNED), flen=width)
    elif tokens.accept("not", "null"):
        definition.type = _flags_of(kind, ColumnFlag.NOT_NULL)
    elif tokens.accept("null"):
        pass
    elif tokens.accept("primary", "key"):
        definition.primary = True
        definition.type = _flags_of(kind, ColumnFlag.NOT_NULL)
    elif tokens.accept("unique", "key") or tokens.accept("unique"):
        definition.unique = True
    elif tokens.accept("auto_increment"):
        if kind.tp not in INTEGER_BITS:
            raise Invalid(f"column definition {tokens.text!r}: only an integer can be auto_increment")
        definition.type = _flags_of(kind, ColumnFlag.AUTO_INCREMENT | ColumnFlag.NOT_NULL)
    elif tokens.accept("default"):
        definition.default = _default(tokens)
    elif tokens.accept("comment"):
        definition.comment = _unquote(tokens.next())
    elif tokens.accept("collate"):
        definition.type = _with_collation(tokens, kind, tokens.next().lower())
    elif tokens.accept("character", "set") or tokens.accept("charset"):
        charset = tokens.next().lower()
        definition.type = _with_collation(tokens, kind, _COLLATIONS.get(charset, charset))
    else:
        raise Invalid(f"{tokens.peek()!r} in column definition {tokens.text!r} is not understood")


def _default(tokens: _Tokens) -> str | None:
    if tokens.accept("(", "current_date", ")"):
        return CURRENT_DATE
    token = tokens.next()
    if token.lower() == "null":
        return None
    if token.lower() == "current_timestamp":
        arguments = tokens.arguments()
        return f"CURRENT_TIMESTAMP({arguments[0]})" if arguments else "CURRENT_TIMESTAMP"
    return {"true": "1", "false": "0"}.get(token.lower(), _unquote(token))


def _with_collation(tokens: _Tokens, kind: FieldType, collate: str) -> FieldType:
    if not kind.is_string and kind.tp not in {Tp.ENUM, Tp.SET}:
        raise Invalid(f"column definition {tokens.text!r}: only strings have a collation")
    charset = "binary" if collate == "binary" else collate.partition("_")[0]
    if kind.tp in BLOBS and charset == "binary":
        raise Invalid(f"column definition {tokens.text!r}: use blob for binary text")
    return replace(kind, charset=charset, collate=collate)


def _flags_of(kind: FieldType, flag: ColumnFlag) -> FieldType:
    return replace(kind, flag=kind.flag | flag)


def _unquote(token: str) -> str:
    if not token.startswith("'"):
        return token
    unescape = {None: "'", "0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}
    return re.sub(r"\\(.)|''", lambda escape: unescape.get(escape[1], escape[1]), token[1:-1])


PRIMARY = "PRIMARY"
_NAME_MAX = 64


@dataclass(frozen=True, slots=True)
class Index:
    """An index to define. A column may be limited to its first characters: `"title(20)"`."""

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
    partition_by: PartitionBy | None = None,
) -> TableInfo:
    """Return a table without an id, which the catalog assigns.

    Columns are pairs of a name and a MySQL definition. The primary key is in a definition or in
    `primary_key`; a clustered one is the key of the row. `partition_by` divides the table. Raise Invalid when
    a definition is wrong.
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
    return table if partition_by is None else _divide(table, partition_by)


def _divide(table: TableInfo, by: PartitionBy) -> TableInfo:
    divided = replace(table, extra={**table.extra, "partition": by.describe(table)})
    Partitions(divided)
    if divided.primary_key:
        check_unique(divided, None)
    for index in divided.indexes:
        check_unique(divided, index)
    return divided


def _column(name: str, text: str, offset: int) -> tuple[ColumnInfo, bool, bool]:
    column, primary, unique = define_column(name, text, column_id=offset + 1)
    return replace(column, offset=offset), primary, unique


def define_column(name: str, text: str, *, column_id: int) -> tuple[ColumnInfo, bool, bool]:
    """Return a column, and whether its definition says primary key and unique."""
    check_name("column", name, dots=True)
    definition = parse_definition(text)
    column = ColumnInfo(
        id=column_id,
        name=name,
        offset=0,
        type=definition.type,
        default=definition.default,
        comment=definition.comment,
    )
    if isinstance(column.default, str) and column.clock_default is None:
        stored = to_datum(column.type, column.default)
        column = replace(column, default=stored.value if column.type.tp is Tp.BIT else column.default)
    return column, definition.primary, definition.unique


def with_origin_default(column: ColumnInfo, *, start_ts: int | None = None) -> ColumnInfo:
    """Return a column to add to a table: existing rows read as its default, or as its type's zero.

    A default of CURRENT_TIMESTAMP or CURRENT_DATE is the time or the day of `start_ts`, in UTC.
    """
    if start_ts is not None and column.clock_default is not None:
        now = datetime.fromtimestamp(physical_ms(start_ts) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        if column.clock_default == CURRENT_DATE:
            return replace(column, origin_default=now[:10])
        return replace(column, origin_default=now[: 19 + (column.type.fsp and column.type.fsp + 1)])
    if column.default is not None or not column.type.not_null:
        return replace(column, origin_default=column.default)
    zero = zero_value(column.type)
    return replace(column, origin_default=zero if isinstance(zero, str | int) else None)


def check_name(what: str, name: str, *, dots: bool = False) -> None:
    """Raise Invalid unless MySQL allows the name.

    Dots are for columns and indexes alone: those in names of databases and tables separate the two.
    """
    if not name or len(name) > _NAME_MAX or name != name.rstrip() or "\x00" in name:
        raise Invalid(
            f"{what} name {name!r} must be 1 to {_NAME_MAX} characters, the last not a space; choose another"
        )
    if "." in name and not dots:
        raise Invalid(f"{what} name {name!r} has a dot; choose another")


def _check_columns(table: TableInfo) -> None:
    names = [column.name.lower() for column in table.columns]
    twice = {name for name in names if names.count(name) > 1}
    if not names or twice:
        fault = f"has column {min(twice)} twice" if twice else "has no columns"
        raise Invalid(f"table {table.name} {fault}; fix its definition")
    if sum(column.auto_increment for column in table.columns) > 1:
        raise Invalid(f"table {table.name} has two auto_increment columns; keep one")


def _with_primary_key(table: TableInfo, names: Sequence[str], *, clustered: bool) -> TableInfo:
    if not names:
        return table
    chosen = [table.column(_prefix(name)[0]) for name in names]
    flags = ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL
    columns = tuple(_with_flag(column, flags) if column in chosen else column for column in table.columns)
    table = replace(table, columns=columns)
    if clustered and len(chosen) == 1 and chosen[0].type.tp in INTEGER_BITS:
        return replace(table, pk_is_handle=True)
    table = _add_index(table, Index(PRIMARY, names, unique=True), primary=True)
    return replace(table, is_common_handle=True, common_handle_version=1) if clustered else table


def with_index(table: TableInfo, index: Index) -> TableInfo:
    """Return the table with one more index; raise Invalid when its name is taken or a column unknown."""
    check_name("index", index.name, dots=True)
    if any(index.name.lower() == other.name.lower() for other in table.indexes):
        raise Invalid(f"table {table.name} already has an index {index.name}; choose another name")
    return with_index_flags(_add_index(table, index, primary=False))


def with_index_flags(table: TableInfo) -> TableInfo:
    """Return the table with the flags that tell of its public indexes at the first column of each."""
    flags = dict.fromkeys(range(len(table.columns)), NO_FLAGS)
    for index in table.indexes:
        if index.state is SchemaState.PUBLIC and not index.primary:
            alone = index.unique and len(index.columns) == 1
            flags[index.columns[0].offset] |= ColumnFlag.UNIQUE_KEY if alone else ColumnFlag.MULTIPLE_KEY
    kept = ~(ColumnFlag.UNIQUE_KEY | ColumnFlag.MULTIPLE_KEY)
    columns = tuple(
        replace(column, type=replace(column.type, flag=(column.type.flag & kept) | flags[at]))
        for at, column in enumerate(table.columns)
    )
    return replace(table, columns=columns)


def _add_index(table: TableInfo, index: Index, *, primary: bool) -> TableInfo:
    parts = []
    for name in index.columns:
        bare, length = _prefix(name)
        column = table.column(bare)
        if length != UNSPECIFIED and not column.type.is_string:
            raise Invalid(f"index {index.name} limits {column.name}, which is not a string; drop the length")
        if column.type.is_string:
            collations.sort_key(column.type, b"")
        parts.append(IndexColumn(column.name, column.offset, length))
    if not parts:
        raise Invalid(f"index {index.name} has no columns; name at least one")
    added = IndexInfo(table.max_index_id + 1, index.name, tuple(parts), unique=index.unique, primary=primary)
    return replace(table, indexes=(*table.indexes, added), max_index_id=added.id)


def _prefix(name: str) -> tuple[str, int]:
    bare, bracket, length = name.partition("(")
    if not bracket:
        return name, UNSPECIFIED
    if not length.rstrip(")").isdigit():
        raise Invalid(f"index column {name!r} is not understood; write it as name or name(length)")
    return bare.strip(), int(length.rstrip(")"))


def _with_flag(column: ColumnInfo, flag: ColumnFlag) -> ColumnInfo:
    return replace(column, type=replace(column.type, flag=column.type.flag | flag))
