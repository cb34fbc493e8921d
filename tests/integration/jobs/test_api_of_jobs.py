"""What people do with jobs, in transactions of a real store."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from penstock.clock import physical_ms
from penstock.errors import Conflict, Fenced, Invalid, Undetermined
from penstock.jobs.api import Jobs
from penstock.jobs.job import ErrorCode, Job, JobId, JobKey, JobState, JobStatus
from penstock.jobs.log.job_log import RUNNER_LEASE, JobLog
from penstock.jobs.log.job_rows import LOG_NAME, PRIMARY_KEY
from penstock.jobs.log.transitions import (
    adopt_job,
    complete_iteration,
    fail_iteration,
    flush_watermark,
    start_iteration,
)
from penstock.jobs.spec import JobSpec, UpdateOptions
from penstock.kv import Client, Transaction
from penstock.kv.lease import LeaseRecord
from penstock.settings import JobsSettings
from penstock.tables import Catalog
from support.warmstore import WarmStore

SEARCH = JobId("shop", "orders", "search")
SECRET = "pa55word"
SPEC = JobSpec.parse(
    {
        "trigger": {"job_type": "periodic", "schedule": {"interval": "10s", "share": True}},
        "detail": {"priority": 3, "consumer": {"consumer": "postgres", "options": {"dsn": SECRET, "t": "x"}}},
    }
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    data = tmp_path_factory.mktemp("jobs") / "store"
    with WarmStore.start(data, stores=1) as store, Client.connect([store.pd_addr]) as connected:
        yield connected


@pytest.fixture
def db(client: Client) -> Iterator[Catalog]:
    catalog = Catalog(client)
    catalog.create_database("shop")
    catalog.create_table("shop.orders", [("id", "bigint primary key"), ("note", "text")])
    yield catalog
    for database in catalog.databases():
        catalog.drop_database(database.name)
    for account in catalog.accounts():
        if account.id:
            catalog.drop_account(account.name)


@pytest.fixture
def jobs(client: Client, db: Catalog) -> Jobs:
    return Jobs(client, catalog=db)


def register(jobs: Jobs, job_id: JobId = SEARCH, spec: JobSpec = SPEC) -> bool:
    with jobs.log.client.begin() as txn:
        return jobs.register_job(txn, job_id, spec)


def unregister(jobs: Jobs, job_id: JobId = SEARCH) -> bool:
    with jobs.log.client.begin() as txn:
        return jobs.unregister_job(txn, job_id)


def damage(db: Catalog, key: JobKey) -> None:
    place = {name: getattr(key, name) for name in PRIMARY_KEY}
    assert db.table(LOG_NAME).update([{**place, "job_spec": [SECRET]}]) == 1


def written(jobs: Jobs, job: Job, *steps: object) -> Job:
    for step in steps:
        (after,) = jobs.log.transact([(job, step)])
        assert after is not None
        job = after
    return job


def test_a_new_job_is_ready_for_its_first_iteration(jobs: Jobs, client: Client, db: Catalog) -> None:
    assert register(jobs)
    job = jobs.get_job(SEARCH)
    assert job == Job(
        key=JobKey(0, db.table_info("shop.orders").id, "search", 1),
        id=SEARCH,
        account="sys",
        spec=SPEC,
        state=JobState.COMPLETED,
        watermark=0,
        status=JobStatus(),
        create_at=job.create_at,
        confined=False,
    )
    assert 0 <= physical_ms(client.timestamp()) - job.create_at < 60_000
    assert jobs.get_job_status(SEARCH) == JobStatus()


def test_the_log_is_a_table_like_any_other(jobs: Jobs, db: Catalog) -> None:
    register(jobs)
    (row,) = db.table(LOG_NAME).to_arrow().to_pylist()
    assert (row["account_id"], row["job_name"], row["job_id"], row["watermark"]) == (0, "search", 1, "0")
    assert (row["job_state"], row["drop_at"]) == (3, None)
    assert db.table(LOG_NAME).get((0, row["table_id"], "search", 1))["job_spec"] == row["job_spec"]


def test_a_name_is_one_jobs_until_that_is_unregistered(jobs: Jobs) -> None:
    for job_id in (1, 2, 3):
        assert register(jobs)
        assert not register(jobs), "there is one"
        assert jobs.get_job(SEARCH).key.job_id == job_id
        assert unregister(jobs)
        assert not unregister(jobs), "there is none"
        with pytest.raises(Invalid, match=r"no job shop\.orders/search; `penstock job list`"):
            jobs.get_job(SEARCH)
    assert jobs.get_jobs() == []
    assert [job.key.job_id for job in jobs.get_jobs(dropped=True)] == [1, 2, 3]


def test_an_id_is_not_given_again_when_its_job_was_collected(jobs: Jobs) -> None:
    register(jobs)
    unregister(jobs)
    assert jobs.log.collect(86_400) == 0, "a day has not passed"
    assert jobs.log.collect(0) == 1
    assert jobs.get_jobs(dropped=True) == []
    register(jobs)
    assert jobs.get_job(SEARCH).key.job_id == 2, "a target may still know the first"


def test_a_dropped_job_is_collected_after_a_day_and_no_sooner(jobs: Jobs, client: Client) -> None:
    register(jobs)
    job, rows, hour_ms = jobs.get_job(SEARCH), jobs.log.ensure(), 3_600_000
    now_ms = physical_ms(client.timestamp())
    with client.begin() as txn:
        for hours in (1, 23, 25, 1000):
            key = replace(job.key, job_name=f"h{hours}")
            dropped = replace(job, key=key, drop_at=now_ms - hours * hour_ms)
            txn.put(rows.key(key), rows.value(dropped))
    assert jobs.log.collect(JobsSettings().dropped_ttl_s) == 2
    left = [each.key.job_name for each in jobs.get_jobs(dropped=True)]
    assert left == ["h1", "h23", "search"], "a job that is not dropped is never collected"


def test_an_id_is_not_given_again_in_whatever_order_rows_go(jobs: Jobs, client: Client, db: Catalog) -> None:
    for _ in range(2):
        register(jobs)
        unregister(jobs)
    register(jobs)
    damage(db, jobs.get_job(SEARCH).key)
    assert unregister(jobs), "the third row goes first"
    assert jobs.log.collect(0) == 2
    register(jobs)
    assert jobs.get_job(SEARCH).key.job_id == 4


def test_nothing_happens_in_a_transaction_that_is_rolled_back(jobs: Jobs, client: Client) -> None:
    with client.begin() as txn:
        assert jobs.register_job(txn, SEARCH, SPEC)
        assert not jobs.register_job(txn, SEARCH, SPEC), "it is there for the transaction itself"
        assert jobs.get_job(SEARCH, txn=txn).key.job_id == 1
        txn.rollback()
    assert jobs.get_jobs() == []
    register(jobs)
    with client.begin() as txn:
        assert jobs.unregister_job(txn, SEARCH)
        assert jobs.get_jobs(txn=txn) == []
        txn.rollback()
    assert [job.id for job in jobs.get_jobs()] == [SEARCH]


def test_a_job_is_registered_together_with_rows(jobs: Jobs, db: Catalog) -> None:
    orders = db.table("shop.orders")
    with db.begin() as txn:
        orders.insert([{"id": 1}], txn=txn)
        jobs.register_job(txn, SEARCH, SPEC)
        assert orders.get(1) is None
        assert jobs.get_jobs() == []
    assert orders.get(1) is not None
    assert len(jobs.get_jobs()) == 1


def test_a_transaction_may_be_older_than_the_log(jobs: Jobs, client: Client) -> None:
    with client.begin() as txn:
        assert txn.start_ts
        jobs.log.ensure()
        assert jobs.register_job(txn, SEARCH, SPEC)
    assert len(jobs.get_jobs()) == 1


@pytest.mark.parametrize("pessimistic", [False, True])
def test_one_of_two_who_register_at_once_has_to_run_again(
    jobs: Jobs, client: Client, pessimistic: bool
) -> None:
    slower = client.begin(pessimistic=pessimistic)
    assert slower.start_ts
    assert register(jobs)
    with pytest.raises(Conflict), slower:
        jobs.register_job(slower, SEARCH, SPEC)
    assert not register(jobs)
    assert [job.key.job_id for job in jobs.get_jobs(dropped=True)] == [1]


@pytest.mark.parametrize("pessimistic", [False, True])
def test_an_update_that_meets_a_drop_has_to_run_again(jobs: Jobs, client: Client, pessimistic: bool) -> None:
    register(jobs)
    slower = client.begin(pessimistic=pessimistic)
    assert slower.start_ts
    unregister(jobs)
    with pytest.raises(Conflict), slower:
        jobs.pause_job(slower, SEARCH)
    (job,) = jobs.get_jobs(dropped=True)
    assert not job.live
    assert not job.spec.paused


@pytest.mark.parametrize("pessimistic", [False, True])
def test_a_stale_writer_changes_nothing_and_neither_do_its_rows(
    jobs: Jobs, client: Client, db: Catalog, pessimistic: bool
) -> None:
    register(jobs)
    job = jobs.get_job(SEARCH)
    slower = client.begin(pessimistic=pessimistic)
    assert slower.start_ts
    newer = written(jobs, job, start_iteration(0, 10, runner=2, at=1))
    db.table("shop.orders").insert([{"id": 1}], txn=slower)
    with pytest.raises((Fenced, Conflict)), slower:
        jobs.log.change(slower, job.key, job.status.lsn, complete_iteration(10, at=2))
    assert jobs.get_job(SEARCH) == newer
    assert db.table("shop.orders").get(1) is None
    with pytest.raises(Fenced), client.begin(pessimistic=pessimistic) as txn:
        jobs.log.change(txn, job.key, job.status.lsn, complete_iteration(10, at=2))


def test_rows_and_the_watermark_become_visible_together(jobs: Jobs, client: Client, db: Catalog) -> None:
    register(jobs)
    job = written(jobs, jobs.get_job(SEARCH), start_iteration(0, 10, runner=1, at=1))
    with client.begin() as txn:
        db.table("shop.orders").insert([{"id": 1}], txn=txn)
        jobs.log.change(txn, job.key, job.status.lsn, complete_iteration(10, at=2))
        assert jobs.get_job(SEARCH).watermark == 0
    assert jobs.get_job(SEARCH).watermark == 10
    assert db.table("shop.orders").get(1) is not None


def test_a_flush_keeps_the_drop_that_came_first(jobs: Jobs) -> None:
    register(jobs)
    job = written(jobs, jobs.get_job(SEARCH), complete_iteration(10, at=1))
    unregister(jobs)
    assert jobs.log.flush_watermarks([(job, 20)]) == [None]
    (dropped,) = jobs.get_jobs(dropped=True)
    assert (dropped.live, dropped.watermark) == (False, 10)


def test_a_flush_keeps_the_status_and_the_spec_that_came_meanwhile(jobs: Jobs, client: Client) -> None:
    register(jobs)
    job = written(
        jobs,
        jobs.get_job(SEARCH),
        start_iteration(0, 10, runner=4, at=1),
        complete_iteration(10, at=2),
        fail_iteration(1, "no", at=3),
    )
    with client.begin() as txn:
        jobs.pause_job(txn, SEARCH)
    (flushed_job,) = jobs.log.flush_watermarks([(job, 20)])
    now = jobs.get_job(SEARCH)
    assert now == flushed_job
    assert (now.watermark, now.status, now.spec.paused) == (20, job.status, True)


def test_a_writer_that_is_slower_than_another_applies_its_change_to_what_is_there(
    jobs: Jobs, client: Client
) -> None:
    register(jobs)
    job = written(jobs, jobs.get_job(SEARCH), complete_iteration(10, at=1))
    meddled = []

    def update_meanwhile(row: Job) -> Job:
        if not meddled:
            meddled.append(1)
            with client.begin() as txn:
                jobs.update_job_spec(txn, SEARCH, JobSpec.parse({"detail": {"priority": 9}}))
        return flush_watermark(20)(row)

    assert written(jobs, job, update_meanwhile).spec.priority == 9
    assert (jobs.get_job(SEARCH).watermark, jobs.get_job(SEARCH).spec.priority) == (20, 9)


def test_empty_fields_of_a_new_spec_keep_their_values(jobs: Jobs, client: Client) -> None:
    register(jobs)
    newer = {"trigger": {"job_type": "greedy"}, "detail": {"consumer": {"options": {"t": "y"}}}}
    with client.begin() as txn:
        jobs.update_job_spec(txn, SEARCH, JobSpec.parse(newer))
    spec = jobs.get_job(SEARCH).spec
    assert (spec.job_type, spec.interval_s, spec.priority, spec.consumer) == ("greedy", 10, 3, "postgres")
    assert spec.detail.consumer.options == {"dsn": SECRET, "t": "y"}


@pytest.mark.parametrize("interrupt", [False, True])
def test_an_update_ends_the_iteration_under_way_when_it_is_to(
    jobs: Jobs, client: Client, interrupt: bool
) -> None:
    register(jobs)
    job = written(jobs, jobs.get_job(SEARCH), start_iteration(0, 10, runner=1, at=1))
    with client.begin() as txn:
        newer = JobSpec.parse({"detail": {"priority": 9}})
        jobs.update_job_spec(txn, SEARCH, newer, UpdateOptions(interrupt=interrupt))
    assert jobs.get_job(SEARCH).state is (JobState.CANCELED if interrupt else JobState.RUNNING)
    (ended,) = jobs.log.transact([(job, complete_iteration(10, at=2))])
    assert (ended is None) == interrupt
    assert jobs.get_job(SEARCH).watermark == (0 if interrupt else 10)
    assert jobs.get_job(SEARCH).spec.priority == 9, "the end of an iteration keeps the newer spec"


def test_jobs_are_found_by_their_state(jobs: Jobs) -> None:
    ids = {state: JobId("shop", "orders", state.name) for state in (JobState.COMPLETED, JobState.RUNNING)}
    for job_id in ids.values():
        register(jobs, job_id)
    running = jobs.get_job(ids[JobState.RUNNING])
    written(jobs, running, start_iteration(0, 10, runner=1, at=1))
    assert [job.id for job in jobs.get_jobs()] == sorted(ids.values())
    assert [job.id for job in jobs.get_jobs(JobState.RUNNING)] == [ids[JobState.RUNNING]]
    assert jobs.get_jobs(JobState.ERROR) == []


def test_a_job_goes_on_when_it_is_resumed(jobs: Jobs, client: Client) -> None:
    register(jobs)
    with client.begin() as txn:
        assert jobs.pause_job(txn, SEARCH).spec.paused
    job = written(jobs, jobs.get_job(SEARCH), fail_iteration(ErrorCode.REFUSED, "no", at=1))
    assert job.state is JobState.ERROR
    with client.begin() as txn:
        jobs.resume_job(txn, SEARCH)
    now = jobs.get_job(SEARCH)
    assert (now.spec.paused, now.state, now.status.error_msg) == (False, JobState.COMPLETED, "")


def test_a_job_is_rebuilt_from_nothing(jobs: Jobs, client: Client) -> None:
    register(jobs)
    job = written(
        jobs,
        jobs.get_job(SEARCH),
        complete_iteration(10, at=1),
        fail_iteration(ErrorCode.TARGET_DIFFERS, "", at=1),
    )
    with client.begin() as txn:
        jobs.rebuild_job(txn, SEARCH)
        at_ts = txn.start_ts
    now = jobs.get_job(SEARCH)
    assert (now.key, now.watermark, now.state) == (job.key, 0, JobState.COMPLETED)
    assert now.status.resync_ts == at_ts, (
        "whatever an iteration that is under way still commits does not count"
    )


def test_a_job_of_a_truncated_table_is_found_and_rebuilt_for_the_new_one(
    jobs: Jobs, client: Client, db: Catalog
) -> None:
    register(jobs)
    old = written(jobs, jobs.get_job(SEARCH), complete_iteration(10, at=1))
    truncated = db.truncate_table("shop.orders")
    assert jobs.get_job(SEARCH).key == old.key
    with client.begin() as txn:
        jobs.rebuild_job(txn, SEARCH)
    now = jobs.get_job(SEARCH)
    assert (now.key.table_id, now.key.job_id, now.watermark, now.spec) == (truncated.id, 1, 0, SPEC)
    assert [job.key for job in jobs.get_jobs(dropped=True) if not job.live] == [old.key]


def test_a_job_is_unregistered_together_with_those_of_its_name_that_are_stranded(
    jobs: Jobs, db: Catalog
) -> None:
    other = JobId("shop", "orders", "other")
    register(jobs)
    register(jobs, other)
    db.truncate_table("shop.orders")
    assert register(jobs)
    assert not register(jobs)
    assert [job.id for job in jobs.get_jobs()] == [other, SEARCH, SEARCH]
    assert jobs.get_job(SEARCH).key.table_id == db.table_info("shop.orders").id
    assert unregister(jobs)
    assert not unregister(jobs)
    assert [job.id for job in jobs.get_jobs()] == [other]


def test_a_job_of_a_dropped_table_can_only_be_unregistered(jobs: Jobs, client: Client, db: Catalog) -> None:
    register(jobs)
    db.drop_table("shop.orders")
    with pytest.raises(Invalid, match=r"the table of job shop\.orders/search is gone"), client.begin() as txn:
        jobs.rebuild_job(txn, SEARCH)
    with pytest.raises(Invalid, match="no table"):
        register(jobs)
    assert [job.id for job in jobs.get_jobs()] == [SEARCH]
    assert unregister(jobs)
    assert not unregister(jobs)


def test_a_job_follows_its_table_to_another_name(jobs: Jobs, db: Catalog) -> None:
    register(jobs)
    db.rename_table("shop.orders", "shop.Bestellungen")
    db.create_table("shop.orders", [("id", "bigint primary key")])
    renamed = JobId("shop", "Bestellungen", "search")
    assert jobs.get_job(JobId("SHOP", "bestellungen", "search")).id == renamed
    assert [job.id for job in jobs.get_jobs()] == [renamed]
    assert not unregister(jobs), "the new table of the old name has no such job"
    assert register(jobs)
    assert [job.id for job in jobs.get_jobs()] == [renamed, SEARCH]


def test_an_account_sees_and_changes_its_own_jobs_only(jobs: Jobs, client: Client, db: Catalog) -> None:
    db.create_account("acme")
    db.create_database("theirs", account="acme")
    db.create_table("theirs.orders", [("id", "bigint primary key")])
    job_id = JobId("theirs", "orders", "search")
    acme, beta = Jobs(client, account="acme"), Jobs(client, account="sys")
    assert register(acme, job_id)
    register(jobs)
    assert acme.get_job(job_id).account == "acme"
    assert acme.get_job(job_id).key.account_id > 0
    assert [job.id for job in acme.get_jobs()] == [job_id]
    assert [job.id for job in beta.get_jobs()] == [SEARCH]
    assert [job.id for job in jobs.get_jobs()] == [SEARCH, job_id]
    for refused in (lambda: register(beta, job_id), lambda: unregister(beta, job_id)):
        with pytest.raises(Invalid, match="belongs to another account than sys"):
            refused()


@pytest.mark.parametrize(
    ("job_id", "spec", "message"),
    [
        (JobId("shop", "nothing", "j"), SPEC, "no table 'shop.nothing'; there are orders"),
        (JobId("nowhere", "orders", "j"), SPEC, "no database 'nowhere'"),
        (SEARCH, JobSpec(), "names no consumer"),
        (JobId("penstock", "iscp_log", "j"), SPEC, "cannot follow penstock.iscp_log"),
    ],
)
def test_what_cannot_be_a_job_is_refused(jobs: Jobs, job_id: JobId, spec: JobSpec, message: str) -> None:
    jobs.log.ensure()
    with pytest.raises(Invalid, match=message):
        register(jobs, job_id, spec)
    assert jobs.get_jobs() == []


def test_a_damaged_row_blocks_nothing_and_can_be_unregistered(
    jobs: Jobs, client: Client, db: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    other = JobId("shop", "orders", "other")
    register(jobs)
    register(jobs, other)
    damage(db, jobs.get_job(SEARCH).key)
    assert [job.id for job in jobs.get_jobs()] == [other]
    _, rows = jobs.log.read_all()
    assert jobs.log.transact([(row, complete_iteration(10, at=1)) for row in rows]) != [None]
    with pytest.raises(Invalid, match="no job"), client.begin() as txn:
        jobs.pause_job(txn, SEARCH)
    assert unregister(jobs)
    assert not unregister(jobs)
    assert register(jobs)
    assert jobs.get_job(SEARCH).key.job_id == 2
    assert "the row of a job is damaged" in caplog.text
    assert SECRET not in caplog.text


def test_many_who_register_at_once_make_one_job_and_one_log(client: Client, db: Catalog) -> None:
    def attempt(_: int) -> bool:
        mine = Jobs(client)
        while True:
            try:
                return register(mine)
            except Conflict:
                continue

    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(attempt, range(8))) == [False] * 7 + [True]
    assert [job.key.job_id for job in Jobs(client).get_jobs(dropped=True)] == [1]


class Counting:
    """A client that counts the transactions it begins; the first `lost` commits are made and not answered."""

    def __init__(self, client: Client, *, lost: int = 0) -> None:
        self._client = client
        self._lost = lost
        self.begun = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @contextmanager
    def begin(self) -> Iterator[Transaction]:
        self.begun += 1
        with self._client.begin() as txn:
            yield txn
        if self._lost:
            self._lost -= 1
            raise Undetermined("nobody answers")


class TakenOver:
    """A client in whose first transaction another runner takes the lease, before the commit."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._left = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @contextmanager
    def begin(self) -> Iterator[Transaction]:
        with self._client.begin() as txn:
            yield txn
            if self._left:
                self._left = False
                write_lease(self._client, LeaseRecord("another", 8, 1))


def write_lease(client: Client, record: LeaseRecord) -> None:
    with client.begin() as txn:
        txn.put(RUNNER_LEASE.key, json.dumps(record.to_fields()).encode())


def test_a_runner_that_loses_the_lease_before_the_commit_notes_no_verification(
    jobs: Jobs, client: Client
) -> None:
    register(jobs)
    key = jobs.get_job(SEARCH).key
    write_lease(client, LeaseRecord("one", 7, 1))
    JobLog(client).note_verified(key, b"first", epoch=7)
    with pytest.raises(Fenced):
        JobLog(cast("Client", TakenOver(client))).note_verified(key, b"late", epoch=7)
    assert jobs.log.read_verified([key]) == {key: b"first"}


def test_a_thousand_jobs_are_read_and_taken_over_in_few_transactions(jobs: Jobs, client: Client) -> None:
    register(jobs)
    job = jobs.get_job(SEARCH)
    rows = jobs.log.ensure()
    with client.begin() as txn:
        for number in range(1000):
            key = replace(job.key, job_name=f"j{number}")
            txn.put(rows.key(key), rows.value(replace(job, key=key)))
    _, read = jobs.log.read_all()
    assert len(read) == 1001
    written(jobs, read[0], complete_iteration(5, at=1))
    counting = Counting(client)
    taken = JobLog(cast("Client", counting)).transact([(each, adopt_job(3)) for each in read])
    assert counting.begun == 4
    assert taken[0] is None, "one that is stale does not hold up the others"
    assert None not in taken[1:]
    now = {each.key: each for each in jobs.log.read_all()[1]}
    assert all(now[each.key] == each for each in taken if each is not None)


@pytest.mark.parametrize("meddle", [False, True])
def test_a_change_whose_commit_was_not_answered_is_found_again(
    jobs: Jobs, client: Client, meddle: bool
) -> None:
    register(jobs)
    job = jobs.get_job(SEARCH)
    attempts = []

    def start(row: Job) -> Job:
        attempts.append(row)
        return start_iteration(0, 10, runner=1, at=1)(row)

    class Meddled(Counting):
        @contextmanager
        def begin(self) -> Iterator[Transaction]:
            if meddle and self.begun == 1:
                with client.begin() as txn:
                    jobs.pause_job(txn, SEARCH)
            with super().begin() as txn:
                yield txn

    lossy = Meddled(client, lost=1)
    (found,) = JobLog(cast("Client", lossy)).transact([(job, start)])
    assert lossy.begun == 2
    assert attempts == [job], "it is not made twice"
    assert found == jobs.get_job(SEARCH)
    assert (found.state, found.status.lsn, found.spec.paused) == (JobState.RUNNING, 1, meddle)


def test_who_was_faster_while_a_commit_was_not_answered_is_not_overwritten(
    jobs: Jobs, client: Client
) -> None:
    register(jobs)
    job = jobs.get_job(SEARCH)
    others = []

    class Overtaken(Counting):
        @contextmanager
        def begin(self) -> Iterator[Transaction]:
            if self.begun == 1:
                others.append(written(jobs, jobs.get_job(SEARCH), adopt_job(2)))
            with super().begin() as txn:
                yield txn

    log = JobLog(cast("Client", Overtaken(client, lost=1)))
    assert log.transact([(job, start_iteration(0, 10, runner=1, at=1))]) == [None]
    assert [jobs.get_job(SEARCH)] == others
