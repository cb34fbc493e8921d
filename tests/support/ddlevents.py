"""Tables and DDLs as a changefeed meets them, without a database."""

from collections.abc import Iterable
from dataclasses import replace

from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent, DdlScope, TableChange
from penstock.tables.ddl_jobs import DdlAction
from support.itemtables import item_table

__all__ = [
    "alter_table",
    "create_database",
    "create_table",
    "drop_database",
    "drop_table",
    "rename_tables",
    "table_schema",
    "truncate_table",
]


def table_schema(
    table_id: int,
    name: str = "",
    *,
    since_ts: int = 1,
    partitions: tuple[int, ...] = (),
    kind: str = "integer",
) -> SchemaVersion:
    """Return a table `database.name`, by default shop.t<id>."""
    database, _, table = (name or f"shop.t{table_id}").partition(".")
    info = replace(item_table(kind, table_id=table_id, partitions=partitions), name=table)
    return SchemaVersion(since_ts, since_ts, info, database)


def create_table(ts: int, schema: SchemaVersion) -> DdlEvent:
    """Return the event of a new table."""
    return _event(ts, DdlAction.CREATE_TABLE, [TableChange(None, replace(schema, since_ts=ts))])


def drop_table(ts: int, schema: SchemaVersion) -> DdlEvent:
    """Return the event of a dropped table."""
    return _event(ts, DdlAction.DROP_TABLE, [TableChange(schema, None)])


def alter_table(ts: int, schema: SchemaVersion) -> DdlEvent:
    """Return the event of a changed table."""
    return _event(ts, DdlAction.ADD_COLUMN, [TableChange(schema, replace(schema, since_ts=ts, version=ts))])


def truncate_table(ts: int, schema: SchemaVersion, new_id: int) -> DdlEvent:
    """Return the event of a truncated table, which continues under another id."""
    after = replace(schema, since_ts=ts, table=replace(schema.table, id=new_id))
    return _event(ts, DdlAction.TRUNCATE_TABLE, [TableChange(schema, after)])


def rename_tables(ts: int, *renamed: tuple[SchemaVersion, str]) -> DdlEvent:
    """Return the event that renames tables to `database.name` at the same moment."""
    changes = []
    for schema, name in renamed:
        database, _, table = name.partition(".")
        after = replace(schema, since_ts=ts, database=database, table=replace(schema.table, name=table))
        changes.append(TableChange(schema, after))
    return _event(ts, DdlAction.RENAME_TABLE, changes)


def create_database(ts: int, name: str) -> DdlEvent:
    """Return the event of a new database."""
    return _event(ts, DdlAction.CREATE_SCHEMA, (), name)


def drop_database(ts: int, name: str, tables: Iterable[SchemaVersion]) -> DdlEvent:
    """Return the event of a database that is dropped with its tables."""
    return _event(ts, DdlAction.DROP_SCHEMA, [TableChange(table, None) for table in tables], name)


def _event(ts: int, action: DdlAction, changes: Iterable[TableChange], database: str = "") -> DdlEvent:
    tables = tuple(changes)
    sides = [side for change in tables for side in (change.before, change.after) if side is not None]
    return DdlEvent(
        commit_ts=ts,
        type=int(action),
        query=f"{action.name} at {ts}",
        database=database or sides[0].database,
        tables=tables,
        scope=DdlScope.DATABASE if database else DdlScope.TABLES,
    )
