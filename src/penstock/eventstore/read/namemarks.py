"""Marks on storage that lead from a table's name to its physical tables, and the end of a table as a fact.

A mark says that a physical table has, or had, a name; the table's owner writes it, and nobody removes it.
Which table has the name when is said by the manifests' facts.
"""

import threading
from collections.abc import Iterable

from penstock.eventstore import paths
from penstock.object_storage import ObjectStorage


class NameMarks:
    """Writes marks, each once. Thread-safe. Names are compared without case, as the database does.

    Every method raises Unavailable when storage does not answer.
    """

    def __init__(self, storage: ObjectStorage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._written: frozenset[str] | None = None

    def mark(self, names: Iterable[tuple[str, str]], table_id: int) -> None:
        """Make a physical table known by the (database, table) names that it has or had."""
        wanted = {paths.name_mark(database.lower(), table.lower(), table_id) for database, table in names}
        missing = wanted - self._known()
        for path in sorted(missing):
            self._storage.write(path, b"")
        if missing:
            with self._lock:
                self._written = (self._written or frozenset()) | missing

    def names(self) -> dict[int, set[tuple[str, str]]]:
        """The physical tables that are known by any name: those that may have a manifest. With the names."""
        found: dict[int, set[tuple[str, str]]] = {}
        for path in self._known():
            mark = paths.marked_name(path)
            if mark is not None:
                found.setdefault(mark[2], set()).add(mark[:2])
        return found

    def _known(self) -> frozenset[str]:
        with self._lock:
            if self._written is None:
                self._written = frozenset(self._storage.names(paths.NAMES))
            return self._written
