"""JSON views of tables: up to where each can be read, its schema versions and its objects."""

from collections.abc import Sequence
from typing import Any

from penstock.clock import physical_ms
from penstock.control.deployment import Deployment
from penstock.control.display import format_ts
from penstock.errors import NotFound
from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.read.partition import Partition, PartitionState
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.source import ReadableRange
from penstock.object_storage import StorageRef
from penstock.tables.schema import TableInfo
from penstock.tables.schema_snapshot import TablePlace
from penstock.tables.statements import type_text
from penstock.tables.system_tables import PENSTOCK_DATABASE

__all__ = ["OBJECTS_MAX", "describe_table", "find_table", "list_tables"]

OBJECTS_MAX = 2000
"""At most this many objects of a table are shown: the newest."""


def list_tables(deployment: Deployment, *, account: str | None = None) -> list[dict[str, Any]]:
    """Return up to where each table can be read, or each of one account, by name.

    Penstock's own tables are left out.
    """
    at_ts = deployment.now_ts()  # one moment: a name may go from one account to another
    owners = deployment.catalog.owned_databases(account, at_ts)
    schema = deployment.catalog.schema(at_ts)
    places = [
        TablePlace(database, table)
        for _, database in sorted(schema.databases.items())
        if database.name in owners and database.name.lower() != PENSTOCK_DATABASE
        for _, table in sorted(schema.tables[database.id].items())
        if table.is_base_table
    ]
    ranges = deployment.readable_ranges({place.table.id for place in places}) if places else {}
    now_ts = deployment.now_ts()
    return [
        _row(place, owners[place.database.name].name, ranges.get(place.table.id), now_ts) for place in places
    ]


def find_table(deployment: Deployment, name: str, *, account: str | None = None) -> TablePlace:
    """Return a table by its name.

    Raises NotFound when there is none, and with the same message when it belongs to another account, so that
    an account cannot learn the names of another's tables.
    """
    database, _, table = name.partition(".")
    at_ts = deployment.now_ts()  # one moment: a name may go from one account to another
    schema = deployment.catalog.schema(at_ts)
    owner = schema.databases.get(database.lower())
    found = None if owner is None else schema.tables[owner.id].get(table.lower())
    if owner is None or found is None or not found.is_base_table or owner.name.lower() == PENSTOCK_DATABASE:
        raise _no_table(name)
    if account is not None and owner.name not in deployment.catalog.owned_databases(account, at_ts):
        raise _no_table(name)
    return TablePlace(owner, found)


def describe_table(deployment: Deployment, name: str, *, account: str | None = None) -> dict[str, Any]:
    """Return the columns, schema versions and objects of a table.

    Raises NotFound when there is none of that name, or it belongs to another account.
    """
    place = find_table(deployment, name, account=account)
    owner = deployment.catalog.account_of(place.database.name)
    progress = deployment.readable_ranges([place.table.id]).get(place.table.id)
    states = _states(deployment, place.table)
    objects = sorted(
        (info for state in states for info in state.manifest.objects.values()),
        key=lambda info: (info.max_ts, info.id),
        reverse=True,
    )
    return {
        **_row(place, owner.name, progress, deployment.now_ts()),
        "oldest_ts": progress.oldest_ts if progress is not None else None,
        "flushed_ts": min((state.flushed_ts for state in states), default=0) or None,
        "columns": _columns(place.table),
        "schemas": [_version(schema) for schema in _schemas(place, states)],
        "kinds": _kinds(objects),
        "objects": [_object(info) for info in objects[:OBJECTS_MAX]],
        "objects_left_off": max(0, len(objects) - OBJECTS_MAX),
    }


def _no_table(name: str) -> NotFound:
    return NotFound(f"there is no table {name}; GET /api/v1/tables lists the tables")


def _row(place: TablePlace, account: str, progress: ReadableRange | None, now_ts: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "table": f"{place.database.name}.{place.table.name}",
        "table_id": place.table.id,
        "account": account,
        "captured": progress is not None and progress.refusal is None,
        "refusal": None,
        "readable_ts": None,
        "readable_time": None,
        "changed_ts": None,
        "lag_s": None,
    }
    if progress is not None and progress.refusal is not None:
        row["refusal"] = {
            "reason": progress.refusal.reason,
            "since_ts": progress.refusal.since_ts,
            "since_time": format_ts(progress.refusal.since_ts),
        }
    if progress is None or not progress.readable_ts:
        return row
    return row | {
        "readable_ts": progress.readable_ts,
        "readable_time": format_ts(progress.readable_ts),
        "changed_ts": progress.changed_ts,
        "lag_s": max(0.0, (physical_ms(now_ts) - physical_ms(progress.readable_ts)) / 1000),
    }


def _states(deployment: Deployment, table: TableInfo) -> list[PartitionState]:
    """Read the states of a table's partitions from storage; a table that was never captured has none."""
    capture = deployment.settings.capture
    storage = StorageRef(capture.storage, capture.storage_options)
    states = [Partition(storage, physical_id).state() for physical_id in table.physical_ids]
    return [state for state in states if state.manifest.seq]


def _schemas(place: TablePlace, states: Sequence[PartitionState]) -> list[SchemaVersion]:
    """Return the schema versions of a table by time; the newest may not be in a manifest yet."""
    known = {schema.since_ts: schema for state in states for schema in state.known_schemas}
    versions = [known[since_ts] for since_ts in sorted(known)]
    if not versions or versions[-1].table.stored_columns != place.table.stored_columns:
        number = versions[-1].version + 1 if versions else 1
        versions.append(SchemaVersion(place.table.update_ts, number, place.table, place.database.name))
    return versions


def _version(schema: SchemaVersion) -> dict[str, Any]:
    return {
        "version": schema.version,
        "since_ts": schema.since_ts,
        "since_time": format_ts(schema.since_ts),
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
    """Return the number, rows, bytes and range of the objects of each side and kind."""
    groups: dict[tuple[str, str], list[ObjectInfo]] = {}
    for info in objects:
        groups.setdefault((info.side, info.kind), []).append(info)
    return [
        {
            "side": side,
            "kind": kind,
            "objects": len(group),
            "rows": sum(info.rows for info in group),
            "bytes": sum(info.size_bytes for info in group),
            "from_ts": min(info.min_ts for info in group),
            "to_ts": max(info.max_ts for info in group),
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
