"""One table's manifest, held by its owner through failures of storage."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.clock import Clock
from penstock.errors import Unavailable
from penstock.eventstore import paths
from penstock.eventstore.manifest import Archive, ManifestState, ObjectInfo, Removal
from penstock.eventstore.manifest_log import ManifestLog
from penstock.eventstore.schema_version import SCHEMA_FACT, SchemaVersion
from penstock.object_storage import ObjectStorage


class Ownership:
    """The right to write one table's manifest. Use its methods from one thread at a time, `state` from any.

    After a commit whose outcome is unknown the log is opened again with a higher epoch: an entry that is
    still on its way then meets a taken number. So there is one path for a crash, a lost answer and a
    lost request.
    """

    def __init__(self, storage: ObjectStorage, table_id: int, *, writer: str, clock: Clock) -> None:
        self._storage = storage
        self._root = paths.table_root(table_id)
        self._writer = writer
        self._clock = clock
        self._lock = threading.Lock()
        self._log = ManifestLog.open(storage, self._root, writer=writer, clock=clock)
        self._state = self._log.state
        self._doubtful = False

    @property
    def state(self) -> ManifestState:
        """The newest state that is known for certain."""
        with self._lock:
            return self._state

    def settle(self) -> ManifestState:
        """Find out what an earlier commit came to; raise Fenced when the table has a newer owner."""
        if self._doubtful:
            self._log = ManifestLog.open(
                self._storage, self._root, writer=self._writer, after_epoch=self._log.epoch, clock=self._clock
            )
            self._doubtful = False
            self._remember(self._log.state)
        return self.state

    def confirm(self) -> None:
        """Ask storage whether the table is still owned here, as a commit would; raise Fenced when not."""
        self._log.confirm()

    def commit(
        self,
        *,
        add: Sequence[ObjectInfo] = (),
        remove: Sequence[Removal] = (),
        flushed_ts: int = 0,
        schemas: Sequence[SchemaVersion] = (),
        facts: Sequence[Mapping[str, Any]] = (),
        archive: Archive | None = None,
        forget: Sequence[str] = (),
        collect: Sequence[str] = (),
    ) -> ManifestState:
        """Append one entry, with those of the schemas that the manifest lacks; return the state after it.

        After Unavailable it may have happened: call `settle` before anything else.
        """
        assert not self._doubtful, "settle first"
        known = {fact["version"] for fact in self.state.facts if fact["kind"] == SCHEMA_FACT}
        learnt = [each.as_fact() for each in schemas if each.version not in known]
        try:
            state = self._log.commit(
                add=add,
                remove=remove,
                flushed_ts=flushed_ts,
                facts=[*learnt, *facts],
                archive=archive,
                forget=forget,
                collect=collect,
            )
        except Unavailable:
            self._doubtful = True
            raise
        self._remember(state)
        return state

    def _remember(self, state: ManifestState) -> None:
        with self._lock:
            self._state = state
