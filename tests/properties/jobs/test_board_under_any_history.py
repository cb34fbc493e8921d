"""Whatever happens to jobs, and in whatever order the runner hears of it: the board keeps its promises.

The stage itself refuses a second iteration of a job, and one that would skip changes.
"""

from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.jobs.job import ErrorCode, JobState
from penstock.jobs.runner.tracked_job import TriggerGroup
from support.boardstage import BoardStage, spec_of, ts_of
from support.campaign import examples

NAMES = st.sampled_from(["a", "b", "c", "d", "a@2", "b@2"])
SPECS = st.sampled_from(["", "", "", "own", "greedy", "2s", "30s", "30s+share", "paused"])


class AnyHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stage = BoardStage()
        self.lagging: dict[tuple[int, TriggerGroup], set[str]] = defaultdict(set)

    def row_names(self) -> list[str]:
        return [name for name, row in self.stage.rows.items() if row.live]

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 11.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.stage.now = round(self.stage.now + seconds, 3)

    @rule(table_id=st.sampled_from([1, 1, 2]))
    def a_table_changes(self, table_id: int) -> None:
        self.stage.now = round(self.stage.now + 0.001, 3)  # what could be read until now does not change
        self.stage.commit(table_id)

    @rule(name=NAMES, spec=SPECS)
    def a_job_is_registered(self, name: str, spec: str) -> None:
        if name not in self.row_names():
            self.stage.register(name, spec_of(spec.split()))

    @precondition(lambda self: self.row_names())
    @rule(data=st.data(), spec=SPECS, interrupt=st.booleans())
    def a_spec_changes(self, data: st.DataObject, spec: str, interrupt: bool) -> None:
        name = data.draw(st.sampled_from(self.row_names()))
        self.stage.update(name, spec_of([*spec.split(), *data.draw(PAUSES)]), interrupt=interrupt)

    @precondition(lambda self: self.row_names())
    @rule(data=st.data(), what=st.sampled_from(["resume", "resume", "resync", "drop"]))
    def somebody_does_something_to_a_job(self, data: st.DataObject, what: str) -> None:
        getattr(self.stage, what)(data.draw(st.sampled_from(self.row_names())))

    @rule()
    def the_board_hears_of_the_log(self) -> None:
        self.stage.deliver()

    @rule(fast=st.booleans())
    def tables_are_looked_at(self, fast: bool) -> None:
        self.note(self.stage.tick(fast=fast))

    @rule()
    def urgent_tables_are_looked_at(self) -> None:
        self.note(self.stage.hurry())

    def note(self, told: list[str]) -> None:
        """Only one iteration at a time brings those of a group that lag to the others."""
        for line in told:
            why, _, *names = line.split()
            if why == "lagging":
                standing = self.stage.board.get(self.stage.running[names[0]].jobs[0].key)
                assert standing is not None
                place = standing.job.key.table_id, standing.rule.group
                still = {each for each in self.lagging[place] if each in self.stage.running}
                assert not still, f"{still} still catch up while {names} begin"
                self.lagging[place] = set(names)

    @precondition(lambda self: self.stage.running)
    @rule(data=st.data(), share=st.sampled_from([1.0, 1.0, 0.5]))
    def an_iteration_ends(self, data: st.DataObject, share: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.stage.running)))
        iteration = self.stage.running[name]
        if share < 1 and iteration.from_ts:
            cut = (iteration.from_ts + iteration.to_ts) // 2 / (1 << 18) / 1000
            if ts_of(cut) > iteration.from_ts:
                self.stage.end(name, cut)
                return
        self.stage.end(name)

    @precondition(lambda self: self.stage.running)
    @rule(data=st.data(), code=st.sampled_from([*ErrorCode][1:5]))
    def an_iteration_fails(self, data: st.DataObject, code: ErrorCode) -> None:
        self.stage.fail(data.draw(st.sampled_from(sorted(self.stage.running))), code)

    @precondition(lambda self: self.stage.running)
    @rule(data=st.data())
    def nobody_knows_how_an_iteration_ended(self, data: st.DataObject) -> None:
        self.stage.end(data.draw(st.sampled_from(sorted(self.stage.running))), None)

    @rule()
    def watermarks_are_flushed(self) -> None:
        self.stage.flush()

    @rule()
    def another_runner_takes_over(self) -> None:
        self.stage.restart()

    @rule(table_id=st.sampled_from([1, 2]))
    def history_is_collected(self, table_id: int) -> None:
        self.stage.oldest[table_id] = ts_of(max(0.0, self.stage.now - 5))

    @invariant()
    def no_watermark_is_beyond_what_the_target_has(self) -> None:
        for name, row in self.stage.rows.items():
            standing = self.stage.board.get(row.key)
            known = [row.watermark] + ([] if standing is None else [standing.watermark])
            resynced = standing is not None and standing.job.status.lsn < row.status.lsn
            if row.live and not resynced:
                changes = self.stage.commits[row.key.table_id]
                assert not [at for at in changes if self.stage.targets[name] < at <= max(known)]

    @invariant()
    def history_is_kept_for_whoever_has_to_begin_again(self) -> None:
        needed = self.stage.board.list_needed_ts()
        for standing in self.stage.board:
            if standing.job.watermark:
                assert needed[standing.job.key.table_id] <= standing.job.watermark

    def teardown(self) -> None:
        """When nothing goes wrong any more, every job that may run gets all, and those that share agree."""
        stage = self.stage
        for _ in range(30):
            stage.deliver()
            for name in sorted(stage.running):
                stage.end(name)
            stage.deliver()
            stage.now += 70
            self.note(stage.hurry())
            for name in sorted(stage.running):
                stage.end(name)
            self.note(stage.tick())
        assert not [name for name in stage.running if stage.rows[name].live], "it never comes to rest"
        groups: dict[tuple[int, TriggerGroup], set[int]] = defaultdict(set)
        for name, row in stage.rows.items():
            standing = stage.board.get(row.key)
            if standing is None or not standing.takes_part:
                continue
            assert row.state is not JobState.RUNNING
            changes = stage.commits[row.key.table_id]
            assert not [at for at in changes if at > standing.watermark], f"{name} never gets its changes"
            if standing.rule.shares:
                groups[row.key.table_id, standing.rule.group].add(standing.watermark)
        assert all(len(watermarks) == 1 for watermarks in groups.values()), "they never agree"


PAUSES = st.sampled_from([[], [], ["paused"], ["going"]])

TestBoardUnderAnyHistory = AnyHistory.TestCase
TestBoardUnderAnyHistory.settings = settings(
    max_examples=examples(120), stateful_step_count=60, deadline=None
)
