"""Who waits for whom, and whether one more wait would close a cycle."""

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.proto import deadlock_pb2 as deadlock

Chain = list[deadlock.WaitForEntry]


class _Edge(NamedTuple):
    entry: deadlock.WaitForEntry
    seen_at: float


@dataclass(slots=True)
class Detector:
    """The graph of waits. An edge is gone `ttl_s` after it was last seen, should nobody remove it.

    Invariant: the live edges have no cycle, since an edge that would close one is refused.
    """

    ttl_s: float
    _edges: dict[int, dict[int, dict[bytes, _Edge]]] = field(default_factory=dict)  # txn, wait_for, key

    def detect(self, entry: deadlock.WaitForEntry, now: float) -> Chain | None:
        """Add a wait and return None; or refuse it and return the cycle it would close.

        The cycle begins with the lock's holder; its last entry is the refused one, and the one before
        that is the wait for the refused transaction.
        """
        path = self._path(entry.wait_for_txn, entry.txn, now)
        if path is not None:
            return [*path, entry]
        waits = self._edges.setdefault(entry.txn, {}).setdefault(entry.wait_for_txn, {})
        waits[entry.key] = _Edge(entry, now)
        return None

    def remove(self, entry: deadlock.WaitForEntry) -> None:
        """Forget a wait that is over; it may be gone already."""
        targets = self._edges.get(entry.txn, {})
        waits = targets.get(entry.wait_for_txn, {})
        waits.pop(entry.key, None)
        if not waits:
            targets.pop(entry.wait_for_txn, None)
        if not targets:
            self._edges.pop(entry.txn, None)

    def is_empty(self) -> bool:
        """Tell whether nobody waits."""
        return not self._edges

    def _path(self, source: int, target: int, now: float) -> Chain | None:
        """Return the waits that lead from one transaction to another, if any do."""
        came_by: dict[int, deadlock.WaitForEntry] = {}
        stack = [source]
        while stack:
            txn = stack.pop()
            for waited_for, entry in self._live(txn, now):
                if waited_for in came_by or waited_for == source:
                    continue
                came_by[waited_for] = entry
                if waited_for == target:
                    return _trace(came_by, source, target)
                stack.append(waited_for)
        return None

    def _live(self, txn: int, now: float) -> list[tuple[int, deadlock.WaitForEntry]]:
        targets = self._edges.get(txn, {})
        live = []
        for waited_for, waits in list(targets.items()):
            for key, edge in list(waits.items()):
                if now - edge.seen_at > self.ttl_s:
                    del waits[key]
            if waits:
                live.append((waited_for, next(iter(waits.values())).entry))
            else:
                del targets[waited_for]
        return live


def _trace(came_by: dict[int, deadlock.WaitForEntry], source: int, target: int) -> Chain:
    chain = []
    txn = target
    while txn != source:
        entry = came_by[txn]
        chain.append(entry)
        txn = entry.txn
    chain.reverse()
    return chain
