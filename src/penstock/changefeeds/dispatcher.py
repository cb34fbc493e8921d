"""What the dispatchers of a changefeed do next, and how far they have come. State machines without I/O.

One dispatcher, which the changefeed's run drives:

REPAIRING ── files of the process before are finished ──> READY

READY ── Read ──> READING ── changes ──> SENT ── post_enqueue ──> READY
  │                  └────── none ─────> READY
  └── Drain (a DDL is next) ──> DRAINING ── drained ──> WAITING ── DDL done ──> READY
                                                           └────── ended ─────> ENDED

`TableProgress` knows what of its changes is on the remote. `Dispatchers` has all of them: idle ones are
counted together, active ones each by itself.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from penstock.changefeeds.sinks.sink import DmlEvent
from penstock.clock import TS_MAX
from penstock.follow.slices import Position, Slice, TableSpan
from penstock.follow.source import ReadableRange

_PACE_S_MAX = 5.0
"""Dispatchers of a changefeed with a longer flush interval read so often: the spool collects their files."""


class DispatcherState(Enum):
    """Where a dispatcher is."""

    REPAIRING = "repairing"  # files of the process before are finished
    READY = "ready"
    READING = "reading"
    SENT = "sent"  # until the sink wakes it
    DRAINING = "draining"
    WAITING = "waiting"  # for the barrier
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Horizon:
    """What a dispatcher may do: read up to `upto_ts`, but not past a DDL at `ddl_ts`.

    There are no changes after `changed_ts` up to `upto_ts`.
    """

    upto_ts: int
    changed_ts: int
    ddl_ts: int | None = None

    @property
    def end_ts(self) -> int:
        """The last commit that may be read."""
        return self.upto_ts if self.ddl_ts is None else min(self.upto_ts, self.ddl_ts - 1)


@dataclass(frozen=True, slots=True)
class Read:
    """Read the next slice: changes after `start`, up to `upto_ts`."""

    start: Position
    upto_ts: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Everything before the DDL was given to the sink: have it written, then wait for the others."""

    ddl_ts: int


@dataclass(frozen=True, slots=True)
class ReadPace:
    """How often dispatchers that have everything read again: in intervals that are the same for all.

    Dispatchers that are not behind read together at the beginning of an interval, so that their files are
    written together too. `flushes`: the interval is that of the sink, so what is read is due at once.
    """

    interval: int
    flushes: bool

    @classmethod
    def at(cls, now: float, flush_interval_s: float) -> "ReadPace":
        """Return the pace at a moment of the clock."""
        seconds = min(flush_interval_s, _PACE_S_MAX)
        return cls(int(now / seconds), flush_interval_s <= _PACE_S_MAX)


class Dispatcher:
    """Replicates the changes of a table, or of a key range of it, in order.

    At most one of its slices is not in the spool yet, and at a DDL it reads nothing until the DDL is done.
    Events that arrive after it has ended change nothing.

    `paced_at` is the interval of the changefeed in which it last read everything that there was: it reads
    again in a later one. None: it is behind, and reads as soon as it can.
    """

    __slots__ = ("begin", "paced_at", "progress", "span", "state")

    def __init__(
        self, span: TableSpan, begin: Position, position: Position | None = None, *, repairing: bool = False
    ) -> None:
        """With `repairing`, what is after the position may be in files already: it reads nothing yet."""
        self.span = span
        self.begin = begin
        self.progress = TableProgress(begin if position is None else position)
        self.state = DispatcherState.REPAIRING if repairing else DispatcherState.READY
        self.paced_at: int | None = None

    @property
    def position(self) -> Position:
        """Every change up to it was given to the sink."""
        return self.progress.position

    def finish_repair(self, position: Position) -> None:
        """Begin to read: everything up to the position is on the remote."""
        assert self.state is DispatcherState.REPAIRING, f"a dispatcher is repaired that is {self.state.value}"
        self.progress.skip_to(position)
        self.state = DispatcherState.READY

    def next_step(self, horizon: Horizon, pace: ReadPace | None = None) -> Read | Drain | None:
        """Return what to do now; None: nothing until the horizon moves or the current step is done.

        With a pace, one that has read everything waits, unless a DDL does: for the next interval, and for the
        file of what it read, so that a slow remote makes files larger and not more.
        """
        if self.state is not DispatcherState.READY:
            return None
        end = Position(horizon.end_ts)
        if self.caught_up(horizon.changed_ts):
            self.progress.skip_to(end)
        if self.position < end:
            if pace is not None and horizon.ddl_ts is None and self._waits(pace):
                return None
            self.state = DispatcherState.READING
            return Read(self.position, horizon.end_ts)
        if horizon.ddl_ts is not None and self.position >= Position(horizon.ddl_ts - 1):
            self.state = DispatcherState.DRAINING
            return Drain(horizon.ddl_ts)
        return None

    def _waits(self, pace: ReadPace) -> bool:
        if self.paced_at is None:
            return False
        return pace.interval <= self.paced_at or (pace.flushes and not self.progress.flushed)

    def caught_up(self, changed_ts: int) -> bool:
        """Return whether it has every change of a table that did not change after `changed_ts`.

        Inside a snapshot or a commit there may be rows left, whenever the table changed.
        """
        return self.position.handle is None and changed_ts <= self.position.ts

    def finish_read(
        self, asked: Read, slice_: Slice | None, *, pace: ReadPace | None = None
    ) -> DmlEvent | None:
        """Take the result of a read; return the event for the sink, or None when there were no changes.

        With a pace, it waits for the next interval when it has read everything up to now.
        """
        assert self.state is DispatcherState.READING, f"a slice for a dispatcher that is {self.state.value}"
        everything = slice_ is None or slice_.end >= Position(asked.upto_ts)
        self.paced_at = pace.interval if pace is not None and everything else None
        if slice_ is None:
            self.progress.skip_to(Position(asked.upto_ts))
            self.state = DispatcherState.READY
            return None
        assert slice_.end <= Position(asked.upto_ts), f"a slice goes to {slice_.end}, past {asked.upto_ts}"
        event = DmlEvent(slice_, flush=everything and pace is not None and pace.flushes)
        self.progress.add(event)
        self.state = DispatcherState.SENT
        return event

    def wake(self) -> None:
        """Go on: the slice is in the spool, and there is room for the next."""
        if self.state is not DispatcherState.ENDED:
            assert self.state is DispatcherState.SENT, f"a dispatcher is woken that is {self.state.value}"
            self.state = DispatcherState.READY

    def finish_drain(self) -> None:
        """Wait for the DDL: everything before it is on the remote."""
        if self.state is not DispatcherState.ENDED:
            assert self.state is DispatcherState.DRAINING, (
                f"a dispatcher has drained that is {self.state.value}"
            )
            assert self.progress.flushed, "a drain is over, but not everything is on the remote"
            self.state = DispatcherState.WAITING

    def pass_ddl(self) -> None:
        """Go on: the DDL is done."""
        if self.state is not DispatcherState.ENDED:
            assert self.state is DispatcherState.WAITING, (
                f"a dispatcher passes a DDL that is {self.state.value}"
            )
            self.state = DispatcherState.READY

    def end(self) -> None:
        """Replicate nothing more."""
        self.state = DispatcherState.ENDED


class TableProgress:
    """The slices that a dispatcher gave to the sink, until each is on the remote.

    Invariant: `checkpoint_ts` is before the first change that is not on the remote, in whatever order the
    slices get there. `position` never goes back.
    """

    __slots__ = ("_unflushed", "position")

    def __init__(self, position: Position) -> None:
        self.position = position
        self._unflushed: deque[_SentSlice] = deque()

    def add(self, event: DmlEvent) -> None:
        """Track a slice, which begins where the last one ended, before it is given to the sink."""
        slice_ = event.slice
        assert slice_.start == self.position, f"a slice begins at {slice_.start}, not at {self.position}"
        assert slice_.end > slice_.start, f"a slice ends where it begins, at {slice_.end}"
        sent = _SentSlice(slice_.start)
        self._unflushed.append(sent)
        self.position = slice_.end
        event.add_post_flush(lambda: self._mark_flushed(sent))

    def skip_to(self, position: Position) -> None:
        """Move to a position up to which there are no more changes."""
        self.position = max(self.position, position)

    @property
    def flushed(self) -> bool:
        """Whether everything that was added is on the remote."""
        return not self._unflushed

    @property
    def checkpoint_ts(self) -> int:
        """Every commit up to it is on the remote."""
        first = self._unflushed[0].start if self._unflushed else self.position
        return first.checkpoint_ts

    def _mark_flushed(self, sent: "_SentSlice") -> None:
        sent.flushed = True
        while self._unflushed and self._unflushed[0].flushed:
            self._unflushed.popleft()


class _SentSlice:
    __slots__ = ("flushed", "start")

    def __init__(self, start: Position) -> None:
        self.start = start
        self.flushed = False


class Dispatchers:
    """The dispatchers of a changefeed by table, and how far all of them have come.

    A dispatcher is idle when it has read every change of its table: it is then as far as the table can be
    read, and nothing is done for it. Otherwise it is active. All idle dispatchers of a table together cost
    one comparison of numbers per tick.
    """

    def __init__(self) -> None:
        self.active: dict[str, Dispatcher] = {}
        self.ranges: Mapping[int, ReadableRange] = {}
        self.table_ids: tuple[int, ...] = ()
        self._by_table: dict[int, dict[str, Dispatcher]] = {}
        self._idle: dict[int, list[Dispatcher]] = {}
        self._idle_since_ts: dict[int, int] = {}  # a table that changed after it wakes its dispatchers
        self._idle_ts = TS_MAX  # a lower bound of how far the idle ones have come
        self._unflushed: dict[str, Dispatcher] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Dispatcher]:
        return (dispatcher for by_id in self._by_table.values() for dispatcher in by_id.values())

    def add(self, dispatchers: Iterable[Dispatcher]) -> None:
        """Add dispatchers; they are active."""
        for dispatcher in dispatchers:
            self._by_table.setdefault(dispatcher.span.table_id, {})[dispatcher.span.id] = dispatcher
            self.active[dispatcher.span.id] = dispatcher
            self._count += 1
        self.table_ids = tuple(self._by_table)

    def remove_tables(self, table_ids: Iterable[int]) -> list[Dispatcher]:
        """Remove and return the dispatchers of some tables, which must be active."""
        removed = [
            dispatcher for table_id in table_ids for dispatcher in self._by_table.pop(table_id, {}).values()
        ]
        self._count -= len(removed)
        for dispatcher in removed:
            del self.active[dispatcher.span.id]
            self._unflushed.pop(dispatcher.span.id, None)
        self.table_ids = tuple(self._by_table)
        return removed

    def of_table(self, table_id: int) -> list[Dispatcher]:
        """Return the dispatchers of a physical table."""
        return list(self._by_table.get(table_id, {}).values())

    def add_unflushed(self, dispatcher: Dispatcher) -> None:
        """Count a dispatcher among those with unflushed changes: it gave a slice to the sink."""
        self._unflushed[dispatcher.span.id] = dispatcher

    @property
    def are_writing(self) -> bool:
        """Whether the sink has changes of some that are not on the remote."""
        return any(not dispatcher.progress.flushed for dispatcher in self._unflushed.values())

    def rest(self, dispatcher: Dispatcher, *, for_good: bool = False) -> None:
        """Make an active dispatcher idle that has every change of its table; `for_good`: it needs no more."""
        del self.active[dispatcher.span.id]
        table_id, ts = dispatcher.span.table_id, dispatcher.position.ts
        self._idle.setdefault(table_id, []).append(dispatcher)
        self._idle_ts = min(self._idle_ts, ts)
        since_ts = TS_MAX if for_good else ts
        self._idle_since_ts[table_id] = min(self._idle_since_ts.get(table_id, TS_MAX), since_ts)

    def wake(self, table_id: int, done_ts: int, pace: ReadPace | None = None) -> list[Dispatcher]:
        """Make the idle dispatchers of a table active and return them. Changes up to `done_ts` are done.

        With a pace, they read in the next interval, together with others.
        """
        woken = self._idle.pop(table_id, [])
        self._idle_since_ts.pop(table_id, None)
        for dispatcher in woken:
            if pace is not None and dispatcher.paced_at is not None:
                dispatcher.paced_at = pace.interval
            dispatcher.progress.skip_to(Position(done_ts))
            self.active[dispatcher.span.id] = dispatcher
        return woken

    def update_ranges(self, ranges: Mapping[int, ReadableRange]) -> list[int]:
        """Take in how far tables can be read; return those that changed while their dispatchers were idle."""
        self.ranges = ranges
        changed, lowest_ts = [], TS_MAX
        for table_id, since_ts in self._idle_since_ts.items():
            found = ranges.get(table_id)
            if found is None:
                lowest_ts = min(lowest_ts, since_ts)
            elif found.changed_ts > since_ts:
                changed.append(table_id)
            elif found.readable_ts < lowest_ts:
                lowest_ts = found.readable_ts
        self._idle_ts = lowest_ts
        return changed

    def stuck_tables(self) -> dict[int, ReadableRange]:
        """Return the tables that nobody captures any more, once all that was captured is on the remote."""
        return {
            table_id: found
            for table_id, found in self.ranges.items()
            if (found.refusal is not None or found.uncaptured)
            and all(self._is_at_end(dispatcher, found) for dispatcher in self.of_table(table_id))
        }

    def _is_at_end(self, dispatcher: Dispatcher, found: ReadableRange) -> bool:
        idle = dispatcher.span.id not in self.active
        read = idle or dispatcher.position >= Position(found.readable_ts)
        return dispatcher.state is DispatcherState.READY and dispatcher.progress.flushed and read

    def checkpoint_ts(self) -> int:
        """Return up to where every change of every table is on the remote; TS_MAX when there is no table.

        The tables that `update_ranges` returned must be woken before.
        """
        flushed = [key for key, dispatcher in self._unflushed.items() if dispatcher.progress.flushed]
        for dispatcher_id in flushed:
            del self._unflushed[dispatcher_id]
        reading = min(
            (dispatcher.position.checkpoint_ts for dispatcher in self.active.values()), default=TS_MAX
        )
        writing = min(
            (dispatcher.progress.checkpoint_ts for dispatcher in self._unflushed.values()), default=TS_MAX
        )
        return min(self._idle_ts, reading, writing)
