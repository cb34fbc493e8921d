"""Replays the text scenarios of jobs: commands, a line of dashes, the iterations that begin.

at 30                    it is second 30; tables can be read up to now
commit [table]           a table changes (1, where none is named)
job a [own|greedy|30s|30s+share|paused]    a new job; `a@2` on table 2
tick | fast | soon       look at all tables, at those that cannot wait, at those that are urgent
end a [20]               a's iteration is done, or only up to second 20: it was capped
fail a | refuse a | cut a | lose a    it failed, for good, was cut off, nobody knows
update a greedy | interrupt a greedy | pause a | resume a | drop a | resync a
gone 20                  history before second 20 may be gone
flush | restart          watermarks are written; another runner takes over
watermark a              shows it: in memory, in the log
needed                   shows after when history is kept
"""

from pathlib import Path

import pytest

from penstock.jobs.job import ErrorCode
from support.boardstage import BoardStage, seconds, spec_of, ts_of

HERE = Path(__file__).parent
SCENARIOS = sorted(HERE.glob("*.txt"))


class Replay:
    """A stage that understands commands."""

    def __init__(self) -> None:
        self.stage = BoardStage()
        self.told: list[str] = []

    def run(self, command: str) -> None:
        verb, *words = command.split()
        getattr(self, f"do_{verb}")(*words)
        self.stage.deliver()

    def do_at(self, second: str) -> None:
        self.stage.now = float(second)

    def do_commit(self, table_id: str = "1") -> None:
        self.stage.commit(int(table_id))

    def do_job(self, name: str, *words: str) -> None:
        self.stage.register(name, spec_of(words))

    def do_tick(self) -> None:
        self.told += self.stage.tick()

    def do_fast(self) -> None:
        self.told += self.stage.tick(fast=True)

    def do_soon(self) -> None:
        self.told += self.stage.hurry()

    def do_end(self, name: str, second: str = "-1") -> None:
        self.stage.end(name, float(second))

    def do_fail(self, name: str) -> None:
        self.stage.fail(name)

    def do_refuse(self, name: str) -> None:
        self.stage.fail(name, ErrorCode.REFUSED)

    def do_cut(self, name: str) -> None:
        self.stage.fail(name, ErrorCode.CUT_OFF)

    def do_lose(self, name: str) -> None:
        self.stage.end(name, None)

    def do_update(self, name: str, *words: str) -> None:
        self.stage.update(name, spec_of(words))

    def do_interrupt(self, name: str, *words: str) -> None:
        self.stage.update(name, spec_of(words), interrupt=True)

    def do_pause(self, name: str) -> None:
        self.stage.update(name, spec_of(["paused"]))

    def do_resume(self, name: str) -> None:
        self.stage.resume(name)

    def do_drop(self, name: str) -> None:
        self.stage.drop(name)

    def do_resync(self, name: str) -> None:
        self.stage.resync(name)

    def do_gone(self, second: str) -> None:
        self.stage.oldest[1] = ts_of(float(second))

    def do_flush(self) -> None:
        self.stage.flush()

    def do_restart(self) -> None:
        self.stage.restart()

    def do_watermark(self, name: str) -> None:
        row = self.stage.rows[name]
        standing = self.stage.board.get(row.key)
        assert standing is not None
        self.told.append(f"{name} {seconds(standing.watermark)} {seconds(row.watermark)}")

    def do_needed(self) -> None:
        needed = self.stage.board.list_needed_ts()
        self.told += [f"table {table_id} after {seconds(ts)}" for table_id, ts in sorted(needed.items())]


@pytest.mark.parametrize("path", SCENARIOS, ids=[path.stem for path in SCENARIOS])
def test_the_scenario_is_told_as_it_is_written(path: Path) -> None:
    replay = Replay()
    for step in path.read_text().split("\n\n"):
        asked, _, answered = step.partition("----")
        replay.told.clear()
        for line in asked.splitlines():
            if line and not line.startswith("#"):
                replay.run(line)
        assert sorted(replay.told) == sorted(filter(None, answered.splitlines())), step
