"""Schema changes that take several transactions: a new or dropped index, a column whose rows are rewritten.

A job is a record in the meta keys. Each step reads it, makes one transaction and writes it again, so any
process can go on where another stopped, and two that do so at once do no harm:

    none ► delete-only ► write-only ► write-reorganization ► backfill in batches ► public: the job is finished
    public ► write-only ► delete-only ► delete-reorganization ► none: dropped, or rolled back

A batch of the backfill locks its rows and reads them as they are then, so it waits for writers and they wait
for it. What it finds that cannot be, two rows with one unique value, a value that the new type cannot take,
sends the job back.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid
from penstock.kv import Client, Transaction
from penstock.kv.transact import transact
from penstock.tables import alter, indexes
from penstock.tables.columns import SchemaState
from penstock.tables.ddl import SchemaChange
from penstock.tables.ddl_jobs import DdlAction, DdlJob, RunningJob
from penstock.tables.garbage import ranges_of_index
from penstock.tables.indexes import IndexEntry
from penstock.tables.keys import decode_record_key, record_range
from penstock.tables.meta import MetaReader, MetaWriter, parse_json, running_job_key
from penstock.tables.online import WriteForm
from penstock.tables.records import Record, read_record, value_of
from penstock.tables.row_reader import RowRef
from penstock.tables.schema import IndexInfo, TableInfo
from penstock.tables.schema_snapshot import TablePlace
from penstock.tables.statements import type_text

_log = logging.getLogger(__name__)

_REWRITES = 1 << 8  # the source of transactions that rewrite a column, as in TiDB: change streams omit them
BATCH_ROWS = 512
_BATCH_BYTES = 2 << 20
_LOG_EVERY_S = 10.0
_NEXT = {
    SchemaState.NONE: SchemaState.DELETE_ONLY,
    SchemaState.DELETE_ONLY: SchemaState.WRITE_ONLY,
    SchemaState.WRITE_ONLY: SchemaState.WRITE_REORG,
    SchemaState.WRITE_REORG: SchemaState.PUBLIC,
}
_BACK = {
    SchemaState.PUBLIC: SchemaState.WRITE_ONLY,
    SchemaState.WRITE_REORG: SchemaState.DELETE_ONLY,
    SchemaState.WRITE_ONLY: SchemaState.DELETE_ONLY,
    SchemaState.DELETE_ONLY: SchemaState.DELETE_REORG,
    SchemaState.DELETE_REORG: SchemaState.NONE,
    SchemaState.NONE: SchemaState.NONE,
}


@dataclass(frozen=True, slots=True)
class DdlProgress:
    """How far a schema change is: the state of what it adds or drops, and the rows filled in so far."""

    job_id: int
    query: str
    state: str
    rows: int


Progress: TypeAlias = Callable[[DdlProgress], None]


class OnlineDdl:
    """Runs the jobs of a catalog to their ends."""

    def __init__(self, client: Client, *, clock: Clock = SYSTEM, batch_rows: int = BATCH_ROWS) -> None:
        self._client = client
        self._clock = clock
        self._batch_rows = batch_rows

    def run(self, job_id: int, progress: Progress | None = None) -> TableInfo:
        """Finish a job and return its table. Raise Invalid, with the reason, if the job was rolled back."""
        reported_at = self._clock.monotonic()
        while True:
            done = transact(
                self._client.begin, lambda txn: self._step(txn, job_id), repeatable=True, clock=self._clock
            )
            if done is None:
                raise Invalid(f"DDL job {job_id} ended with its table, which was dropped meanwhile")
            if isinstance(done, DdlJob):
                return _outcome(done)
            self._report(done, progress)
            job: RunningJob | None = done
            while job is not None and _is_filling(job):
                job = self._fill_next(job)
                if job is not None and progress is not None:
                    self._report(job, progress)
                if job is not None and self._clock.monotonic() - reported_at >= _LOG_EVERY_S:
                    reported_at = self._clock.monotonic()
                    _log.info("rows are being filled in", extra={"ddl_job": job.id, "rows": job.rows})

    def _report(self, job: RunningJob, progress: Progress | None) -> None:
        state = "rolling back" if job.error else job.state.name.lower().replace("_", " ")
        _log.debug("a schema change is in state %s", state, extra={"ddl_job": job.id, "rows": job.rows})
        if progress is not None:
            progress(DdlProgress(job.id, job.query, state, job.rows))

    def _step(self, txn: Transaction, job_id: int) -> RunningJob | DdlJob | None:
        """Bring the job into its next state, unless rows must be filled in first; None without its table."""
        change = SchemaChange(txn)
        job = change.running.get(job_id)
        if job is None:
            return MetaReader(txn).job(job_id)
        place = change.place_of(job)
        if place is None:
            change.drop_job(job)
            return None
        job = replace(job, database_id=place.database.id)  # it may have moved
        if not _is_filling(job):
            return _advance(change, job, place)
        if job != change.running[job_id]:
            MetaWriter(txn).put_running_job(job)
        return job

    def _fill_next(self, job: RunningJob) -> RunningJob | None:
        def begin() -> Transaction:
            return self._client.begin(pessimistic=True, txn_source=_REWRITES if job.column_id else 0)

        return transact(begin, lambda txn: self._fill(txn, job.id), repeatable=True, clock=self._clock)

    def _fill(self, txn: Transaction, job_id: int) -> RunningJob | None:
        """Fill in the next rows; return the job afterwards, None when another process is done with it."""
        stored = txn.get_for_update(running_job_key(job_id))
        if stored is None:
            return None
        job = RunningJob.from_json(parse_json(stored))
        if not _is_filling(job):
            return job
        table = MetaReader(self._client.snapshot(self._client.timestamp())).table(
            job.database_id, job.table_id
        )
        if table is None:
            return None
        keys = list(self._keys_from(table, job.position))
        fault = _Backfill(txn, table, job).fill(keys)
        if fault:
            job = job.roll_back(fault)
        else:
            last = keys[-1] + b"\x00" if keys else job.position
            job = replace(job, position=last, filled=not keys, rows=job.rows + len(keys))
        MetaWriter(txn).put_running_job(job)
        return job

    def _keys_from(self, table: TableInfo, position: bytes) -> Iterator[bytes]:
        """Yield the record keys of the next batch, in one physical table after another.

        Rows that come after this moment bring along what the job adds, so they need not be seen.
        """
        snapshot = self._client.snapshot(self._client.timestamp())
        rows = size = 0
        for physical_id in sorted(table.physical_ids):
            lower, upper = record_range(physical_id)
            lower = max(lower, position)
            for key, value in (
                snapshot.iter(lower, upper, limit=self._batch_rows - rows) if lower < upper else ()
            ):
                yield key
                rows, size = rows + 1, size + len(value)
                if rows == self._batch_rows or size >= _BATCH_BYTES:
                    return


def _is_filling(job: RunningJob) -> bool:
    return job.state is SchemaState.WRITE_REORG and not job.filled and not job.goes_back


def _advance(change: SchemaChange, job: RunningJob, place: TablePlace) -> RunningJob | DdlJob:
    state = (_BACK if job.goes_back else _NEXT)[job.state]
    if state is SchemaState.PUBLIC and job.type is DdlAction.MODIFY_COLUMN:
        changed, gone = alter.finish_rewrite(place.table, job.column_id, job.index_ids)
    else:
        changed = alter.set_state(place.table, job.column_id, job.index_ids, state)
        gone = list(job.index_ids) if state is SchemaState.NONE else []
    if state in {SchemaState.PUBLIC, SchemaState.NONE}:
        garbage = [one for number in gone for one in ranges_of_index(place.table, number)]
        return change.finish_job(job, place, changed, garbage)
    job = replace(job, state=state)
    change.continue_job(job, place, changed)
    return job


def _outcome(job: DdlJob) -> TableInfo:
    if not job.succeeded:
        raise Invalid(job.error or f"DDL job {job.id} was rolled back")
    assert job.table is not None
    return job.table


class _Backfill:
    """Fills in one batch of rows: the hidden column, and entries of the indexes that a job adds."""

    def __init__(self, txn: Transaction, table: TableInfo, job: RunningJob) -> None:
        self._txn = txn
        self._table = table
        self._form = WriteForm(table)
        self._job = job
        self._indexes = [index for index in table.indexes if index.id in job.index_ids]

    def fill(self, keys: list[bytes]) -> str:
        """Lock these rows and write what is missing; return why that is impossible, or nothing."""
        stored = self._txn.lock_keys(keys, return_values=True) if keys else {}
        rows: dict[bytes, bytes] = {}
        entries: list[tuple[IndexInfo, IndexEntry, RowRef]] = []
        for key, value in stored.items():
            if value is None:
                continue
            record = read_record(self._table, key, value, self._form.read)
            try:
                whole = self._form.complete(record, record)
            except Invalid as error:
                return self._refusal(error)
            if self._job.column_id:
                rows[key] = value_of(self._table, whole, self._form.columns)
            entries += self._entries(whole, RowRef(*decode_record_key(key)))
        fault = self._write_entries(entries)
        for key, value in rows.items():
            if not fault and stored[key] != value:
                self._txn.put(key, value)
        return fault

    def _refusal(self, error: Invalid) -> str:
        hidden = next(column for column in self._table.columns if column.id == self._job.column_id)
        source = self._table.columns[hidden.changes_from or 0]
        return (
            f"column {source.name} of {self._table.name} cannot become {type_text(hidden.type)}: {error}; "
            "change the rows that do not fit, then modify the column again"
        )

    def _entries(self, record: Record, ref: RowRef) -> Iterator[tuple[IndexInfo, IndexEntry, RowRef]]:
        partition_id = None if ref.physical_id == self._table.id else ref.physical_id
        for index in self._indexes:
            if indexes.has_entry(self._table, index, record):
                yield index, indexes.entry(self._table, index, record, ref.handle, partition_id), ref

    def _write_entries(self, entries: list[tuple[IndexInfo, IndexEntry, RowRef]]) -> str:
        keys = sorted({entry.key for _, entry, _ in entries})
        stored = dict(self._txn.lock_keys(keys, return_values=True)) if keys else {}
        writes: dict[bytes, bytes] = {}
        for index, entry, ref in entries:
            found = writes.get(entry.key, stored.get(entry.key))
            if found is not None and entry.distinct and not _is_of(index, entry, found, ref):
                return (
                    f"index {self._name(index)} of {self._table.name} cannot be unique: two rows have the "
                    "same values in it; change or delete one of them, then try again"
                )
            if found != entry.value:
                writes[entry.key] = entry.value
        for key, value in writes.items():
            self._txn.put(key, value)
        return ""

    def _name(self, index: IndexInfo) -> str:
        rewritten = index.name.removeprefix("_Idx$_").removesuffix("_0")
        return rewritten if self._job.column_id else index.name


def _is_of(index: IndexInfo, entry: IndexEntry, value: bytes, ref: RowRef) -> bool:
    """Return whether a stored entry of a unique index is the row's own."""
    partition = indexes.split_value(value).partition_id if index.is_global else None
    return indexes.handle_in(index, entry.key, value) == ref.handle and partition in {None, ref.physical_id}
