"""Whether a database has what TiDB had: columns, keys and rows of every table, however each prints them.

Of a column its type, collation, NOT NULL, default, ON UPDATE, AUTO_INCREMENT, comment, and whether it is
generated are compared. What cannot be equal at MariaDB:

- JSON is LONGTEXT of utf8mb4_bin there.
- The collations of utf8mb4_0900 are not there: our statements have utf8mb4_bin instead.
- AUTO_RANDOM, TTL and placement are TiDB's own.
- Expressions, of generated columns and of defaults, have another text: only that there is one is compared.
"""

import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from decimal import Decimal, InvalidOperation
from itertools import zip_longest
from operator import eq
from typing import Any

from support.mariadb import MariaDb

__all__ = ["Column", "column_differences", "columns_of_mariadb", "columns_of_tidb", "differences"]

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
    yield from column_differences(
        columns_of_tidb(table["create"]), columns_of_mariadb(database.definitions(name))
    )
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


_QUOTED = r"'(?:[^'\\]|\\.|'')*'"
_NAME = re.compile(r"\s*`((?:[^`]|``)*)` ")
_TYPE = re.compile(rf"\w+(?:\((?:{_QUOTED}|[^')])*\))?(?: unsigned)?(?: zerofill)?", re.IGNORECASE)
_COMMENTS = re.compile(rf"({_QUOTED})| ?/\*.*?\*/")
_COMMENT = re.compile(rf" COMMENT ({_QUOTED})$")
_GENERATED = re.compile(r" GENERATED ALWAYS AS \(.*\) (VIRTUAL|STORED)")
_DEFAULT = re.compile(rf" DEFAULT (\(.*\)|b{_QUOTED}|{_QUOTED}|[\w.+-]+(?:\(\d*\))?)")
_ON_UPDATE = re.compile(r" ON UPDATE (\w+(?:\(\d*\))?)", re.IGNORECASE)
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}
_COLLATED = re.compile(r"(var)?char\b|\w*text\b|enum\b|set\b")
_EXPRESSION = "an expression"


@dataclass(frozen=True)
class Column:
    """A column in the one form that definitions of both databases have; `default` is None for none."""

    type: str
    collation: str
    nullable: bool
    default: str | None
    on_update: str
    generated: str
    auto_increment: bool
    comment: str


def column_differences(wanted: Mapping[str, Column], found: Mapping[str, Column]) -> Iterator[str]:
    """Yield one line for each column that is defined in another way."""
    for name, column in wanted.items():
        other = found[name]
        differ = [
            f"{field.name} {getattr(other, field.name)!r}, not {getattr(column, field.name)!r}"
            for field in fields(Column)
            if getattr(other, field.name) != getattr(column, field.name)
        ]
        if differ:
            yield f"has column {name} with {'; '.join(differ)}"


def columns_of_tidb(create: str) -> dict[str, Column]:
    """Return the columns of a SHOW CREATE TABLE of TiDB."""
    options = re.search(r"DEFAULT CHARSET=(\w+)(?: COLLATE=(\w+))?", create)
    assert options is not None, f"no character set in {create}"
    default_collation = options[2] or _default_collation(options[1])
    found = {}
    for line in create.split("\n"):
        if name := _NAME.match(line):
            rest = _COMMENTS.sub(lambda part: part[1] or "", line[name.end() :].rstrip().removesuffix(","))
            found[name[1].replace("``", "`")] = _column_of_tidb(rest, default_collation)
    return found


def _column_of_tidb(line: str, default_collation: str) -> Column:
    kind = _TYPE.match(line)
    assert kind is not None, f"no type in {line}"
    rest = line[kind.end() :]
    comment = _COMMENT.search(rest)
    rest = rest[: comment.start()] if comment else rest
    generated = _GENERATED.search(rest)
    rest = rest.replace(generated[0], "") if generated else rest
    default, on_update = _DEFAULT.search(rest), _ON_UPDATE.search(rest)
    said = rest.replace(default[0], "") if default else rest
    charset, collate = re.search(r"CHARACTER SET (\w+)", said), re.search(r"COLLATE (\w+)", said)
    own = collate[1] if collate else _default_collation(charset[1]) if charset else default_collation
    type_text = "longtext" if kind[0] == "json" else _type(kind[0])
    return Column(
        type=type_text,
        collation="utf8mb4_bin" if kind[0] == "json" else _collation(type_text, own),
        nullable=" NOT NULL" not in said,
        default=None if default is None else _default(type_text, default[1]),
        on_update=_function(on_update[1]) if on_update else "",
        generated=generated[1] if generated else "",
        auto_increment=" AUTO_INCREMENT" in said,
        comment=_unquote(comment[1]) if comment else "",
    )


def columns_of_mariadb(definitions: Mapping[str, Mapping[str, str | None]]) -> dict[str, Column]:
    """Return the columns of a table by what MariaDB's information_schema says of them."""
    return {name: _column_of_mariadb(said) for name, said in definitions.items()}


def _column_of_mariadb(said: Mapping[str, str | None]) -> Column:
    type_text, extra = _type(said["column_type"] or ""), said["extra"] or ""
    default, on_update = said["column_default"], _ON_UPDATE.search(f" {extra}")
    generated = re.search(r"(VIRTUAL|STORED) GENERATED", extra)
    return Column(
        type=type_text,
        collation=_collation(type_text, said["collation_name"] or ""),
        nullable=said["is_nullable"] == "YES",
        default=None if default is None or generated else _default(type_text, default),
        on_update=_function(on_update[1]) if on_update else "",
        generated=generated[1] if generated else "",
        auto_increment="auto_increment" in extra,
        comment=said["column_comment"] or "",
    )


def _type(text: str) -> str:
    """The elements of ENUM and SET keep their case; each database escapes them in its own way."""
    name, bracket, rest = text.partition("(")
    if not bracket or "'" not in rest:
        return text.lower()
    elements = ",".join(repr(_unquote(element)) for element in re.findall(_QUOTED, rest))
    return f"{name.lower()}({elements})"


def _collation(type_text: str, name: str) -> str:
    if not _COLLATED.match(type_text):
        return ""
    plain = re.sub("^utf8mb3_", "utf8_", name)
    return "utf8mb4_bin" if plain.startswith("utf8mb4_0900") else plain


def _default_collation(charset: str) -> str:
    return {"gbk": "gbk_chinese_ci", "binary": "binary"}.get(charset, f"{charset}_bin")


def _default(type_text: str, text: str) -> str:
    if text.upper() == "NULL":
        return "NULL"
    if re.fullmatch(rf"b?{_QUOTED}", text, re.DOTALL):
        value = _unquote(text.removeprefix("b"))
        return value.lstrip("0") if type_text.startswith("bit") else _number(type_text, value)
    if re.fullmatch(r"[-+.\deE]+", text):
        return _number(type_text, text)
    return _function(text) if text.lower().startswith("current_timestamp") else _EXPRESSION


def _number(type_text: str, text: str) -> str:
    """Numbers have several forms; a text is in quotes, so that it is neither NULL nor an expression."""
    if re.match(r"\w*(int|decimal|float|double)\b", type_text):
        try:
            return str(Decimal(text).normalize() + 0)
        except InvalidOperation:
            pass
    return f"'{text}'"


def _function(text: str) -> str:
    return text.lower().removesuffix("()")


def _unquote(text: str) -> str:
    return re.sub(
        r"\\(.)|''",
        lambda part: _ESCAPES.get(part[1], part[1]) if part[1] else "'",
        text[1:-1],
        flags=re.DOTALL,
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
