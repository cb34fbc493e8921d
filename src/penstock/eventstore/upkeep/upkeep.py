"""Upkeep: merges and garbage collection of the tables that are owned here, beside flushes and reads.

`UpkeepPolicy` decides which table needs which task next; it has no clock and no thread. `Upkeep` runs the
tasks.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

from penstock import metrics
from penstock.clock import Clock
from penstock.errors import Fenced, PenstockError, Unavailable
from penstock.eventstore.objects.flush import OwnedTable
from penstock.eventstore.upkeep.gc import Collector, CollectPolicy
from penstock.eventstore.upkeep.merge import MergeOutput, MergePlan, MergeWriter, plan_merge, plan_merges
from penstock.eventstore.upkeep.merge_commit import commit_merge
from penstock.eventstore.upkeep.merge_policy import MergePolicy
from penstock.object_storage import ObjectStorage
from penstock.retry import BackoffPolicy
from penstock.settings import UpkeepSettings

_BACKOFF = BackoffPolicy(base_s=1.0, cap_s=300.0)


class UpkeepTask(StrEnum):
    """What a table needs from time to time."""

    MERGE = "merge"
    COLLECT = "collect"
    SWEEP = "sweep"


@dataclass(slots=True)
class TableUpkeep:
    """When the upkeep tasks of a table ran, in seconds of the monotonic clock.

    `merged_seq` is a state of its manifest in which nothing was left to merge.
    """

    merged_at: float
    collected_at: float
    swept_at: float
    merged_seq: int = 0
    retry_at: dict[UpkeepTask, float] = field(default_factory=dict)
    failures: Counter[UpkeepTask] = field(default_factory=Counter)

    def record_failure(self, task: UpkeepTask, now: float) -> float:
        """Postpone a task, and no other; return for how many seconds."""
        self.failures[task] += 1
        pause = _BACKOFF.delay_s(self.failures[task])
        self.retry_at[task] = now + pause
        return pause

    def record_success(self, task: UpkeepTask) -> None:
        """Forget earlier failures of a task."""
        del self.failures[task]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepPolicy:
    """The task that has been due the longest comes first, so that every table has its turn."""

    merge: bool
    merge_interval_s: float
    collect_interval_s: float
    sweep_interval_s: float

    def begin(self, now: float) -> TableUpkeep:
        """Return the upkeep of a table that is new here; it is swept after its first collection."""
        return TableUpkeep(now, now, now - self.sweep_interval_s + self.collect_interval_s)

    def choose(
        self, tables: Mapping[int, tuple[TableUpkeep, int]], now: float
    ) -> tuple[int, UpkeepTask] | None:
        """Return the next table and task; None: nothing is due.

        `tables` have the number of their last manifest entry.
        """
        due = [
            (at, table_id, task)
            for table_id, (upkeep, seq) in tables.items()
            for at, task in self._times(upkeep, seq)
            if max(at, upkeep.retry_at.get(task, at)) <= now
        ]
        return min(due)[1:] if due else None

    def _times(self, upkeep: TableUpkeep, seq: int) -> Iterator[tuple[float, UpkeepTask]]:
        if self.merge and seq != upkeep.merged_seq:
            yield upkeep.merged_at + self.merge_interval_s, UpkeepTask.MERGE
        yield upkeep.collected_at + self.collect_interval_s, UpkeepTask.COLLECT
        yield upkeep.swept_at + self.sweep_interval_s, UpkeepTask.SWEEP


_log = logging.getLogger(__name__)

_TICK_S = 1.0
_OVERTAKEN_MAX = 3  # merges that were written in vain before `merge` gives up


class _Stopped(Exception):
    """Work has to end, because the store closes or the table was given up."""


class Upkeep:
    """Runs the tasks that are due, on threads of its own. Thread-safe.

    A failure delays one task of a table, and nothing else: it is logged, counted and tried again later.
    `on_fenced` is called with a table that has a newer owner.
    """

    def __init__(
        self,
        settings: UpkeepSettings,
        storage: ObjectStorage,
        *,
        scratch: Path,
        sort_bytes: int,
        tables: Callable[[], Mapping[int, OwnedTable]],
        on_fenced: Callable[[OwnedTable], None],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._storage = storage
        self._scratch = scratch
        self._sort_bytes = sort_bytes
        self._tables = tables
        self._on_fenced = on_fenced
        self._clock = clock
        self._merging = MergePolicy(settings.merge_target_bytes)
        self._collecting = CollectPolicy(
            ttl_ms=int(settings.history_ttl_s * 1000), orphan_ms=int(settings.orphan_age_s * 1000)
        )
        self._policy = UpkeepPolicy(
            merge=settings.merge,
            merge_interval_s=settings.merge_interval_s,
            collect_interval_s=settings.collect_interval_s,
            sweep_interval_s=settings.orphan_age_s / 4,
        )
        self._opening: set[str] = set()
        self._lock = threading.Lock()
        self._upkeeps: dict[int, tuple[OwnedTable, TableUpkeep]] = {}
        self._busy: set[int] = set()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name=f"penstock-upkeep-{number}", daemon=True)
            for number in range(settings.threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads and wait for them; a half-written merge is discarded. Stopping twice is fine."""
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def merge(self, table: OwnedTable) -> int:
        """Merge until nothing is left to merge; return how many merges were committed.

        Raises Unavailable when storage does not answer or the table is given up, Fenced when it has a newer
        owner, Corrupt when an object is damaged.
        """
        done = overtaken = 0
        while overtaken < _OVERTAKEN_MAX:
            committed = self._merge_once(table, partial(self._require_owned, table))
            if committed is None:
                break
            done += committed
            overtaken += not committed
        return done

    def plan_merges(self, table: OwnedTable, plans_max: int) -> list[MergePlan]:
        """Plan merges for others to write at the same time; no object is in two of them."""
        state, table_id = table.ownership.state, table.rows.table_id
        return plan_merges(table_id, state, self._merging, now_ms=self._clock.wall_ms(), plans_max=plans_max)

    def commit(self, table: OwnedTable, plan: MergePlan, output: MergeOutput) -> bool:
        """Commit a merge that was written anywhere; return False when an input left the table meanwhile.

        A merge that took so long that its files may be swept is not committed. After Unavailable the commit
        may have happened; call it again to find out. Raises Fenced when the table has a newer owner.
        """
        age_ms = self._clock.wall_ms() - plan.made_ms
        committed = False
        if age_ms < self._collecting.orphan_ms / 2:
            writing = self._writer(plan, partial(self._require_owned, table))
            with table.flushing:
                committed = commit_merge(table, output, writing)
        metrics.EVENTSTORE_MERGES_TOTAL.labels("committed" if committed else "overtaken").inc()
        return committed

    def collect(self, table: OwnedTable) -> int:
        """Collect and sweep a table; return how many files were deleted.

        Raises Unavailable when storage does not answer, Fenced when the table has a newer owner, Corrupt when
        a file is damaged that says what is needed.
        """
        collector = self._collector(partial(self._require_owned, table))
        return collector.collect(table) + collector.sweep(table)

    def _merge_once(self, table: OwnedTable, proceed: Callable[[], None]) -> bool | None:
        """Plan, write and commit one merge; return whether it was committed, None when there is none."""
        started = self._clock.monotonic()
        state, table_id = table.ownership.state, table.rows.table_id
        plan = plan_merge(table_id, state, self._merging, now_ms=self._clock.wall_ms())
        if plan is None:
            return None
        output = self._writer(plan, proceed).write()
        committed = self.commit(table, plan, output)
        for direction, objects in (("read", (*plan.data, *plan.tombstones)), ("written", output.objects)):
            nbytes = sum(info.size_bytes for info in objects)
            metrics.EVENTSTORE_MERGED_BYTES_TOTAL.labels(direction).inc(nbytes)
        metrics.EVENTSTORE_MERGE_SECONDS.observe(self._clock.monotonic() - started)
        return committed

    def _writer(self, plan: MergePlan, proceed: Callable[[], None]) -> MergeWriter:
        return MergeWriter(plan, self._storage, self._scratch, self._sort_bytes, self._clock, proceed)

    def _collector(self, proceed: Callable[[], None]) -> Collector:
        return Collector(self._storage, self._collecting, self._clock, proceed, self._opening)

    def _require_owned(self, table: OwnedTable) -> None:
        if table.rows.disowned:
            raise Unavailable(f"table {table.rows.table_id} is no longer captured here; ask its owner")

    def _proceed(self, table: OwnedTable) -> None:
        if self._stopping.is_set() or table.rows.disowned:
            raise _Stopped

    def _work(self) -> None:
        while not self._stopping.is_set():
            taken = self._take()
            if taken is None:
                self._stopping.wait(_TICK_S)
                continue
            table, upkeep, task = taken
            try:
                self._try_task(table, upkeep, task)
            finally:
                with self._lock:
                    self._busy.discard(table.rows.table_id)

    def _take(self) -> tuple[OwnedTable, TableUpkeep, UpkeepTask] | None:
        """Take the longest due task of the tables that no thread works on; None: nothing is due."""
        now = self._clock.monotonic()
        owned = self._tables()
        with self._lock:
            self._upkeeps = {
                table_id: known
                if (known := self._upkeeps.get(table_id)) is not None and known[0] is table
                else (table, self._policy.begin(now))
                for table_id, table in owned.items()
            }
            free = {
                table_id: (upkeep, table.ownership.state.seq)
                for table_id, (table, upkeep) in self._upkeeps.items()
                if table_id not in self._busy
            }
            chosen = self._policy.choose(free, now)
            if chosen is None:
                return None
            table_id, task = chosen
            self._busy.add(table_id)
            return *self._upkeeps[table_id], task

    def _try_task(self, table: OwnedTable, upkeep: TableUpkeep, task: UpkeepTask) -> None:
        table_id = table.rows.table_id
        try:
            self._run_task(table, upkeep, task)
        except _Stopped:
            return
        except Fenced as error:
            metrics.EVENTSTORE_UPKEEP_FAILURES_TOTAL.labels(task, "fenced").inc()
            _log.warning("table lost", extra={"table_id": table_id, "reason": str(error)})
            with table.flushing:  # nothing goes on with the table once it can be taken again
                table.rows.disown()
            self._on_fenced(table)
            return
        except PenstockError as error:
            if table.rows.disowned:  # given up meanwhile
                return
            reason = "unavailable" if isinstance(error, Unavailable) else "failed"
            self._postpone(table_id, upkeep, task, reason, error)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the upkeep of other tables goes on
            _log.exception("upkeep failed unexpectedly", extra={"table_id": table_id, "duty": task})
            self._postpone(table_id, upkeep, task, "failed", error)
            return
        upkeep.record_success(task)

    def _postpone(
        self, table_id: int, upkeep: TableUpkeep, task: UpkeepTask, reason: str, error: Exception
    ) -> None:
        metrics.EVENTSTORE_UPKEEP_FAILURES_TOTAL.labels(task, reason).inc()
        pause_s = upkeep.record_failure(task, self._clock.monotonic())
        _log.warning(
            "upkeep failed; it will be tried again",
            extra={"table_id": table_id, "duty": task, "reason": str(error), "pause_s": pause_s},
        )

    def _run_task(self, table: OwnedTable, upkeep: TableUpkeep, task: UpkeepTask) -> None:
        proceed = partial(self._proceed, table)
        now = self._clock.monotonic()
        if task is UpkeepTask.MERGE:
            seq = table.ownership.state.seq
            if self._merge_once(table, proceed) is None:
                upkeep.merged_seq, upkeep.merged_at = seq, now
            else:  # there may be more to merge: due at once, but behind all that are due already
                upkeep.merged_at = now - self._settings.merge_interval_s
        elif task is UpkeepTask.COLLECT:
            self._collector(proceed).collect(table)
            upkeep.collected_at = now
        else:
            self._collector(proceed).sweep(table)
            upkeep.swept_at = now
