"""Plain keys with revisions, as clients expect of the etcd beside a placement driver."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.proto import mvccpb_pb2 as mvccpb
from penstock.store import meta
from penstock.store.engine import Cf, Engine, Mutation

__all__ = ["EtcdKeys", "Event"]

_HISTORY_MAX = 1000


@dataclass(frozen=True, slots=True)
class Event:
    """A key was put, or deleted when there is no value, at a revision."""

    revision: int
    key: bytes
    value: bytes | None


class EtcdKeys:
    """A small map of plain keys; every change has a revision, and the newest changes can be watched."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.revision = meta.unpack(engine.view().get(Cf.META, meta.ETCD_REVISION)) or 1
        self._oldest = self.revision + 1
        self._history: deque[Event] = deque(maxlen=_HISTORY_MAX)
        self._changed = asyncio.Condition()

    def get(self, key: bytes) -> mvccpb.KeyValue | None:
        stored = self._engine.view().get(Cf.META, meta.ETCD + key)
        return mvccpb.KeyValue.FromString(stored) if stored is not None else None

    def scan(self, start: bytes, end: bytes) -> list[mvccpb.KeyValue]:
        """Return the keys in [start, end), in order; an empty end is no end."""
        upper = meta.ETCD + end if end else meta.after(meta.ETCD)
        found = self._engine.view().iterate(Cf.META, meta.ETCD + start, upper)
        return [mvccpb.KeyValue.FromString(value) for _, value in found]

    async def write(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Put or (with None) delete keys, all at one new revision."""
        async with self._changed:
            revision = self.revision + 1
            mutations: list[Mutation] = [(Cf.META, meta.ETCD_REVISION, meta.pack(revision))]
            mutations += [self._mutation(key, value, revision) for key, value in changes]
            await self._engine.write(mutations)
            self.revision = revision
            for key, value in changes:
                if len(self._history) == _HISTORY_MAX:
                    self._oldest = self._history[0].revision + 1
                self._history.append(Event(revision, key, value))
            self._changed.notify_all()

    def _mutation(self, key: bytes, value: bytes | None, revision: int) -> Mutation:
        name = meta.ETCD + key
        if value is None:
            return Cf.META, name, None
        old = self.get(key)
        kept = mvccpb.KeyValue(
            key=key,
            value=value,
            create_revision=old.create_revision if old else revision,
            mod_revision=revision,
            version=old.version + 1 if old else 1,
        )
        return Cf.META, name, kept.SerializeToString()

    def remembers(self, revision: int) -> bool:
        """Tell whether every change from `revision` on can still be told."""
        return revision >= self._oldest

    async def changes(self, prefix: bytes, revision: int) -> list[Event]:
        """Wait for changes below `prefix` at or after `revision`; return them in order.

        What has left the history meanwhile is not told: ask `remembers` before each call.
        """
        async with self._changed:
            while True:
                found = [e for e in self._history if e.revision >= revision and e.key.startswith(prefix)]
                if found:
                    return found
                await self._changed.wait()
