"""What tests of the event store share: schemas that do not move, rows as a writer makes them, a replay."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.clock import TS_MAX
from penstock.errors import Unavailable
from penstock.eventstore import paths
from penstock.eventstore.manifest import ManifestState, ObjectInfo
from penstock.eventstore.manifest_log import load
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import COMMIT_TS, HANDLE, OBJECT, OFFSET, START_TS
from penstock.object_storage import ObjectStorage
from penstock.tables import keys, records
from penstock.tables.define import define_table
from penstock.tables.schema import TableInfo
from support.rawbatches import Change

Row = Mapping[str, Any]
RowId = tuple[str, int]


def a_table(table_id: int = 1) -> TableInfo:
    """Return a table of a number and a text."""
    table = define_table("items", [("id", "bigint primary key"), ("name", "varchar(64)")])
    return replace(table, id=table_id)


class FixedSchemas:
    """A schema history given by hand; by default complete for all time."""

    def __init__(self, *versions: SchemaVersion, resolved_ts: int = TS_MAX) -> None:
        self._versions = versions
        self.resolved = resolved_ts

    @classmethod
    def of(cls, *tables: TableInfo) -> "FixedSchemas":
        """Return tables that never change."""
        return cls(*(SchemaVersion(0, 1, table) for table in tables))

    def resolved_ts(self) -> int:
        """Return up to when all schemas are known."""
        return self.resolved

    def flashback(self, _table_id: int, _from_ts: int) -> int:
        return 0

    def rewrites(self, _table_id: int, _from_ts: int, _to_ts: int) -> list[int]:
        """Return no rewrite: no column changes."""
        return []

    def storable_ts(self, _table_id: int) -> int:
        """Return up to when schemas may be stored."""
        return self.resolved

    def ends(self, _table_id: int, _from_ts: int, _to_ts: int) -> list[int]:
        """Return the times in a range at which a table ended: none."""
        return []

    def versions(self, table_id: int, from_ts: int, to_ts: int) -> list[SchemaVersion]:
        """Return the schema versions of a table in a range; raise Unavailable when it has none by then."""
        mine = [
            version
            for version in self._versions
            if version.table.id == table_id and version.since_ts <= to_ts
        ]
        if not mine:
            raise Unavailable(f"table {table_id} has no schema up to {to_ts}; wait for it")
        begun = [version for version in mine if version.since_ts <= from_ts + 1]
        return [*(begun[-1:] or mine[:1]), *(version for version in mine if version.since_ts > from_ts + 1)]

    def ended_ts(self, _table_id: int) -> int:
        """Return when a table was dropped: never, hence 0."""
        return 0

    def known_ids(self) -> set[int]:
        """Return the tables that are known up to `resolved`."""
        return {version.table.id for version in self._versions if version.since_ts <= self.resolved}

    def last_ddl_ts(self) -> int:
        """Return when a table changed last, up to `resolved`."""
        times = (version.since_ts for version in self._versions)
        return max((ts for ts in times if ts <= self.resolved), default=0)


def change(table: TableInfo, commit_ts: int, new: Row | None, old: Row | None = None) -> Change:
    """Return a put of a row, or a delete of an old one, by a transaction that began a tick before."""
    known = new or old
    assert known is not None
    value = _value(table, new, commit_ts) if new is not None else None
    before = _value(table, old, commit_ts) if old is not None else None
    handle = records.handle_of(table, records.to_record(table, known, start_ts=commit_ts))
    return (commit_ts, commit_ts - 1, keys.record_key(table.id, handle), value, before)


def _value(table: TableInfo, row: Row, ts: int) -> bytes:
    return records.value_of(table, records.to_record(table, row, start_ts=ts))


def read_object(storage: ObjectStorage, table_id: int, info: ObjectInfo) -> pa.Table:
    """Return all rows of one object."""
    with storage.open(paths.object_path(paths.table_root(table_id), info.side, info.id)) as file:
        return pq.ParquetFile(file).read()


def objects(storage: ObjectStorage, table_id: int, side: paths.Side) -> list[ObjectInfo]:
    """Return the objects of a side that report changes, by time; also those that merges replaced."""
    return load(storage, paths.table_root(table_id)).change_objects(side, 0, TS_MAX)


def events(storage: ObjectStorage, table_id: int, side: paths.Side) -> list[dict[str, Any]]:
    """Return every row of a side, in the order of changes."""
    made = [dict(row) for _, row in _locate_rows(storage, table_id, objects(storage, table_id, side))]
    return sorted(made, key=lambda row: (row[COMMIT_TS], row[START_TS], row[HANDLE]))


def _locate_rows(
    storage: ObjectStorage, table_id: int, among: Iterable[ObjectInfo]
) -> Iterator[tuple[RowId, Row]]:
    """Yield every row of some objects with its own row id."""
    for info in among:
        data = storage.read(paths.object_path(paths.table_root(table_id), info.side, info.id))
        assert data is not None, "an object is not there"
        for offset, row in enumerate(_decode_rows(data)):
            yield (info.id, offset), row


@lru_cache(maxsize=1024)
def _decode_rows(data: bytes) -> Sequence[Row]:
    """Return the rows of an object's bytes. They are cached: checks after every step read the same bytes."""
    # Its read_table would import pandas.
    rows: list[Row] = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False).to_pylist()
    return rows


def replay_objects(storage: ObjectStorage, table_id: int, ts: int) -> dict[bytes, dict[str, Any]]:
    """Return the table at `ts`, read only from its objects: rows by handle.

    Fails when a change is there twice, when an insert meets a row, or when a tombstone meets none or has
    another row id than that of the row it ends.
    """
    return {
        handle: {name: value for name, value in row.items() if not name.startswith("_")}
        for handle, (_, row) in live_rows(storage, table_id, ts).items()
    }


def live_rows(storage: ObjectStorage, table_id: int, ts: int) -> dict[bytes, tuple[RowId, Row]]:
    """Return the rows as of `ts` and where they are, by handle; fails as `replay_objects` does."""
    table = load(storage, paths.table_root(table_id))
    steps = [
        (row[COMMIT_TS], order, row[HANDLE], located, row)
        for order, side in enumerate(_SIDES)
        for located, row in _locate_rows(storage, table_id, table.change_objects(side, 0, TS_MAX))
        if row[COMMIT_TS] <= ts
    ]
    places = [step[:3] for step in steps]
    assert len(set(places)) == len(places), "a change is there twice"
    moved = _find_moved(storage, table_id, table)
    state: dict[bytes, tuple[RowId, Row]] = {}
    for _, order, handle, located, row in sorted(steps, key=lambda step: step[:3]):
        if _SIDES[order] == "tombstone":
            assert handle in state, "a tombstone without its row"
            ended, written = state.pop(handle)
            named = (row[OBJECT], row[OFFSET])
            assert named == ended or moved.get(named) == (handle, written[COMMIT_TS]), "another row's id"
        else:
            assert handle not in state, "an insert over a row"
            state[handle] = located, row
    return state


def find_moved_rows(storage: ObjectStorage, table_id: int) -> dict[RowId, tuple[bytes, int]]:
    """Return the rows that merges rewrote, by their new row id, as handle and commit timestamp."""
    return _find_moved(storage, table_id, load(storage, paths.table_root(table_id)))


def _find_moved(
    storage: ObjectStorage, table_id: int, table: ManifestState
) -> dict[RowId, tuple[bytes, int]]:
    known = table.objects.values()
    merged = [info for info in known if info.side == "data" and info.kind == "merged"]
    return {
        located: (row[HANDLE], row[COMMIT_TS]) for located, row in _locate_rows(storage, table_id, merged)
    }


_SIDES: Sequence[paths.Side] = ("tombstone", "data")
