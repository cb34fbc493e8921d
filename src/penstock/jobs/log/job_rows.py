"""The encoding of `iscp_log`: jobs to keys and values of the key-value store, and back. No I/O."""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.clock import TS_MAX
from penstock.errors import Corrupt, Invalid, PenstockError, show_key
from penstock.jobs.job import Job, JobId, JobKey, JobState, JobStatus
from penstock.jobs.spec import JobSpec
from penstock.secret_keys import Keyring, MissingKey
from penstock.secret_references import escape_references
from penstock.tables.codec import datums
from penstock.tables.keys import decode_record_key, record_key, record_prefix, record_range
from penstock.tables.records import (
    check_datum,
    handle_of,
    key_part,
    read_record,
    row_of,
    to_record,
    value_of,
)
from penstock.tables.schema import TableInfo
from penstock.tables.system_tables import JOB_LOG, PENSTOCK_DATABASE

LOG_NAME = f"{PENSTOCK_DATABASE}.{JOB_LOG}"

COLUMNS = (
    ("account_id", "int unsigned not null"),
    ("table_id", "bigint unsigned not null"),
    ("job_name", "varchar(128) not null"),
    ("job_id", "bigint unsigned not null"),
    ("job_spec", "json not null"),
    ("job_state", "tinyint not null"),
    ("watermark", "varchar(20) not null"),
    ("job_status", "json not null"),
    ("create_at", "timestamp(3) not null"),
    ("drop_at", "timestamp(3) null"),
)
PRIMARY_KEY = ("account_id", "table_id", "job_name", "job_id")

_SEALED = "sealed"  # in job_spec, beside the spec itself: its options
_SOURCE = "source"  # in job_spec, beside the spec itself: the names of the table and its account, `confined`
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_STATUS_TYPES = {field.name: str if field.type in {str, "str"} else int for field in fields(JobStatus)}

_log = logging.getLogger(__name__)


class JobRows:
    """Encodes and decodes jobs as rows of the log's table, whose schema is `table`.

    Options are sealed with `keys`. A row of an earlier release has them in clear; `${` means itself there.
    """

    def __init__(self, table: TableInfo, keys: Keyring) -> None:
        self.table = table
        self._keys = keys
        self.range = record_range(table.id)
        """The range of all rows: the first key, and the first key after them."""

    def key(self, key: JobKey) -> bytes:
        """Return the key of a job's row."""
        columns = zip(self.table.primary_key, _primary_key(key), strict=True)
        handle = handle_of(self.table, {column.id: check_datum(column, value) for column, value in columns})
        return record_key(self.table.id, handle)

    def prefix(self, account_id: int, table_id: int, job_name: str) -> bytes:
        """Return the common prefix of the keys of all jobs that have or had this name on the table."""
        index, columns = self.table.primary_index, self.table.primary_key
        assert index is not None, "the log has a primary key of several columns"
        values = dict(zip(columns, (account_id, table_id, job_name), strict=False))
        record = {column.id: check_datum(column, value) for column, value in values.items()}
        parts = (key_part(self.table, part, record) for part in index.columns[: len(values)])
        return record_prefix(self.table.id) + b"".join(parts)

    def value(self, job: Job) -> bytes:
        """Return the value of a job's row; raise MissingKey when its options cannot be sealed."""
        spec = job.spec.model_dump(mode="json", exclude_defaults=True)
        options = job.spec.detail.consumer.options
        if options:
            del spec["detail"]["consumer"]["options"]
            spec[_SEALED] = self._keys.seal(options)
        row = dict(zip(PRIMARY_KEY, _primary_key(job.key), strict=True))
        row |= {
            "job_spec": {**spec, _SOURCE: _source(job)},
            "job_state": int(job.state),
            "watermark": str(job.watermark),
            "job_status": {name: value for name in _STATUS_TYPES if (value := getattr(job.status, name))},
            "create_at": _moment(job.create_at),
            "drop_at": None if job.drop_at is None else _moment(job.drop_at),
        }
        return value_of(self.table, to_record(self.table, row, start_ts=0))

    def read(self, rows: Iterable[tuple[bytes, bytes | None]]) -> Iterator[tuple[JobKey, Job | None]]:
        """Decode rows to keys and jobs; the job is None where there is no value, or it is damaged.

        A damaged row is logged and does not affect the others. Raises MissingKey for a row that is sealed
        with a key that this process does not have.
        """
        for key, value in rows:
            try:
                job_key = self._job_key(key)
            except (Corrupt, Invalid):
                _log.error("a key of the job log is damaged", extra={"key": show_key(key)})
                continue
            yield job_key, None if value is None else self._job(job_key, key, value)

    def jobs(self, rows: Iterable[tuple[bytes, bytes | None]]) -> Iterator[Job]:
        """Decode rows to jobs, without those that are damaged."""
        return (job for _, job in self.read(rows) if job is not None)

    def _job_key(self, key: bytes) -> JobKey:
        _, handle = decode_record_key(key)
        parts = datums.decode_all(handle) if isinstance(handle, bytes) else []
        match [datum.value for datum in parts]:
            case [int(account_id), int(table_id), bytes(name), int(job_id)]:
                return JobKey(account_id, table_id, name.decode(errors="replace"), job_id)
        raise Corrupt(f"{show_key(key)} is no key of {LOG_NAME}")

    def _job(self, job_key: JobKey, key: bytes, value: bytes) -> Job | None:
        try:
            row = row_of(self.table, read_record(self.table, key, value))
            spec = json.loads(row["job_spec"])
            source = spec.pop(_SOURCE)
            return _job(job_key, row, source, JobSpec.parse(self._with_options(spec)))
        except MissingKey:
            raise
        except (PenstockError, AttributeError, KeyError, TypeError, ValueError) as error:
            facts = {"job": job_key.owner, "error": type(error).__name__}  # the error's text may show a value
            _log.error(
                "the row of a job is damaged; the job is left out until it is unregistered", extra=facts
            )
            return None

    def is_sealed(self, key: bytes, value: bytes) -> bool:
        """Return whether a row has no options in clear, and none that are sealed with an older key.

        A damaged row counts as sealed: only its bytes are known.
        """
        try:
            spec = json.loads(row_of(self.table, read_record(self.table, key, value))["job_spec"])
            in_clear = spec.get("detail", {}).get("consumer", {}).get("options")
            return not in_clear and (_SEALED not in spec or self._keys.is_newest(spec[_SEALED]))
        except (PenstockError, AttributeError, KeyError, TypeError, ValueError):
            return True

    def _with_options(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Return the tree of a spec with its options as they are in memory."""
        sealed = spec.pop(_SEALED, None)
        consumer = spec.get("detail", {}).get("consumer", {})
        if sealed is not None:
            consumer["options"] = self._keys.open(sealed)
        elif consumer.get("options"):
            known = consumer["options"].items()
            consumer["options"] = {name: escape_references(text) for name, text in known}
        return spec


def _job(key: JobKey, row: Mapping[str, Any], source: Mapping[str, Any], spec: JobSpec) -> Job:
    watermark = int(row["watermark"])
    if not 0 <= watermark <= TS_MAX:
        raise ValueError("no timestamp")
    return Job(
        key=key,
        id=JobId(source["database"], source["table"], key.job_name),
        account=str(source["account"]),
        spec=spec,
        state=JobState(row["job_state"]),
        watermark=watermark,
        status=_status(json.loads(row["job_status"])),
        create_at=_ms(row["create_at"]),
        drop_at=None if row["drop_at"] is None else _ms(row["drop_at"]),
        confined=None if source.get("confined") is None else bool(source["confined"]),
    )


def _status(tree: Mapping[str, Any]) -> JobStatus:
    """Decode a status, in which zeros are left out; ignore fields that only a newer version knows."""
    known = {name: value for name, value in tree.items() if name in _STATUS_TYPES}
    if not all(type(value) is _STATUS_TYPES[name] for name, value in known.items()):
        raise TypeError("not of the field's type")
    return JobStatus(**known)


def _source(job: Job) -> dict[str, str | bool]:
    source: dict[str, str | bool] = {
        "database": job.id.database,
        "table": job.id.table,
        "account": job.account,
    }
    return source if job.confined is None else {**source, "confined": job.confined}


def _primary_key(key: JobKey) -> tuple[int, int, str, int]:
    return key.account_id, key.table_id, key.job_name, key.job_id


def _moment(ms: int) -> datetime:
    return _EPOCH + ms * _MILLISECOND


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND
