"""Random rows of any table, as Arrow has them."""

import random  # noqa: TID251 - only the type; the caller decides the numbers
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock.tables.arrow import arrow_type
from penstock.tables.fieldtypes import Tp
from penstock.tables.schema import ColumnInfo, TableInfo
from penstock.testing.versions import Row

__all__ = ["random_row"]

_WORDS = ("river", "dam", "turbine", "valve", "gate", "water", "penstock", "ünïcode", "", "a 'quoted' one")
_DAY = datetime(2026, 1, 1)
_VECTOR_LENGTH = 4


def random_row(table: TableInfo, number: int, mix: random.Random) -> Row:
    """A row whose key follows from `number`; the other cells are random, and null where they may be."""
    keys = {column.name for column in table.primary_key}
    row: Row = {}
    for column in table.stored_columns:
        is_key = column.name in keys
        may_be_null = not is_key and not column.type.not_null
        cell = _key_cell(column, number) if is_key else _cell(column, mix)
        row[column.name] = None if may_be_null and mix.random() < 0.1 else cell
    return row


def _key_cell(column: ColumnInfo, number: int) -> Any:
    kind = arrow_type(column.type)
    if pa.types.is_integer(kind):
        return number
    if pa.types.is_string(kind) and column.type.is_string:
        return f"k{number}"
    if pa.types.is_binary(kind):
        return number.to_bytes(2)
    if pa.types.is_decimal(kind):
        return Decimal(number).scaleb(-kind.scale)
    if pa.types.is_timestamp(kind):
        at = _DAY + timedelta(days=number)
        return at if kind.tz is None else at.replace(tzinfo=UTC)
    raise AssertionError(f"no {kind} as a key")


def _cell(column: ColumnInfo, mix: random.Random) -> Any:
    kind = arrow_type(column.type)
    if column.type.tp is Tp.JSON:
        return f'{{"n": {mix.randrange(100)}}}'
    if column.type.elems:
        return mix.choice(column.type.elems)
    if pa.types.is_string(kind):
        text = " ".join(mix.choices(_WORDS, k=mix.randrange(1, 4)))
        wide = column.type.tp is Tp.NEW_DECIMAL
        return (
            f"{mix.randrange(1000)}.{'0' * column.type.scale}"
            if wide
            else text[: column.type.flen if column.type.flen > 0 else None]
        )
    if pa.types.is_binary(kind):
        return mix.randbytes(min(column.type.flen, 6) if column.type.flen > 0 else 6)
    return _number(kind, column, mix)


def _number(kind: pa.DataType, column: ColumnInfo, mix: random.Random) -> Any:
    if pa.types.is_integer(kind):
        return 2000 + mix.randrange(100) if column.type.tp is Tp.YEAR else mix.randrange(100)
    if pa.types.is_decimal(kind):
        return Decimal(mix.randrange(1000)).scaleb(-kind.scale)
    if pa.types.is_floating(kind):
        return mix.randrange(1000) / 8
    if pa.types.is_date(kind):
        return date(2026, 1, 1 + mix.randrange(28))
    if pa.types.is_timestamp(kind):
        at = _DAY + timedelta(seconds=mix.randrange(10**6))
        return at if kind.tz is None else at.replace(tzinfo=UTC)
    if pa.types.is_duration(kind):
        return timedelta(seconds=mix.randrange(-3600, 3600))
    if pa.types.is_list(kind):
        return [mix.randrange(64) / 64 for _ in range(max(column.type.flen, 0) or _VECTOR_LENGTH)]
    raise AssertionError(f"no random {kind}")
