"""Whose a target is and how far it has come: one key for each target, written with the target's rows."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from penstock.consumers.schema_evolution import TargetColumn, from_json, to_json
from penstock.errors import Corrupt, Fenced
from penstock.kv import Transaction

_PREFIX = b"penstock/jobs/target/"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvWatermark:
    """What is known of a target.

    `job` is the job's name as people know it: the same name may take its target over after it was registered
    anew. `table_id` is 0 while there is no table, `ts` 0 until the first sync is complete. `attempt` counts
    the first syncs that were begun: only the newest may write. `seen_id` is the greatest of the source's
    column ids at `ts`.
    """

    owner: str
    job: str
    table_id: int = 0
    ts: int = 0
    attempt: int = 0
    columns: tuple[TargetColumn, ...] = ()
    seen_id: int = 0


class MarkReader(Protocol):
    """What keys are read from."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""


class KvWatermarks:
    """The mark of one target, for one job."""

    def __init__(self, target: str, *, owner: str, job: str) -> None:
        self._target = target
        self._key = _PREFIX + target.lower().encode()
        self.fresh = KvWatermark(owner=owner, job=job)

    def read(self, view: MarkReader) -> KvWatermark | None:
        """What there is, whosever it is; raise Corrupt when it is damaged."""
        return self._parsed(view.get(self._key))

    def held(self, txn: Transaction) -> KvWatermark | None:
        """The same; the transaction does not commit when somebody else changes it."""
        return self._parsed(txn.get_for_update(self._key))

    def at(self, txn: Transaction, ts: int) -> KvWatermark:
        """The mark of this job, held; raise Fenced when the target is not at `ts`."""
        mark = self.held(txn)
        if mark is None or mark.owner != self.fresh.owner or not mark.ts or mark.ts != ts:
            raise Fenced(f"table {self._target} is not at {ts} any more")
        return mark

    def claimed(self, txn: Transaction, attempt: int) -> KvWatermark:
        """The mark of this job, held; raise Fenced when a newer first sync was begun."""
        mark = self.held(txn)
        if mark is None or (mark.owner, mark.attempt) != (self.fresh.owner, attempt):
            raise Fenced(f"a newer first sync of {self._target} was begun")
        return mark

    def put(self, txn: Transaction, mark: KvWatermark) -> None:
        """Write it."""
        tree = {**asdict(mark), "columns": to_json(mark.columns)}
        txn.put(self._key, json.dumps(tree).encode())

    def _parsed(self, value: bytes | None) -> KvWatermark | None:
        if value is None:
            return None
        try:
            tree = json.loads(value)
            mark = KvWatermark(**{**tree, "columns": ()})
        except (TypeError, ValueError):
            raise Corrupt(f"what is known of target {self._target} is damaged; keep it") from None
        return replace(mark, columns=tuple(from_json(tree["columns"])))
