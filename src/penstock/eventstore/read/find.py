"""Finding tables on storage by their names, without the database that they came from.

A mark on storage says that a physical table has or had a name; the table's owner writes it, and it stays for
as long as storage has the table. Which table has the name at which time follows from the manifests' facts.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches

from penstock.clock import TS_MAX
from penstock.errors import Invalid, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.manifest import drop_times
from penstock.eventstore.read.partition import (
    Partition,
    PartitionState,
    PhysicalHistory,
    RangeReader,
    TableView,
)
from penstock.eventstore.read.partition_sets import Life, lives_of
from penstock.eventstore.schema_version import SchemaVersion, versions_in_force
from penstock.object_storage import ObjectStorage, StorageRef

__all__ = [
    "NameMarks",
    "RowsOf",
    "find_histories",
    "find_lives",
    "find_table",
    "list_known_ends",
    "list_tables",
]


RowsOf = Callable[[int], RangeReader | None]
"""Returns who has the newest rows of a physical table; None when nobody is known."""

_LOADED_AT_ONCE = 16
_SUGGESTED_MAX = 3

_Name = tuple[str, str]  # database and table, in lower case


@dataclass(frozen=True, slots=True)
class _FoundTable:
    """A physical table as it is at the time in question."""

    schema: SchemaVersion
    begun: bool  # False: only a later schema is known, so it may not have existed

    @property
    def name(self) -> _Name:
        return self.schema.database.lower(), self.schema.table.name.lower()


def find_table(
    storage: StorageRef, name: str, *, at_ts: int | None = None, rows: RowsOf | RangeReader | None = None
) -> TableView:
    """Return the table that is called `database.table` at `at_ts` (None: now), with its partitions then.

    `rows` reads changes that are not in objects yet. Names are compared without case. Of tables that were
    dropped and created again, the one that exists at that time is returned. Raises Invalid when there is no
    such table, Unavailable when storage does not answer or the table has no schema yet.
    """
    wanted = _parse(name)
    rows_of = _resolver(rows)
    found_by_id = _read_at(_list_marked(storage, wanted, rows_of), at_ts)
    fitting = [found for found in found_by_id.values() if found is not None and found.name == wanted]
    if not fitting:
        if None in found_by_id.values():
            raise Unavailable(f"table {name} has no schema on {storage.url} yet; wait for its first flush")
        raise Invalid(_describe_unknown(storage, name, wanted))
    newest = max(fitting, key=lambda found: (found.begun, found.schema.since_ts)).schema
    members = tuple(
        Partition(storage, physical_id, rows_of(physical_id)) for physical_id in newest.table.physical_ids
    )
    return TableView(newest.name, members, table_id=newest.table.id)


def find_lives(storage: StorageRef, name: str, rows: RangeReader | None = None) -> dict[int, list[Life]]:
    """Return the lives of every physical table that has or had a name, by id; none of an unknown one.

    A table that ended before its first flush is left out: nothing will be known of it. Raises Unavailable
    when storage does not answer.
    """
    partitions = _list_marked(storage, _parse(name), _resolver(rows))
    with ThreadPoolExecutor(_LOADED_AT_ONCE, thread_name_prefix="penstock-find") as pool:
        states = list(pool.map(Partition.state, partitions))
        known = list(pool.map(_lives, states))
    return {
        state.table_id: lives
        for state, lives in zip(states, known, strict=True)
        if lives or not drop_times(state.manifest.facts)
    }


def find_histories(storage: StorageRef, matches: Callable[[str, str], bool]) -> dict[int, PhysicalHistory]:
    """Return what objects know of every physical table that has or had a name that matches, by id.

    Raises Unavailable when storage does not answer.
    """
    ids = sorted(set().union(*(found for name, found in _all_names(storage).items() if matches(*name))))
    with ThreadPoolExecutor(_LOADED_AT_ONCE, thread_name_prefix="penstock-find") as pool:
        states = list(pool.map(lambda table_id: Partition(storage, table_id).state(), ids))
    return {
        state.table_id: PhysicalHistory(tuple(state.known_schemas), tuple(drop_times(state.manifest.facts)))
        for state in states
    }


def _lives(state: PartitionState) -> list[Life]:
    return lives_of(state.table_id, _schemas(state, None), list_known_ends(state))


def list_known_ends(state: PartitionState) -> list[int]:
    """Return when a physical table was dropped or replaced, as its capture knows, or else its objects."""
    try:
        return state.ends(TS_MAX)
    except Unavailable:
        return state.ends(state.flushed_ts)


def _list_marked(storage: StorageRef, name: _Name, rows_of: RowsOf) -> list[Partition]:
    marks = filter(None, map(paths.parse_name_mark, storage.open().names(paths.name_folder(*name))))
    return [Partition(storage, mark[2], rows_of(mark[2])) for mark in marks]


def list_tables(storage: StorageRef) -> list[str]:
    """Return the names of all tables that exist, in order, as far as their objects know."""
    return sorted({found.schema.name for found in _list_present(storage, _all_names(storage))})


def _all_names(storage: StorageRef) -> dict[_Name, set[int]]:
    """Return every name that is marked, with the physical tables that have or had it."""
    found: dict[_Name, set[int]] = {}
    for path in storage.open().names(paths.NAMES):
        mark = paths.parse_name_mark(path)
        if mark is not None:
            found.setdefault(mark[:2], set()).add(mark[2])
    return found


def _list_present(storage: StorageRef, names: dict[_Name, set[int]]) -> Iterable[_FoundTable]:
    """Return those of some names' tables that exist now under one of the names."""
    ids = sorted(set().union(*names.values()))
    found_by_id = _read_at([Partition(storage, physical_id) for physical_id in ids], None)
    return [found for found in found_by_id.values() if found is not None and found.name in names]


def _parse(name: str) -> _Name:
    database, dot, table = name.lower().partition(".")
    if not (database and dot and table):
        raise Invalid(f"{name!r} names no table; write database.table")
    return database, table


def _resolver(rows: RowsOf | RangeReader | None) -> RowsOf:
    if callable(rows):
        return rows
    return lambda _: rows


def _read_at(partitions: list[Partition], at_ts: int | None) -> dict[int, _FoundTable | None]:
    """Return the physical tables that exist at a time; None for those of which nothing is known yet."""
    with ThreadPoolExecutor(_LOADED_AT_ONCE, thread_name_prefix="penstock-find") as pool:
        states = list(pool.map(Partition.state, partitions))
        schemas = list(pool.map(lambda state: _schemas(state, at_ts), states))
    found = zip(states, schemas, strict=True)
    return {
        state.table_id: _find_at(known, at_ts) for state, known in found if not _is_gone(state, known, at_ts)
    }


def _is_gone(state: PartitionState, known: Sequence[SchemaVersion], at_ts: int | None) -> bool:
    """Return whether a table was dropped and did not come back; its capture may be the first to know that."""
    ts = _moment(at_ts)
    ended_ts = max((drop_ts for drop_ts in drop_times(state.manifest.facts) if drop_ts <= ts), default=0)
    return bool(ended_ts) and not any(ended_ts < version.since_ts <= ts for version in known)


def _moment(at_ts: int | None) -> int:
    return TS_MAX if at_ts is None else at_ts


def _find_at(known: Sequence[SchemaVersion], at_ts: int | None) -> _FoundTable | None:
    if not known:
        return None
    moment = _moment(at_ts)
    schema = versions_in_force(known, moment - 1, moment)[-1]
    return _FoundTable(schema, begun=schema.since_ts <= moment)


def _schemas(state: PartitionState, at_ts: int | None) -> list[SchemaVersion]:
    """Return the schemas of the manifest, and those that the capture knows beyond it, if it answers."""
    if state.rows is not None and (at_ts is None or at_ts > state.flushed_ts):
        try:
            upto = state.readable_ts if at_ts is None else min(at_ts, state.readable_ts)
            if upto > state.flushed_ts:
                return state.schemas(0, upto)
        except Unavailable:
            return state.known_schemas
    return state.known_schemas


def _describe_unknown(storage: StorageRef, name: str, wanted: _Name) -> str:
    """Return a message that the table does not exist, with tables of similar names."""
    names = _all_names(storage)
    shown = {f"{database}.{table}": (database, table) for database, table in names}
    close = get_close_matches(".".join(wanted), shown, n=_SUGGESTED_MAX)
    there = {
        found.schema.name
        for found in _list_present(storage, {shown[name]: names[shown[name]] for name in close})
    }
    hint = f"there is {', '.join(sorted(there))}" if there else "list_tables names the tables that exist"
    return f"there is no table {name} on {storage.url}; {hint}"


class NameMarks:
    """Writes marks, each once. Thread-safe. Names are compared without case, as the database does.

    Every method raises Unavailable when storage does not answer.
    """

    def __init__(self, storage: ObjectStorage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._written: frozenset[str] | None = None

    def mark(self, names: Iterable[tuple[str, str]], table_id: int) -> None:
        """Mark a physical table with the (database, table) names that it has or had."""
        wanted = {paths.name_mark(database.lower(), table.lower(), table_id) for database, table in names}
        missing = wanted - self._load_known()
        for path in sorted(missing):
            self._storage.write(path, b"")
        if missing:
            with self._lock:
                self._written = (self._written or frozenset()) | missing

    def unmark(self, table_id: int) -> None:
        """Remove all marks of a physical table, so that readers find it no more."""
        known = self._load_known()
        gone = {path for path in known if (mark := paths.parse_name_mark(path)) and mark[2] == table_id}
        for path in sorted(gone):
            self._storage.delete(path)
        with self._lock:
            self._written = (self._written or frozenset()) - gone

    def names(self) -> dict[int, set[tuple[str, str]]]:
        """Return the names of every physical table that has a mark: only those may have a manifest."""
        found: dict[int, set[tuple[str, str]]] = {}
        for path in self._load_known():
            mark = paths.parse_name_mark(path)
            if mark is not None:
                found.setdefault(mark[2], set()).add(mark[:2])
        return found

    def _load_known(self) -> frozenset[str]:
        with self._lock:
            if self._written is None:
                self._written = frozenset(self._storage.names(paths.NAMES))
            return self._written
