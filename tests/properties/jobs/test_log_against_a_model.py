"""The job log on a real store, step by step against a dictionary: people, and runners that know old rows."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from penstock import eventloop
from penstock.errors import Fenced, Invalid
from penstock.jobs.api import Jobs
from penstock.jobs.job import Job, JobId, JobState
from penstock.jobs.log import transitions
from penstock.jobs.log.job_log import JobLog
from penstock.jobs.log.transitions import Transition
from penstock.jobs.spec import JobSpec, UpdateOptions
from penstock.kv import Client, Transaction
from penstock.settings import StoreSettings
from penstock.store.cluster import Cluster
from penstock.tables import Catalog
from support.campaign import examples

NAMES = ["a", "a.b"]
names = st.sampled_from(NAMES)
C, P, R, E, X = JobState.COMPLETED, JobState.PENDING, JobState.RUNNING, JobState.ERROR, JobState.CANCELED


@dataclass(frozen=True)
class Row:
    """What the model knows of a row."""

    state: JobState = C
    watermark: int = 0
    lsn: int = 0
    committed_ts: int = 0
    resync_ts: int = 0
    to_ts: int = 0
    failures: int = 0
    priority: int = 0
    paused: bool = False
    dropped: bool = False

    @classmethod
    def of(cls, job: Job) -> "Row":
        status = job.status
        return cls(
            job.state, job.watermark, status.lsn, status.committed_ts, status.resync_ts, status.to_ts,
            status.failures, job.spec.priority, job.spec.paused, not job.live,
        )  # fmt: skip

    def counted(self, **changes: object) -> "Row":
        return replace(self, lsn=self.lsn + 1, **changes)  # type: ignore[arg-type] # the fields' own types

    @property
    def idle(self) -> JobState:
        """The state after whoever was busy is sent away."""
        return X if self.state in {P, R} else self.state


def spec(**detail: object) -> JobSpec:
    return JobSpec.parse({"detail": {"consumer": {"consumer": "delta"}, **detail}})


class Log(RuleBasedStateMachine):
    client: ClassVar[Client]
    worlds: ClassVar[int] = 0
    seen = Bundle("seen")

    @initialize(pessimistic=st.booleans())
    def open_world(self, pessimistic: bool) -> None:
        Log.worlds += 1
        self.pessimistic = pessimistic
        catalog = Catalog(self.client)
        with suppress(Invalid):
            catalog.drop_database("penstock")
        with suppress(Invalid):
            catalog.create_database("shop")
        self.table = f"t{Log.worlds}"
        catalog.create_table(f"shop.{self.table}", [("id", "bigint primary key")])
        self.jobs = Jobs(self.client)
        self.model: dict[tuple[str, int], Row] = {}
        self.highest = dict.fromkeys(NAMES, 0)
        self.clock_ts = 1000

    @property
    def log(self) -> JobLog:
        return self.jobs.log

    def live(self, name: str) -> tuple[str, int] | None:
        return next((key for key, row in self.model.items() if key[0] == name and not row.dropped), None)

    def later(self) -> int:
        self.clock_ts += 10
        return self.clock_ts

    def change(self, name: str, work: Callable[[Transaction, JobId, Row], Row], *, undo: bool) -> None:
        """Run what a person does to the live job of a name; `work` says what the row is afterwards."""
        key, named = self.live(name), JobId("shop", self.table, name)
        with self.client.begin(pessimistic=self.pessimistic) as txn:
            if key is None:
                with pytest.raises(Invalid, match="there is no job"):
                    work(txn, named, Row())
                return
            after = work(txn, named, self.model[key])
            if undo:
                txn.rollback()
        if not undo:
            self.model[key] = after

    @rule(name=names, priority=st.integers(-5, 5), undo=st.booleans())
    def register(self, name: str, priority: int, undo: bool) -> None:
        there = self.live(name)
        with self.client.begin(pessimistic=self.pessimistic) as txn:
            done = self.jobs.register_job(txn, JobId("shop", self.table, name), spec(priority=priority))
            assert done == (there is None)
            if undo:
                txn.rollback()
        if there is None and not undo:
            self.highest[name] += 1
            self.model[name, self.highest[name]] = Row(priority=priority)

    @rule(name=names, undo=st.booleans())
    def unregister(self, name: str, undo: bool) -> None:
        key, named = self.live(name), JobId("shop", self.table, name)
        with self.client.begin(pessimistic=self.pessimistic) as txn:
            assert self.jobs.unregister_job(txn, named) == (key is not None)
            assert not self.jobs.unregister_job(txn, named), "a transaction sees what it did"
            if undo:
                txn.rollback()
        if key is not None and not undo:
            self.model[key] = self.model[key].counted(dropped=True, state=self.model[key].idle)

    @rule(name=names, priority=st.none() | st.integers(-5, 5), interrupt=st.booleans(), undo=st.booleans())
    def update(self, name: str, priority: int | None, interrupt: bool, undo: bool) -> None:
        def work(txn: Transaction, named: JobId, row: Row) -> Row:
            newer = JobSpec.parse({"detail": {"priority": priority}})
            self.jobs.update_job_spec(txn, named, newer, UpdateOptions(interrupt=interrupt))
            row = replace(row, priority=row.priority if priority is None else priority)
            return row.counted(state=row.idle) if interrupt else row

        self.change(name, work, undo=undo)

    @rule(name=names)
    def pause(self, name: str) -> None:
        def work(txn: Transaction, named: JobId, row: Row) -> Row:
            self.jobs.pause_job(txn, named)
            return replace(row, paused=True)

        self.change(name, work, undo=False)

    @rule(name=names)
    def resume(self, name: str) -> None:
        def work(txn: Transaction, named: JobId, row: Row) -> Row:
            self.jobs.resume_job(txn, named)
            row = replace(row, paused=False)
            return row.counted(state=C, failures=0) if row.state is E else row

        self.change(name, work, undo=False)

    @rule(name=names, undo=st.booleans())
    def rebuild(self, name: str, undo: bool) -> None:
        def work(txn: Transaction, named: JobId, row: Row) -> Row:
            self.jobs.rebuild_job(txn, named)
            return row.counted(
                state=C if row.state is E else row.idle,
                watermark=0,
                committed_ts=0,
                to_ts=0,
                failures=0,
                resync_ts=max(row.resync_ts, row.committed_ts, row.to_ts, row.watermark, txn.start_ts),
            )

        self.change(name, work, undo=undo)

    @rule(ttl_s=st.sampled_from([0, 86_400]))
    def collect(self, ttl_s: int) -> None:
        gone = [key for key, row in self.model.items() if row.dropped and not ttl_s]
        assert self.log.collect(ttl_s) == len(gone)
        for key in gone:
            del self.model[key]

    @rule(target=seen)
    def look(self) -> list[Job]:
        """A runner remembers the rows of now, and goes on with them later."""
        return self.log.read_all()[1]

    def wanted(self, kind: str, row: Row) -> tuple[Transition, Row]:
        """A transition of a runner, and what the row is after it."""
        to_ts = self.later()
        if kind in {"pending", "started"}:
            state = P if kind == "pending" else R
            more = {} if kind == "pending" else {"at": 1}
            begin = transitions.queue_iteration if kind == "pending" else transitions.start_iteration
            made = begin(row.watermark, to_ts, runner=1, **more)
            return made, row.counted(state=state, to_ts=to_ts)
        if kind == "completed":
            after = row.counted(state=C, watermark=to_ts, committed_ts=to_ts, to_ts=to_ts, failures=0)
            return transitions.complete_iteration(to_ts, at=2), after
        if kind == "failed":
            return transitions.fail_iteration(1, "why", at=2), row.counted(state=C, failures=row.failures + 1)
        if kind == "stopped":
            return transitions.fail_iteration(10_000, "why", at=2), row.counted(
                state=E, failures=row.failures + 1
            )
        if kind == "canceled":
            return transitions.cancel_iteration(at=2), row.counted(state=X)
        if kind == "adopted":
            return transitions.adopt_job(3), row.counted(state=C if row.state in {P, R} else row.state)
        moved = row.watermark and row.state not in {P, R}
        return transitions.flush_watermark(to_ts), replace(row, watermark=to_ts if moved else row.watermark)

    def decide(self, kind: str, job: Job) -> tuple[Transition, Row | None]:
        row = self.model.get((job.key.job_name, job.key.job_id))
        transition, after = self.wanted(kind, row or Row())
        fenced = row is None or row.dropped or row.lsn != job.status.lsn
        return transition, None if fenced else after

    @rule(
        rows=seen,
        kind=st.sampled_from(
            ["pending", "started", "completed", "failed", "stopped", "canceled", "adopted", "flushed"]
        ),
    )
    def write_all(self, rows: list[Job], kind: str) -> None:
        """Whoever remembers rows changes them: those that are stale are refused, and the others are not."""
        decided = [(job, *self.decide(kind, job)) for job in rows]
        found = self.log.transact([(job, transition) for job, transition, _ in decided])
        for (job, _, after), written in zip(decided, found, strict=True):
            assert (None if written is None else Row.of(written)) == after
            if after is not None:
                self.model[job.key.job_name, job.key.job_id] = after

    @rule(rows=seen, data=st.data(), pessimistic=st.booleans(), undo=st.booleans())
    def write_one(self, rows: list[Job], data: st.DataObject, pessimistic: bool, undo: bool) -> None:
        """A consumer writes its rows and the watermark in one transaction."""
        if not rows:
            return
        job = data.draw(st.sampled_from(rows))
        transition, after = self.decide("completed", job)
        ours = b"target/%d/%d" % (Log.worlds, self.later())
        with suppress(Fenced), self.client.begin(pessimistic=pessimistic) as txn:
            txn.put(ours, b"row")
            self.log.change(txn, job.key, job.status.lsn, transition)
            assert after is not None, "a stale writer was not refused"
            if undo:
                txn.rollback()
        done = after is not None and not undo
        assert self.client.snapshot(self.client.timestamp()).get(ours) == (b"row" if done else None)
        if after is not None and not undo:
            self.model[job.key.job_name, job.key.job_id] = after

    @invariant()
    def the_log_is_what_the_model_says(self) -> None:
        if not hasattr(self, "model"):
            return
        _, rows = self.log.read_all()
        assert {(job.key.job_name, job.key.job_id): Row.of(job) for job in rows} == self.model
        live = [job.key.job_name for job in rows if job.live]
        assert len(live) == len(set(live)), "a name is one live job's"
        assert all(job.drop_at is None or job.drop_at >= job.create_at for job in rows)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    data = tmp_path_factory.mktemp("store")
    cluster = eventloop.run(
        Cluster.start(StoreSettings(data=data, pd_addr="127.0.0.1:0", stores=1, sync=False))
    )
    Log.client = Client.connect([cluster.pd_addr])
    yield
    Log.client.close()
    eventloop.run(cluster.stop())


def test_people_and_stale_runners_cannot_spoil_the_log(world: None) -> None:
    run_state_machine_as_test(
        Log,
        settings=settings(
            max_examples=examples(8, 20),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
