"""The manifest of one table as values: entries, and the state that folding them gives. No I/O.

An entry is one atomic step of a table's history. Whoever folds the same entries sees the same table.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from penstock.errors import Corrupt
from penstock.eventstore.paths import Side

FORMAT = 1

Kind = Literal["appendable", "direct", "merged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One Parquet object. Every row in it has min_ts <= commit_ts <= max_ts and one schema version.

    `appendable` objects of a side never overlap in time; a `direct` object holds rows of a single
    transaction, whose commit timestamp is `create_ts`.
    """

    id: str
    side: Side
    kind: Kind
    schema_version: int
    create_ts: int
    min_ts: int
    max_ts: int
    rows: int
    size_bytes: int
    key_min: bytes
    key_max: bytes
    delete_ts: int = 0  # 0: not removed

    def visible(self, ts: int) -> bool:
        """Whether the object is part of the table as of `ts`."""
        return self.create_ts <= ts and (self.delete_ts == 0 or ts < self.delete_ts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """An object that a later one replaces from `delete_ts` on; it stays readable until it is collected."""

    id: str
    delete_ts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One numbered step. `id` tells a lost answer from a rival's entry; `epoch` tells who may write.

    `flushed_ts` says that every change with a commit-ts at or below it is in the objects (0: says
    nothing). `facts` carries what a log other than a table's records.
    """

    seq: int
    epoch: int
    writer: str
    id: str
    add: tuple[ObjectInfo, ...] = ()
    remove: tuple[Removal, ...] = ()
    flushed_ts: int = 0
    facts: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ManifestState:
    """Everything the entries up to `seq` say.

    Invariant: `epoch` and `flushed_ts` never decrease.
    """

    seq: int = 0
    epoch: int = 0
    writer: str = ""
    flushed_ts: int = 0
    objects: Mapping[str, ObjectInfo] = field(default_factory=dict)
    facts: tuple[Mapping[str, Any], ...] = ()

    def apply(self, entry: Entry) -> "ManifestState":
        """Fold the next entry; raise Corrupt when it cannot follow this state."""
        if entry.seq != self.seq + 1:
            raise Corrupt(f"manifest entry {entry.seq} follows entry {self.seq}; an entry is missing")
        if entry.epoch < self.epoch:
            raise Corrupt(f"manifest entry {entry.seq} has epoch {entry.epoch}, below {self.epoch} before it")
        if 0 < entry.flushed_ts < self.flushed_ts:
            raise Corrupt(f"manifest entry {entry.seq} moves flushed_ts back below {self.flushed_ts}")
        objects = dict(self.objects)
        for added in entry.add:
            if added.id in objects:
                raise Corrupt(f"manifest entry {entry.seq} adds object {added.id} a second time")
            objects[added.id] = added
        for removal in entry.remove:
            removed = objects.get(removal.id)
            if removed is None:
                raise Corrupt(f"manifest entry {entry.seq} removes object {removal.id}, which is not there")
            objects[removal.id] = replace(removed, delete_ts=removal.delete_ts)
        return ManifestState(
            seq=entry.seq,
            epoch=entry.epoch,
            writer=entry.writer,
            flushed_ts=max(self.flushed_ts, entry.flushed_ts),
            objects=objects,
            facts=self.facts + entry.facts,
        )

    def visible(self, side: Side, ts: int) -> list[ObjectInfo]:
        """The objects of a side that make up the table as of `ts`, by time."""
        chosen = [each for each in self.objects.values() if each.side == side and each.visible(ts)]
        return sorted(chosen, key=lambda each: (each.create_ts, each.min_ts, each.id))


def write_entry(entry: Entry) -> bytes:
    """Encode an entry; equal entries give equal bytes."""
    tree: dict[str, Any] = {
        "format": FORMAT,
        "seq": entry.seq,
        "epoch": entry.epoch,
        "writer": entry.writer,
        "id": entry.id,
    }
    if entry.add:
        tree["add"] = [_object_tree(each) for each in entry.add]
    if entry.remove:
        tree["remove"] = [{"id": each.id, "delete_ts": each.delete_ts} for each in entry.remove]
    if entry.flushed_ts:
        tree["flushed_ts"] = entry.flushed_ts
    if entry.facts:
        tree["facts"] = [dict(fact) for fact in entry.facts]
    return _dump(tree)


def read_entry(data: bytes, *, path: str) -> Entry:
    """Decode an entry; raise Corrupt naming the file when it is not one of this format."""
    tree = _load(data, path)
    try:
        return Entry(
            seq=int(tree["seq"]),
            epoch=int(tree["epoch"]),
            writer=str(tree["writer"]),
            id=str(tree["id"]),
            add=tuple(_read_object(each) for each in tree.get("add", ())),
            remove=tuple(
                Removal(id=str(each["id"]), delete_ts=int(each["delete_ts"]))
                for each in tree.get("remove", ())
            ),
            flushed_ts=int(tree.get("flushed_ts", 0)),
            facts=tuple(tree.get("facts", ())),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"manifest file {path} lacks a field or has a wrong one; keep it for inspection") from (
            error
        )


def write_state(state: ManifestState) -> bytes:
    """Encode a checkpoint."""
    return _dump(
        {
            "format": FORMAT,
            "seq": state.seq,
            "epoch": state.epoch,
            "writer": state.writer,
            "flushed_ts": state.flushed_ts,
            "objects": [_object_tree(each) for each in state.objects.values()],
            "facts": [dict(fact) for fact in state.facts],
        }
    )


def read_state(data: bytes, *, path: str) -> ManifestState:
    """Decode a checkpoint; raise Corrupt naming the file when it is not one of this format."""
    tree = _load(data, path)
    try:
        objects = [_read_object(each) for each in tree["objects"]]
        return ManifestState(
            seq=int(tree["seq"]),
            epoch=int(tree["epoch"]),
            writer=str(tree["writer"]),
            flushed_ts=int(tree["flushed_ts"]),
            objects={each.id: each for each in objects},
            facts=tuple(tree["facts"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(
            f"checkpoint {path} lacks a field or has a wrong one; remove it and try again"
        ) from error


def _object_tree(info: ObjectInfo) -> dict[str, Any]:
    tree = {name: getattr(info, name) for name in ObjectInfo.__slots__}
    tree["key_min"] = base64.b64encode(info.key_min).decode()
    tree["key_max"] = base64.b64encode(info.key_max).decode()
    if not info.delete_ts:
        del tree["delete_ts"]
    return tree


def _read_object(tree: Mapping[str, Any]) -> ObjectInfo:
    fields = dict(tree)
    if fields["side"] not in get_args(Side) or fields["kind"] not in get_args(Kind):
        raise ValueError("unknown side or kind")
    for name in ("key_min", "key_max"):
        fields[name] = base64.b64decode(fields[name], validate=True)
    return ObjectInfo(**fields)


def _dump(tree: Mapping[str, Any]) -> bytes:
    return json.dumps(tree, separators=(",", ":"), sort_keys=True).encode()


def _load(data: bytes, path: str) -> Mapping[str, Any]:
    try:
        tree = json.loads(data)
    except ValueError as error:
        raise Corrupt(f"manifest file {path} is not JSON; keep it for inspection") from error
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        shown = tree.get("format") if isinstance(tree, dict) else None
        raise Corrupt(f"manifest file {path} has format {shown!r}, not {FORMAT}; upgrade Penstock to read it")
    return tree
