"""Replays the text scenarios of dispatchers and their barrier: commands, a line of dashes, what follows.

dispatcher a 10 [trigger]      begins at 10
ddl 30 a b [database]          the DDL at 30 involves a and b
readable a 50 40               can be read up to 50, changed at 40
slice a 30 | none a            what the read gave
wake a | flush a               the sink acknowledges the oldest
drained a                      the sink has everything of it
vanish a                       it is no more
written 30                     the DDL is on the remote and kept
ended a                        the DDL that was written last left nothing of it
"""

from pathlib import Path

import pytest

from penstock.changefeeds.ddl_barrier import DdlBarrier
from penstock.changefeeds.dispatcher import Dispatcher, DispatcherState, Drain, Horizon, Read
from penstock.changefeeds.sinks.sink import DmlEvent
from penstock.follow.slices import Position, Slice, TableSpan
from support.ddlevents import table_schema

HERE = Path(__file__).parent
SCENARIOS = sorted(HERE.glob("*.txt"))


class Stage:
    """Dispatchers and a barrier, and what they tell."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.barrier = DdlBarrier()
        self.dispatchers: dict[str, Dispatcher] = {}
        self.ddls: list[tuple[int, list[str], bool]] = []
        self.horizon: dict[str, tuple[int, int]] = {}
        self.asked: dict[str, Read] = {}
        self.unwoken: dict[str, list[DmlEvent]] = {}
        self.unflushed: dict[str, list[DmlEvent]] = {}
        self.verdicts: dict[int, object] = {}

    def run(self, command: str) -> None:
        verb, *words = command.split()
        getattr(self, f"do_{verb}")(*words)
        self._decide()

    def do_dispatcher(self, name: str, ts: str) -> None:
        self.dispatchers[name] = Dispatcher(TableSpan(name, 1), Position(int(ts)))
        self.unwoken[name], self.unflushed[name] = [], []

    def do_ddl(self, ts: str, *names: str) -> None:
        self.ddls.append((int(ts), [each for each in names if each != "database"], "database" in names))

    def do_readable(self, name: str, upto: str, changed: str) -> None:
        self.horizon[name] = int(upto), int(changed)
        self._step(name)

    def do_slice(self, name: str, end: str) -> None:
        it, asked = self.dispatchers[name], self.asked.pop(name)
        piece = Slice(
            dispatcher=it.span,
            schema=table_schema(1),
            start=asked.start,
            end=Position(int(end)),
            parts=(),
            rows=1,
            nbytes=1,
        )
        event = it.finish_read(asked, piece)
        assert event is not None
        event.add_post_enqueue(it.wake)
        self.unwoken[name].append(event)
        self.unflushed[name].append(event)
        self.told.append(f"{name} sends {asked.start.ts}..{end}")

    def do_none(self, name: str) -> None:
        assert self.dispatchers[name].read(self.asked.pop(name), None) is None
        self._step(name)

    def do_wake(self, name: str) -> None:
        self.unwoken[name].pop(0).post_enqueue()
        self._step(name)

    def do_flush(self, name: str) -> None:
        self.unflushed[name].pop(0).post_flush()
        self.told.append(f"{name} checkpoint {self.dispatchers[name].progress.checkpoint_ts}")

    def do_drained(self, name: str) -> None:
        for event in self.unflushed[name]:
            event.post_flush()
        self.unflushed[name].clear()
        it = self.dispatchers[name]
        it.finish_drain()
        self.barrier.report(name, self._ddl_of(name))
        self.told.append(f"{name} waits")

    def do_vanish(self, name: str) -> None:
        self.dispatchers.pop(name).end()
        self.barrier.vanish(name)

    def do_written(self, at: str) -> None:
        ts = int(at)
        self.ddls = [ddl for ddl in self.ddls if ddl[0] != ts]
        self.barrier.finish(ts)
        del self.verdicts[ts]
        for name, it in self.dispatchers.items():
            if it.state is DispatcherState.WAITING and it.position == Position(ts - 1):
                it.pass_ddl()
                self._step(name)

    def do_ended(self, name: str) -> None:
        self.do_vanish(name)

    def _ddl_of(self, name: str) -> int:
        return next(ts for ts, names, _ in self.ddls if name in names)

    def _step(self, name: str) -> None:
        ddl_ts = next((ts for ts, names, _ in self.ddls if name in names), None)
        step = self.dispatchers[name].next_step(Horizon(*self.horizon[name], ddl_ts))
        if isinstance(step, Read):
            self.asked[name] = step
            self.told.append(f"{name} reads {step.start.ts}..{step.upto_ts}")
        elif isinstance(step, Drain):
            self.told.append(f"{name} drains for {step.ddl_ts}")

    def _decide(self) -> None:
        earlier: set[str] = set()
        for ts, names, database in self.ddls:
            if not self.barrier.is_open(ts) and earlier.isdisjoint(names):
                there = [each for each in names if each in self.dispatchers]
                self.barrier.open(ts, there, trigger_writes=database)
            earlier.update(names)
        for verdict in self.barrier.decide():
            if verdict != self.verdicts.get(verdict.ddl_ts):
                self.verdicts[verdict.ddl_ts] = verdict
                passing = " ".join(verdict.passing) or "nobody"
                self.told.append(f"{verdict.writer} writes {verdict.ddl_ts}, then {passing} may pass")


@pytest.mark.parametrize("path", SCENARIOS, ids=[path.stem for path in SCENARIOS])
def test_the_scenario_is_told_as_it_is_written(path: Path) -> None:
    stage = Stage()
    for step in path.read_text().split("\n\n"):
        asked, _, answered = step.partition("----")
        stage.told.clear()
        for line in asked.splitlines():
            if line and not line.startswith("#"):
                stage.run(line)
        assert stage.told == [line for line in answered.splitlines() if line], step
