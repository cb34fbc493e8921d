"""Garbage collection of one table: files that nobody reads any more leave the manifest, then storage.

Removed objects go into an archive once they are older than the time to live: they are history, and only a
reader that asks for history reads the archive. An archive that no history hold needs is collected: its
history is gone from then on, and its files are deleted. Every step may be lost half-way: files that no
manifest names are orphans, which the sweep finds. Only a table's owner collects it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock import metrics
from penstock.clock import Clock, compose_ts
from penstock.errors import Corrupt, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.history_holds import HistoryHolds
from penstock.eventstore.manifest import (
    Archive,
    ManifestState,
    ObjectInfo,
    read_archive,
    read_entry,
    read_state,
    write_archive,
)
from penstock.eventstore.objects.flush import OwnedTable
from penstock.eventstore.paths import Side
from penstock.object_storage import STAGING, ObjectStorage, StoredObject

_ARCHIVED_MAX = 10_000  # objects in one archive
_SIDES: tuple[Side, ...] = ("data", "tombstone")
_OBJECT_ID = re.compile(rb"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectPolicy:
    """How long files are kept that may be deleted."""

    ttl_ms: int
    orphan_ms: int

    def objects_to_archive(self, state: ManifestState) -> list[ObjectInfo]:
        """Return the objects that were removed longer ago than the time to live, oldest first."""
        upto_ts = state.flushed_ts - compose_ts(self.ttl_ms)
        found = [info for info in state.objects.values() if 0 < info.delete_ts <= upto_ts]
        return sorted(found, key=lambda info: (info.delete_ts, info.id))[:_ARCHIVED_MAX]

    def archives_to_collect(
        self, archives: Iterable[Archive], lowest_ts: int | None, written_ms: Mapping[str, int], now_ms: int
    ) -> list[Archive]:
        """Return the archives, oldest first, that no history hold needs and that nobody can be reading.

        A reader that planned just before an object was removed reads it a little later. So an archive itself
        stays for the time to live, however old its objects are by the table's own time.
        """
        found: list[Archive] = []
        for archive in sorted(archives, key=lambda archive: archive.upto_ts):
            age_ms = max(0, now_ms - written_ms.get(archive.id, now_ms))  # clocks of machines differ
            young = age_ms < self.ttl_ms
            if young or (lowest_ts is not None and archive.upto_ts > lowest_ts):
                break
            found.append(archive)
        return found

    def old_manifest(self, files: Sequence[StoredObject], now_ms: int) -> "OldManifest | None":
        """Return the manifest files that nobody needs: all before the second newest checkpoint."""
        checkpoints = sorted(
            (seq, stored) for stored in files if (seq := paths.checkpoint_seq(stored.path)) is not None
        )
        if len(checkpoints) < 2:
            return None
        base_seq, base = checkpoints[-2]
        old = [stored for stored in files if now_ms - stored.modified_ms >= self.ttl_ms]
        return OldManifest(
            base=base.path,
            checkpoints=[stored.path for seq, stored in checkpoints if seq < base_seq and stored in old],
            entries=[
                stored.path for stored in old if (paths.entry_seq(stored.path) or base_seq + 1) <= base_seq
            ],
        )


@dataclass(frozen=True, slots=True)
class OldManifest:
    """Files that are superfluous beside `base` and the entries after it."""

    base: str
    checkpoints: list[str]
    entries: list[str]


@dataclass(slots=True)
class Collector:
    """Collects tables, each from one thread at a time. `proceed` may raise to end the work."""

    storage: ObjectStorage
    policy: CollectPolicy
    clock: Clock
    proceed: Callable[[], None] = lambda: None
    opening: set[str] = field(default_factory=set)  # manifest entries that must stay

    def collect(self, table: OwnedTable) -> int:
        """Archive objects, collect archives and trim the manifest; return how many files were deleted.

        Raises Unavailable when storage does not answer, Fenced when the table has a newer owner, Corrupt when
        a file is damaged that says what is needed: then nothing more is deleted.
        """
        table_id = table.rows.table_id
        self._archive(table)
        deleted = self._collect(table)
        deleted += self._trim(table_id)
        deleted += self._delete_expired_holds(table_id)
        return deleted

    def _settle(self, table: OwnedTable) -> ManifestState:
        if table.rows.disowned:
            raise Unavailable(f"table {table.rows.table_id} is no longer captured here; ask its owner")
        return table.ownership.settle()

    def _archive(self, table: OwnedTable) -> None:
        with table.flushing:
            state = self._settle(table)
            removed = self.policy.objects_to_archive(state)
            if not removed:
                return
            archive = Archive(id=self.clock.unique_id(), upto_ts=removed[-1].delete_ts, objects=len(removed))
            path = paths.archive(paths.table_root(table.rows.table_id), archive.id)
            self.storage.write(path, write_archive(removed))
            table.commit(archive=archive, forget=[info.id for info in removed])
        metrics.EVENTSTORE_ARCHIVED_OBJECTS_TOTAL.inc(len(removed))

    def _collect(self, table: OwnedTable) -> int:
        """Give up the history that nobody needs, then delete its files."""
        table_id = table.rows.table_id
        root = paths.table_root(table_id)
        written_ms = {
            paths.object_id(stored.path): stored.modified_ms
            for stored in self.storage.list_objects(paths.archive_folder(root))
        }
        with table.flushing:
            state = self._settle(table)
            lowest_ts = HistoryHolds(self.storage, self.clock).lowest_ts(table_id)  # read while no flush runs
            chosen = self.policy.archives_to_collect(
                state.archives, lowest_ts, written_ms, self.clock.wall_ms()
            )
            if not chosen:
                return 0
            lists = [self._read_archive(root, archive) for archive in chosen]
            table.ownership.commit(collect=[archive.id for archive in chosen])
        doomed = [paths.object_path(root, info.side, info.id) for listed in lists for info in listed]
        doomed += [paths.archive(root, archive.id) for archive in chosen]  # last: they list the other files
        return self._delete("history", doomed)

    def _read_archive(self, root: str, archive: Archive) -> list[ObjectInfo]:
        path = paths.archive(root, archive.id)
        data = self.storage.read(path)
        if data is None:
            raise Corrupt(f"archive {path} does not exist, so {root} is not collected; restore the archive")
        return read_archive(data, path=path)

    def _trim(self, table_id: int) -> int:
        """Delete the manifest files that were folded long ago."""
        folder = paths.manifest_folder(paths.table_root(table_id))
        old = self.policy.old_manifest(self.storage.list_objects(folder), self.clock.wall_ms())
        if old is None:
            return 0
        doomed = [path for path in old.entries if path not in self.opening and not self._opens(path)]
        doomed += old.checkpoints
        if doomed:
            read_state(
                self.storage.read(old.base) or b"", path=old.base
            )  # it must be readable, because it replaces what is deleted
        return self._delete("manifest", doomed)

    def _opens(self, path: str) -> bool:
        data = self.storage.read(path)
        if data is None or not read_entry(data, path=path).is_opening:
            return False
        self.opening.add(path)
        return True

    def _delete_expired_holds(self, table_id: int) -> int:
        """Delete holds that expired so long ago that their holder is not about to renew them."""
        before_ms = self.clock.wall_ms() - self.policy.orphan_ms
        holds = HistoryHolds(self.storage, self.clock).list_holds(table_id)
        return self._delete("watermark", [hold.path for hold in holds if hold.is_expired(before_ms)])

    def sweep(self, table: OwnedTable) -> int:
        """Delete the old files that nothing names, left by crashes; return how many.

        Raises Unavailable when storage does not answer, Fenced when the table has a newer owner: what was
        deleted until then stays deleted.
        """
        root = paths.table_root(table.rows.table_id)
        before_ms = self.clock.wall_ms() - self.policy.orphan_ms
        folders = [
            *(paths.object_folder(root, side) for side in _SIDES),
            paths.archive_folder(root),
            STAGING,
        ]
        listed = [stored for folder in folders for stored in self.storage.list_objects(folder)]
        old = [stored.path for stored in listed if stored.modified_ms <= before_ms]
        named = self._list_loading(root)
        # The state is newer than the listing: it names all files that were committed meanwhile, unless the
        # table has a newer owner.
        with table.flushing:
            state = self._settle(table)
            table.ownership.confirm()
        named.update(state.objects, (archive.id for archive in state.archives))
        unnamed = [path for path in old if paths.object_id(path) not in named]
        if not unnamed:
            return 0
        for archive in state.archives:
            named.update(info.id for info in self._read_archive(root, archive))
        return self._delete("orphan", [path for path in unnamed if paths.object_id(path) not in named])

    def _list_loading(self, root: str) -> set[str]:
        """Return the objects of a load in progress: everything in its files that has the form of an id."""
        found = (self.storage.read(path) for path in self.storage.names(paths.load_folder(root)))
        return {object_id.decode() for data in found if data for object_id in _OBJECT_ID.findall(data)}

    def _delete(self, what: str, doomed: Sequence[str]) -> int:
        for path in doomed:
            self.proceed()
            self.storage.delete(path)
            metrics.EVENTSTORE_COLLECTED_FILES_TOTAL.labels(what).inc()
        return len(doomed)
