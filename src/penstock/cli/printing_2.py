"""Deliveries as lines of JSON, for people and for other programs."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.changefeeds.codecs.decoded_changes import DecodedChanges
from penstock.changefeeds.directory.reader import Ddl, Delivery, TableChanges
from penstock.tables.fieldtypes import PACKED_TIMES, FieldType, Tp
from penstock.tables.schema import TableInfo
from penstock.tables.statements import type_text
from penstock.tables.text_values import texts

_OPS = {"I": "insert", "U": "update", "D": "delete"}
_AS_TEXT = PACKED_TIMES | {Tp.DURATION, Tp.NEW_DECIMAL}


class Printer:
    """Gives `write` a line for each change, DDL and schema, in the order of delivery.

    Integers and floats are numbers, vectors lists, binary values base64; all else is text, timestamps in UTC.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def take(self, delivery: Delivery) -> None:
        """Write a delivery's lines."""
        if isinstance(delivery, Ddl):
            self._write(json.dumps(_schema_line(delivery), ensure_ascii=False) + "\n")
        else:
            self._write("".join(_change_lines(delivery)))


def _schema_line(ddl: Ddl) -> dict[str, Any]:
    line: dict[str, Any] = {"table" if ddl.table else "database": ddl.name, "op": "schema"}
    if ddl.query:
        line |= {"op": "ddl", "type": ddl.type, "query": ddl.query}
    line["version"] = ddl.version
    if ddl.table:
        line["columns"] = {column.name: type_text(column.type) for column in ddl.table.stored_columns}
        line["key"] = [column.name for column in ddl.table.primary_key]
    return line


def _change_lines(delivery: TableChanges) -> list[str]:
    changes = delivery.changes
    rows = _rows(delivery.table, changes.rows.columns)
    old = _old_rows(delivery.table, changes)
    lines = []
    for op, ts, row, before in zip(
        changes.ops.to_pylist(), changes.commit_ts.to_pylist(), rows, old, strict=True
    ):
        line: dict[str, Any] = {"table": delivery.name, "op": _OPS[op]}
        if ts is not None:
            line["commit_ts"] = ts
        line["row"] = row
        if before is not None:
            line["old"] = before
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    return lines


def _old_rows(table: TableInfo, changes: DecodedChanges) -> list[dict[str, Any] | None]:
    if changes.old.null_count == len(changes):
        return [None] * len(changes)
    there = changes.old.is_valid().to_pylist()
    rows = _rows(table, changes.old.flatten())
    return [row if valid else None for row, valid in zip(rows, there, strict=True)]


def _rows(table: TableInfo, columns: list[pa.Array]) -> list[dict[str, Any]]:
    names = [column.name for column in table.stored_columns]
    values = [_values(column.type, held) for column, held in zip(table.stored_columns, columns, strict=True)]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def _values(kind: FieldType, column: pa.Array) -> list[Any]:
    if kind.tp in _AS_TEXT:
        return list(texts(kind, column).to_pylist())
    found = column.to_pylist()
    if pa.types.is_binary(column.type):
        return [None if value is None else base64.b64encode(value).decode() for value in found]
    if pa.types.is_decimal(column.type):  # integers that are too large for 64 bits with a sign
        return [None if value is None else int(value) for value in found]
    return list(found)
