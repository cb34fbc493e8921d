"""The manifest log on storage: anybody reads it, one owner at a time writes it.

An entry is committed when its numbered file is created; creation fails when the number is taken. Opening a
log for writing commits an entry with a higher epoch, so that a former owner's next commit meets it and stops.
`Ownership` holds the log of one table through failures of storage.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.clock import SYSTEM, Clock
from penstock.errors import Corrupt, Fenced, PenstockError, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.manifest import (
    Archive,
    ManifestEntry,
    ManifestState,
    ObjectInfo,
    Removal,
    read_entry,
    read_state,
    write_entry,
    write_state,
)
from penstock.eventstore.schema_version import SCHEMA_FACT, SchemaVersion
from penstock.object_storage import ObjectStorage

CHECKPOINT_ENTRIES = 64
_OPEN_ATTEMPTS = 100
_LOAD_ATTEMPTS = 3

_log = logging.getLogger(__name__)


def load(storage: ObjectStorage, root: str) -> ManifestState:
    """Read the newest state: the newest checkpoint, then every entry after it.

    Raises Corrupt when a file is damaged and no other has its content, Unavailable when storage does not
    answer.
    """
    for _ in range(_LOAD_ATTEMPTS):
        checkpoints = _checkpoints(storage, root)
        state = _replay(storage, root, _newest_readable(storage, checkpoints))
        if state.seq >= max(checkpoints, default=0):
            return state  # else old files were collected while they were read, or are damaged
    raise Corrupt(f"{root}: checkpoint {max(checkpoints)} cannot be read; keep the folder for inspection")


def _checkpoints(storage: ObjectStorage, root: str) -> dict[int, str]:
    """Return the paths of the checkpoints by number."""
    # Checkpoints sort after every entry, so the listing starts at the first of them.
    names = storage.names(paths.manifest_folder(root), after=paths.manifest_checkpoint(root, 0))
    numbered = ((paths.checkpoint_seq(path), path) for path in names)
    return {seq: path for seq, path in numbered if seq is not None}


def _newest_readable(storage: ObjectStorage, checkpoints: Mapping[int, str]) -> ManifestState:
    for _, path in sorted(checkpoints.items(), reverse=True):
        data = storage.read(path)
        if data is None:
            continue
        try:
            return read_state(data, path=path)
        except Corrupt as error:  # the entries have the same content: an older fold only costs more reads
            _log.warning("checkpoint skipped", extra={"path": path, "reason": str(error)})
    return ManifestState()


def _replay(storage: ObjectStorage, root: str, state: ManifestState) -> ManifestState:
    """Fold the entries after a state. Numbers have no holes, so the first missing one is the end."""
    while True:
        path = paths.manifest_entry(root, state.seq + 1)
        data = storage.read(path)
        if data is None:
            return state
        entry = read_entry(data, path=path)
        try:
            state = state.apply(entry)
        except Corrupt as error:
            raise Corrupt(f"manifest file {path} does not fit: {error}") from error


class ManifestLog:
    """One owner's handle on a manifest log. Use it from one thread at a time.

    After Unavailable a commit may or may not have happened. Open the log again to find out.
    """

    def __init__(self, storage: ObjectStorage, root: str, state: ManifestState, clock: Clock) -> None:
        self._storage = storage
        self._root = root
        self._clock = clock
        self._epoch = state.epoch
        self._writer = state.writer
        self._checkpoint_seq = state.seq - state.seq % CHECKPOINT_ENTRIES
        self.state = state

    @classmethod
    def open(
        cls,
        storage: ObjectStorage,
        root: str,
        *,
        writer: str,
        after_epoch: int | None = None,
        clock: Clock = SYSTEM,
    ) -> "ManifestLog":
        """Become the owner; every earlier owner is fenced from then on.

        With `after_epoch` the owner of that epoch opens the log again: raise Fenced when somebody else has
        become the owner since.
        """
        for _ in range(_OPEN_ATTEMPTS):
            state = load(storage, root)
            if after_epoch is not None and state.epoch > after_epoch and state.writer != writer:
                raise Fenced(_describe_owner(root, state.writer, state.epoch))
            entry = ManifestEntry(
                seq=state.seq + 1, epoch=state.epoch + 1, writer=writer, id=clock.unique_id()
            )
            if _create(storage, root, entry) is not None:
                continue
            # Once an entry is collected, its number is free again; but then a later checkpoint exists.
            if max(_checkpoints(storage, root), default=0) < entry.seq:
                return cls(storage, root, state.apply(entry), clock)
        raise Fenced(f"{root} is opened by others again and again; run one owner for each table")

    @property
    def epoch(self) -> int:
        """The epoch that this owner writes with."""
        return self._epoch

    def confirm(self) -> None:
        """Raise Fenced when a newer owner has opened the log; apart from this only a commit finds out."""
        found = load(self._storage, self._root)
        if found.epoch > self._epoch:
            raise Fenced(_describe_owner(self._root, found.writer, found.epoch))

    def commit(
        self,
        *,
        add: Sequence[ObjectInfo] = (),
        remove: Sequence[Removal] = (),
        flushed_ts: int = 0,
        facts: Sequence[Mapping[str, Any]] = (),
        archive: Archive | None = None,
        forget: Sequence[str] = (),
        collect: Sequence[str] = (),
    ) -> ManifestState:
        """Append one entry and return the state after it.

        Raises Fenced when a newer owner has opened the log, Unavailable when storage does not answer.
        """
        entry = ManifestEntry(
            seq=self.state.seq + 1,
            epoch=self._epoch,
            writer=self._writer,
            id=self._clock.unique_id(),
            add=tuple(add),
            remove=tuple(remove),
            flushed_ts=flushed_ts,
            facts=tuple(facts),
            archive=archive,
            forget=tuple(forget),
            collect=tuple(collect),
        )
        after = self.state.apply(entry)
        rival = _create(self._storage, self._root, entry)
        if rival is not None:
            if rival.epoch > self._epoch:
                raise Fenced(_describe_owner(self._root, rival.writer, rival.epoch))
            raise Corrupt(
                f"{self._root}: entry {entry.seq} of epoch {rival.epoch} was not written by its only owner"
            )
        self.state = after
        self._checkpoint()
        return after

    def _checkpoint(self) -> None:
        """Fold the log from time to time; a failure only costs readers time."""
        if self.state.seq - self._checkpoint_seq < CHECKPOINT_ENTRIES:
            return
        path = paths.manifest_checkpoint(self._root, self.state.seq)
        try:
            self._storage.write(path, write_state(self.state))
        except PenstockError as error:
            _log.warning("checkpoint not written", extra={"path": path, "reason": str(error)})
            return
        self._checkpoint_seq = self.state.seq


def _create(storage: ObjectStorage, root: str, entry: ManifestEntry) -> ManifestEntry | None:
    """Commit an entry; return the rival's entry that has its number, or None when ours has it."""
    path = paths.manifest_entry(root, entry.seq)
    if storage.create(path, write_entry(entry)):
        return None
    data = storage.read(path)
    if data is None:
        raise Corrupt(f"manifest file {path} was there and is gone; do not remove files of a manifest")
    rival = read_entry(data, path=path)
    return None if rival.id == entry.id else rival


def _describe_owner(root: str, writer: str, epoch: int) -> str:
    return f"{root} is owned by {writer} since epoch {epoch}; stop writing it"


class Ownership:
    """The right to write one table's manifest. Use its methods from one thread at a time, `state` from any.

    After a commit whose outcome is unknown, `settle` opens the log again with a higher epoch: an entry that
    is still on its way then meets a taken number. So a crash, a lost answer and a lost request take the same
    path.
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
        """Find out whether an earlier commit happened; raise Fenced when the table has a newer owner."""
        if self._doubtful:
            self._log = ManifestLog.open(
                self._storage, self._root, writer=self._writer, after_epoch=self._log.epoch, clock=self._clock
            )
            self._doubtful = False
            self._remember(self._log.state)
        return self.state

    def confirm(self) -> None:
        """Ask storage whether the table is still owned here, as a commit would; raise Fenced if not."""
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
        """Append one entry, with those schemas that the manifest does not have; return the state after it.

        After Unavailable it may have happened: call `settle` before anything else.
        """
        assert not self._doubtful, "settle first"
        known = {fact["version"] for fact in self.state.facts if fact["kind"] == SCHEMA_FACT}
        fresh = [version.as_fact() for version in schemas if version.version not in known]
        try:
            state = self._log.commit(
                add=add,
                remove=remove,
                flushed_ts=flushed_ts,
                facts=[*fresh, *facts],
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
