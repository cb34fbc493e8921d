"""A job as one row of the log: its names, its state and its latest iteration. Pure values."""

import re
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Self

from penstock.errors import Corrupt, Invalid
from penstock.jobs.spec import JobSpec

_JOB_NAME = re.compile(r"(?!.{129})[A-Za-z0-9_]+([.-]?[A-Za-z0-9_]+)*")


@dataclass(frozen=True, slots=True, order=True)
class JobId:
    """The name that people use for a job: `database.table/job`."""

    database: str
    table: str
    job: str

    def __post_init__(self) -> None:
        if not (self.database and self.table):
            raise Invalid(f"{self} names no table; write database.table/job")
        if not _JOB_NAME.fullmatch(self.job):
            raise Invalid(
                f"{self.job!r} is no name of a job; use letters, digits, _ and single - or ., at most 128"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `database.table/job`; raise Invalid for any other form."""
        table, slash, job = text.partition("/")
        database, dot, name = table.partition(".")
        if not (slash and dot):
            raise Invalid(f"{text!r} names no job; write database.table/job")
        return cls(database, name, job)

    @property
    def table_name(self) -> str:
        """The table's name with its database."""
        return f"{self.database}.{self.table}"

    def __str__(self) -> str:
        return f"{self.database}.{self.table}/{self.job}"


@dataclass(frozen=True, slots=True, order=True)
class JobKey:
    """The key of a job in the log. `job_id` tells it from earlier jobs of that name on the same table."""

    account_id: int
    table_id: int
    job_name: str
    job_id: int

    @property
    def owner(self) -> str:
        """The text by which a target knows the job that owns it; consumers keep it beside their data."""
        return f"{self.account_id}/{self.table_id}/{self.job_name}/{self.job_id}"

    @classmethod
    def of_owner(cls, owner: str) -> Self:
        """Return the key of the job that owns a target; raise Corrupt when `owner` is no job's."""
        try:
            account_id, table_id, job_name, job_id = owner.split("/")
            return cls(int(account_id), int(table_id), job_name, int(job_id))
        except ValueError:
            raise Corrupt(f"a target belongs to {owner!r}, which is no job; remove the target") from None


PERMANENT = 10_000
"""Errors with this code or a higher one need somebody to repair the job; codes 1 to 9999 are retried."""


class JobState(IntEnum):
    """The state of a job's latest iteration."""

    PENDING = 1
    RUNNING = 2
    COMPLETED = 3
    ERROR = 4
    CANCELED = 5


class ErrorCode(IntEnum):
    """Why an iteration failed."""

    OK = 0
    TEMPORARY = 1
    """An error that may pass: of the source, the target or the consumer itself."""
    CUT_OFF = 2
    """The consumer was too slow for the other jobs and continues alone in an iteration of its own."""
    TRIGGER = 3
    """The job's custom trigger failed, so it is unknown when the job should run."""
    STALLED = 4
    """The target acknowledged nothing for too long, and the iteration was ended."""
    ABANDONED = 5
    """Too many consumers of the account do not return although they were ended; nothing of it begins."""
    REFUSED = PERMANENT
    """The consumer or its target cannot work with this configuration."""
    SCHEMA = PERMANENT + 1
    """The target does not accept the source's schema."""
    TABLE_GONE = PERMANENT + 2
    """The source was dropped or truncated: its table id is another one now."""
    TARGET_DIFFERS = PERMANENT + 3
    """The target is not what the job left: it is behind the log, or belongs to another job."""

    @property
    def permanent(self) -> bool:
        """Whether somebody has to repair the job."""
        return self >= PERMANENT


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job's latest iteration.

    `lsn` counts the changes that runners make. A writer has to name the `lsn` that it has seen, so a stale
    writer changes nothing. A new spec does not raise it, unless it interrupts the iteration. `runner` is the
    epoch of the lease under which the iteration was begun. `start_at` and `end_at` are wall time in
    milliseconds, 0 for not yet.
    """

    lsn: int = 0
    runner: int = 0
    from_ts: int = 0
    to_ts: int = 0
    start_at: int = 0
    end_at: int = 0
    error_code: int = 0
    error_msg: str = ""
    failures: int = 0
    """The number of failures in a row."""
    committed_ts: int = 0
    """The timestamp up to which an iteration last wrote the target. The watermark is higher while there are
    no changes."""
    resync_ts: int = 0
    """What the target has up to this timestamp does not count any more: the target is to be filled again."""
    begun_ts: int = 0
    """The greatest `to_ts` of all iterations before the latest one. Until the latest one commits, the target
    cannot have more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One row of the log. `watermark` is the end of the last successful iteration, 0 if there was none."""

    key: JobKey
    id: JobId
    account: str
    spec: JobSpec
    state: JobState
    watermark: int
    status: JobStatus
    create_at: int
    drop_at: int | None = None
    confined: bool | None = None
    """Whether a tenant registered or changed it, so that it may write only where its account may. None: an
    earlier version did not record that."""

    @property
    def live(self) -> bool:
        """Whether the job is not dropped."""
        return self.drop_at is None

    def with_status(self, **changes: int | str) -> "Job":
        """Return the job with some fields of its status changed and its `lsn` raised by one."""
        return replace(self, status=replace(self.status, lsn=self.status.lsn + 1, **changes))  # type: ignore[arg-type] # the fields' own types
