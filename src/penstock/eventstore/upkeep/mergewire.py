"""Merge plans, and what was written for them, as JSON. No I/O."""

import json
from collections.abc import Mapping
from typing import Any

from penstock.errors import Invalid
from penstock.eventstore.manifest import ObjectInfo, object_tree, read_object
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.upkeep.merge import MergeOutput, MergePlan
from penstock.tables.schema import TableInfo

_NUMBERS = ("table_id", "base_seq", "ts", "made_ms", "target_bytes")
_OBJECTS = ("data", "deleting", "tombstones", "gone")


def plan_tree(plan: MergePlan) -> dict[str, Any]:
    """A plan as JSON has it; each of its tables once, by schema version."""
    versions = {info.schema_version: table for info, table in zip(plan.data, plan.tables, strict=True)}
    return {
        **{name: getattr(plan, name) for name in _NUMBERS},
        **{name: [object_tree(each) for each in getattr(plan, name)] for name in _OBJECTS},
        "schema": plan.schema.as_fact(),
        "tables": {str(version): table.to_json() for version, table in versions.items()},
        "kept": sorted(plan.kept),
    }


def read_plan(tree: Mapping[str, Any]) -> MergePlan:
    """A plan out of its JSON; raise KeyError, TypeError or ValueError when it is none."""
    data = _objects(tree["data"])
    versions = {int(version): TableInfo.from_json(table) for version, table in tree["tables"].items()}
    return MergePlan(
        table_id=int(tree["table_id"]),
        base_seq=int(tree["base_seq"]),
        ts=int(tree["ts"]),
        made_ms=int(tree["made_ms"]),
        target_bytes=int(tree["target_bytes"]),
        schema=SchemaVersion.from_fact(tree["schema"]),
        data=data,
        tables=tuple(versions[each.schema_version] for each in data),
        deleting=_objects(tree["deleting"]),
        tombstones=_objects(tree["tombstones"]),
        kept=frozenset(tree["kept"]),
        gone=_objects(tree["gone"]),
    )


def write_output(plan_id: str, output: MergeOutput) -> bytes:
    """What was written for a plan, as the body of an action."""
    sides = {"data": output.data, "tombstones": output.tombstones}
    tree = {name: [object_tree(each) for each in objects] for name, objects in sides.items()}
    return json.dumps({"plan_id": plan_id, **tree}, separators=(",", ":")).encode()


def read_output(body: bytes) -> tuple[str, MergeOutput]:
    """The plan's id and what was written for it; raise Invalid when the body says none."""
    try:
        tree = json.loads(body)
        return str(tree["plan_id"]), MergeOutput(_objects(tree["data"]), _objects(tree["tombstones"]))
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid("the action needs plan_id, and data and tombstones as lists of objects") from error


def _objects(trees: Any) -> tuple[ObjectInfo, ...]:
    return tuple(read_object(each) for each in trees)
