"""What a capture tells readers of its tables besides their rows: their names, and their ends."""

import logging
from collections.abc import Iterable

from penstock.errors import Fenced
from penstock.eventstore.namemarks import NameMarks, dropped_fact, says_dropped
from penstock.eventstore.schemas import CapturedTable, SchemaHistory
from penstock.eventstore.storage import Storage
from penstock.eventstore.store import EventStore

_log = logging.getLogger(__name__)


class TableNames:
    """Keeps name marks and ends up to date. Every call blocks on storage and raises Unavailable for it."""

    def __init__(self, storage: Storage, store: EventStore, schemas: SchemaHistory) -> None:
        self._storage = storage
        self._store = store
        self._schemas = schemas
        self._marks = NameMarks(storage)
        self._unended: set[int] = set()

    def start(self) -> None:
        """Find the tables that were dropped while nobody captured them, or whose owner was lost then."""
        dropped = {table.physical_id for table in self._schemas.tables_ever() if table.dropped_ts}
        known = dropped.intersection(self._marks.ids())
        self._unended = {each for each in known if not says_dropped(self._storage, each)}

    def mark(self, table_ids: Iterable[int]) -> None:
        """Let readers find tables by every name that they have or had."""
        for table_id in table_ids:
            self._marks.mark(self._schemas.names(table_id), table_id)

    def unended(self, table_id: int) -> bool:
        """Whether a table was dropped before the start and its manifest does not say so."""
        return table_id in self._unended

    def end(self, table: CapturedTable) -> None:
        """Have the manifest of a dropped table say so; when there is a newer owner, that one will."""
        if not table.dropped_ts:
            return
        try:
            self._store.state_fact(table.physical_id, dropped_fact(table.dropped_ts))
        except Fenced as error:
            _log.info("a newer owner ends the table", extra={"reason": str(error)})
        self._unended.discard(table.physical_id)
