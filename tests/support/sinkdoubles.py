"""A changefeed's source and what is kept of it, in memory: a script instead of a database."""

from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from penstock.changefeeds.model import DispatcherRecord, DoneDdls, LeftOutTable, PendingFile
from penstock.changes.limits import ReadLimit
from penstock.errors import StaleRead
from penstock.eventstore.read.partition import Refusal
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent
from penstock.follow.slices import ANY_SIZE, Position, Slice, SliceSize, TableSpan
from penstock.follow.source import ReadableRange
from penstock.testing.consumers import Fault, no_fault

__all__ = ["MemoryProgress", "ScriptedSource"]


class MemoryProgress:
    """A ProgressStore that lasts as long as the object. `fault` is called before and after each write."""

    def __init__(self, begin: Position, *, fault: Fault = no_fault) -> None:
        self.fault = fault
        self.kept: dict[str, DispatcherRecord] = {}
        self.checkpoints = [begin.checkpoint_ts]
        self.done = DoneDdls(begin.ts)
        self._start_ts = begin.ts
        self.place: str | None = ""
        self.out: tuple[LeftOutTable, ...] = ()

    @property
    def done_ddl_ts(self) -> int:
        """Every DDL up to it is done."""
        return self.done.ts

    async def location(self) -> str | None:
        return self.place

    async def begin_at(self, location: str, *, is_new: bool) -> None:
        self.fault("begin_at")
        self.place = location
        if is_new:
            self.kept.clear()
            self.done = DoneDdls(max(self.checkpoints[-1], self._start_ts))
        self.fault("began_at")

    async def checkpoint_ts(self) -> int:
        return self.checkpoints[-1]

    async def keep_checkpoint(self, ts: int) -> None:
        self.fault("keep_checkpoint")
        assert ts >= self.checkpoints[-1], f"checkpoint {ts} after {self.checkpoints[-1]}"
        self.checkpoints.append(ts)
        self.fault("kept_checkpoint")

    async def dispatchers(self) -> list[DispatcherRecord]:
        return list(self.kept.values())

    async def left_out(self) -> tuple[LeftOutTable, ...]:
        return self.out

    async def change_dispatchers(
        self,
        added: Sequence[DispatcherRecord],
        removed: Iterable[str],
        *,
        done: DoneDdls | None = None,
        left_out: Sequence[LeftOutTable] | None = None,
    ) -> None:
        self.fault("change_dispatchers")
        for dispatcher_id in removed:
            self.kept.pop(dispatcher_id, None)
        self.kept.update({record.span.id: record for record in added})
        self.done = self.done if done is None else self.done.merge(done)
        self.out = self.out if left_out is None else tuple(left_out)
        self.fault("changed_dispatchers")

    async def done_ddls(self) -> DoneDdls:
        return self.done

    async def begin_files(self, files: Sequence[PendingFile]) -> None:
        self.fault("begin_files")
        for dispatcher_id, group in groupby(files, key=lambda file: file.dispatcher_id):
            self.kept[dispatcher_id] = replace(self.kept[dispatcher_id], pending=tuple(group))
        self.fault("begun_files")


class ScriptedSource:
    """A SliceSource of commits and DDLs of a test. A slice has no parts; `rows_in` has its rows.

    `advance` lets time pass: everything up to it is resolved, but for tables in `lagging`, which can be read
    up to the timestamp there (None: nothing is known of them yet), and for DDLs, which are known up to
    `ddl_lag_ts` unless it is None.
    """

    def __init__(self, tables: Iterable[SchemaVersion] = (), *, fault: Fault = no_fault) -> None:
        self.fault = fault
        self.resolved_ts = 0
        self.ddl_lag_ts: int | None = None
        self.lagging: dict[int, int | None] = {}
        self.events: list[DdlEvent] = []
        self.refusals: dict[int, Refusal] = {}
        self.uncaptured: set[int] = set()
        self.unread: list[SchemaVersion] = []
        self.held: dict[int, int] = {}
        self.progress_reads = 0
        self.slice_calls: list[tuple[str, Position, int]] = []
        self._first = {table.table.id: table for table in tables}
        self._commits: dict[int, list[tuple[int, bytes]]] = {}

    def put(self, table_id: int, ts: int, *handles: bytes) -> None:
        """Rows of a physical table were written at a timestamp."""
        for handle in handles or (b"row",):
            insort(self._commits.setdefault(table_id, []), (ts, handle))

    def ddl(self, event: DdlEvent) -> DdlEvent:
        """Add a DDL after all earlier ones."""
        self.events.append(event)
        return event

    def advance(self, ts: int) -> None:
        """Everything up to it is resolved."""
        self.resolved_ts = ts

    def rows_in(self, piece: Slice) -> list[tuple[int, bytes]]:
        """(commit_ts, handle) of the rows of a slice; those of a snapshot are committed at its timestamp."""
        return self._between(piece.dispatcher, piece.start, piece.end)

    def ddl_resolved_ts(self) -> int:
        return self.resolved_ts if self.ddl_lag_ts is None else min(self.resolved_ts, self.ddl_lag_ts)

    def ddls(self, from_ts: int, to_ts: int) -> list[DdlEvent]:
        assert to_ts <= self.ddl_resolved_ts(), f"DDLs up to {to_ts} are not known yet"
        return [event for event in self.events if from_ts < event.commit_ts <= to_ts]

    def tables(self, at_ts: int) -> list[SchemaVersion]:
        there = dict(self._first)
        for event in self.ddls(0, at_ts):
            for change in event.tables:
                if change.before is not None:
                    del there[change.before.table.id]
            for change in event.tables:
                if change.after is not None:
                    there[change.after.table.id] = change.after
        return list(there.values())

    def unreadable(self, at_ts: int) -> list[SchemaVersion]:
        return [schema for schema in self.unread if schema.since_ts <= at_ts]

    async def now_ts(self) -> int:
        return self.resolved_ts

    async def read_progress(self, table_ids: Collection[int]) -> dict[int, ReadableRange]:
        self.fault("read_progress")
        self.progress_reads += 1
        readable = {number: self.lagging.get(number, self.resolved_ts) for number in table_ids}
        found = {
            table_id: ReadableRange(ts, self._changed_ts(table_id, ts))
            for table_id, ts in readable.items()
            if ts is not None
        }
        for table_id, refusal in self.refusals.items():
            if table_id in table_ids:
                found[table_id] = replace(found.get(table_id, ReadableRange(0, 0)), refusal=refusal)
        for table_id in self.uncaptured.intersection(table_ids):
            found[table_id] = replace(found.get(table_id, ReadableRange(0, 0)), uncaptured=True)
        return found

    async def next_slice(
        self,
        dispatcher: TableSpan,
        start: Position,
        upto_ts: int,
        limit: ReadLimit,
        *,
        begin: Position | None = None,
        size: SliceSize = ANY_SIZE,  # noqa: ARG002 - it has no parts
    ) -> Slice | None:
        self.fault("next_slice")
        self.slice_calls.append((dispatcher.id, start, upto_ts))
        table_id = dispatcher.table_id
        readable_ts = self.lagging.get(table_id, self.resolved_ts)
        assert readable_ts is not None
        assert upto_ts <= readable_ts, f"{upto_ts} of table {table_id} cannot be read yet"
        if start.checkpoint_ts < self.held[table_id]:
            raise StaleRead(f"table {table_id}", start.ts, oldest_ts=self.held[table_id])
        schema = self._schema(table_id, upto_ts)
        assert schema.since_ts <= start.ts + 1, "there is a DDL between start and end"
        rows = self._between(dispatcher, start, Position(upto_ts))
        if not rows:
            return None
        taken = rows[: limit.rows]
        inside_snapshot = start.handle is not None and begin is not None and begin.ts == start.ts
        end = Position(upto_ts)
        if len(taken) < len(rows):
            ts, handle = rows[len(taken)]
            end = Position(ts, handle) if inside_snapshot and ts == start.ts else Position(taken[-1][0])
        count = len(self._between(dispatcher, start, end))
        return Slice(
            dispatcher=dispatcher, schema=schema, start=start, end=end, parts=(), rows=count, nbytes=count
        )

    async def split_points(self, table_id: int, at_ts: int, rows: int) -> list[bytes]:
        handles = sorted({handle for ts, handle in self._commits.get(table_id, ()) if ts <= at_ts})
        return handles[rows::rows]

    async def hold(self, table_ids: Collection[int], ts: int) -> None:
        self.fault("hold")
        self.held.update(dict.fromkeys(table_ids, ts))

    async def release(self, table_ids: Collection[int]) -> None:
        for table_id in table_ids:
            self.held.pop(table_id, None)

    async def close(self) -> None:
        pass

    def _changed_ts(self, table_id: int, upto_ts: int) -> int:
        commits = self._commits.get(table_id)
        if not commits:
            return 0
        last = bisect_right(commits, (upto_ts + 1, b""))
        return commits[last - 1][0] if last else 0

    def _schema(self, table_id: int, ts: int) -> SchemaVersion:
        return next(table for table in self.tables(ts) if table_id in table.table.physical_ids)

    def _between(self, spec: TableSpan, start: Position, end: Position) -> list[tuple[int, bytes]]:
        commits = [
            (ts, handle)
            for ts, handle in self._commits.get(spec.table_id, ())
            if spec.handle_from <= handle and (not spec.handle_to or handle < spec.handle_to)
        ]
        if start.handle is not None:  # inside a snapshot: what is there counts as written at its timestamp
            there = {handle for ts, handle in commits if ts <= start.ts}
            commits = [(start.ts, commit) for commit in there] + [
                commit for commit in commits if commit[0] > start.ts
            ]
        return sorted(
            (ts, handle)
            for ts, handle in commits
            if not Position(ts, handle) < start and Position(ts, handle) < end
        )
