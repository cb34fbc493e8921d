"""The job log: `iscp_log`, a table of the key-value store with one row for each job.

Every change is part of a transaction, the caller's or its own. A writer that changes a job's row names the
`lsn` that it has seen. When the row has another one, is dropped or is gone, the writer is stale: it is fenced
and changes nothing. The row is locked when it is read, so that this holds at the commit too, in transactions
of either kind.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import Conflict, Fenced, Invalid, Unavailable
from penstock.jobs.job import Job, JobKey
from penstock.jobs.log.job_rows import COLUMNS, LOG_NAME, PRIMARY_KEY, JobRows
from penstock.jobs.log.transitions import Transition, flush_watermark
from penstock.kv import Client, Transaction
from penstock.kv.lease import LeaseKey
from penstock.kv.transact import transact
from penstock.secret_keys import KEY_ROW, Keyring
from penstock.tables.catalog import Catalog
from penstock.tables.keys import prefix_end
from penstock.tables.system_tables import JOB_LOG, PENSTOCK_DATABASE

T = TypeVar("T")

RUNNER_LEASE = LeaseKey(
    b"penstock/jobs/lease", "the job runner", "delete its key penstock/jobs/lease once no runner runs"
)
"""The right to be the one process that runs the jobs of a cluster."""
_CHUNK_ROWS = 256  # rows that one transaction changes: a conflict repeats no more than these
_DROPPED_ROWS = 10
"""Dropped rows of one name that stay, until their time is over, when it is registered again."""
_ATTEMPTS = 5
_COLLECTED = "penstock/jobs/collected"
_VERIFIED = "penstock/jobs/verified"


@dataclass(frozen=True, slots=True)
class _JobChange:
    """A transition for a row that the writer has seen with this `lsn`; None: with any."""

    key: JobKey
    lsn: int | None
    transition: Transition


class JobLog:
    """The log of a cluster; for any number of threads. Every method raises Unavailable.

    A damaged row is logged and left out: it never keeps other rows from being read or changed. Options are
    sealed with `keys`: methods raise MissingKey when a row needs a key that they do not have.
    """

    def __init__(
        self,
        client: Client,
        *,
        catalog: Catalog | None = None,
        keys: Keyring | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.client = client
        self.catalog = catalog or Catalog(client, clock=clock)
        self.keyring = keys or Keyring()
        self._key_is_known = False
        self._clock = clock

    def ensure(self) -> JobRows:
        """Create the table if it does not exist; return the encoding of its rows."""
        problem: Exception | None = None
        for _ in range(_ATTEMPTS):
            found = self.rows()
            if found is not None:
                return found
            try:
                if PENSTOCK_DATABASE not in self.catalog.schema().databases:
                    self.catalog.create_database(PENSTOCK_DATABASE)
                self.catalog.create_table(LOG_NAME, COLUMNS, primary_key=PRIMARY_KEY)
            except Invalid as error:  # another process may have been faster
                problem = error
        raise Unavailable(f"{LOG_NAME} cannot be created; try again") from problem

    def rows(self, at_ts: int | None = None) -> JobRows | None:
        """Return the encoding of rows as of a timestamp, by default now; None: there is no table."""
        schema = self.catalog.schema(at_ts)
        database = schema.databases.get(PENSTOCK_DATABASE)
        table = None if database is None else schema.tables[database.id].get(JOB_LOG)
        return None if table is None else JobRows(table, self.keyring)

    def read_all(self) -> tuple[int, list[Job]]:
        """Return every job, also dropped ones, and the timestamp of this state."""
        ts = self.client.timestamp()
        rows = self.rows(ts)
        if rows is None:
            return ts, []
        pages = self.client.snapshot(ts).scan_pages(*rows.range)
        return ts, [job for page in pages for job in rows.jobs(page)]

    def read(self, keys: Iterable[JobKey]) -> list[Job]:
        """Return those of the jobs that exist now, also dropped ones."""
        ts = self.client.timestamp()
        rows = self.rows(ts)
        if rows is None:
            return []
        return list(rows.jobs(self.client.snapshot(ts).batch_get(rows.key(key) for key in keys).items()))

    def list_jobs(self, txn: Transaction) -> list[Job]:
        """Return every job as a transaction sees it."""
        rows = self._rows_in(txn)
        return [] if rows is None else list(rows.jobs(txn.scan(*rows.range)))

    def keys(self, txn: Transaction) -> list[JobKey]:
        """Return the keys of all rows that a transaction sees, also of damaged ones."""
        rows = self._rows_in(txn)
        if rows is None:
            return []
        return [key for key, _ in rows.read((key, None) for key, _ in txn.scan(*rows.range, key_only=True))]

    def find_named(self, txn: Transaction, account_id: int, table_id: int, name: str) -> list[Job]:
        """Return the jobs that have or had this name on the table, by their ids."""
        rows = self._rows_in(txn)
        return [] if rows is None else list(rows.jobs(_scan_named(txn, rows, account_id, table_id, name)))

    def add(self, txn: Transaction, job: Job) -> Job | None:
        """Write a new job, with an id that its name never had on its table; return the job with that id.

        Returns None, with nothing changed, when there is a live job of that name. Raises Conflict when
        another transaction was faster.
        """
        key = job.key
        rows = self._rows_in(txn) or self.ensure()
        there = dict(rows.read(_scan_named(txn, rows, key.account_id, key.table_id, key.job_name)))
        if any(known is not None and known.live for known in there.values()):
            return None
        collected = int(txn.get(_collected_key(key)) or 0)
        highest = max((known.job_id for known in there), default=0)
        added = replace(job, key=replace(key, job_id=max(collected, highest) + 1))
        place = rows.key(added.key)
        if txn.get_for_update(place) is not None:
            raise Conflict(
                f"job {job.id} was registered by another transaction just now; run the transaction again"
            )
        txn.put(place, self._value(rows, added))
        # The last dropped ones are kept for people to see; a loop of registrations leaves no more than that.
        dropped = sorted((known for known, row in there.items() if row), key=lambda known: known.job_id)
        self._remove(dropped[:-_DROPPED_ROWS], txn)
        return added

    def change(self, txn: Transaction, key: JobKey, lsn: int | None, transition: Transition) -> Job:
        """Apply a transition in the caller's transaction; return the row as it is after the commit.

        `lsn` is what the writer has seen; None: any. Raises Fenced, with nothing changed, when the row has
        another one, or the job is dropped or gone.
        """
        (changed,) = self._apply([_JobChange(key, lsn, transition)], {}, txn)
        if changed is None:
            raise Fenced(f"job {key.owner} was changed, dropped or taken over by another process")
        return changed

    def transact(self, changes: Sequence[tuple[Job, Transition]]) -> list[Job | None]:
        """Apply transitions to rows as they were seen; return the row after each, None where it was stale.

        The changes are independent: one that is refused does not affect the others. A change whose commit was
        not answered is looked up, so on return every outcome is known.
        """
        pending = [_JobChange(job.key, job.status.lsn, transition) for job, transition in changes]
        found: list[Job | None] = []
        for start in range(0, len(pending), _CHUNK_ROWS):
            found += self._commit(partial(self._apply, pending[start : start + _CHUNK_ROWS], {}))
        return found

    def flush_watermarks(self, raised: Sequence[tuple[Job, int]]) -> list[Job | None]:
        """Write watermarks that only moved in memory, and nothing else of a row.

        Returns for each the row as it is then; None for one that has changed meanwhile or is gone.
        """
        return self.transact([(job, flush_watermark(watermark)) for job, watermark in raised])

    def collect(self, dropped_ttl_s: float) -> int:
        """Remove jobs that were dropped `dropped_ttl_s` ago by the database's time; return how many."""
        ts, jobs = self.read_all()
        limit_ms = physical_ms(ts) - int(dropped_ttl_s * 1000)
        due = [job.key for job in jobs if job.drop_at is not None and job.drop_at <= limit_ms]
        self.forget(due)
        return len(due)

    def forget(self, dropped: Sequence[JobKey]) -> None:
        """Remove the rows of dropped jobs."""
        for start in range(0, len(dropped), _CHUNK_ROWS):
            self._commit(partial(self._remove, dropped[start : start + _CHUNK_ROWS]))

    def read_verified(self, keys: Iterable[JobKey]) -> dict[JobKey, bytes]:
        """Return what `note_verified` stored for these jobs."""
        places = {_verified_key(key): key for key in keys}
        if not places:
            return {}
        found = self.client.snapshot(self.client.timestamp()).batch_get(places)
        return {places[place]: value for place, value in found.items() if value is not None}

    def note_verified(self, key: JobKey, value: bytes, *, epoch: int) -> None:
        """Store a value of a job beside its row, for as long as the row exists.

        `epoch` is that of the writer's lease. Raises Fenced, with nothing changed, when another process has
        the lease, or the job is dropped or gone.
        """

        def note(txn: Transaction) -> None:
            rows = self._rows_in(txn)
            # Locked, so that a runner that takes over before the commit makes this transaction conflict.
            lease = txn.lock_keys([RUNNER_LEASE.key], return_values=True)[RUNNER_LEASE.key]
            if rows is None or RUNNER_LEASE.decode(lease).epoch != epoch:
                raise Fenced("another process has the lease of the job runner now")
            place = rows.key(key)
            held = txn.lock_keys([place], return_values=True)
            job = next(rows.jobs([(place, held[place])]), None)
            if job is None or not job.live:
                raise Fenced(f"job {key.owner} is dropped")
            txn.put(_verified_key(key), value)

        self._commit(note)

    def scrub(self, txn: Transaction, account_id: int, table_id: int, name: str) -> bool:
        """Remove the damaged rows of this name; return whether there were any."""
        rows = self._rows_in(txn)
        if rows is None:
            return False
        there = rows.read(_scan_named(txn, rows, account_id, table_id, name))
        damaged = [key for key, job in there if job is None]
        self._remove(damaged, txn)
        return bool(damaged)

    def _rows_in(self, txn: Transaction) -> JobRows | None:
        """Return the encoding of rows for a transaction, which may be older than the table."""
        return self.rows(txn.start_ts) or self.rows()

    def _apply(
        self, changes: Sequence[_JobChange], tried: dict[JobKey, Job], txn: Transaction
    ) -> list[Job | None]:
        """Make changes in a transaction. `tried` has what an earlier attempt wrote, and is filled."""
        rows = self._rows_in(txn)
        if rows is None:
            return [None] * len(changes)
        places = [rows.key(change.key) for change in changes]
        values = txn.lock_keys(places, return_values=True)
        found: list[Job | None] = []
        for change, place in zip(changes, places, strict=True):
            job = next(rows.jobs([(place, values[place])]), None)
            changed = _next(job, change, tried.get(change.key))
            found.append(changed)
            if changed is not None and changed != job:
                values[place] = written = self._value(rows, changed)
                txn.put(place, written)
                tried[change.key] = changed
        return found

    def reseal(self) -> int:
        """Seal options that are in clear, or sealed with an older key; change nothing else. Return how many.

        Also of dropped jobs: their rows stay for a while. Makes the key of a deployment that has none: so the
        runner has it before anybody else. Raises MissingKey when the secrets of a job cannot be opened.
        """
        self._claim_key()
        rows = self.rows()
        if rows is None:
            return 0
        pages = self.client.snapshot(self.client.timestamp()).scan_pages(*rows.range)
        due = [key for page in pages for key, value in page if not rows.is_sealed(key, value)]
        for start in range(0, len(due), _CHUNK_ROWS):
            self._commit(partial(self._reseal, due[start : start + _CHUNK_ROWS]))
        return len(due)

    def _reseal(self, places: Sequence[bytes], txn: Transaction) -> None:
        rows = self._rows_in(txn)
        assert rows is not None, "its rows were read before"
        for place, value in txn.lock_keys(places, return_values=True).items():
            for job in rows.jobs([(place, value)]):
                txn.put(place, self._value(rows, job))

    def _value(self, rows: JobRows, job: Job) -> bytes:
        if job.spec.detail.consumer.options:
            self._claim_key()
        return rows.value(job)

    def _claim_key(self) -> None:
        """Make sure that the key that seals is the deployment's; make it if there is none.

        In a transaction of its own: the caller's would conflict with those of others who come first, too.
        """

        def claim(txn: Transaction) -> None:
            wanted = self.keyring.claim(txn.get(KEY_ROW))
            if wanted is not None:
                txn.put(KEY_ROW, wanted)

        if self._key_is_known:
            return
        known = self.client.snapshot(self.client.timestamp()).get(KEY_ROW)
        if known is None:
            self._commit(claim)
        else:
            self.keyring.claim(known)
        self._key_is_known = True

    def _remove(self, keys: Sequence[JobKey], txn: Transaction) -> None:
        """Remove rows; keep for each name the highest id that it had."""
        rows = self._rows_in(txn)
        if rows is None:
            return
        highest: dict[bytes, int] = {}
        for key in keys:
            txn.delete(rows.key(key))
            txn.delete(_verified_key(key))
            place = _collected_key(key)
            highest[place] = max(highest.get(place, 0), key.job_id)
        known = txn.batch_get(highest)
        for place, job_id in highest.items():
            txn.put(place, b"%d" % max(job_id, int(known.get(place, 0))))

    def _commit(self, work: Callable[[Transaction], T]) -> T:
        """Run a transaction until it commits; all that this class writes may be repeated."""
        return transact(self.client.begin, work, repeatable=True, clock=self._clock)


def _next(job: Job | None, change: _JobChange, tried: Job | None) -> Job | None:
    """Return the next row; None when the writer is stale. `tried` is what it may have written already."""
    if job is None or not job.live:
        return None
    if tried is not None and (tried.state, tried.watermark, tried.status) == (
        job.state,
        job.watermark,
        job.status,
    ):
        return job
    if change.lsn not in {None, job.status.lsn}:
        return None
    return change.transition(job)


def _scan_named(
    txn: Transaction, rows: JobRows, account_id: int, table_id: int, name: str
) -> Iterator[tuple[bytes, bytes]]:
    """Scan the rows of all jobs that have or had this name on the table."""
    prefix = rows.prefix(account_id, table_id, name)
    return txn.scan(prefix, prefix_end(prefix))


def _verified_key(key: JobKey) -> bytes:
    """Return the key under which `note_verified` stores its value."""
    return f"{_VERIFIED}/{key.account_id}/{key.table_id}/{key.job_name}/{key.job_id}".encode()


def _collected_key(key: JobKey) -> bytes:
    """Return the key of the highest id of a name's collected jobs: targets may still know them by it."""
    return f"{_COLLECTED}/{key.account_id}/{key.table_id}/{key.job_name}".encode()
