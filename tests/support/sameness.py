"""Whether a database has what TiDB had: columns, keys and rows of every table, however each prints them."""

import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from operator import eq
from typing import Any

from support.mariadb import MariaDb

__all__ = ["differences"]

Row = tuple[Any, ...]
_SHOWN = 4
_CELL_SHOWN = 80


def differences(point: Mapping[str, Any], database: MariaDb) -> list[str]:
    """Return one line for each table that is not as TiDB read it at a point of a record."""
    wanted: Mapping[str, Any] = point["tables"]
    there = database.tables()
    found = [f"{name} is missing" for name in sorted(set(wanted) - there)]
    found += [f"{name} should not be there" for name in sorted(there - set(wanted))]
    for name in sorted(set(wanted) & there):
        found += [f"{name} {what}" for what in _table_differences(wanted[name], name, database)]
    return found


def _table_differences(table: Mapping[str, Any], name: str, database: MariaDb) -> Iterator[str]:
    columns = [column for column, _ in database.columns(name)]
    if columns != table["columns"]:
        yield f"has columns {columns}, not {table['columns']}"
        return
    keys, wanted_keys = _keys(database.create_statement(name)), _keys(table["create"])
    if keys != wanted_keys:
        yield f"has keys {sorted(keys)}, not {sorted(wanted_keys)}"
    kinds = [kind.partition("(")[0].partition(" ")[0] for kind in table["types"]]
    wanted = Counter(_row(row, kinds) for row in table["rows"] or ())
    rows = Counter(_row(row, kinds) for row in database.rows(name))
    if rows != wanted:
        missing, extra = wanted - rows, rows - wanted
        yield (
            f"has {rows.total()} rows, not {wanted.total()};"
            f" {missing.total()} are missing: {_some(missing, extra, columns)};"
            f" {extra.total()} are too many: {_some(extra, missing, columns)}"
        )


def _some(rows: Counter[Row], others: Counter[Row], columns: list[str]) -> str:
    """A few rows: of each its first column, and where it differs from the most similar of the others."""
    return "; ".join(_described(row, others, columns) for row in list(rows)[:_SHOWN]) or "none"


def _described(row: Row, others: Counter[Row], columns: list[str]) -> str:
    nearest = max(others, key=lambda other: sum(map(eq, row, other)), default=())
    cells = [
        f"{column}={str(cell)[:_CELL_SHOWN]!r}"
        for column, cell, other in zip_longest(columns, row, nearest)
        if cell != other
    ]
    return f"{columns[0]}={row[0]!r} with {', '.join(cells)}"


def _keys(create: str) -> frozenset[str]:
    """The lines of SHOW CREATE TABLE that say keys, without TiDB's comments."""
    lines = (re.sub(r"/\*.*?\*/", "", line).strip().rstrip(",").strip() for line in create.splitlines())
    return frozenset(line for line in lines if re.match(r"(PRIMARY |UNIQUE )?KEY ", line))


def _row(row: list[str | None] | tuple[str | None, ...], kinds: list[str]) -> Row:
    return tuple(
        None if cell is None else _NORMAL.get(kind, str)(cell) for cell, kind in zip(row, kinds, strict=True)
    )


def _float(cell: str) -> float:
    """A FLOAT has 24 bits, of which TiDB prints the shortest text and MariaDB the value as a double."""
    number: float = struct.unpack("f", struct.pack("f", float(cell)))[0]
    return number


def _json(cell: str) -> object:
    """MariaDB keeps the text of a JSON value, TiDB its meaning.

    Spaces and the order of members are free, and so is the text of a number: versions of TiDB differ in
    whether a double that is a whole number has a fraction.
    """
    return _hashable(json.loads(cell))


def _hashable(value: object) -> object:
    if isinstance(value, dict):
        return frozenset((name, _hashable(member)) for name, member in value.items())
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return ("boolean", value) if isinstance(value, bool) else value


_NORMAL: Mapping[str, Callable[[str], object]] = {
    "double": float,
    "float": _float,
    "json": _json,
    "year": int,  # TiDB's 0 is MariaDB's 0000
}
