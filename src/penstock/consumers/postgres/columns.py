"""The columns of a target: which type of PostgreSQL each column of the source has there. Pure.

Whose a target is and how far it has come: a row of `penstock_watermarks`, in the target's own schema.

It changes in the same transactions as the target's rows.

    owner    the job, as `JobKey.owner` says it
    job      its name as people know it: the same name may take its target over after it was registered anew
    target   the table; nobody else may own it
    ts       the watermark; 0 until the first sync has committed
    attempt  counts the first syncs that were begun: only the newest may commit
    columns  what the target has of the source, with the ids that columns have there
    seen_id  the greatest of the source's column ids at `ts`
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.types.json import Jsonb

from penstock.consumers.schema_evolution import HANDLE_ID, TargetColumn, from_json, to_json
from penstock.errors import Corrupt, Fenced, Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import HANDLE
from penstock.jobs.consumer import JobContext
from penstock.tables.columns import INTEGER_BITS, FieldType, Tp

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


NAME = "penstock_watermarks"

_CREATE = """
CREATE TABLE {marks} (
    owner text PRIMARY KEY,
    job text NOT NULL,
    target text NOT NULL UNIQUE,
    ts bigint NOT NULL,
    attempt bigint NOT NULL,
    columns jsonb NOT NULL,
    seen_id bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
)"""
_CLAIM = """
INSERT INTO {marks} AS m (owner, job, target, ts, attempt, columns, seen_id)
VALUES (%s, %s, %s, 0, 1, '[]', 0)
ON CONFLICT (target) DO UPDATE SET
    owner = EXCLUDED.owner,
    job = EXCLUDED.job,
    ts = CASE WHEN m.owner = EXCLUDED.owner THEN m.ts ELSE 0 END,
    attempt = m.attempt + 1,
    updated_at = now()
RETURNING attempt, columns, seen_id"""
_CLAIMED = """
SELECT columns, seen_id FROM {marks} WHERE owner = %s AND target = %s AND attempt = %s FOR UPDATE"""
_SET = """
UPDATE {marks} SET ts = %s, columns = %s, seen_id = %s, updated_at = now() WHERE owner = %s AND target = %s"""
_EXISTS = """
SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname = %s AND relname = %s"""
_ADVANCE = """
UPDATE {marks} SET ts = %s, updated_at = now() WHERE owner = %s AND target = %s AND ts = %s
RETURNING columns, seen_id"""


@dataclass(frozen=True, slots=True)
class PostgresWatermark:
    """What the target has of the source."""

    columns: list[TargetColumn]
    seen_id: int
    attempt: int = 0


class TargetWatermarks:
    """The row of one job. Every method runs in the transaction of its cursor, and raises psycopg's errors."""

    def __init__(self, schema: str, target: str, job: JobContext) -> None:
        self._schema = schema
        self._target = target
        self._job = job
        self._marks = sql.Identifier(schema, NAME)

    def committed_ts(self, cursor: psycopg.Cursor[Any]) -> int:
        """The watermark of this very job; 0 where there is none, or no target any more."""
        if not (self._exists(cursor, NAME) and self._exists(cursor, self._target)):
            return 0
        found = self._one(cursor, "SELECT ts FROM {marks} WHERE owner = %s AND target = %s", *self._mine)
        return int(found[0]) if found else 0

    def columns(self, cursor: psycopg.Cursor[Any]) -> list[TargetColumn]:
        """What the target has of the source; raise Invalid when there is no target of this job."""
        query = "SELECT columns FROM {marks} WHERE owner = %s AND target = %s"
        found = self._one(cursor, query, *self._mine) if self._exists(cursor, NAME) else None
        if found is None:
            raise Invalid(f"table {self._name} was never synced by this job")
        return known_columns(found[0])

    def claim(self, cursor: psycopg.Cursor[Any], seen_ts: int | None) -> PostgresWatermark:
        """Begin a first sync: from now on none that was begun before can commit.

        What the target has stays until this one commits. Raises Invalid when the table is not ours, or a
        newer job's; Fenced when it is not at `seen_ts` any more, where its iteration has seen it; None: it
        has not looked.
        """
        self._ensure(cursor)
        query = "SELECT owner, job, ts FROM {marks} WHERE target = %s FOR UPDATE"
        holder = self._one(cursor, query, self._target)
        exists = self._exists(cursor, self._target)
        if holder is None and exists:
            raise Invalid(
                f"table {self._name} was not made by Penstock; drop it, or choose another with option table"
            )
        if holder is not None:
            self._job.check_takeover(holder[0], holder[1], f"table {self._name}")
        here = holder[2] if exists and holder is not None and holder[0] == self._job.owner else 0
        if seen_ts not in {None, here}:
            raise Fenced(f"table {self._name} is not at {seen_ts} any more")
        self._run(cursor, "DELETE FROM {marks} WHERE owner = %s AND target <> %s", *self._mine)
        found = self._one(cursor, _CLAIM, self._job.owner, str(self._job.id), self._target)
        assert found is not None
        attempt, columns, seen_id = found
        return PostgresWatermark(known_columns(columns) if exists else [], int(seen_id), int(attempt))

    def claimed(self, cursor: psycopg.Cursor[Any], attempt: int) -> PostgresWatermark:
        """What the target has now, held still; raise Fenced when a newer first sync was begun."""
        found = self._one(cursor, _CLAIMED, *self._mine, attempt)
        if found is None:
            raise Fenced(f"a newer first sync of {self._name} was begun")
        return PostgresWatermark(known_columns(found[0]), int(found[1]), attempt)

    def advance(self, cursor: psycopg.Cursor[Any], from_ts: int, to_ts: int) -> PostgresWatermark:
        """Move the watermark, and keep others out until the end; raise Fenced when it is not at `from_ts`.

        With the two alike it only holds the watermark still.
        """
        found = (
            self._one(cursor, _ADVANCE, to_ts, *self._mine, from_ts) if self._exists(cursor, NAME) else None
        )
        if found is None:
            raise Fenced(f"table {self._name} is not at {from_ts} any more")
        return PostgresWatermark(known_columns(found[0]), int(found[1]))

    def keep(
        self, cursor: psycopg.Cursor[Any], ts: int, columns: Sequence[TargetColumn], seen_id: int
    ) -> None:
        """Set all of it, once the row is held."""
        assert self._run(cursor, _SET, ts, Jsonb(to_json(columns)), seen_id, *self._mine) == 1

    @property
    def _mine(self) -> tuple[str, str]:
        return self._job.owner, self._target

    @property
    def _name(self) -> str:
        return f"{self._schema}.{self._target}"

    def _ensure(self, cursor: psycopg.Cursor[Any]) -> None:
        if not self._exists(cursor, NAME):
            # Two that create the same table at once would fail in its catalog.
            self._run(cursor, "SELECT pg_advisory_xact_lock(hashtext(%s))", f"{self._schema}.{NAME}")
        if not self._exists(cursor, NAME):
            self._run(cursor, _CREATE)

    def _exists(self, cursor: psycopg.Cursor[Any], table: str) -> bool:
        return self._one(cursor, _EXISTS, self._schema, table) is not None

    def _one(self, cursor: psycopg.Cursor[Any], query: str, *values: Any) -> tuple[Any, ...] | None:
        self._run(cursor, query, *values)
        return cursor.fetchone()

    def _run(self, cursor: psycopg.Cursor[Any], query: str, *values: Any) -> int:
        cursor.execute(sql.SQL(query).format(marks=self._marks), values)
        return cursor.rowcount
