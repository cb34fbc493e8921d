"""The statements that change a target, within the caller's transaction."""

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from penstock.consumers.postgres.copy_text import copy_text, literal
from penstock.consumers.schema_evolution import Alteration, ColumnChange, TargetColumn

_UPSERTS = sql.Identifier("pg_temp", "penstock_upserts")
_DELETES = sql.Identifier("pg_temp", "penstock_deletes")
# Types in which PostgreSQL calls different values equal, such as 0 and -0, are compared by another form.
_FORMS = {"real": "float4send({})", "double precision": "float8send({})", "real[]": "{}::text"}


class TargetTable:
    """A table of PostgreSQL. Every method raises psycopg's errors, and Invalid for rows that do not fit."""

    def __init__(self, schema: str, name: str, *, nul: str) -> None:
        self._name = sql.Identifier(schema, name)
        self._nul = nul

    def create(self, cursor: psycopg.Cursor[Any], columns: Sequence[TargetColumn]) -> None:
        """Create the table, still without its key."""
        cursor.execute(sql.SQL("CREATE TABLE {} ({})").format(self._name, _definitions(columns)))

    def add_key(self, cursor: psycopg.Cursor[Any], columns: Sequence[TargetColumn]) -> None:
        """Add the primary key, which is faster once the rows are there."""
        keys = _names(column for column in columns if column.key)
        cursor.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(self._name, keys))

    def drop(self, cursor: psycopg.Cursor[Any]) -> None:
        """Drop the table; fails when something depends on it."""
        cursor.execute(sql.SQL("DROP TABLE {}").format(self._name))

    def rename(self, cursor: psycopg.Cursor[Any], name: str) -> None:
        """Rename the table."""
        cursor.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(self._name, sql.Identifier(name)))

    def lock(self, cursor: psycopg.Cursor[Any]) -> None:
        """Lock out all other users until the transaction ends."""
        cursor.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(self._name))

    def alter(self, cursor: psycopg.Cursor[Any], change: Alteration, default: pa.Array | None = None) -> None:
        """Change a column; an added one has `default` in existing rows."""
        column = change.column
        name, kind = sql.Identifier(column.name), sql.SQL(column.type)
        statement = {
            ColumnChange.DROP: sql.SQL("DROP COLUMN {}").format(name),
            ColumnChange.RENAME: sql.SQL("RENAME COLUMN {} TO {}").format(sql.Identifier(change.was), name),
            ColumnChange.WIDEN: sql.SQL("ALTER COLUMN {} TYPE {}").format(name, kind),
            ColumnChange.ADD: sql.SQL("ADD COLUMN {} {}").format(name, kind),
        }[change.act]
        filled = None if default is None else literal(column, default)
        if filled is not None:  # PostgreSQL keeps it in the catalog and rewrites no row
            statement += sql.SQL(" DEFAULT {}::{}").format(sql.Literal(filled), kind)
        cursor.execute(sql.SQL("ALTER TABLE {} ").format(self._name) + statement)
        if filled is not None:
            drop = sql.SQL("ALTER TABLE {} ALTER COLUMN {} DROP DEFAULT").format(self._name, name)
            cursor.execute(drop)

    def load(
        self, cursor: psycopg.Cursor[Any], columns: Sequence[TargetColumn], rows: Iterable[pa.RecordBatch]
    ) -> None:
        """Insert rows that are certainly not there."""
        self._copy(cursor, self._name, columns, rows)

    def stage_upserts(
        self, cursor: psycopg.Cursor[Any], columns: Sequence[TargetColumn], rows: Iterable[pa.RecordBatch]
    ) -> None:
        """Copy rows for `upsert` to a temporary table of this session."""
        self._stage(cursor, "penstock_upserts", columns)
        self._copy(cursor, _UPSERTS, columns, rows)

    def stage_deletes(
        self, cursor: psycopg.Cursor[Any], columns: Sequence[TargetColumn], rows: Iterable[pa.RecordBatch]
    ) -> None:
        """Copy keys for `delete`."""
        keys = [column for column in columns if column.key]
        self._stage(cursor, "penstock_deletes", keys)
        self._copy(cursor, _DELETES, keys, rows)

    def upsert(self, cursor: psycopg.Cursor[Any], columns: Sequence[TargetColumn], *, changed: bool) -> None:
        """Insert or update the staged rows; with `changed`, do not write rows that are equal already."""
        given = [column for column in columns if not column.gone]
        others = [column for column in columns if not column.key]
        statement = sql.SQL("INSERT INTO {} AS t ({}) SELECT {} FROM {} ON CONFLICT ({}) ").format(
            self._name,
            _names(given),
            _names(given),
            _UPSERTS,
            _names(column for column in columns if column.key),
        )
        if not others:
            cursor.execute(statement + sql.SQL("DO NOTHING"))
            return
        sets = sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(column.name), _new_value(column)) for column in others
        )
        statement += sql.SQL("DO UPDATE SET {}").format(sets)
        if changed:
            differs = (
                sql.SQL("{} IS DISTINCT FROM {}").format(
                    _form(column, sql.Identifier("t", column.name)), _form(column, _new_value(column))
                )
                for column in others
            )
            statement += sql.SQL(" WHERE ") + sql.SQL(" OR ").join(differs)
        cursor.execute(statement)

    def delete(self, cursor: psycopg.Cursor[Any], columns: Sequence[TargetColumn]) -> None:
        """Delete the staged keys."""
        cursor.execute(sql.SQL("ANALYZE {}").format(_DELETES))
        statement = sql.SQL("DELETE FROM {} AS t USING {} AS s WHERE {}")
        cursor.execute(statement.format(self._name, _DELETES, _same_key(columns)))

    def delete_others(self, cursor: psycopg.Cursor[Any], columns: Sequence[TargetColumn]) -> None:
        """Delete all rows except the staged ones."""
        cursor.execute(sql.SQL("ANALYZE {}").format(_UPSERTS))
        statement = sql.SQL("DELETE FROM {} AS t WHERE NOT EXISTS (SELECT FROM {} AS s WHERE {})")
        cursor.execute(statement.format(self._name, _UPSERTS, _same_key(columns)))

    def _stage(self, cursor: psycopg.Cursor[Any], name: str, columns: Sequence[TargetColumn]) -> None:
        statement = sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DROP")
        cursor.execute(statement.format(sql.Identifier(name), _definitions(columns)))

    def _copy(
        self,
        cursor: psycopg.Cursor[Any],
        table: sql.Identifier,
        columns: Sequence[TargetColumn],
        rows: Iterable[pa.RecordBatch],
    ) -> None:
        with cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(table, _names(columns))) as copy:
            for batch in rows:
                for text in copy_text(columns, batch, nul=self._nul):
                    copy.write(text)


def _names(columns: Iterable[TargetColumn]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(column.name) for column in columns)


def _definitions(columns: Iterable[TargetColumn]) -> sql.Composed:
    return sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type)) for column in columns
    )


def _new_value(column: TargetColumn) -> sql.Composable:
    return sql.SQL("NULL") if column.gone else sql.Identifier("excluded", column.name)


def _form(column: TargetColumn, value: sql.Composable) -> sql.Composed:
    return sql.SQL(_FORMS.get(column.type, "{}")).format(value)


def _same_key(columns: Iterable[TargetColumn]) -> sql.Composed:
    return sql.SQL(" AND ").join(
        sql.SQL("t.{} = s.{}").format(sql.Identifier(column.name), sql.Identifier(column.name))
        for column in columns
        if column.key
    )
