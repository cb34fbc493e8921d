"""What is known of a deployment at one moment, before anybody judges it. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.changefeeds.model import ChangefeedRecord
from penstock.clock import physical_ms
from penstock.control.overview.locks import HoldingLock
from penstock.control.overview.model import SpoolLevel
from penstock.control.overview.part_metrics import Growth
from penstock.control.part_states import PartStatus
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.freshness import Freshness
from penstock.jobs.job import Job
from penstock.verify.results import LastVerification

__all__ = ["SLOW_S", "CaptureFact", "Facts", "FeedFact", "JobFact", "TableFact", "behind_s"]

SLOW_S = 2.0
"""From how far behind something is explained."""


def behind_s(now_ts: int, ts: int) -> float:
    """How many seconds a timestamp lies before another."""
    return max(0, physical_ms(now_ts) - physical_ms(ts)) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFact:
    """A table, and how far captures have it; 0 and nobody where none does, or not all of its partitions."""

    schema: SchemaVersion
    account: str
    wanted: bool = True
    """Whether captures are told to have it, as far as the settings here say."""
    captures: tuple[str, ...] = ()
    readable_ts: int = 0
    changed_ts: int = 0
    flushed_ts: int = 0
    oldest_ts: int = 0

    @property
    def id(self) -> int:
        """Its (logical) id."""
        return self.schema.table.id

    @property
    def name(self) -> str:
        """database.table."""
        return self.schema.name

    @property
    def captured(self) -> bool:
        """Whether somebody has it, be it that its first rows are still being read."""
        return bool(self.captures)

    @property
    def stored_ts(self) -> int:
        """Every change up to it is in objects, as far as there are any."""
        return self.readable_ts if self.changed_ts <= self.flushed_ts else self.flushed_ts


@dataclass(frozen=True, slots=True)
class CaptureFact:
    """A capture whose lease runs; `error` says why it does not answer."""

    id: str
    addr: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class FeedFact:
    """A changefeed; `run_by` is empty while nobody runs it."""

    feed: ChangefeedRecord
    run_by: str = ""
    spool: SpoolLevel | None = None


@dataclass(frozen=True, slots=True)
class JobFact:
    """A job and how fresh its target is."""

    job: Job
    freshness: Freshness
    verified: LastVerification | None = None
    """What was found when its target was last compared with its source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything. What could not be found out is empty here, and named in `unknown` with the reason."""

    now_ts: int
    tables: tuple[TableFact, ...] = ()
    captures: tuple[CaptureFact, ...] = ()
    feeds: tuple[FeedFact, ...] = ()
    jobs: tuple[JobFact, ...] = ()
    runner: str = ""
    """Who runs jobs; empty: nobody."""
    parts: tuple[PartStatus, ...] | None = None
    """What `penstock up` says that it runs; None: it does not run here."""
    cluster_error: str = ""
    """Why the cluster does not answer: then all of the above is empty but for the parts."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    """Parts whose metrics could not be read."""
    flush_interval_s: float = 60.0
    """How long rows wait in a capture before they become objects."""
    scarce: Mapping[str, int] = field(default_factory=dict)
    """Bytes that are free in folders with little room, by the settings that name them."""
    locks: Mapping[int, HoldingLock] = field(default_factory=dict)
    """By table, those that hold it back; of the slowest tables only."""
    growth: Growth = field(default_factory=Growth)
