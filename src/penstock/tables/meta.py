"""The meta keys of a TiDB cluster: counters, databases, tables, the history of DDL jobs.

Numbers are decimal text, structures are JSON. Penstock adds hashes of its own: accounts with the account of
each database, and its DDL jobs that still run.
"""

import json
import logging
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from penstock.errors import Corrupt
from penstock.kv import Snapshot, Transaction
from penstock.proto.codec import decode_prefix
from penstock.tables.codec.ordered import encode_uint
from penstock.tables.ddl_jobs import DdlJob, RunningJob, SchemaDiff
from penstock.tables.keys import meta_hash_key, meta_hash_prefix, meta_string_key, prefix_end
from penstock.tables.schema import DatabaseInfo, TableInfo

_log = logging.getLogger(__name__)

NEXT_GLOBAL_ID = b"NextGlobalID"
SCHEMA_VERSION = b"SchemaVersionKey"
DATABASES = b"DBs"
JOB_HISTORY = b"DDLJobHistory"
SCHEMA_DIFFS = b"Diff:"
ACCOUNTS = b"PenstockAccounts"
RUNNING_JOBS = b"PenstockRunningJobs"


def database_field(database_id: int) -> bytes:
    """Return the name of a database's hash, which is also its field among the databases."""
    return b"DB:%d" % database_id


def table_field(table_id: int) -> bytes:
    """Return the field of a table in its database's hash."""
    return b"Table:%d" % table_id


def row_id_field(table_id: int) -> bytes:
    """Return the field that counts a table's row ids, and mostly its auto-increment values too."""
    return b"TID:%d" % table_id


def increment_field(table_id: int) -> bytes:
    """Return the field that counts auto-increment values of a table which counts them apart."""
    return b"IID:%d" % table_id


def table_key(database_id: int, table_id: int) -> bytes:
    """Return the key of a table's schema. It has no value once the table is gone."""
    return meta_hash_key(database_field(database_id), table_field(table_id))


def running_job_key(job_id: int) -> bytes:
    """Return the key of a DDL job of Penstock that still runs."""
    return meta_hash_key(RUNNING_JOBS, encode_uint(job_id))


class MetaReader:
    """Reads meta keys as a snapshot or a transaction sees them."""

    def __init__(self, view: Snapshot | Transaction) -> None:
        self._view = view

    def number(self, name: bytes) -> int:
        """Return the value of a counter, 0 when it was never set."""
        return _number(self._view.get(meta_string_key(name)))

    def schema_version(self) -> int:
        """Return the schema version: the number of schema changes so far."""
        return self.number(SCHEMA_VERSION)

    def databases(self) -> Iterator[DatabaseInfo]:
        """Yield every database but those whose descriptions are damaged, which are logged."""
        for field, value in self.fields(DATABASES):
            try:
                yield DatabaseInfo.from_json(parse_json(value))
            except Corrupt as error:
                _log.error(
                    "a database cannot be read", extra={"database": field.decode(), "reason": str(error)}
                )

    def tables(self, database_id: int) -> Iterator[TableInfo]:
        """Yield every table of a database, unreadable ones among them."""
        for field, value in self.fields(database_field(database_id)):
            if field.startswith(b"Table:"):
                yield read_table(int(field.removeprefix(b"Table:")), value)

    def table(self, database_id: int, table_id: int) -> TableInfo | None:
        """Return a table, or None when it is gone."""
        value = self._view.get(table_key(database_id, table_id))
        return None if value is None else read_table(table_id, value)

    def jobs(self) -> Iterator[DdlJob]:
        """Yield the finished jobs in the order of their ids, but those that are damaged, which are logged."""
        for _, value in self.fields(JOB_HISTORY):
            job = read_job_record(value)
            if job is not None:
                yield job

    def job(self, job_id: int) -> DdlJob | None:
        """Return a finished job."""
        value = self._view.get(meta_hash_key(JOB_HISTORY, encode_uint(job_id)))
        return None if value is None else DdlJob.from_json(parse_json(value))

    def running_jobs(self) -> Iterator[RunningJob]:
        """Yield the jobs of Penstock that still run, in the order of their ids."""
        for _, value in self.fields(RUNNING_JOBS):
            yield RunningJob.from_json(parse_json(value))

    def diff(self, version: int) -> SchemaDiff | None:
        """Return what the schema change of that version did."""
        value = self._view.get(meta_string_key(SCHEMA_DIFFS + b"%d" % version))
        return None if value is None else SchemaDiff.from_json(parse_json(value))

    def fields(self, name: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the fields of a hash in byte order."""
        prefix = meta_hash_prefix(name)
        scan = self._view.iter if isinstance(self._view, Snapshot) else self._view.scan
        for key, value in scan(prefix, prefix_end(prefix)):
            yield decode_prefix(key, len(prefix))[0], value


class MetaWriter(MetaReader):
    """Changes meta keys in a transaction."""

    def __init__(self, txn: Transaction) -> None:
        super().__init__(txn)
        self._txn = txn

    def next_id(self) -> int:
        """Return an id that no database, table, job or account has had before."""
        return self._increment(meta_string_key(NEXT_GLOBAL_ID), 1)

    def next_schema_version(self) -> int:
        """Increment and return the schema version. Two schema changes cannot commit at once."""
        return self._increment(meta_string_key(SCHEMA_VERSION), 1)

    def take_row_ids(
        self, database_id: int, table_id: int, count: int, *, above: int = 0, apart: bool = False
    ) -> tuple[int, int]:
        """Reserve `count` row ids that are greater than `above`; return the first and the last.

        `apart`: they are auto-increment values of a table that counts those apart.
        """
        field = increment_field(table_id) if apart else row_id_field(table_id)
        key = meta_hash_key(database_field(database_id), field)
        base = max(_number(self._txn.get(key)), above)
        self._txn.put(key, b"%d" % (base + count))
        return base + 1, base + count

    def put_database(self, database: DatabaseInfo) -> None:
        """Write a database."""
        self.put_field(DATABASES, database_field(database.id), database.to_json())

    def delete_database(self, database_id: int) -> None:
        """Remove a database with everything in its hash."""
        self._txn.delete(meta_hash_key(DATABASES, database_field(database_id)))
        name = database_field(database_id)
        for field, _ in list(self.fields(name)):
            self._txn.delete(meta_hash_key(name, field))

    def put_table(self, database_id: int, table: TableInfo) -> None:
        """Write a table."""
        self.put_field(database_field(database_id), table_field(table.id), table.to_json())

    def delete_table(self, database_id: int, table: TableInfo, *, keep_counter: bool = False) -> None:
        """Remove a table, and its counter of row ids unless the table continues elsewhere."""
        self.delete_field(database_field(database_id), table_field(table.id))
        if not keep_counter:
            counter = database_field(table.counter_database_id(database_id))
            self.delete_field(counter, row_id_field(table.id))
            self.delete_field(counter, increment_field(table.id))

    def put_job(self, job: DdlJob, diff: SchemaDiff) -> None:
        """Write a finished job and its schema diff."""
        self.put_field(JOB_HISTORY, encode_uint(job.id), job.to_json())
        self.put_diff(diff)

    def put_diff(self, diff: SchemaDiff) -> None:
        """Write what a version of the schema changed."""
        self._txn.put(meta_string_key(SCHEMA_DIFFS + b"%d" % diff.version), _text(diff.to_json()))

    def put_running_job(self, job: RunningJob) -> None:
        """Write a job that still runs."""
        self.put_field(RUNNING_JOBS, encode_uint(job.id), job.to_json())

    def delete_running_job(self, job_id: int) -> None:
        """Remove a job that runs no more."""
        self.delete_field(RUNNING_JOBS, encode_uint(job_id))

    def put_field(self, name: bytes, field: bytes, tree: Any) -> None:
        """Write a field of a hash as JSON."""
        self._txn.put(meta_hash_key(name, field), _text(tree))

    def delete_field(self, name: bytes, field: bytes) -> None:
        """Remove a field of a hash."""
        self._txn.delete(meta_hash_key(name, field))

    def _increment(self, key: bytes, by: int) -> int:
        number = _number(self._txn.get(key)) + by
        self._txn.put(key, b"%d" % number)
        return number


def _number(value: bytes | None) -> int:
    try:
        return int(value or b"0")
    except ValueError as error:
        raise Corrupt("a counter of the meta keys is not a number; keep the store for inspection") from error


def _text(tree: Any) -> bytes:
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode()


def parse_json(value: bytes) -> Any:
    """Parse a structure of the meta keys; raise Corrupt when it is not JSON."""
    try:
        return json.loads(value)
    except ValueError as error:
        raise Corrupt("a schema of the meta keys is not JSON; keep the store for inspection") from error


@lru_cache(maxsize=4096)
def read_table(table_id: int, value: bytes) -> TableInfo:
    """Decode the description of a table; its `unreadable` says why when that is impossible.

    All schemas are read again after a change of one: those of the other tables are known by their bytes.
    """
    try:
        tree = parse_json(value)
    except Corrupt as error:
        return TableInfo.without_columns(table_id, {}, str(error))
    return TableInfo.describe(table_id, tree)


def read_diff(value: bytes) -> SchemaDiff | None:
    """Decode what a version of the schema changed; None when it is damaged: nobody needs an old one."""
    try:
        return SchemaDiff.from_json(parse_json(value))
    except (Corrupt, KeyError, TypeError):
        return None


def read_job_record(value: bytes) -> DdlJob | None:
    """Decode a finished job; log one that is damaged, and return None for it."""
    try:
        return DdlJob.from_json(parse_json(value))
    except Corrupt as error:
        _log.error("a DDL job cannot be read; its statement is lost", extra={"reason": str(error)})
        return None
