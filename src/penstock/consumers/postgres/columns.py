"""The columns of a target: which type of PostgreSQL each column of the source has there. Pure."""

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.consumers.schema_evolution import HANDLE_ID, TargetColumn, from_json
from penstock.errors import Corrupt, Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import HANDLE
from penstock.tables.fieldtypes import INTEGER_BITS, FieldType, Tp

_NAME_BYTES = 63
_SYSTEM = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
_COLUMNS_MAX = 1600
_KNOWN = re.compile(
    r"smallint|integer|bigint|real|double precision|date|timestamp|timestamptz|interval|text|jsonb|bytea|"
    r"real\[\]|bit\(\d+\)|numeric\(\d+(,\d+)?\)"
)
_SIGNED = {
    Tp.TINY: "smallint",
    Tp.SHORT: "smallint",
    Tp.INT24: "integer",
    Tp.LONG: "integer",
    Tp.LONGLONG: "bigint",
}
_UNSIGNED = {
    Tp.TINY: "smallint",
    Tp.SHORT: "integer",
    Tp.INT24: "integer",
    Tp.LONG: "bigint",
    Tp.LONGLONG: "numeric(20)",
}
_FIXED = {
    Tp.FLOAT: "real",
    Tp.DOUBLE: "double precision",
    Tp.DATE: "date",
    Tp.DATETIME: "timestamp",
    Tp.TIMESTAMP: "timestamptz",
    Tp.DURATION: "interval",  # goes below zero and beyond a day, which time does not
    Tp.YEAR: "smallint",
    Tp.ENUM: "text",
    Tp.SET: "text",
    Tp.JSON: "jsonb",
    Tp.VECTOR_FLOAT32: "real[]",
}
_WIDER = {
    "smallint": ("integer", "bigint", "numeric(20)"),
    "integer": ("bigint", "numeric(20)"),
    "bigint": ("numeric(20)",),
    "real": ("double precision",),
}
_NUMERIC = re.compile(r"numeric\((\d+)(?:,(\d+))?\)")


def postgres_type(kind: FieldType) -> str:
    """The type of a column in the target; Invalid for those that the source itself cannot have."""
    if kind.tp in INTEGER_BITS:
        return (_UNSIGNED if kind.unsigned else _SIGNED)[kind.tp]
    if kind.is_string:
        return "bytea" if kind.is_binary else "text"
    if kind.tp is Tp.NEW_DECIMAL:
        return f"numeric({kind.precision},{kind.scale})"
    if kind.tp is Tp.BIT:
        return f"bit({max(kind.flen, 1)})"
    if kind.tp not in _FIXED:
        raise Invalid(f"columns of type {kind.tp.name} have no form in PostgreSQL; choose other columns")
    return _FIXED[kind.tp]


def target_columns(schema: SchemaVersion, columns: pa.Schema, keys: Sequence[str]) -> list[TargetColumn]:
    """The columns that a target has of a table; raise Invalid when PostgreSQL cannot have them."""
    found = [_target_column(schema, name, key=name in keys) for name in columns.names]
    if len(found) > _COLUMNS_MAX:
        raise Invalid(f"{schema.name} has {len(found)} columns, PostgreSQL at most 1600; choose fewer")
    return found


def _target_column(schema: SchemaVersion, name: str, *, key: bool) -> TargetColumn:
    if name == HANDLE:
        return TargetColumn(HANDLE_ID, HANDLE, "bytea", key=True)
    check_name("column", name)
    if name in _SYSTEM:
        raise Invalid(
            f"PostgreSQL has a column {name} of its own in each table; rename that of {schema.name}"
        )
    column = schema.table.column(name)
    return TargetColumn(column.id, name, postgres_type(column.type), key=key)


def check_name(what: str, name: str) -> None:
    """Raise Invalid for a name that PostgreSQL would cut, so that two could become one."""
    if not name or len(name.encode()) > _NAME_BYTES or "\0" in name:
        raise Invalid(f"{what} {name!r} is no name for PostgreSQL, which takes 1 to {_NAME_BYTES} bytes")


def is_wider(old: str, new: str) -> bool:
    """Whether every value of a type is one of the other type, and stays the same."""
    if new in _WIDER.get(old, ()):
        return True
    before, after = _NUMERIC.fullmatch(old), _NUMERIC.fullmatch(new)
    if not (before and after):
        return False
    digits, scale = int(before[1]), int(before[2] or 0)
    more_digits, more_scale = int(after[1]), int(after[2] or 0)
    return more_scale >= scale and more_digits - more_scale >= digits - scale


def known_columns(trees: Any) -> list[TargetColumn]:
    """The columns that a target keeps; raise Corrupt when they are damaged."""
    found = from_json(trees)
    if not all(_KNOWN.fullmatch(column.type) for column in found):
        raise Corrupt("a column kept beside the watermark has an unknown type; rebuild the target")
    return found
