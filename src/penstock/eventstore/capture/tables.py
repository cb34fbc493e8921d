"""Which tables a capture owns, and what it records of their names and ends for readers.

`owner_of` and `matches_patterns` are pure: every capture that sees the same members agrees.
"""

import hashlib
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase

from penstock.clock import TS_MAX
from penstock.errors import Corrupt, Fenced
from penstock.eventstore import manifest_log, paths
from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.manifest import dropped_fact, dropped_ts, knows_end
from penstock.eventstore.read.find import NameMarks
from penstock.eventstore.schema_history import CapturedTable, SchemaHistory
from penstock.object_storage import ObjectStorage
from penstock.tables.system_tables import is_job_log, is_named, is_system

_log = logging.getLogger(__name__)


class TableNames:
    """Keeps name marks and ends up to date. Every call blocks on storage, and may raise Unavailable."""

    def __init__(self, storage: ObjectStorage, store: EventStore, schemas: SchemaHistory) -> None:
        self._storage = storage
        self._store = store
        self._schemas = schemas
        self._marks = NameMarks(storage)
        self._unended: set[int] = set()
        self.forgotten: dict[int, set[tuple[str, str]]] = {}
        """Tables on storage, with their names, that the cluster does not know; `end_forgotten` ends one."""

    def start(self) -> None:
        """Find the tables that were dropped while nobody captured them, or whose owner was lost then."""
        ends = {table.physical_id: table.dropped_ts for table in self._schemas.tables_ever()}
        marked = self._marks.names()
        dropped = [table_id for table_id in marked if ends.get(table_id)]
        self._unended = {table_id for table_id in dropped if self._lacks_end(table_id)}
        self.forgotten = {table_id: names for table_id, names in marked.items() if table_id not in ends}

    def mark(self, table_ids: Iterable[int]) -> None:
        """Let readers find tables by every name that they have or had."""
        for table_id in table_ids:
            self._marks.mark(self._schemas.names(table_id), table_id)

    def is_marked(self, table_id: int) -> bool:
        """Return whether a table was ever captured, or loaded."""
        return table_id in self._marks.names()

    def is_unended(self, table_id: int) -> bool:
        """Return whether a table was dropped before the start and its manifest does not say so."""
        return table_id in self._unended

    def end(self, table: CapturedTable) -> None:
        """Record in the manifest of a dropped table that it ended; leave that to a newer owner, if any."""
        if not table.dropped_ts:
            return
        self.mark([table.physical_id])  # it may have got its last name just before
        try:
            self._store.record_fact(table.physical_id, dropped_fact(table.dropped_ts))
        except Fenced as error:
            _log.info("a newer owner ends the table", extra={"reason": str(error)})
        self._unended.discard(table.physical_id)

    def end_forgotten(self, table_id: int) -> None:
        """End a table that was dropped so long ago that the cluster has collected the drop, too.

        Its manifest records as the end the timestamp after its last change, because the time of the drop is
        unknown. A table that was never flushed gets a manifest for it: readers of its name would wait for its
        first flush.
        """
        if self._lacks_end(table_id, unflushed=True):
            try:
                log = manifest_log.ManifestLog.open(self._storage, paths.table_root(table_id), writer="ends")
                log.commit(facts=[dropped_fact(log.state.flushed_ts + 1, exact=False)])
            except Fenced as error:
                _log.info("a newer owner ends the table", extra={"reason": str(error)})
            else:
                _log.info("table ended: dropped while nobody captured it", extra={"table_id": table_id})
        del self.forgotten[table_id]

    def follows_lost_end(self, table_id: int) -> bool:
        """Return whether a name of a table belonged to another one, and it is unknown until when.

        The cluster has collected that drop. Before the collection a reader of the name may not get the
        later table, which was empty then.
        """
        names = {(database.lower(), table.lower()) for database, table in self._schemas.names(table_id)}
        known = {table.physical_id for table in self._schemas.tables_ever()}
        return any(
            not names.isdisjoint(others) and not self._has_exact_end(other)
            for other, others in self._marks.names().items()
            if other not in known
        )

    def _has_exact_end(self, table_id: int) -> bool:
        try:
            return knows_end(manifest_log.load(self._storage, paths.table_root(table_id)).facts)
        except Corrupt:  # nobody can read the table either
            return False

    def find_uninvited(self, patterns: Sequence[str]) -> set[int]:
        """Return the tables on storage that are the job log, unless a pattern is its very name.

        Earlier releases captured it through wildcards. A table that ever had another name is not returned.
        """
        return {
            table_id
            for table_id, names in self._marks.names().items()
            if all(is_job_log(*name) and not is_named(*name, patterns) for name in names)
        }

    def remove(self, table_id: int) -> None:
        """Remove everything that storage has of a table. When that fails, the next call goes on.

        An owner of an earlier release is fenced first. The mark goes last: until then the table is found.
        """
        root = paths.table_root(table_id)
        with suppress(Corrupt):  # nobody can write such a manifest either
            manifest_log.ManifestLog.open(self._storage, root, writer="removal")
        manifest = paths.manifest_folder(root)
        found = self._storage.names(f"{root}/")
        for path in sorted(found, key=lambda path: path.startswith(manifest)):  # the manifest after objects
            self._storage.delete(path)
        self._marks.unmark(table_id)

    def _lacks_end(self, table_id: int, *, unflushed: bool = False) -> bool:
        """Return whether a table that is gone from the cluster has a manifest that does not say so.

        With `unflushed`, also whether it has no manifest.
        """
        try:
            state = manifest_log.load(self._storage, paths.table_root(table_id))
        except Corrupt as error:
            _log.warning(
                "a dropped table cannot be ended", extra={"table_id": table_id, "reason": str(error)}
            )
            return False
        return (unflushed or state.seq > 0) and not dropped_ts(state.facts, TS_MAX)


def owner_of(table_id: int, captures: Iterable[str]) -> str | None:
    """Return the capture with the highest hash for a table; when one leaves, only its own tables move."""
    return max(captures, key=lambda capture: (_weight(capture, table_id), capture), default=None)


def _weight(capture: str, table_id: int) -> bytes:
    return hashlib.blake2b(f"{capture}/{table_id}".encode(), digest_size=8).digest()


def matches_patterns(database: str, table: str, patterns: Sequence[str]) -> bool:
    """Return whether `database.table` fits one of the patterns; names are compared without case.

    A system table fits only a pattern that is its very name.
    """
    if is_system(database):
        return is_named(database, table, patterns)
    name = f"{database}.{table}".lower()
    return any(fnmatchcase(name, pattern.lower()) for pattern in patterns)
