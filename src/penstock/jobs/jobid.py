"""What jobs are called: by people, and in the log."""

import re
from dataclasses import dataclass
from typing import Self

from penstock.errors import Corrupt, Invalid

_JOB_NAME = re.compile(r"(?!.{129})[A-Za-z0-9_]+([.-]?[A-Za-z0-9_]+)*")


@dataclass(frozen=True, slots=True, order=True)
class JobId:
    """A job by the names that people use: `database.table/job`."""

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
        """Read `database.table/job`; raise Invalid when it is something else."""
        table, slash, job = text.partition("/")
        database, dot, name = table.partition(".")
        if not (slash and dot):
            raise Invalid(f"{text!r} names no job; write database.table/job")
        return cls(database, name, job)

    @property
    def table_name(self) -> str:
        """The table, with its database."""
        return f"{self.database}.{self.table}"

    def __str__(self) -> str:
        return f"{self.database}.{self.table}/{self.job}"


@dataclass(frozen=True, slots=True, order=True)
class JobKey:
    """A job in the log. `job_id` tells one from an earlier one of the same name on the same table."""

    account_id: int
    table_id: int
    job_name: str
    job_id: int

    @property
    def owner(self) -> str:
        """Who a target belongs to: what consumers keep beside their data."""
        return f"{self.account_id}/{self.table_id}/{self.job_name}/{self.job_id}"

    @classmethod
    def of_owner(cls, owner: str) -> Self:
        """The job that a target belongs to; raise Corrupt when `owner` names none."""
        try:
            account_id, table_id, job_name, job_id = owner.split("/")
            return cls(int(account_id), int(table_id), job_name, int(job_id))
        except ValueError:
            raise Corrupt(f"a target belongs to {owner!r}, which is no job; remove the target") from None
