"""A board of jobs with a log, tables and a scheduler of which only the decisions are there: for tests.

Times are seconds, of the database and of the wall alike. Jobs are named `a`, or `a@2` on table 2.
"""

from collections import defaultdict
from collections.abc import Sequence

from penstock.clock import compose_ts, physical_ms
from penstock.follow.source import ReadableRange
from penstock.jobs.iteration.iteration import Iteration
from penstock.jobs.job import ErrorCode, Job, JobId, JobKey, JobState, JobStatus
from penstock.jobs.log.transitions import (
    Transition,
    adopt_job,
    cancel_iteration,
    complete_iteration,
    drop_job,
    fail_iteration,
    flush_watermark,
    resume_job,
    resync_job,
    start_iteration,
    update_spec,
)
from penstock.jobs.runner.board import JobBoard
from penstock.jobs.runner.tracked_job import PlannedIteration
from penstock.jobs.spec import JobSpec

__all__ = ["INTERVAL_S", "BoardStage", "seconds", "spec_of", "ts_of"]

INTERVAL_S = 10.0


def ts_of(second: float) -> int:
    """Return the timestamp of a second."""
    return compose_ts(round(second * 1000))


def seconds(ts: int | None) -> str:
    """Return a timestamp as a second; `now` for none."""
    return "now" if ts is None else f"{physical_ms(ts) / 1000:g}"


def spec_of(words: Sequence[str]) -> JobSpec:
    """Return a spec of words: own, greedy, 30s, 30s+share, ask, ask+share, paused, going; none: default."""
    trigger: dict[str, object] = {}
    for word in words:
        if word in {"greedy", "default"}:
            trigger["job_type"] = word
        elif word == "own":
            trigger["schedule"] = {"share": False}
        elif word in {"paused", "going"}:
            trigger["paused"] = word == "paused"
        elif word[0].isdigit():
            interval, _, share = word.partition("+")
            trigger |= {"job_type": "periodic", "schedule": {"interval": interval, "share": bool(share)}}
        elif word.startswith("ask"):
            trigger |= {"job_type": "tests:trigger", "schedule": {"share": word.endswith("+share")}}
    return JobSpec.parse({"trigger": trigger})


class BoardStage:
    """Plays log, tables, scheduler and targets for a board, and checks what it decides.

    What the log has reaches the board by `deliver`, newest rows alone, as by its feed.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.board = JobBoard(
            interval_s=INTERVAL_S, retry_delay_s=lambda failures: min(60.0, 2.0 ** (failures - 1))
        )
        self.rows: dict[str, Job] = {}
        self.commits: dict[int, list[int]] = defaultdict(list)
        self.oldest: dict[int, int] = {}
        self.targets: dict[str, int] = defaultdict(int)
        self.running: dict[str, Iteration] = {}
        self._begun: dict[str, Job | None] = {}  # as the iteration wrote it; None: it was stale already
        self._past: dict[JobKey, Job] = {}  # dropped, and another has the name now
        self._epoch = 1
        self._news: dict[str, Job] = {}
        self._iterations = 0

    # What people and tables do.

    def commit(self, table_id: int = 1) -> None:
        """Commit a change of a table now."""
        self.commits[table_id].append(ts_of(self.now))

    def register(self, name: str, spec: JobSpec | None = None, *, watermark: int = 0) -> None:
        """Register a job; drop one of the same name first."""
        old = self.rows.get(name)
        if old is not None:
            self.drop(name)
            self._past[old.key] = self.rows[name]
        job, _, table = name.partition("@")
        table_id = int(table or 1)
        key = JobKey(1, table_id, job, 1 if old is None else old.key.job_id + 1)
        self.targets[name] = watermark
        self._write(
            name,
            Job(
                key=key,
                id=JobId("shop", f"t{table_id}", job),
                account="a",
                spec=spec or JobSpec(),
                state=JobState.COMPLETED,
                watermark=watermark,
                status=JobStatus(committed_ts=watermark),
                create_at=1,
            ),
        )

    def update(self, name: str, spec: JobSpec, *, interrupt: bool = False) -> None:
        """Give a job a new spec."""
        self._change(name, update_spec(spec, interrupt=interrupt, at=1))

    def resume(self, name: str) -> None:
        """Let a job go on that is paused or has failed for good."""
        self._change(name, resume_job)

    def resync(self, name: str) -> None:
        """Let a job begin with nothing again."""
        if self._change(name, resync_job):
            self.targets[name] = 0

    def drop(self, name: str) -> None:
        """Unregister a job."""
        if self._change(name, drop_job(at=1)):
            self.deliver()

    # What the runner does.

    def deliver(self) -> None:
        """Tell the board what was committed since the last time."""
        news, self._news = self._news, {}
        self.board.apply(news.values())

    def look(self, table_id: int) -> ReadableRange:
        """Return the progress of a table: it can be read up to now."""
        changed_ts = max(self.commits[table_id], default=0)
        return ReadableRange(ts_of(self.now), changed_ts, self.oldest.get(table_id, 0))

    def settle(self) -> None:
        """Adopt and read again, as the runner does before it looks at tables; end what is canceled."""
        for key in self.board.take_canceled():
            for name, iteration in list(self.running.items()):
                if any(job.key == key for job in iteration.jobs) and self._of(name, iteration).key == key:
                    self.end(name, None)
        orphaned = self.board.take_orphaned()
        self.board.mark_uncertain(job.key for job in orphaned)
        names = {row.key: name for name, row in self.rows.items()}
        adopt = adopt_job(self._epoch)
        written = [job.key for job in orphaned if self._change(names[job.key], adopt, lsn=job.status.lsn)]
        self.board.settle([job.key for job in orphaned], [self.rows[names[key]] for key in written])
        uncertain = self.board.take_uncertain()
        self.board.settle(
            uncertain, [self.rows[names[key]] if key in names else self._past[key] for key in uncertain]
        )

    def tick(self, *, fast: bool = False, tables: Sequence[int] | None = None) -> list[str]:
        """Look at tables, by default at all; return the iterations that begin."""
        self.board.release_retries(self.now)
        self.settle()
        urgent = self.board.take_urgent()
        begun = []
        for table_id in sorted(self.board.tables if tables is None else tables):
            table = self.board.tables.get(table_id)
            if table is not None and (not fast or table.fast or table_id in urgent):
                plan = table.plan(
                    self.look(table_id),
                    now_ts=ts_of(self.now),
                    now=self.now,
                    fast=fast and table_id not in urgent,
                )
                begun += [self._begin(planned) for planned in plan.iterations]
        return begun

    def hurry(self) -> list[str]:
        """Look at the tables that are urgent."""
        self.board.release_retries(self.now)
        self.settle()
        return self.tick(tables=sorted(self.board.take_urgent()))

    def flush(self) -> None:
        """Write watermarks that only moved in memory."""
        names = {row.key: name for name, row in self.rows.items()}
        for job, watermark in self.board.list_unflushed():
            self._change(names[job.key], flush_watermark(watermark), lsn=job.status.lsn)

    def _begin(self, planned: PlannedIteration) -> str:
        candidate = planned.candidate
        self._iterations += 1
        jobs = tuple(job.job for job in candidate.jobs)
        iteration = Iteration(
            id=f"i{self._iterations}",
            table_id=jobs[0].key.table_id,
            from_ts=candidate.from_ts,
            to_ts=planned.to_ts,
            jobs=jobs,
        )
        names = []
        for job in candidate.jobs:
            name = _name(job.job)
            names.append(name)
            assert self.running.get(name) is None, f"{name} would be in two iterations"
            assert job.watermark == candidate.from_ts < planned.to_ts <= ts_of(self.now)
            missed = [
                at for at in self.commits[iteration.table_id] if job.job.watermark < at <= candidate.from_ts
            ]
            assert not missed, f"{name} would skip changes"
            self.running[name] = iteration
            begin = start_iteration(iteration.from_ts, iteration.to_ts, runner=self._epoch, at=1)
            fresh = self.rows[name].key == job.job.key
            done = fresh and self._change(name, begin, lsn=job.job.status.lsn)
            self._begun[name] = self.rows[name] if done else None
        self.board.begin(planned, iteration)
        span = f"{seconds(iteration.from_ts)}..{seconds(iteration.to_ts)}"
        return f"{candidate.reason.value} {span} {' '.join(names)}"

    # What becomes of an iteration.

    def end(self, name: str, second: float | None = -1) -> None:
        """A job's iteration is done up to a second, by default all of it; None: nobody knows."""
        iteration = self.running[name]
        if second is None:
            self._leave(name, None)
            return
        to_ts = iteration.to_ts if second < 0 else ts_of(second)
        if self._finish(name, complete_iteration(to_ts, at=1)):
            self.targets[name] = to_ts

    def fail(self, name: str, code: ErrorCode = ErrorCode.TEMPORARY) -> None:
        """Let a job's iteration fail."""
        self._finish(name, fail_iteration(code, "it failed", at=1))

    def cancel(self, name: str) -> None:
        """A job's iteration is given up without its being asked for: the target has fenced it."""
        self._finish(name, cancel_iteration(at=1))

    def _finish(self, name: str, transition: Transition) -> bool:
        """Write the end of an iteration, if the row is still as the iteration has left it."""
        job = self._begun[name]
        fits = job is not None and self.rows[name].key == job.key
        done = job is not None and fits and self._change(name, transition, lsn=job.status.lsn)
        self._leave(name, self.rows[name] if done else None)
        return done

    def _leave(self, name: str, row: Job | None) -> None:
        iteration = self.running.pop(name)
        self.board.end(iteration.id, self._of(name, iteration).key, row, now=self.now)

    def _of(self, name: str, iteration: Iteration) -> Job:
        return next(job for job in iteration.jobs if _name(job) == name)

    # The log.

    def _change(self, name: str, transition: Transition, lsn: int | None = None) -> bool:
        """Change a row as the log does; return whether it was changed."""
        row = self.rows[name]
        if not row.live or lsn not in {None, row.status.lsn}:
            return False
        self._write(name, transition(row))
        return True

    def _write(self, name: str, row: Job) -> None:
        self.rows[name] = row
        self._news[f"{name}/{row.key.job_id}"] = row

    def restart(self) -> None:
        """Another runner takes over: it has nothing but the log, and every row is adopted."""
        self._epoch += 1
        fresh = BoardStage()
        self.board, self.running, self._news = fresh.board, {}, {}
        for name, row in self.rows.items():
            if row.live:
                self.rows[name] = adopt_job(self._epoch)(row)
        self.board.replace(list(self.rows.values()))


def _name(job: Job) -> str:
    table_id = job.key.table_id
    return job.key.job_name if table_id == 1 else f"{job.key.job_name}@{table_id}"
