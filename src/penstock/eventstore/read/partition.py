"""One physical table for readers: its manifest, its history, and who has its newest rows.

Planning holds a `Partition`, which is small and can be pickled; reading holds a `PartitionState`, which is
the partition at one moment. Objects never change, so a state stays true until garbage collection removes an
object that it names; `reading_history` turns that into the right error. `RangeReader` is the seam to whoever
has changes that are not in objects yet.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import pyarrow as pa

from penstock.clock import TS_MAX
from penstock.errors import Invalid, PenstockError, StaleRead, Unavailable
from penstock.eventstore import manifest_log, paths
from penstock.eventstore.manifest import ManifestState, ObjectInfo, drop_times, dropped_ts, read_archive
from penstock.eventstore.paths import Side
from penstock.eventstore.schema_version import (
    SchemaVersion,
    cut_at_changes,
    schemas_in,
    versions_in_force,
)
from penstock.object_storage import ObjectStorage, StorageRef


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """Changes of one side in (from_ts, to_ts], of rows in [handle_from, handle_to) (b"": no bound).

    With `backfills` they include updates that change no column that readers see; snapshots need their rows.
    """

    table_id: int
    from_ts: int
    to_ts: int
    side: Side = "data"
    columns: tuple[str, ...] = ()  # none: all
    handle_from: bytes = b""
    handle_to: bytes = b""
    backfills: bool = False


@dataclass(frozen=True, slots=True)
class SchemaRange:
    """A range within which the table's schema does not change."""

    wanted: ReadRange
    schema: SchemaVersion


@dataclass(frozen=True, slots=True)
class CaptureProgress:
    """How far a table has come in the capture that owns it.

    No change up to `readable_ts` was committed after `changed_ts`, and no change after `oldest_ts` is gone.
    The table was dropped, truncated or replaced at `ended_ts` (0: it exists).
    """

    table_id: int
    readable_ts: int
    resolved_ts: int
    flushed_ts: int
    changed_ts: int = TS_MAX
    oldest_ts: int = 0
    ended_ts: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the capture that owns a physical table cannot capture it, with the remedy.

    Changes that were committed at `since_ts` or later are not captured, at least until the cause is gone.
    """

    table_id: int
    reason: str
    since_ts: int


@dataclass(frozen=True, slots=True)
class PhysicalHistory:
    """The versions of a physical table that are known, by time, and when it ceased to be part of a table."""

    versions: tuple[SchemaVersion, ...]
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CaptureCatalog:
    """Which tables a capture knows and how far those are that it owns, in one answer.

    Every DDL of the cluster up to `resolved_ts` is known, whoever owns the table; `ddl_ts` is the last one.
    `histories` are of the tables that changed after the caller's `since_ts`, by physical id.
    """

    resolved_ts: int
    ddl_ts: int
    progress: tuple[CaptureProgress, ...]
    histories: Mapping[int, PhysicalHistory]


class RangeReader(Protocol):
    """Reads ranges of the tables that a capture owns: in its process, or from elsewhere over Flight.

    A range that can be read gives the same rows in the same order every time, flushed or not; only the row
    ids of tombstones come with the flush. Every method raises Unavailable when the capture does not answer or
    does not own the table.
    """

    def progress(self, table_id: int) -> CaptureProgress:
        """Return how far a table can be read."""

    def parts(self, wanted: ReadRange) -> list[SchemaRange]:
        """Divide a range where the table's schema changes, in order.

        Raises Unavailable when the range is not complete yet, Invalid when it is no range.
        """

    def read(self, wanted: ReadRange) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the schema and the rows of a part, by (commit_ts, start_ts, handle), in bounded memory.

        Raises Unavailable when the range is not complete yet, or rows moved while they were read; StaleRead
        when the beginning of the range is gone; Invalid when the schema changes within it or a column does
        not exist.
        """


_LOAD_ATTEMPTS = 10


@dataclass(frozen=True)
class Partition:
    """A physical table. `rows` reads changes that are not in objects yet; without it only objects are read.

    Can be pickled when `rows` can; `manifest` stays behind. That is the manifest of a moment ago, for a
    planner that plans again and again: without it, every state reads it.
    """

    storage: StorageRef
    table_id: int
    rows: RangeReader | None = None
    manifest: ManifestState | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[object, ...]:
        return Partition, (self.storage, self.table_id, self.rows)

    def state(self, *, from_ts: int | None = None) -> "PartitionState":
        """Return the partition as it is now; with `from_ts` also what history from there on needs.

        Raises Unavailable when storage does not answer, Corrupt when the manifest is damaged. A range of it
        must pass `check_range` before it is read.
        """
        storage = self.storage.open()
        if self.manifest is not None:
            kept = state_of_manifest(storage, self.table_id, self.manifest, from_ts, self.rows)
            if kept is not None:
                return kept
        manifest = _load(storage, self.table_id, from_ts)
        return PartitionState(self.table_id, storage, manifest, self.rows, _history_from(manifest, from_ts))


@dataclass(frozen=True)
class TableView:
    """A table as readers name it: its partitions, or itself as the only one.

    The changes of a range are those of the partitions that the table has at the end of the range, which may
    be others than these; `penstock.changes.collect.fix_range` finds them. A `fixed` view has exactly these.
    """

    name: str
    partitions: tuple[Partition, ...]
    table_id: int = 0  # 0: the table that the first partition belongs to
    named: bool = True  # the reader asked for the name, whichever table has it; False: for this table
    fixed: bool = False


@dataclass(frozen=True)
class PartitionState:
    """A partition at one moment. Changes up to `flushed_ts` are in `manifest`; `rows` reads later ones."""

    table_id: int
    storage: ObjectStorage
    manifest: ManifestState  # with the objects of the archives that history from `history_from` on needs
    rows: RangeReader | None = None
    history_from: int = 0  # objects that were removed before it may be missing from `manifest`
    _known_upto: dict[int, list[SchemaVersion]] = field(default_factory=dict, repr=False, compare=False)
    _answers: list[CaptureProgress] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def flushed_ts(self) -> int:
        """Every change up to it is in objects."""
        return self.manifest.flushed_ts

    @property
    def oldest_ts(self) -> int:
        """Snapshots from it on, and changes after it, can be read."""
        return self.manifest.oldest_ts

    @property
    def _progress(self) -> CaptureProgress | None:
        """The first answer of the capture, kept so that the state does not change.

        No lock is held while the capture is asked. The lock of a cached_property would be shared by all
        states.
        """
        if self.rows is None:
            return None
        if not self._answers:
            self._answers.append(self.rows.progress(self.table_id))
        return self._answers[0]

    @property
    def readable_ts(self) -> int:
        """How far the partition can be read, with the capture that has its newest rows."""
        return max(self.flushed_ts, 0 if self._progress is None else self._progress.readable_ts)

    @property
    def newest_ts(self) -> int:
        """How far it can be read as a part of its table, which ends where it was dropped or replaced."""
        ended_ts = dropped_ts(self.manifest.facts, TS_MAX)
        if not ended_ts and self._progress is not None:
            ended_ts = self._progress.ended_ts
        return min(self.readable_ts, ended_ts - 1) if ended_ts else self.readable_ts

    def ends(self, upto_ts: int) -> list[int]:
        """Return each time up to `upto_ts` at which the partition was dropped or replaced, maybe later ones.

        Raises Unavailable when the capture that has the newest rows does not answer.
        """
        known = drop_times(self.manifest.facts)
        if upto_ts > self.flushed_ts and self._progress is not None and self._progress.ended_ts:
            return [*known, self._progress.ended_ts]
        return known

    def check_range(self, from_ts: int, to_ts: int) -> None:
        """Raise unless (from_ts, to_ts] can be read; from_ts = 0 means a snapshot at to_ts.

        Invalid: it is no range. StaleRead: history that it needs is gone. Unavailable: it is not complete
        yet.
        """
        require_range(from_ts, to_ts)
        self.check_history(from_ts or to_ts)
        if to_ts > self.flushed_ts and to_ts > self.readable_ts:
            raise Unavailable(
                f"table {self.table_id} can be read up to {self.readable_ts}, not {to_ts}; wait"
            )

    def check_history(self, ts: int) -> None:
        """Raise StaleRead when the table as of `ts` is gone."""
        if ts < self.oldest_ts:
            raise StaleRead(f"table {self.table_id}", ts, oldest_ts=self.oldest_ts)

    @cached_property
    def known_schemas(self) -> list[SchemaVersion]:
        """Every version up to `flushed_ts`, by time."""
        return schemas_in(self.manifest.facts)

    def schemas(self, from_ts: int, to_ts: int) -> list[SchemaVersion]:
        """Return the versions in force in (from_ts, to_ts], by time, from the one at its start on.

        Raises Unavailable when the range is not complete yet, or the table has no schema.
        """
        found = versions_in_force(self.schemas_upto(to_ts), from_ts, to_ts)
        if not found:
            raise Unavailable(f"table {self.table_id} has no schema up to {to_ts}; wait for it")
        return found

    def schemas_upto(self, to_ts: int) -> list[SchemaVersion]:
        """Return every known version up to `to_ts`, and maybe later ones, by time.

        Raises Unavailable when the versions are not complete yet, or the capture does not answer.
        """
        if to_ts <= self.flushed_ts:
            return self.known_schemas
        if self.rows is None:
            raise Unavailable(f"table {self.table_id} can be read up to {self.flushed_ts}, not {to_ts}; wait")
        asked_ts = min((ts for ts in self._known_upto if ts >= to_ts), default=0)
        if not asked_ts:
            newer = ReadRange(table_id=self.table_id, from_ts=self.flushed_ts, to_ts=to_ts)
            known = {version.version: version for version in self.known_schemas}
            known |= {part.schema.version: part.schema for part in self.rows.parts(newer)}
            asked_ts, self._known_upto[to_ts] = (
                to_ts,
                sorted(known.values(), key=lambda version: version.since_ts),
            )
        return self._known_upto[asked_ts]

    def schema_at(self, ts: int) -> SchemaVersion:
        """Return the version in force at `ts`; raise Unavailable while there is none."""
        return self.schemas(ts - 1, ts)[-1]

    def parts(self, from_ts: int, to_ts: int) -> list[tuple[int, int, SchemaVersion]]:
        """Divide a range where the schema changes: (from_ts, to_ts, version) of each part, in order."""
        return cut_at_changes(self.schemas(from_ts, to_ts), from_ts, to_ts)

    def visible_objects(self, side: Side, ts: int) -> list[ObjectInfo]:
        """Return the objects of a side that make up the table as of `ts`, by time."""
        assert ts >= self.history_from, "the state was loaded without the history of that time"
        return self.manifest.visible_objects(side, ts)

    def change_objects(
        self, side: Side, from_ts: int, to_ts: int, *, backfills: bool = False
    ) -> list[ObjectInfo]:
        """Return the objects of a side that report changes in (from_ts, to_ts], by time.

        With `backfills` also those with updates that are no change for readers.
        """
        assert from_ts >= self.history_from, "the state was loaded without the history of that time"
        return self.manifest.change_objects(side, from_ts, to_ts, backfills=backfills)

    def reading(self, ts: int) -> AbstractContextManager[None]:
        """Turn a missing object into StaleRead when history from `ts` on is gone; see `reading_history`."""
        return reading_history(self.storage, self.table_id, ts)


def require_range(from_ts: int, to_ts: int) -> None:
    """Raise Invalid unless (from_ts, to_ts] is a range."""
    if not 0 <= from_ts < to_ts:
        raise Invalid(f"({from_ts}, {to_ts}] is no range; from_ts must be below to_ts")


def state_of_manifest(
    storage: ObjectStorage,
    table_id: int,
    manifest: ManifestState,
    from_ts: int | None,
    rows: RangeReader | None = None,
) -> PartitionState | None:
    """Return the state that a manifest and its archives give for history from `from_ts` on, if that is given.

    None when an archive is gone; then there is a newer manifest.
    """
    found = manifest if from_ts is None else _with_archives(storage, table_id, manifest, from_ts)
    if found is None:
        return None
    return PartitionState(table_id, storage, found, rows, _history_from(manifest, from_ts))


def _load(storage: ObjectStorage, table_id: int, from_ts: int | None) -> ManifestState:
    root = paths.table_root(table_id)
    for _ in range(_LOAD_ATTEMPTS):
        manifest = manifest_log.load(storage, root)
        found = manifest if from_ts is None else _with_archives(storage, table_id, manifest, from_ts)
        if found is not None:
            return found
    raise Unavailable(f"history of table {table_id} is collected faster than it can be listed; try again")


@contextmanager
def reading_history(storage: ObjectStorage, table_id: int, ts: int) -> Iterator[None]:
    """Guard the reading of objects that history from `ts` on needs: a missing object raises StaleRead.

    While history from `ts` on is kept, Unavailable stays Unavailable: plan again, then repeat.
    """
    try:
        yield
    except Unavailable as error:
        try:
            now = manifest_log.load(storage, paths.table_root(table_id))
        except PenstockError:
            raise error from None
        if ts < now.oldest_ts:
            raise StaleRead(f"table {table_id}", ts, oldest_ts=now.oldest_ts) from error
        raise


def _history_from(manifest: ManifestState, from_ts: int | None) -> int:
    return manifest.history_ts if from_ts is None else min(from_ts, manifest.history_ts)


def _with_archives(
    storage: ObjectStorage, table_id: int, manifest: ManifestState, from_ts: int
) -> ManifestState | None:
    archived: dict[str, ObjectInfo] = {}
    for archive in manifest.archives:
        if archive.upto_ts > from_ts:  # else every object in it was removed before `from_ts`
            path = paths.archive(paths.table_root(table_id), archive.id)
            data = storage.read(path)
            if data is None:
                return None
            archived |= {info.id: info for info in read_archive(data, path=path)}
    return replace(manifest, objects={**archived, **manifest.objects}) if archived else manifest
