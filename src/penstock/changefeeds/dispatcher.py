"""One dispatcher: what it does next. A state machine without I/O, driven by the changefeed.

READY ── Read ──> READING ── changes ──> SENT ── post_enqueue ──> READY
  │                  └────── none ─────> READY
  └── Drain (a DDL is next) ──> DRAINING ── drained ──> WAITING ── passed ──> READY
                                                           └────── ended ──> ENDED
"""

from dataclasses import dataclass
from enum import Enum

from penstock.changefeeds.sinks.work import DmlEvent
from penstock.changefeeds.tableprogress import TableProgress
from penstock.follow.positions import Position
from penstock.follow.slices import Slice, TableSpan


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
