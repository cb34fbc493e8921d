"""One dispatcher: what it does next. A state machine without I/O, driven by the changefeed.

READY ── Read ──> READING ── changes ──> SENT ── post_enqueue ──> READY
  │                  └────── none ─────> READY
  └── Drain (a DDL is next) ──> DRAINING ── drained ──> WAITING ── passed ──> READY
                                                           └────── ended ──> ENDED

What of a dispatcher's changes is on the remote. Pure.

All dispatchers of a changefeed: those at rest as one, the active ones each by itself. Pure.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from penstock.changefeeds.sinks.sink import DmlEvent
from penstock.clock import TS_MAX
from penstock.follow.slices import Position, Slice, TableSpan
from penstock.follow.source import ReadableRange


class TableProgress:
    """The slices that a dispatcher gave to the sink, until each is on the remote.

    Invariant: `checkpoint_ts` is before the first change that is not on the remote, in whatever order slices
    get there. `position` never goes back.
    """

    __slots__ = ("_unflushed", "position")

    def __init__(self, position: Position) -> None:
        self.position = position
        self._unflushed: deque[_Sent] = deque()

    def add(self, event: DmlEvent) -> None:
        """Follow a slice, which continues where the last one ended; it has not been given to the sink yet."""
        piece = event.slice
        assert piece.start == self.position, f"a slice begins at {piece.start}, not at {self.position}"
        assert piece.end > piece.start, f"a slice ends where it begins, at {piece.end}"
        sent = _Sent(piece.start)
        self._unflushed.append(sent)
        self.position = piece.end
        event.add_post_flush(lambda: self._flushed(sent))

    def skip_to(self, position: Position) -> None:
        """There are no changes up to it that were not added."""
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

    def _flushed(self, sent: "_Sent") -> None:
        sent.flushed = True
        while self._unflushed and self._unflushed[0].flushed:
            self._unflushed.popleft()


class _Sent:
    __slots__ = ("flushed", "start")

    def __init__(self, start: Position) -> None:
        self.start = start
        self.flushed = False


class State(Enum):
    """Where a dispatcher is."""

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


class Dispatcher:
    """Carries the changes of a table, or of a key range of it, in order.

    It has at most one slice that is not in the spool yet, and at a DDL it reads nothing until the DDL is
    done. Events that come late, to one that has ended, change nothing.
    """

    __slots__ = ("begin", "progress", "spec", "state")

    def __init__(self, spec: TableSpan, begin: Position, position: Position | None = None) -> None:
        self.spec = spec
        self.begin = begin
        self.progress = TableProgress(begin if position is None else position)
        self.state = State.READY

    @property
    def position(self) -> Position:
        """Everything up to it was given to the sink, or is not there."""
        return self.progress.position

    def next(self, horizon: Horizon) -> Read | Drain | None:
        """What to do now; None: nothing, until the horizon moves or what is under way is done."""
        if self.state is not State.READY:
            return None
        end = Position(horizon.end_ts)
        if self.caught_up(horizon.changed_ts):
            self.progress.skip_to(end)
        if self.position < end:
            self.state = State.READING
            return Read(self.position, horizon.end_ts)
        if horizon.ddl_ts is not None and self.position >= Position(horizon.ddl_ts - 1):
            self.state = State.DRAINING
            return Drain(horizon.ddl_ts)
        return None

    def caught_up(self, changed_ts: int) -> bool:
        """Whether it has everything of a table that did not change after `changed_ts`.

        Inside a snapshot or a commit there may be rows left, whenever the table changed.
        """
        return self.position.handle is None and changed_ts <= self.position.ts

    def read(self, asked: Read, piece: Slice | None) -> DmlEvent | None:
        """Take what a read gave: the event to give to the sink, or None when there were no changes."""
        assert self.state is State.READING, f"a slice for a dispatcher that is {self.state.value}"
        if piece is None:
            self.progress.skip_to(Position(asked.upto_ts))
            self.state = State.READY
            return None
        assert piece.end <= Position(asked.upto_ts), f"a slice goes to {piece.end}, past {asked.upto_ts}"
        event = DmlEvent(piece)
        self.progress.add(event)
        self.state = State.SENT
        return event

    def woken(self) -> None:
        """The slice is in the spool, and there is room for the next."""
        if self.state is not State.ENDED:
            assert self.state is State.SENT, f"a dispatcher is woken that is {self.state.value}"
            self.state = State.READY

    def drained(self) -> None:
        """Everything before the DDL is on the remote."""
        if self.state is not State.ENDED:
            assert self.state is State.DRAINING, f"a dispatcher has drained that is {self.state.value}"
            assert self.progress.flushed, "a drain is over, but not everything is on the remote"
            self.state = State.WAITING

    def passed(self) -> None:
        """The DDL is done."""
        if self.state is not State.ENDED:
            assert self.state is State.WAITING, f"a dispatcher passes a DDL that is {self.state.value}"
            self.state = State.READY

    def end(self) -> None:
        """There is nothing more to carry."""
        self.state = State.ENDED


class Dispatchers:
    """Who carries which table, and how far all have come.

    A dispatcher is at rest when its table has no change that it has not read: then it is as far as the table
    can be read, and nothing is done for it. It is active otherwise. Those at rest cost one comparison of
    numbers a look, per table.
    """

    def __init__(self) -> None:
        self.active: dict[str, Dispatcher] = {}
        self.looks: Mapping[int, ReadableRange] = {}
        self.table_ids: tuple[int, ...] = ()
        self._by_table: dict[int, dict[str, Dispatcher]] = {}
        self._resting: dict[int, list[Dispatcher]] = {}
        self._rested_ts: dict[int, int] = {}  # a table that changed after it wakes its dispatchers
        self._resting_ts = TS_MAX  # a bound of how far those at rest have come
        self._unflushed: dict[str, Dispatcher] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Dispatcher]:
        return (each for together in self._by_table.values() for each in together.values())

    def add(self, dispatchers: Iterable[Dispatcher]) -> None:
        """Begin with some; they are active."""
        for each in dispatchers:
            self._by_table.setdefault(each.spec.table_id, {})[each.spec.id] = each
            self.active[each.spec.id] = each
            self._count += 1
        self.table_ids = tuple(self._by_table)

    def remove_tables(self, table_ids: Iterable[int]) -> list[Dispatcher]:
        """End with those of some tables, which are active."""
        removed = [each for table_id in table_ids for each in self._by_table.pop(table_id, {}).values()]
        self._count -= len(removed)
        for each in removed:
            del self.active[each.spec.id]
            self._unflushed.pop(each.spec.id, None)
        self.table_ids = tuple(self._by_table)
        return removed

    def of_table(self, table_id: int) -> list[Dispatcher]:
        """Those of a physical table."""
        return list(self._by_table.get(table_id, {}).values())

    def sent(self, dispatcher: Dispatcher) -> None:
        """It gave something to the sink: it counts with what is not flushed."""
        self._unflushed[dispatcher.spec.id] = dispatcher

    def rest(self, dispatcher: Dispatcher, *, for_good: bool = False) -> None:
        """An active one has everything that its table has; `for_good`: it will not need more."""
        del self.active[dispatcher.spec.id]
        table_id, ts = dispatcher.spec.table_id, dispatcher.position.ts
        self._resting.setdefault(table_id, []).append(dispatcher)
        self._resting_ts = min(self._resting_ts, ts)
        until_ts = TS_MAX if for_good else ts
        self._rested_ts[table_id] = min(self._rested_ts.get(table_id, TS_MAX), until_ts)

    def wake(self, table_id: int, done_ts: int) -> list[Dispatcher]:
        """Make those of a table active that were at rest. Every change up to `done_ts` is done."""
        woken = self._resting.pop(table_id, [])
        self._rested_ts.pop(table_id, None)
        for each in woken:
            each.progress.skip_to(Position(done_ts))
            self.active[each.spec.id] = each
        return woken

    def looked(self, looks: Mapping[int, ReadableRange]) -> list[int]:
        """Take in how far tables can be read now; those that changed while their dispatchers rested."""
        self.looks = looks
        changed, lowest_ts = [], TS_MAX
        for table_id, rested_ts in self._rested_ts.items():
            look = looks.get(table_id)
            if look is None:
                lowest_ts = min(lowest_ts, rested_ts)
            elif look.changed_ts > rested_ts:
                changed.append(table_id)
            elif look.readable_ts < lowest_ts:
                lowest_ts = look.readable_ts
        self._resting_ts = lowest_ts
        return changed

    def checkpoint_ts(self) -> int:
        """Every change of every table up to it is on the remote; TS_MAX when there is no table.

        Those that `looked` returned have to be active again before it is asked.
        """
        for dispatcher_id in [key for key, each in self._unflushed.items() if each.progress.flushed]:
            del self._unflushed[dispatcher_id]
        reading = min((each.position.checkpoint_ts for each in self.active.values()), default=TS_MAX)
        writing = min((each.progress.checkpoint_ts for each in self._unflushed.values()), default=TS_MAX)
        return min(self._resting_ts, reading, writing)
