"""What people are shown of tables: how far each can be read, its schema versions and its objects."""

from collections.abc import Sequence
from typing import Any

from penstock.clock import physical_ms
from penstock.control.deployment import Deployment
from penstock.control.display import shown_ts
from penstock.errors import NotFound
from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.read.partition import Partition, PartitionState
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.source import ReadableRange
from penstock.jobs.log.job_rows import DATABASE
from penstock.object_storage import StorageRef
from penstock.tables.schema import TableInfo
from penstock.tables.schema_snapshot import TablePlace
from penstock.tables.statements import type_text

__all__ = ["OBJECTS_MAX", "detail", "find", "listed"]

OBJECTS_MAX = 2000
"""Objects of a table that are shown, the newest ones."""


def listed(deployment: Deployment, *, account: str | None = None) -> list[dict[str, Any]]:
    """How far every table can be read, or every one of an account, by name. Penstock's own are left out."""
    owners = deployment.catalog.owned_databases(account)
    schema = deployment.catalog.schema()
    places = [
        TablePlace(database, table)
        for _, database in sorted(schema.databases.items())
        if database.name in owners and database.name.lower() != DATABASE
        for _, table in sorted(schema.tables[database.id].items())
        if table.is_base_table
    ]
    looks = deployment.looks({each.table.id for each in places}) if places else {}
    now_ts = deployment.now_ts()
    return [_row(each, owners[each.database.name].name, looks.get(each.table.id), now_ts) for each in places]


def find(deployment: Deployment, name: str, *, account: str | None = None) -> TablePlace:
    """A table by its name; raise NotFound when there is none, or it is of another account: in equal words."""
    database, _, table = name.partition(".")
    schema = deployment.catalog.schema()
    there = schema.databases.get(database.lower())
    found = None if there is None else schema.tables[there.id].get(table.lower())
    if there is None or found is None or not found.is_base_table or there.name.lower() == DATABASE:
        raise _no_table(name)
    if account is not None and there.name not in deployment.catalog.owned_databases(account):
        raise _no_table(name)
    return TablePlace(there, found)


def detail(deployment: Deployment, name: str, *, account: str | None = None) -> dict[str, Any]:
    """Everything that is known of a table. Raises NotFound as `find` does."""
    place = find(deployment, name, account=account)
    owner = deployment.catalog.account_of(place.database.name)
    look = deployment.looks([place.table.id]).get(place.table.id)
    states = _states(deployment, place.table)
    objects = sorted(
        (each for state in states for each in state.manifest.objects.values()),
        key=lambda each: (each.max_ts, each.id),
        reverse=True,
    )
    return {
        **_row(place, owner.name, look, deployment.now_ts()),
        "oldest_ts": look.oldest_ts if look is not None else None,
        "flushed_ts": min((state.flushed_ts for state in states), default=0) or None,
        "columns": _columns(place.table),
        "schemas": [_version(each) for each in _schemas(place, states)],
        "kinds": _kinds(objects),
        "objects": [_object(each) for each in objects[:OBJECTS_MAX]],
        "objects_left_off": max(0, len(objects) - OBJECTS_MAX),
    }


def _no_table(name: str) -> NotFound:
    return NotFound(f"there is no table {name}; GET /api/v1/tables shows those there are")


def _row(place: TablePlace, account: str, look: ReadableRange | None, now_ts: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "table": f"{place.database.name}.{place.table.name}",
        "table_id": place.table.id,
        "account": account,
        "captured": look is not None,
        "readable_ts": None,
        "readable_time": None,
        "changed_ts": None,
        "lag_s": None,
    }
    if look is None:
        return row
    return row | {
        "readable_ts": look.readable_ts,
        "readable_time": shown_ts(look.readable_ts),
        "changed_ts": look.changed_ts,
        "lag_s": max(0.0, (physical_ms(now_ts) - physical_ms(look.readable_ts)) / 1000),
    }


def _states(deployment: Deployment, table: TableInfo) -> list[PartitionState]:
    """What storage has of a table; nothing of one that was never captured."""
    capture = deployment.settings.capture
    storage = StorageRef(capture.storage, capture.storage_options)
    states = [Partition(storage, each).state() for each in table.physical_ids]
    return [state for state in states if state.manifest.seq]


def _schemas(place: TablePlace, states: Sequence[PartitionState]) -> list[SchemaVersion]:
    """The versions of a table by time; the newest may not be in a manifest yet."""
    known = {each.since_ts: each for state in states for each in state.known_schemas}
    found = [known[since_ts] for since_ts in sorted(known)]
    if not found or found[-1].table.stored_columns != place.table.stored_columns:
        number = found[-1].version + 1 if found else 1
        found.append(SchemaVersion(place.table.update_ts, number, place.table, place.database.name))
    return found


def _version(schema: SchemaVersion) -> dict[str, Any]:
    return {
        "version": schema.version,
        "since_ts": schema.since_ts,
        "since_time": shown_ts(schema.since_ts),
        "table": schema.name,
        "columns": _columns(schema.table),
    }


def _columns(table: TableInfo) -> list[dict[str, Any]]:
    keys = {column.id for column in table.primary_key}
    return [
        {
            "name": column.name,
            "type": type_text(column.type),
            "nullable": not column.type.not_null,
            "primary_key": column.id in keys,
        }
        for column in table.stored_columns
    ]


def _kinds(objects: Sequence[ObjectInfo]) -> list[dict[str, Any]]:
    """What there is of each kind, on each side."""
    groups: dict[tuple[str, str], list[ObjectInfo]] = {}
    for each in objects:
        groups.setdefault((each.side, each.kind), []).append(each)
    return [
        {
            "side": side,
            "kind": kind,
            "objects": len(group),
            "rows": sum(each.rows for each in group),
            "bytes": sum(each.size_bytes for each in group),
            "from_ts": min(each.min_ts for each in group),
            "to_ts": max(each.max_ts for each in group),
        }
        for (side, kind), group in sorted(groups.items())
    ]


def _object(info: ObjectInfo) -> dict[str, Any]:
    return {
        "kind": info.kind,
        "side": info.side,
        "from_ts": info.min_ts,
        "to_ts": info.max_ts,
        "rows": info.rows,
        "bytes": info.size_bytes,
        "replaced_ts": info.delete_ts or None,
    }
