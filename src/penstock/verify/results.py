"""The result of the last comparison of a job's target, which is kept beside the job's row."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from penstock.jobs.job import JobKey
from penstock.jobs.log.job_log import JobLog
from penstock.verify.compare import Counts
from penstock.verify.target import TargetVerifyReport

__all__ = ["LastVerification", "VerificationResults"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastVerification:
    """The result of one comparison. `same` is None when it failed, for the reason in `error`."""

    ended_ms: int
    at_ts: int = 0
    """The target's watermark at that time."""
    same: bool | None = None
    source_rows: int = 0
    target_rows: int = 0
    counts: Counts = field(default_factory=Counts)
    error: str = ""

    @classmethod
    def of(cls, report: TargetVerifyReport, *, ended_ms: int) -> Self:
        """Return the result of a comparison that came to its end."""
        return cls(
            ended_ms=ended_ms,
            at_ts=report.at_ts,
            same=report.same,
            source_rows=report.source_rows,
            target_rows=report.target_rows,
            counts=report.counts,
        )

    @property
    def problem(self) -> str:
        """The problem in one line; empty when target and source are the same."""
        if self.same is None:
            return f"its target could not be compared with its source: {self.error}"
        if self.same:
            return ""
        counts = self.counts
        return (
            f"its target differs from its source: {counts.missing} rows missing, {counts.different}"
            f" different, {counts.extra} extra, {counts.duplicates} twice"
        )

    def to_json(self) -> bytes:
        """Return the result as it is stored; `from_json` reads it."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self | None:
        """Read what `to_json` returned; None when it is something else: the next comparison replaces it."""
        try:
            tree: dict[str, Any] = json.loads(data)
            return cls(**{**tree, "counts": Counts(**tree["counts"])})
        except (KeyError, TypeError, ValueError):
            return None


class VerificationResults:
    """The last result of each job of a cluster. Blocks; every method may raise Unavailable."""

    def __init__(self, log: JobLog) -> None:
        self._log = log

    def read(self, keys: Iterable[JobKey]) -> dict[JobKey, LastVerification]:
        """Return the results of these jobs; jobs that were never compared are left out."""
        values = self._log.read_verified(keys)
        results = ((key, LastVerification.from_json(value)) for key, value in values.items())
        return {key: result for key, result in results if result is not None}

    def note(self, key: JobKey, last: LastVerification, *, epoch: int) -> None:
        """Keep a result in place of the one before; raise Fenced if the epoch's lease or the job is gone."""
        self._log.note_verified(key, last.to_json(), epoch=epoch)
