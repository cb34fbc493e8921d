"""The job log: `iscp_log`, a table of the key-value store with one row for each job.

All of it happens in transactions, the caller's or its own. Who changes a row of a job says which `lsn` it has
seen; when the row has another one, is dropped or gone, the writer is stale: it is fenced and changes nothing.
The row is locked as it is read, so that this holds at the commit too, in transactions of either kind.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import Conflict, Fenced, Invalid, Unavailable
from penstock.jobs.job import Job, JobKey
from penstock.jobs.log.job_rows import COLUMNS, DATABASE, LOG_NAME, PRIMARY_KEY, TABLE, JobRows
from penstock.jobs.log.transitions import Transition, flush_watermark
from penstock.kv import Client, Transaction
from penstock.kv.lease import LeaseKey
from penstock.kv.transact import transact
from penstock.tables.catalog import Catalog
from penstock.tables.keys import prefix_end

T = TypeVar("T")

RUNNER_LEASE = LeaseKey(
    b"penstock/jobs/lease", "the job runner", "delete its key penstock/jobs/lease once no runner runs"
)
"""The right to be the one process that runs the jobs of a cluster."""
_CHUNK_ROWS = 256  # changed by one transaction: a conflict repeats no more than these
_ATTEMPTS = 5
_COLLECTED = "penstock/jobs/collected"
_VERIFIED = "penstock/jobs/verified"


@dataclass(frozen=True, slots=True)
class _Change:
    """What a writer wants of a row that it has seen with this lsn; None: whichever it is."""

    key: JobKey
    lsn: int | None
    transition: Transition


class JobLog:
    """The log of a cluster; for any number of threads. Every method raises Unavailable.

    A row that is damaged is logged and left out: it never keeps others from being read or changed.
    """

    def __init__(self, client: Client, *, catalog: Catalog | None = None, clock: Clock = SYSTEM) -> None:
        self.client = client
        self.catalog = catalog or Catalog(client, clock=clock)
        self._clock = clock

    def ensure(self) -> JobRows:
        """Make the table if it is not there; return how its rows are written."""
        problem: Exception | None = None
        for _ in range(_ATTEMPTS):
            found = self.rows()
            if found is not None:
                return found
            try:
                if DATABASE not in self.catalog.schema().databases:
                    self.catalog.create_database(DATABASE)
                self.catalog.create_table(LOG_NAME, COLUMNS, primary_key=PRIMARY_KEY)
            except Invalid as error:  # somebody else may have been faster
                problem = error
        raise Unavailable(f"{LOG_NAME} cannot be made; try again") from problem

    def rows(self, at_ts: int | None = None) -> JobRows | None:
        """How rows are written as of a timestamp, by default now; None: there is no table."""
        schema = self.catalog.schema(at_ts)
        database = schema.databases.get(DATABASE)
        table = None if database is None else schema.tables[database.id].get(TABLE)
        return None if table is None else JobRows(table)

    def read_all(self) -> tuple[int, list[Job]]:
        """Every job, also those dropped, and the timestamp at which they are like this."""
        ts = self.client.timestamp()
        rows = self.rows(ts)
        if rows is None:
            return ts, []
        pages = self.client.snapshot(ts).scan_pages(*rows.range)
        return ts, [job for page in pages for job in rows.jobs(page)]

    def read(self, keys: Iterable[JobKey]) -> list[Job]:
        """The jobs of these keys that there are now, also those dropped."""
        ts = self.client.timestamp()
        rows = self.rows(ts)
        if rows is None:
            return []
        return list(rows.jobs(self.client.snapshot(ts).batch_get(rows.key(key) for key in keys).items()))

    def seen_by(self, txn: Transaction) -> list[Job]:
        """Every job as a transaction sees it."""
        rows = self._rows_in(txn)
        return [] if rows is None else list(rows.jobs(txn.scan(*rows.range)))

    def keys(self, txn: Transaction) -> list[JobKey]:
        """The keys of all rows that a transaction sees, whatever is in them."""
        rows = self._rows_in(txn)
        if rows is None:
            return []
        return [key for key, _ in rows.read((key, None) for key, _ in txn.scan(*rows.range, key_only=True))]

    def named(self, txn: Transaction, account_id: int, table_id: int, name: str) -> list[Job]:
        """The jobs that have or had this name on the table, by their ids."""
        rows = self._rows_in(txn)
        return [] if rows is None else list(rows.jobs(_scan_named(txn, rows, account_id, table_id, name)))

    def add(self, txn: Transaction, job: Job) -> Job | None:
        """Write a new job, with an id that no job of its name on its table has had before; return it so.

        None, with nothing changed, when there is a live one of that name. Raises Conflict when another
        transaction was faster.
        """
        key = job.key
        rows = self._rows_in(txn) or self.ensure()
        there = dict(rows.read(_scan_named(txn, rows, key.account_id, key.table_id, key.job_name)))
        if any(each is not None and each.live for each in there.values()):
            return None
        collected = int(txn.get(_collected_key(key)) or 0)
        highest = max((each.job_id for each in there), default=0)
        added = replace(job, key=replace(key, job_id=max(collected, highest) + 1))
        place = rows.key(added.key)
        if txn.get_for_update(place) is not None:
            raise Conflict(
                f"job {job.id} was registered by somebody else just now; run the transaction again"
            )
        txn.put(place, rows.value(added))
        return added

    def change(self, txn: Transaction, key: JobKey, lsn: int | None, transition: Transition) -> Job:
        """Apply a transition in the caller's transaction; return the row as it is after the commit.

        `lsn` is what the writer has seen; None: whatever it is. Raises Fenced, with nothing changed, when
        the row has another one, or the job is dropped or gone.
        """
        (changed,) = self._apply([_Change(key, lsn, transition)], {}, txn)
        if changed is None:
            raise Fenced(f"job {key.owner} was changed, dropped or taken over by somebody else")
        return changed

    def transact(self, changes: Sequence[tuple[Job, Transition]]) -> list[Job | None]:
        """Apply transitions to rows as they were seen; return what each is now, None where it was stale.

        Each is on its own: one that is refused does not keep the others from being made. A change whose
        commit was not answered is found again, so on return every outcome is known.
        """
        wanted = [_Change(job.key, job.status.lsn, transition) for job, transition in changes]
        found: list[Job | None] = []
        for start in range(0, len(wanted), _CHUNK_ROWS):
            found += self._committed(partial(self._apply, wanted[start : start + _CHUNK_ROWS], {}))
        return found

    def flush_watermarks(self, raised: Sequence[tuple[Job, int]]) -> list[Job | None]:
        """Write watermarks that only moved in memory; as `transact`, and nothing else of a row changes."""
        return self.transact([(job, flush_watermark(watermark)) for job, watermark in raised])

    def collect(self, dropped_ttl_s: float) -> int:
        """Remove jobs that were dropped so many seconds ago, by the database's time; return how many."""
        ts, jobs = self.read_all()
        limit_ms = physical_ms(ts) - int(dropped_ttl_s * 1000)
        due = [job.key for job in jobs if job.drop_at is not None and job.drop_at <= limit_ms]
        for start in range(0, len(due), _CHUNK_ROWS):
            self._committed(partial(self._remove, due[start : start + _CHUNK_ROWS]))
        return len(due)

    def verified(self, keys: Iterable[JobKey]) -> dict[JobKey, bytes]:
        """What `note_verified` has noted of these jobs."""
        places = {_verified_key(key): key for key in keys}
        if not places:
            return {}
        found = self.client.snapshot(self.client.timestamp()).batch_get(places)
        return {places[place]: value for place, value in found.items() if value is not None}

    def note_verified(self, key: JobKey, value: bytes, *, epoch: int) -> None:
        """Note something of a job beside its row, for as long as that is there.

        `epoch` is that of the writer's lease. Raises Fenced, with nothing changed, when somebody else has the
        lease, or the job is dropped or gone.
        """

        def note(txn: Transaction) -> None:
            rows = self._rows_in(txn)
            # Locked, so that a runner that takes over before the commit makes this transaction conflict.
            lease = txn.lock_keys([RUNNER_LEASE.key], return_values=True)[RUNNER_LEASE.key]
            if rows is None or RUNNER_LEASE.decode(lease).epoch != epoch:
                raise Fenced("jobs are run by somebody else now")
            place = rows.key(key)
            held = txn.lock_keys([place], return_values=True)
            job = next(rows.jobs([(place, held[place])]), None)
            if job is None or not job.live:
                raise Fenced(f"job {key.owner} is dropped")
            txn.put(_verified_key(key), value)

        self._committed(note)

    def scrub(self, txn: Transaction, account_id: int, table_id: int, name: str) -> bool:
        """Remove the rows of this name that are damaged; whether there were any."""
        rows = self._rows_in(txn)
        if rows is None:
            return False
        there = rows.read(_scan_named(txn, rows, account_id, table_id, name))
        damaged = [key for key, job in there if job is None]
        self._remove(damaged, txn)
        return bool(damaged)

    def _rows_in(self, txn: Transaction) -> JobRows | None:
        """How rows are written in a transaction, which may be older than the table."""
        return self.rows(txn.start_ts) or self.rows()

    def _apply(
        self, changes: Sequence[_Change], tried: dict[JobKey, Job], txn: Transaction
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
            made = _next(job, change, tried.get(change.key))
            found.append(made)
            if made is not None and made != job:
                values[place] = written = rows.value(made)
                txn.put(place, written)
                tried[change.key] = made
        return found

    def _remove(self, keys: Sequence[JobKey], txn: Transaction) -> None:
        """Remove rows; what is left of them is the highest id that a name had."""
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

    def _committed(self, work: Callable[[Transaction], T]) -> T:
        """Run a transaction until it commits; all that this class writes may be repeated."""
        return transact(self.client.begin, work, repeatable=True, clock=self._clock)


def _next(job: Job | None, change: _Change, tried: Job | None) -> Job | None:
    """What a row becomes; None when the writer is stale. `tried` is what it may have written already."""
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
    prefix = rows.prefix(account_id, table_id, name)
    return txn.scan(prefix, prefix_end(prefix))


def _verified_key(key: JobKey) -> bytes:
    return f"{_VERIFIED}/{key.account_id}/{key.table_id}/{key.job_name}/{key.job_id}".encode()


def _collected_key(key: JobKey) -> bytes:
    """Keeps the highest id of the collected jobs of a name: targets may still know them by it."""
    return f"{_COLLECTED}/{key.account_id}/{key.table_id}/{key.job_name}".encode()
