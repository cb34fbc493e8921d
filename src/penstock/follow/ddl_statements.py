"""The statements that consumers run for DDLs, from the jobs that TiDB recorded. Pure.

Where a job comes too late, `derive_statement` reads the statement from what it changed.

A consumer selects the database of the DDL, then runs the statement. So names of tables may stand without
their databases, except where a statement names several tables: those are written anew, with the databases. A
recorded text may also name more than its job did: DROP TABLE a, b has one job for each table.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlScope, DescribedDdl, OtherAction, TableChange
from penstock.tables.columns import name_from_json
from penstock.tables.ddl_jobs import DdlAction, DdlJob
from penstock.tables.portable_sql import Charset, copies_table, portable_statement
from penstock.tables.schema import TableInfo
from penstock.tables.statements import alter_table, create_table, foreign_indexes, quote

_NAME = r"`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[^\s`\"]+"
_EXCHANGED = re.compile(rf"\bEXCHANGE\s+PARTITION\s+({_NAME})\s+WITH\s+TABLE\b", re.IGNORECASE)
_UNCHECKED = re.compile(r"\bWITHOUT\s+VALIDATION\b", re.IGNORECASE)
_WITHOUT_VALIDATION = " /*!80000 WITHOUT VALIDATION */ /*M!110401 WITHOUT VALIDATION */"
"""MySQL and TiDB read the first comment, MariaDB the second; before 11.4 it always validates."""
_SPARE_NAME = "_penstock_renamed"


def ddl_statement(job: DdlJob, tables: Sequence[TableChange]) -> str:
    """Return the statement of a job that changed some tables, which TiDB, MySQL and MariaDB run."""
    rewrite = _REWRITES.get(job.type)
    rewritten = (
        rewrite(job, tables) if rewrite is not None and (tables or job.type in _WITHOUT_TABLES) else ""
    )
    if rewritten:
        return rewritten
    charset = None
    if job.type == DdlAction.CREATE_SCHEMA and job.database is not None:
        charset = Charset(job.database.charset, job.database.collate)
    if job.type == DdlAction.CREATE_TABLE and tables and tables[0].after is not None:
        charset = Charset(tables[0].after.table.charset, tables[0].after.table.collate)
    before = tables[0].before if tables else None
    foreign = foreign_indexes(before.table) if before is not None else {}
    return portable_statement(job.query, sql_mode=sql_mode_of(job), charset=charset, foreign_indexes=foreign)


def sql_mode_of(job: DdlJob) -> int:
    """Return TiDB's number of the mode in which a job's statement was typed."""
    return int(job.extra.get("sql_mode") or 0)


def derive_statement(change: DescribedDdl, newest: Mapping[int, TableInfo]) -> str:
    """Return the statement of a DDL by what it changed; empty when that does not say which one it was.

    `newest` has the descriptions of tables before it by id, as writers see them. Other words than the user's
    may have the same effect.
    """
    try:
        return _derive(replace(change, tables=tuple(_from_newest(each, newest) for each in change.tables)))
    except (AttributeError, LookupError, TypeError, ValueError):
        return ""  # a description without what a statement needs


def _from_newest(change: TableChange, newest: Mapping[int, TableInfo]) -> TableChange:
    known = newest.get(change.before.table.id) if change.before is not None else None
    if change.before is None or known is None or known.unreadable:
        return change
    return replace(change, before=replace(change.before, table=known))


def _derive(change: DescribedDdl) -> str:
    if change.scope is DdlScope.DATABASE:
        return _derive_for_database(change)
    changes = change.tables
    if change.action == OtherAction.EXCHANGE_PARTITION:
        return _derive_exchange(changes)
    if all(map(_only_renamed, changes)):
        return rename_statement(changes)
    if all(each.before is None for each in changes):
        created = [create_table(each.after.table) for each in changes if each.after is not None]
        return "; ".join(created)
    return _derive_for_table(changes[0]) if len(changes) == 1 else ""


def _derive_for_database(change: DescribedDdl) -> str:
    name, info = quote(change.database), change.info
    if info is None:
        return f"DROP DATABASE {name}"
    charset = Charset(info.charset, info.collate) if info.charset else None
    return portable_statement(f"CREATE DATABASE {name}", charset=charset)


def _derive_for_table(change: TableChange) -> str:
    before, after = change.before, change.after
    if before is None or after is None:
        return f"DROP TABLE {_full_name(before)}" if before is not None else ""
    if before.table.id == after.table.id:
        return alter_table(before.table, after.table) if before.name == after.name else ""
    empty = before.name == after.name and create_table(before.table) == create_table(after.table)
    return f"TRUNCATE TABLE {_full_name(after)}" if empty else ""


def _only_renamed(change: TableChange) -> bool:
    before, after = change.before, change.after
    if before is None or after is None or before.name == after.name or before.table.id != after.table.id:
        return False
    return create_table(replace(after.table, name=before.table.name)) == create_table(before.table)


def _derive_exchange(changes: Sequence[TableChange]) -> str:
    """Return EXCHANGE PARTITION, with the check of rows that MySQL does unless it is told not to."""
    parted = [each for each in changes if each.after and is_partitioned_version(each.after)]
    plain = [each for each in changes if each.after and not is_partitioned_version(each.after)]
    if len(parted) != 1 or len(plain) != 1 or parted[0].after is None:
        return ""
    parts = parted[0].after.table.extra["partition"]["definitions"]
    names = [name_from_json(part["name"]) for part in parts if part["id"] in parted[0].begun_ids]
    if len(names) != 1:
        return ""
    table, other = _full_name(parted[0].after), _full_name(plain[0].after)
    return f"ALTER TABLE {table} EXCHANGE PARTITION {quote(names[0])} WITH TABLE {other}"


def rename_statement(tables: Sequence[TableChange]) -> str:
    """Return one statement that renames tables, whose names may go round in a circle."""
    left = {
        _full_name(change.before): _full_name(change.after)
        for change in tables
        if change.before is not None and change.after is not None
    }
    steps: list[str] = []
    while left:
        free = [old for old, new in left.items() if new not in left]
        if free:
            steps += [f"{old} TO {left.pop(old)}" for old in free[:1]]
            continue
        old, new = next(iter(left.items()))
        spare = f"{old.rpartition('.')[0]}.{quote(f'{_SPARE_NAME}_{len(steps)}')}"
        steps.append(f"{old} TO {spare}")
        left = {**{before: after for before, after in left.items() if before != old}, spare: new}
    return f"RENAME TABLE {', '.join(steps)}"


def _full_name(schema: SchemaVersion | None) -> str:
    assert schema is not None, "the table exists on this side of the DDL"
    return f"{quote(schema.database)}.{quote(schema.table.name)}"


def _create(job: DdlJob, tables: Sequence[TableChange]) -> str:
    """Return CREATE TABLE by the description where the text names another table, or there is no text."""
    after = tables[0].after
    copied = not job.query or copies_table(job.query, sql_mode=sql_mode_of(job))
    return create_table(after.table) if after is not None and copied else ""


def _create_again(job: DdlJob, tables: Sequence[TableChange]) -> str:
    """Return the statement for a table that comes back: other databases cannot recover one."""
    del job
    after = tables[0].after
    return create_table(after.table) if after is not None else ""


def _create_database_again(job: DdlJob, tables: Sequence[TableChange]) -> str:
    del tables
    name = job.database_name or (job.database.name if job.database is not None else "")
    tree = (job.extra.get("raw_args") or {}).get("recover_info") or {} if isinstance(job.extra, dict) else {}
    charset = Charset(tree.get("charset") or "", tree.get("collate") or "")
    return portable_statement(f"CREATE DATABASE {quote(name)}", charset=charset if charset.charset else None)


def _drop(job: DdlJob, tables: Sequence[TableChange]) -> str:
    view = job.type == OtherAction.DROP_VIEW
    before = tables[0].before
    return f"DROP {'VIEW' if view else 'TABLE'} {_full_name(before)}" if before is not None else ""


def _truncate(job: DdlJob, tables: Sequence[TableChange]) -> str:
    del job
    return f"TRUNCATE TABLE {_full_name(tables[0].after)}" if tables[0].after is not None else ""


def _rename(job: DdlJob, tables: Sequence[TableChange]) -> str:
    del job
    return rename_statement([change for change in tables if _is_renamed(change)])


def _is_renamed(change: TableChange) -> bool:
    return bool(change.before and change.after and change.before.name != change.after.name)


def _exchange(job: DdlJob, tables: Sequence[TableChange]) -> str:
    found = _EXCHANGED.search(job.query)
    parted = [change.after for change in tables if change.after and is_partitioned_version(change.after)]
    plain = [change.after for change in tables if change.after and not is_partitioned_version(change.after)]
    if found is None or len(parted) != 1 or len(plain) != 1:
        return ""
    name = found[1]
    name = name[1:-1].replace(name[0] * 2, name[0]) if name[0] in '`"' else name
    unchecked = _WITHOUT_VALIDATION if _UNCHECKED.search(job.query) else ""
    return (
        f"ALTER TABLE {_full_name(parted[0])} EXCHANGE PARTITION {quote(name)} WITH TABLE"
        f" {_full_name(plain[0])}{unchecked}"
    )


def is_partitioned_version(schema: SchemaVersion) -> bool:
    """Return whether the rows of a table are in partitions."""
    return schema.table.physical_ids != (schema.table.id,)


_REWRITES = {
    int(DdlAction.CREATE_TABLE): _create,
    int(DdlAction.DROP_TABLE): _drop,
    int(DdlAction.TRUNCATE_TABLE): _truncate,
    int(DdlAction.RENAME_TABLE): _rename,
    int(OtherAction.DROP_VIEW): _drop,
    int(OtherAction.RECOVER_TABLE): _create_again,
    int(OtherAction.RECOVER_SCHEMA): _create_database_again,
    int(OtherAction.EXCHANGE_PARTITION): _exchange,
    int(OtherAction.RENAME_TABLES): _rename,
}
_WITHOUT_TABLES = frozenset({int(OtherAction.RECOVER_SCHEMA)})
