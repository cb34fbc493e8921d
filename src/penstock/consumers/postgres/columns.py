"""The columns of a target in PostgreSQL, and its row in `penstock_watermarks`, in the target's own schema.

The row says which job owns a target and how far it is. It changes in the same transactions as the target's
rows.

    owner    the job, as in `JobKey.owner`
    job      the job's name: a job registered again under the same name may take over the target
    target   the table; no other job may own it
    ts       the watermark; 0 until the first sync has committed
    attempt  counts the first syncs that were begun: only the newest may commit
    columns  the columns of the target, with the ids that they have in the source
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
    Tp.DURATION: "interval",  # it may be negative or exceed a day, which `time` may not
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
    """Return the type of a column in the target; raise Invalid for a type that has none."""
    if kind.tp in INTEGER_BITS:
        return (_UNSIGNED if kind.unsigned else _SIGNED)[kind.tp]
    if kind.is_string:
        return "bytea" if kind.is_binary else "text"
    if kind.tp is Tp.NEW_DECIMAL:
        return f"numeric({kind.precision},{kind.scale})"
    if kind.tp is Tp.BIT:
        return f"bit({max(kind.flen, 1)})"
    if kind.tp not in _FIXED:
        raise Invalid(f"columns of type {kind.tp.name} have no type in PostgreSQL; select other columns")
    return _FIXED[kind.tp]


def target_columns(schema: SchemaVersion, columns: pa.Schema, keys: Sequence[str]) -> list[TargetColumn]:
    """Return the columns of a target for a table; raise Invalid when PostgreSQL cannot have them."""
    found = [_target_column(schema, name, key=name in keys) for name in columns.names]
    if len(found) > _COLUMNS_MAX:
        raise Invalid(f"{schema.name} has {len(found)} columns, PostgreSQL has at most 1600; select fewer")
    return found


def _target_column(schema: SchemaVersion, name: str, *, key: bool) -> TargetColumn:
    if name == HANDLE and not schema.table.primary_key:
        return TargetColumn(HANDLE_ID, HANDLE, "bytea", key=True)
    check_name("column", name)
    if name in _SYSTEM:
        raise Invalid(
            f"PostgreSQL has a column {name} of its own in each table; rename that of {schema.name}"
        )
    column = schema.table.column(name)
    return TargetColumn(column.id, name, postgres_type(column.type), key=key)


def check_name(what: str, name: str) -> None:
    """Raise Invalid for a name that PostgreSQL would truncate, so that two names could become equal."""
    if not name or len(name.encode()) > _NAME_BYTES or "\0" in name:
        raise Invalid(f"{what} {name!r} is not a name for PostgreSQL; use 1 to {_NAME_BYTES} bytes")


def is_wider(old: str, new: str) -> bool:
    """Return whether every value of one type is an equal value of the other."""
    if new in _WIDER.get(old, ()):
        return True
    before, after = _NUMERIC.fullmatch(old), _NUMERIC.fullmatch(new)
    if not (before and after):
        return False
    digits, scale = int(before[1]), int(before[2] or 0)
    more_digits, more_scale = int(after[1]), int(after[2] or 0)
    return more_scale >= scale and more_digits - more_scale >= digits - scale


def parse_columns(trees: Any) -> list[TargetColumn]:
    """Read the columns that a target keeps; raise Corrupt when they are damaged."""
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
    """The row of one job. Every method runs in its cursor's transaction, and raises psycopg's errors."""

    def __init__(self, schema: str, target: str, job: JobContext) -> None:
        self._schema = schema
        self._target = target
        self._job = job
        self._marks = sql.Identifier(schema, NAME)

    def committed_ts(self, cursor: psycopg.Cursor[Any]) -> int:
        """Return the watermark of this very job; 0 if there is none, or the target is gone."""
        if not (self._exists(cursor, NAME) and self._exists(cursor, self._target)):
            return 0
        found = self._one(cursor, "SELECT ts FROM {marks} WHERE owner = %s AND target = %s", *self._mine)
        return int(found[0]) if found else 0

    def columns(self, cursor: psycopg.Cursor[Any]) -> list[TargetColumn]:
        """Return the target's columns; raise Invalid when there is no target of this job."""
        query = "SELECT columns FROM {marks} WHERE owner = %s AND target = %s"
        found = self._one(cursor, query, *self._mine) if self._exists(cursor, NAME) else None
        if found is None:
            raise Invalid(f"table {self._name} was never synced by this job; wait for its first iteration")
        return parse_columns(found[0])

    def claim(self, cursor: psycopg.Cursor[Any], seen_ts: int | None) -> PostgresWatermark:
        """Begin a first sync: none that was begun before can commit from now on.

        The target keeps its rows until this one commits. Raises Invalid when the table belongs to something
        else, or to a newer job. `seen_ts` is where the iteration saw the target, None if it did not look:
        raises Fenced when the target is not there any more.
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
        current_ts = holder[2] if exists and holder is not None and holder[0] == self._job.owner else 0
        if seen_ts not in {None, current_ts}:
            raise Fenced(f"table {self._name} is not at {seen_ts} any more")
        self._run(cursor, "DELETE FROM {marks} WHERE owner = %s AND target <> %s", *self._mine)
        found = self._one(cursor, _CLAIM, self._job.owner, str(self._job.id), self._target)
        assert found is not None
        attempt, columns, seen_id = found
        return PostgresWatermark(parse_columns(columns) if exists else [], int(seen_id), int(attempt))

    def check_claim(self, cursor: psycopg.Cursor[Any], attempt: int) -> PostgresWatermark:
        """Lock and return what the target has now; raise Fenced when a newer first sync was begun."""
        found = self._one(cursor, _CLAIMED, *self._mine, attempt)
        if found is None:
            raise Fenced(f"a newer first sync of {self._name} was begun")
        return PostgresWatermark(parse_columns(found[0]), int(found[1]), attempt)

    def advance(self, cursor: psycopg.Cursor[Any], from_ts: int, to_ts: int) -> PostgresWatermark:
        """Move the watermark and lock its row; raise Fenced when it is not at `from_ts`.

        With equal timestamps it only locks the row.
        """
        found = (
            self._one(cursor, _ADVANCE, to_ts, *self._mine, from_ts) if self._exists(cursor, NAME) else None
        )
        if found is None:
            raise Fenced(f"table {self._name} is not at {from_ts} any more")
        return PostgresWatermark(parse_columns(found[0]), int(found[1]))

    def put(
        self, cursor: psycopg.Cursor[Any], ts: int, columns: Sequence[TargetColumn], seen_id: int
    ) -> None:
        """Write the whole row, which is locked already."""
        assert self._run(cursor, _SET, ts, Jsonb(to_json(columns)), seen_id, *self._mine) == 1

    @property
    def _mine(self) -> tuple[str, str]:
        return self._job.owner, self._target

    @property
    def _name(self) -> str:
        return f"{self._schema}.{self._target}"

    def _ensure(self, cursor: psycopg.Cursor[Any]) -> None:
        if not self._exists(cursor, NAME):
            # Two processes that create the same table at once would fail in PostgreSQL's catalog.
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
