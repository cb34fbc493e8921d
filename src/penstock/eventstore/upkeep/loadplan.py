"""What a load is to read: a table's first snapshot, in ranges that any number of tasks read. No I/O."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import Corrupt, Invalid
from penstock.eventstore.manifest import LOADED, ManifestState
from penstock.eventstore.schema_version import SchemaVersion

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The rows of one physical table as of `ts`, by ranges of record keys that follow each other.

    `id` is shared by the partitions of a table that are loaded together.
    """

    id: str
    table_id: int
    ts: int
    schema: SchemaVersion
    ranges: tuple[tuple[bytes, bytes], ...]

    def as_fact(self) -> dict[str, Any]:
        """What the manifest says once the load is committed, so that a second driver sees that it is."""
        return {"kind": LOADED, "id": self.id, "ts": self.ts}

    def committed_in(self, state: ManifestState) -> bool:
        """Whether a manifest has this load."""
        return any(fact["kind"] == LOADED and fact["id"] == self.id for fact in state.facts)


def check_fresh(name: str, state: ManifestState) -> None:
    """Raise Invalid when a manifest says anything of the table's rows: a load begins a table."""
    if state.objects or state.flushed_ts:
        raise Invalid(
            f"{name} is captured already, up to {state.flushed_ts}, and needs no load; to load it anew,"
            " remove its folder from storage while no capture runs"
        )


def write_plan(plan: LoadPlan) -> bytes:
    """Encode a plan."""
    tree = {
        "format": FORMAT,
        "id": plan.id,
        "table_id": plan.table_id,
        "ts": plan.ts,
        "schema": plan.schema.as_fact(),
        "ranges": [[_text(lower), _text(upper)] for lower, upper in plan.ranges],
    }
    return json.dumps(tree, separators=(",", ":"), sort_keys=True).encode()


def read_plan(data: bytes, *, path: str) -> LoadPlan:
    """Decode a plan; raise Corrupt naming the file when it is none of this format."""
    try:
        tree: Mapping[str, Any] = json.loads(data)
        if tree["format"] != FORMAT:
            raise Corrupt(f"load plan {path} has format {tree['format']!r}, not {FORMAT}; upgrade Penstock")
        return LoadPlan(
            id=str(tree["id"]),
            table_id=int(tree["table_id"]),
            ts=int(tree["ts"]),
            schema=SchemaVersion.from_fact(tree["schema"]),
            ranges=tuple((_bytes(lower), _bytes(upper)) for lower, upper in tree["ranges"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"load plan {path} lacks a field or has a wrong one; remove it and load again") from (
            error
        )


def _text(key: bytes) -> str:
    return base64.b64encode(key).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
