"""Partitioned tables: how one is divided, and the partition that a row belongs to, as TiDB computes it.

A row's partition follows from one whole number (an expression over a column, for RANGE, LIST and HASH) or
from the values of columns (RANGE COLUMNS, LIST COLUMNS and KEY). NULL is below every bound, and 0 to HASH.
"""

import re
import zlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import IntEnum
from itertools import pairwise
from typing import Any

from penstock.errors import Invalid
from penstock.tables.codec import collations
from penstock.tables.codec.datums import NULL, Datum, DatumKind
from penstock.tables.codec.times import unpack
from penstock.tables.columns import INTEGER_BITS, ColumnInfo, FieldType, Tp, name_from_json, name_to_json
from penstock.tables.conversion import convert
from penstock.tables.records import Record, check_datum, key_part, to_signed
from penstock.tables.schema import IndexColumn, IndexInfo, TableInfo
from penstock.tables.values import from_datum

MAXVALUE = "MAXVALUE"
_DEFAULT = "DEFAULT"
_PARTITIONS_MAX = 8192
_DAYS_BEFORE_YEAR_1 = 365  # TO_DAYS counts from the year 0


class PartitionType(IntEnum):
    """TiDB's numbers of the ways to divide a table.

    NONE has one partition, with all rows: TiDB ends REMOVE PARTITIONING with it.
    """

    NONE = 0
    RANGE = 1
    HASH = 2
    LIST = 3
    KEY = 4


@dataclass(frozen=True, slots=True)
class PartitionBy:
    """How to divide a table that is created. Made by the methods `range`, `list`, `hash` and `key`.

        PartitionBy.range("id", {"p0": 100, "p1": 200, "rest": None})
        PartitionBy.range(["day"], {"y2024": "2025-01-01", "y2025": "2026-01-01"})
        PartitionBy.list(["region"], {"west": ["us", "ca"], "east": ["jp"]})
        PartitionBy.hash("id", 4)
        PartitionBy.key(["id"], 4)

    A str is an expression: a column that is a whole number, YEAR, MONTH, DAY or TO_DAYS of a date, or
    UNIX_TIMESTAMP of a timestamp. A
    list is of columns.
    """

    type: PartitionType
    expression: str
    columns: tuple[str, ...]
    parts: tuple[tuple[str, Any], ...]

    @classmethod
    def range(cls, by: str | Sequence[str], below: Mapping[str, Any]) -> "PartitionBy":
        """Divide by ranges: names of partitions with their upper bounds, which are excluded; None is none."""
        return cls(PartitionType.RANGE, *_parse_by(by), tuple(below.items()))

    @classmethod
    def list(cls, by: str | Sequence[str], values: Mapping[str, Sequence[Any]]) -> "PartitionBy":
        """Divide by lists: names of partitions with their values."""
        return cls(PartitionType.LIST, *_parse_by(by), tuple(values.items()))

    @classmethod
    def hash(cls, expression: str, count: int) -> "PartitionBy":
        """Divide evenly by a whole number, modulo the count."""
        return cls(PartitionType.HASH, expression, (), _number_partitions(count))

    @classmethod
    def key(cls, columns: Sequence[str], count: int) -> "PartitionBy":
        """Divide evenly by a checksum of columns of any type."""
        return cls(PartitionType.KEY, "", tuple(columns), _number_partitions(count))

    def describe(self, table: TableInfo) -> dict[str, Any]:
        """Return TiDB's description, with ids of partitions still to be given; raise Invalid for mistakes."""
        if not 0 < len(self.parts) <= _PARTITIONS_MAX:
            raise Invalid(f"table {table.name} needs 1 to {_PARTITIONS_MAX} partitions; name them")
        if len({name.lower() for name, _ in self.parts}) < len(self.parts):
            raise Invalid(f"table {table.name} has two partitions of one name; rename one")
        columns = [table.column(name).name for name in self.columns]
        definitions = [
            {
                "id": 0,
                "name": name_to_json(name),
                "less_than": self._bounds(value) if self.type is PartitionType.RANGE else None,
                "in_values": [self._literals(one) for one in value]
                if self.type is PartitionType.LIST
                else None,
                "policy_ref_info": None,
            }
            for name, value in self.parts
        ]
        return {
            "type": int(self.type),
            "expr": self._format_expression(table),
            "columns": [name_to_json(name) for name in columns] or None,
            "enable": True,
            "is_empty_columns": False,
            "definitions": definitions,
            "adding_definitions": None,
            "dropping_definitions": None,
            "states": None,
            "num": len(definitions),
            "ddl_state": 0,
        }

    def _format_expression(self, table: TableInfo) -> str:
        if not self.expression:
            return ""
        function, name = _parse_expression(table, self.expression)
        column = f"`{table.column(name).name}`"
        return f"{function}({column})" if function else column

    def _bounds(self, value: Any) -> Sequence[str]:
        if self.columns and isinstance(value, tuple):
            return [MAXVALUE if one is None else _literal(one) for one in value]
        return [MAXVALUE] * max(1, len(self.columns)) if value is None else [_literal(value)]

    def _literals(self, value: Any) -> Sequence[str]:
        values = value if self.columns and isinstance(value, tuple) else (value,)
        return ["NULL" if one is None else _literal(one) for one in values]


def _parse_by(by: str | Sequence[str]) -> tuple[str, tuple[str, ...]]:
    return (by, ()) if isinstance(by, str) else ("", tuple(by))


def _number_partitions(count: int) -> tuple[tuple[str, Any], ...]:
    return tuple((f"p{number}", None) for number in range(count))


def _literal(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str | date):
        raise Invalid("a bound of a partition is neither a whole number, a text nor a date; pass one of them")
    if isinstance(value, int):
        return str(value)
    text = value.isoformat(" ") if isinstance(value, datetime) else str(value)
    return "'" + text.replace("'", "''") + "'"


class Partitions:
    """Finds the partition of a row."""

    def __init__(self, table: TableInfo) -> None:
        tree = table.extra["partition"]
        self._table = table
        self._tree = tree
        self._ids: list[int] = [part["id"] for part in tree["definitions"]]
        self.columns = partition_columns(table)
        """The columns that decide."""
        kind = PartitionType(tree["type"])
        if not self._ids:
            raise Invalid("it has no partitions")
        locate = {
            PartitionType.NONE: lambda: lambda _: 0,
            PartitionType.RANGE: self._by_range,
            PartitionType.HASH: self._by_hash,
            PartitionType.LIST: self._by_list,
            PartitionType.KEY: self._by_key,
        }
        self._place: Callable[[Record], int | None] = locate[kind]()

    def locate(self, record: Record) -> int:
        """Return the physical id of the partition of a row; raise Invalid when none takes it."""
        place = self._place(record)
        if place is None:
            raise Invalid(f"no partition of {self._table.name} takes a row with such values; add one in TiDB")
        return self._ids[place]

    def _by_range(self) -> Callable[[Record], int | None]:
        bounds = [part["less_than"] for part in self._tree["definitions"]]
        if self._tree.get("columns"):
            keys = [self._bound_key(texts) for texts in bounds]
            self._check_ascending(keys)
            return lambda record: _below(keys, self._key(record))
        number = _number(self._table, self._tree["expr"])
        limits = [float("inf") if texts[0].upper() == MAXVALUE else _whole(texts[0]) for texts in bounds]
        self._check_ascending(limits)

        def place(record: Record) -> int | None:
            found = number(record)
            return 0 if found is None else _below(limits, found)

        return place

    def _check_ascending(self, bounds: Sequence[Any]) -> None:
        if any(upper <= lower for lower, upper in pairwise(bounds)):
            raise Invalid(f"the bounds of the partitions of {self._table.name} must ascend; sort them")

    def _by_list(self) -> Callable[[Record], int | None]:
        places: dict[Any, int] = {}
        default: int | None = None
        by_columns = bool(self._tree.get("columns"))
        for place, part in enumerate(self._tree["definitions"]):
            for texts in part["in_values"] or ():
                if texts[0].upper() == _DEFAULT:
                    default = place
                    continue
                is_null = texts[0].upper() == "NULL"
                value = self._bound_key(texts) if by_columns else None if is_null else _whole(texts[0])
                if places.setdefault(value, place) != place:
                    raise Invalid(f"two partitions of {self._table.name} have one value; take it from one")
        if by_columns:
            return lambda record: places.get(self._key(record), default)
        number = _number(self._table, self._tree["expr"])
        return lambda record: places.get(number(record), default)

    def _by_hash(self) -> Callable[[Record], int | None]:
        number = _number(self._table, self._tree["expr"])
        return lambda record: abs(to_signed((number(record) or 0) % (1 << 64))) % len(self._ids)

    def _by_key(self) -> Callable[[Record], int | None]:
        texts = [_hash_text(column) for column in self.columns]

        def place(record: Record) -> int:
            checksum = 0
            for column, text in zip(self.columns, texts, strict=True):
                datum = record[column.id]
                raw = b"\x00" if datum.kind is DatumKind.NULL else text(datum)
                checksum = zlib.crc32(raw, checksum)
            return checksum % len(self._ids)

        return place

    def _key(self, record: Record) -> bytes:
        parts = (IndexColumn(column.name, column.offset) for column in self.columns)
        return b"".join(key_part(self._table, part, record) for part in parts)

    def _bound_key(self, texts: Sequence[str]) -> bytes:
        key = b""
        for column, text in zip(self.columns, texts, strict=True):
            if text.upper() == MAXVALUE:
                return key + b"\xff"  # above every encoded value
            datum = NULL if text.upper() == "NULL" else check_datum(column, _unquote(text))
            key += key_part(self._table, IndexColumn(column.name, column.offset), {column.id: datum})
        return key


def partition_columns(table: TableInfo) -> tuple[ColumnInfo, ...]:
    """Return the columns that decide about a row's partition; raise Invalid for an unknown expression."""
    tree = table.extra["partition"]
    if tree.get("expr"):
        return (table.column(_parse_expression(table, tree["expr"])[1]),)
    named = tuple(table.column(name_from_json(name)) for name in tree.get("columns") or ())
    return named or table.primary_key


def check_unique(table: TableInfo, index: IndexInfo | None) -> None:
    """Raise Invalid for a unique index (None: the primary key) without a column of the partitions."""
    names = table.primary_key if index is None else [table.columns[part.offset] for part in index.columns]
    missing = [column.name for column in partition_columns(table) if column not in names]
    if missing and (index is None or (index.unique and not index.is_global)):
        what = "the primary key" if index is None or index.primary else f"unique index {index.name}"
        raise Invalid(f"{what} of {table.name} must have column {missing[0]}, which decides about partitions")


_EXPRESSION = re.compile(r"(?:(?P<function>[A-Za-z_]+)\s*\(\s*)?`?(?P<column>[^`()]+?)`?\s*(?(function)\))")
_UNIX = "UNIX_TIMESTAMP"
_PARTS_OF_DATES: dict[str, Callable[[Any], int]] = {
    "YEAR": lambda day: day.year,
    "MONTH": lambda day: day.month,
    "DAY": lambda day: day.day,
    "DAYOFMONTH": lambda day: day.day,
    "TO_DAYS": lambda day: day.toordinal() + _DAYS_BEFORE_YEAR_1,
    _UNIX: lambda moment: int(moment.timestamp()),
}

_FIELDS_OF_DATES = {"YEAR": 0, "MONTH": 1, "DAY": 2, "DAYOFMONTH": 2}


def _parse_expression(table: TableInfo, text: str) -> tuple[str, str]:
    """Return a function ("" for none) and the column that it is of."""
    parsed = _EXPRESSION.fullmatch(text.strip())
    refusal = f"the expression {text} is not one that Penstock evaluates; write the table through TiDB"
    if parsed is None or not table.has_column(parsed["column"]):
        raise Invalid(refusal)
    function, kind = (parsed["function"] or "").upper(), table.column(parsed["column"]).type
    takes = {Tp.DATE, Tp.DATETIME} if function else set(INTEGER_BITS)
    if function == _UNIX:
        takes = {Tp.TIMESTAMP} if kind.fsp == 0 else set()  # with digits of a second it is no whole number
    if kind.tp not in takes or (function and function not in _PARTS_OF_DATES):
        raise Invalid(refusal)
    return function, parsed["column"]


def _number(table: TableInfo, expression: str) -> Callable[[Record], int | None]:
    function, name = _parse_expression(table, expression)
    column = table.column(name)
    if not function:
        return lambda record: (
            None if record[column.id].kind is DatumKind.NULL else int(record[column.id].value or 0)
        )
    evaluate = _PARTS_OF_DATES[function]

    def of_date(record: Record) -> int | None:
        day = from_datum(column.type, record[column.id])
        if isinstance(day, str):  # a date that no calendar has
            if function == _UNIX:
                return 0  # a TIMESTAMP has only 0000-00-00 of them
            if function not in _FIELDS_OF_DATES:
                raise Invalid(f"column {column.name} has a date that no calendar has; pass another")
            return unpack(int(record[column.id].value or 0))[_FIELDS_OF_DATES[function]]
        return None if day is None else evaluate(day)

    return of_date


def _hash_text(column: ColumnInfo) -> Callable[[Datum], bytes]:
    kind, text = column.type, FieldType(Tp.VARCHAR, flen=16_383, charset="utf8mb4", collate="utf8mb4_bin")
    if kind.is_string:
        return lambda datum: collations.sort_key(kind, datum.value if isinstance(datum.value, bytes) else b"")
    if kind.tp not in {*INTEGER_BITS, Tp.DATE, Tp.DATETIME, Tp.DURATION, Tp.NEW_DECIMAL, Tp.YEAR}:
        raise Invalid(f"column {column.name} is of a type that Penstock does not take for KEY partitions")

    def as_text(datum: Datum) -> bytes:
        value = convert(kind, text, datum).value
        return value if isinstance(value, bytes) else b""

    return as_text


def _below(bounds: Sequence[Any], value: Any) -> int | None:
    place = bisect_right(bounds, value)
    return place if place < len(bounds) else None


def _whole(text: str) -> int:
    try:
        return int(_unquote(text))
    except ValueError:
        raise Invalid(f"the bound {text} is not a whole number; write the table through TiDB") from None


def _unquote(text: str) -> str:
    text = re.sub(r"^_\w+(?=')", "", text)
    return text[1:-1].replace("''", "'") if text.startswith("'") else text
