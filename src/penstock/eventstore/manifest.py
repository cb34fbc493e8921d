"""The manifest of one table as values: entries, and the state that folding them gives. No I/O.

An entry is one atomic step of a table's history. All who fold the same entries see the same table.
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypedDict, get_args

from penstock.errors import Corrupt
from penstock.eventstore.paths import Side
from penstock.eventstore.schema_version import SCHEMA_FACT

FORMAT = 2

ObjectKind = Literal["appendable", "direct", "backfill", "merged"]
Targets = tuple[tuple[str, int], ...]
"""The ids of data objects, each with the number of its rows that are deleted."""

_SIDES, _KINDS = frozenset(get_args(Side)), frozenset(get_args(ObjectKind))

LOADED, BEGUN = "load", "begun"
"""Kinds of facts: the table's history begins at their `ts`, with a loaded snapshot or after a collection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One Parquet object. Every row in it has min_ts <= commit_ts <= max_ts and one schema version.

    `appendable` objects of a side never overlap in time. A `direct` object holds rows of a single
    transaction, whose commit timestamp is `create_ts`. A `backfill` object holds updates that change no
    column that readers see, and a `merged` object repeats rows of others, for snapshots from `create_ts` on;
    neither is ever reported as change.
    """

    id: str
    side: Side
    kind: ObjectKind
    schema_version: int
    create_ts: int
    min_ts: int
    max_ts: int
    rows: int
    size_bytes: int
    key_min: bytes
    key_max: bytes
    delete_ts: int = 0  # 0: not removed; else no row is above it
    seq: int = 0  # the number of the entry that added it; known once that is folded
    targets: Targets | None = ()  # the rows that a tombstone object deletes; None: rows of any objects
    footer_bytes: int = 0  # of Parquet's footer with its length and magic; 0: not known
    footer_hash: str = ""

    def is_visible(self, ts: int) -> bool:
        """Return whether the object is part of the table as of `ts`."""
        return self.create_ts <= ts and (self.delete_ts == 0 or ts < self.delete_ts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """An object that others replace from `delete_ts` on; it stays readable until it is collected."""

    id: str
    delete_ts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A file that lists removed objects, so that the state need not; none was removed after `upto_ts`."""

    id: str
    upto_ts: int
    objects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """One numbered step. `epoch` decides who may write; `id` tells a lost answer from a rival's entry.

    `flushed_ts` says that every change with a commit-ts at or below it is in the objects (0: it says
    nothing). `archive` lists the objects of `forget`, which leave the state. `collect` names archives whose
    objects may be deleted from then on.
    """

    seq: int
    epoch: int
    writer: str
    id: str
    add: tuple[ObjectInfo, ...] = ()
    remove: tuple[Removal, ...] = ()
    flushed_ts: int = 0
    facts: tuple[Mapping[str, Any], ...] = ()
    archive: Archive | None = None
    forget: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()

    @property
    def is_opening(self) -> bool:
        """Whether the entry only says who writes from here on.

        Such an entry is never deleted: it has the number that a former owner's next commit would take.
        """
        content = (
            self.add,
            self.remove,
            self.flushed_ts,
            self.facts,
            self.archive,
            self.forget,
            self.collect,
        )
        return not any(content)


class _History(TypedDict):
    """The fields of ManifestState that say how far back history goes."""

    archives: tuple[Archive, ...]
    archived_seq: int
    history_ts: int
    oldest_ts: int


@dataclass(frozen=True, slots=True)
class ManifestState:
    """Everything that the entries up to `seq` say.

    `origin` is the first entry's id: it tells this log from another one at the same place. A read that begins
    at or above `history_ts` needs `objects` alone; one that begins at or above `oldest_ts` needs the
    `archives` too; older history is gone. Invariant: `epoch`, `flushed_ts`, `history_ts` and `oldest_ts`
    never decrease.
    """

    seq: int = 0
    epoch: int = 0
    writer: str = ""
    flushed_ts: int = 0
    objects: Mapping[str, ObjectInfo] = field(default_factory=dict)
    facts: tuple[Mapping[str, Any], ...] = ()
    origin: str = ""
    archives: tuple[Archive, ...] = ()
    archived_seq: int = 0  # a reader that knows the entries up to it can go on without an archive
    history_ts: int = 0
    oldest_ts: int = 0

    def apply(self, entry: ManifestEntry) -> "ManifestState":
        """Return the state after the next entry; raise Corrupt when the entry cannot follow this state."""
        if entry.seq != self.seq + 1:
            raise Corrupt(f"manifest entry {entry.seq} follows entry {self.seq}; an entry is missing")
        if entry.epoch < self.epoch:
            raise Corrupt(f"manifest entry {entry.seq} has epoch {entry.epoch}, below {self.epoch} before it")
        if 0 < entry.flushed_ts < self.flushed_ts:
            raise Corrupt(f"manifest entry {entry.seq} moves flushed_ts back below {self.flushed_ts}")
        return ManifestState(
            seq=entry.seq,
            epoch=entry.epoch,
            writer=entry.writer,
            flushed_ts=max(self.flushed_ts, entry.flushed_ts),
            objects=self._objects_after(entry),
            facts=self.facts + entry.facts,
            origin=self.origin or entry.id,
            **self._archives_after(entry),
        )

    def _objects_after(self, entry: ManifestEntry) -> Mapping[str, ObjectInfo]:
        """Return the objects after an entry; most entries only say who writes, and change none."""
        if not (entry.add or entry.remove or entry.forget):
            return self.objects
        objects = dict(self.objects)
        for added in entry.add:
            if added.id in objects:
                raise Corrupt(f"manifest entry {entry.seq} adds object {added.id} a second time")
            objects[added.id] = replace(added, seq=entry.seq)
        for removal in entry.remove:
            removed = objects.get(removal.id)
            if removed is None:
                raise Corrupt(f"manifest entry {entry.seq} removes object {removal.id}, which is not there")
            if removal.delete_ts < removed.max_ts:
                raise Corrupt(f"manifest entry {entry.seq} removes object {removal.id} before its rows")
            objects[removal.id] = replace(removed, delete_ts=removal.delete_ts)
        for forgotten in entry.forget:
            if objects.pop(forgotten, None) is None:
                raise Corrupt(f"manifest entry {entry.seq} forgets object {forgotten}, which is not there")
        return objects

    def _archives_after(self, entry: ManifestEntry) -> _History:
        """Return the archives after an entry, and how far history goes back then."""
        begun = [int(fact["ts"]) for fact in entry.facts if fact.get("kind") in (LOADED, BEGUN)]
        kept: _History = {
            "archives": self.archives,
            "archived_seq": self.archived_seq,
            "history_ts": self.history_ts,
            "oldest_ts": self.oldest_ts,
        }
        if entry.archive is None and not entry.collect and not begun:
            return kept
        known = {archive.id: archive for archive in self.archives}
        if not known.keys() >= set(entry.collect):
            raise Corrupt(f"manifest entry {entry.seq} collects an archive that is not there")
        gone = [known.pop(archive_id).upto_ts for archive_id in entry.collect]
        kept["archives"] = tuple(known.values())
        kept["oldest_ts"] = max([self.oldest_ts, *begun, *gone])
        if entry.archive is not None:
            kept["archives"] += (entry.archive,)
            kept["archived_seq"] = entry.seq - 1
            kept["history_ts"] = max(self.history_ts, entry.archive.upto_ts)
        return kept

    @property
    def changed_ts(self) -> int:
        """No change up to `flushed_ts` was committed after it; archived objects count.

        Changes before `oldest_ts` may have left no object.
        """
        return max([self.history_ts, self.oldest_ts, *(info.max_ts for info in self.objects.values())])

    def visible_objects(self, side: Side, ts: int) -> list[ObjectInfo]:
        """Return the objects of a side that make up the table as of `ts`, by time."""
        chosen = [info for info in self.objects.values() if info.side == side and info.is_visible(ts)]
        return sorted(chosen, key=lambda info: (info.create_ts, info.min_ts, info.id))

    def change_objects(
        self, side: Side, from_ts: int, to_ts: int, *, backfills: bool = False
    ) -> list[ObjectInfo]:
        """Return the objects of a side with changes in (from_ts, to_ts], by time, removed ones too.

        With `backfills` also those with updates that are no change for readers.
        """
        left_out = {"merged"} if backfills else {"merged", "backfill"}
        chosen = [
            info
            for info in self.objects.values()
            if info.side == side
            and info.kind not in left_out
            and info.min_ts <= to_ts
            and info.max_ts > from_ts
        ]
        return sorted(chosen, key=lambda info: (info.min_ts, info.max_ts, info.seq, info.id))


def write_entry(entry: ManifestEntry) -> bytes:
    """Encode an entry; equal entries give equal bytes."""
    tree: dict[str, Any] = {
        "format": FORMAT,
        "seq": entry.seq,
        "epoch": entry.epoch,
        "writer": entry.writer,
        "id": entry.id,
    }
    if entry.add:
        tree["add"] = [object_tree(info) for info in entry.add]
    if entry.remove:
        tree["remove"] = [{"id": removal.id, "delete_ts": removal.delete_ts} for removal in entry.remove]
    if entry.flushed_ts:
        tree["flushed_ts"] = entry.flushed_ts
    if entry.facts:
        tree["facts"] = [dict(fact) for fact in entry.facts]
    if entry.archive:
        tree["archive"] = asdict(entry.archive)
    if entry.forget:
        tree["forget"] = list(entry.forget)
    if entry.collect:
        tree["collect"] = list(entry.collect)
    return _dump(tree)


def read_entry(data: bytes, *, path: str) -> ManifestEntry:
    """Decode an entry; raise Corrupt with the path when the file is not an entry of this format."""
    tree = _load(data, path)
    try:
        return ManifestEntry(
            seq=_number(tree["seq"]),
            epoch=_number(tree["epoch"]),
            writer=str(tree["writer"]),
            id=str(tree["id"]),
            add=tuple(map(read_object, _items(tree.get("add", [])))),
            remove=tuple(map(_read_removal, _items(tree.get("remove", [])))),
            flushed_ts=_number(tree.get("flushed_ts", 0)),
            facts=_read_facts(tree.get("facts", [])),
            archive=_read_archive(tree["archive"]) if "archive" in tree else None,
            forget=tuple(map(str, _items(tree.get("forget", [])))),
            collect=tuple(map(str, _items(tree.get("collect", [])))),
        )
    except _WRONG as error:
        raise Corrupt(f"manifest file {path} has a missing or wrong field; keep it for inspection") from (
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
            "objects": [object_tree(info) for info in state.objects.values()],
            "facts": [dict(fact) for fact in state.facts],
            "origin": state.origin,
            "archives": [asdict(archive) for archive in state.archives],
            "archived_seq": state.archived_seq,
            "history_ts": state.history_ts,
            "oldest_ts": state.oldest_ts,
        }
    )


def read_state(data: bytes, *, path: str) -> ManifestState:
    """Decode a checkpoint; raise Corrupt with the path when the file is not a checkpoint of this format."""
    tree = _load(data, path)
    try:
        objects = [read_object(item) for item in _items(tree["objects"])]
        return ManifestState(
            seq=_number(tree["seq"]),
            epoch=_number(tree["epoch"]),
            writer=str(tree["writer"]),
            flushed_ts=_number(tree["flushed_ts"]),
            objects={info.id: info for info in objects},
            facts=_read_facts(tree["facts"]),
            origin=str(tree["origin"]),
            archives=tuple(map(_read_archive, _items(tree["archives"]))),
            archived_seq=_number(tree["archived_seq"]),
            history_ts=_number(tree["history_ts"]),
            oldest_ts=_number(tree["oldest_ts"]),
        )
    except _WRONG as error:
        raise Corrupt(f"checkpoint {path} has a missing or wrong field; remove it and try again") from error


def write_archive(objects: Iterable[ObjectInfo]) -> bytes:
    """Encode the list of an archive."""
    return _dump({"format": FORMAT, "objects": [object_tree(info) for info in objects]})


def read_archive(data: bytes, *, path: str) -> list[ObjectInfo]:
    """Decode the list of an archive; raise Corrupt with the path when it is not a list of this format."""
    tree = _load(data, path)
    try:
        return [read_object(item) for item in _items(tree["objects"])]
    except _WRONG as error:
        raise Corrupt(f"archive {path} has a missing or wrong field; keep it for inspection") from error


def object_tree(info: ObjectInfo) -> dict[str, Any]:
    """Return an object as JSON has it."""
    tree = {name: getattr(info, name) for name in ObjectInfo.__slots__}
    tree["key_min"] = base64.b64encode(info.key_min).decode()
    tree["key_max"] = base64.b64encode(info.key_max).decode()
    tree["targets"] = None if info.targets is None else dict(info.targets)
    defaults: dict[str, Any] = {
        "delete_ts": 0,
        "seq": 0,
        "targets": {},
        "footer_bytes": 0,
        "footer_hash": "",
    }
    return {name: value for name, value in tree.items() if name not in defaults or value != defaults[name]}


def read_object(tree: Mapping[str, Any]) -> ObjectInfo:
    """Return the object of some JSON; raise KeyError, TypeError or ValueError when it is not an object."""
    fields = {**tree, "id": _name(tree["id"])}
    if fields["side"] not in _SIDES or fields["kind"] not in _KINDS:
        raise ValueError("unknown side or kind")
    for name in ("key_min", "key_max"):
        fields[name] = base64.b64decode(fields[name], validate=True)
    for name in _NUMBERS:
        if name in fields:
            fields[name] = _number(fields[name])
    if not isinstance(fields.get("footer_hash", ""), str):
        raise TypeError("not a hash")
    if fields.get("targets") is not None:
        fields["targets"] = tuple(
            sorted((target, _number(rows)) for target, rows in dict(fields["targets"]).items())
        )
    return ObjectInfo(**fields)


_WRONG = (AttributeError, KeyError, TypeError, ValueError)
"""What a tree of another shape raises."""
_NUMBERS = (
    "schema_version",
    "create_ts",
    "min_ts",
    "max_ts",
    "rows",
    "size_bytes",
    "delete_ts",
    "seq",
    "footer_bytes",
)
_NUMBER_BITS = 64


def _number(value: object) -> int:
    """Return a count or timestamp; raise ValueError for anything else, such as `true` or 1e999."""
    if type(value) is not int or value.bit_length() > _NUMBER_BITS:
        raise ValueError("not a number")
    return value


def _name(value: object) -> str:
    """Return the name of a file; raise ValueError for one that leads out of its folder."""
    if not isinstance(value, str) or not value or value.startswith(".") or {"/", "\\", "\0"} & set(value):
        raise ValueError("not a name")
    return value


def _items(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return value


def _read_facts(value: object) -> tuple[Mapping[str, Any], ...]:
    facts = _items(value)
    for fact in facts:
        if not isinstance(fact, dict) or not isinstance(fact["kind"], str):
            raise TypeError("not a fact")
        if fact["kind"] in (LOADED, BEGUN, _DROPPED_FACT):
            _number(fact["ts"])
    return tuple(facts)


def _read_archive(tree: Mapping[str, Any]) -> Archive:
    return Archive(id=_name(tree["id"]), upto_ts=_number(tree["upto_ts"]), objects=_number(tree["objects"]))


def _read_removal(tree: Mapping[str, Any]) -> Removal:
    return Removal(id=str(tree["id"]), delete_ts=_number(tree["delete_ts"]))


def _dump(tree: Mapping[str, Any]) -> bytes:
    return json.dumps(tree, separators=(",", ":"), sort_keys=True).encode()


def _load(data: bytes, path: str) -> Mapping[str, Any]:
    try:
        tree = json.loads(data.decode())  # json would guess the encoding of bytes, which takes as long again
    except (RecursionError, ValueError) as error:
        raise Corrupt(f"manifest file {path} is not JSON; keep it for inspection") from error
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        shown = tree.get("format") if isinstance(tree, dict) else None
        raise Corrupt(f"manifest file {path} has format {shown!r}, not {FORMAT}; upgrade Penstock to read it")
    return tree


_DROPPED_FACT = "dropped"


def dropped_fact(ts: int, *, exact: bool = True) -> dict[str, Any]:
    """Return the fact that a table was dropped by a commit at `ts`; not `exact`: at `ts` or later."""
    return {"kind": _DROPPED_FACT, "ts": ts} | ({} if exact else {"exact": False})


def knows_end(facts: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a table that is gone was dropped at a known time."""
    drops = [fact for fact in facts if fact["kind"] == _DROPPED_FACT]
    last = max(drops, key=lambda fact: int(fact["ts"]), default=None)
    return last is not None and last.get("exact", True) is True


def drop_times(facts: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return each time at which a table was dropped."""
    return [int(fact["ts"]) for fact in facts if fact["kind"] == _DROPPED_FACT]


def dropped_ts(facts: Sequence[Mapping[str, Any]], at_ts: int) -> int:
    """Return when a table that does not exist at `at_ts` was dropped; 0 when it exists, or came back."""
    last = max((ts for ts in drop_times(facts) if ts <= at_ts), default=0)
    returned = any(fact["kind"] == SCHEMA_FACT and last < fact["since_ts"] <= at_ts for fact in facts)
    return 0 if returned else last
