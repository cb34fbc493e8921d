"""One scan of a table's changes, for one or more of its jobs. Pure values."""

from dataclasses import dataclass

from penstock.jobs.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """Changes of a table in (from_ts, to_ts] for jobs whose watermark is from_ts; 0: all rows at to_ts.

    The watermark in the log, and in the target, may be older: then nothing has changed up to `from_ts`.
    `to_ts` is as far as is wanted: caps may end it earlier, for all of its jobs alike.
    """

    id: str
    table_id: int
    from_ts: int
    to_ts: int
    jobs: tuple[Job, ...]

    @property
    def priority(self) -> int:
        """That of its most urgent job."""
        return max(job.spec.priority for job in self.jobs)

    @property
    def account(self) -> str:
        """Whose it is; all jobs of a table have the same."""
        return self.jobs[0].account

    @property
    def first(self) -> bool:
        """Whether it begins with nothing."""
        return self.from_ts == 0
