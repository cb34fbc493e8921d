"""Which schema files a DDL leads to. Pure."""

from collections.abc import Sequence

from penstock.changefeeds.selectors import sent_columns
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.schema_file import SchemaFile
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent, DdlScope, TableChange
from penstock.tables.ddl_jobs import DdlAction

_EXCHANGE_PARTITION = 42  # TiDB's number


def ddl_files(event: DdlEvent, options: SinkOptions) -> list[tuple[str, SchemaFile]]:
    """The files with their paths: one per table as it is after the DDL, or as it was before its end.

    A database has one file, or none where table ids are the paths. A statement that is for several tables is
    in the first file only, unless it divides into one for each of them: a consumer runs every statement once.
    """
    if event.scope is DdlScope.DATABASE or not event.tables:
        file = SchemaFile(schema=event.database, version=event.commit_ts, query=event.query, type=event.type)
        return [] if options.use_table_id_as_path else [(file.path(), file)]
    tables = _subject_first(event)
    statements = _statements(event, tables)
    files: list[tuple[str, SchemaFile]] = []
    for change, (query, kind) in zip(tables, statements, strict=True):
        schema = change.after or change.before
        assert schema is not None, "a DDL is for a table that is there before or after it"
        file = SchemaFile.of(
            schema,
            event.commit_ts,
            columns=sent_columns(schema, options.column_selectors),
            with_ids=options.output_column_id,
            query=query,
            type=kind,
        )
        files.append((file.path(schema.table.id if options.use_table_id_as_path else 0), file))
    return files


def _subject_first(event: DdlEvent) -> list[TableChange]:
    """The tables, of an exchange the partitioned one first: the statement alters that one."""
    if event.type != _EXCHANGE_PARTITION:
        return list(event.tables)
    return sorted(event.tables, key=lambda change: not _is_partitioned(change.after or change.before))


def _is_partitioned(schema: SchemaVersion | None) -> bool:
    return schema is not None and schema.table.physical_ids != (schema.table.id,)


def _statements(event: DdlEvent, tables: Sequence[TableChange]) -> list[tuple[str, int]]:
    if len(tables) > 1 and _renames_apart(tables):
        return [(_rename(change), DdlAction.RENAME_TABLE) for change in tables]
    return [(event.query, event.type), *[("", 0)] * (len(tables) - 1)]


def _renames_apart(tables: Sequence[TableChange]) -> bool:
    """Whether all that happens is that tables get names that none of them had."""
    if any(change.before is None or change.after is None for change in tables):
        return False
    pairs = [(change.before.name, change.after.name) for change in tables if change.before and change.after]
    return {old for old, _ in pairs}.isdisjoint(new for _, new in pairs)


def _rename(change: TableChange) -> str:
    assert change.before is not None, "a rename has a table before it"
    assert change.after is not None, "a rename has a table after it"
    return f"RENAME TABLE {_quoted(change.before)} TO {_quoted(change.after)}"


def _quoted(schema: SchemaVersion) -> str:
    return ".".join(f"`{name.replace('`', '``')}`" for name in (schema.database, schema.table.name))
