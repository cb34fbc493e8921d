"""The facts about a deployment at one moment, from which the overview is built. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from penstock.changefeeds.model import ChangefeedRecord
from penstock.clock import physical_ms
from penstock.control.overview.locks import HoldingLock
from penstock.control.overview.model import RowsByEngine, SpoolLevel
from penstock.control.overview.part_metrics import Growth
from penstock.control.part_states import PartStatus
from penstock.eventstore.read.partition import Refusal
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.freshness import Freshness
from penstock.jobs.job import Job
from penstock.verify.results import LastVerification

__all__ = ["SLOW_S", "CaptureFact", "Facts", "FeedFact", "JobFact", "TableFact", "behind_s"]

SLOW_S = 2.0
"""Above this lag the overview explains what holds a thing back."""


def behind_s(now_ts: int, ts: int) -> float:
    """Return by how many seconds `ts` is before `now_ts`; 0 when it is not."""
    return max(0, physical_ms(now_ts) - physical_ms(ts)) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFact:
    """A table, and up to where captures have it.

    Unless captures have all of its partitions, `captures` is empty and the timestamps are 0.
    """

    schema: SchemaVersion
    account: str
    wanted: bool = True
    """Whether the settings here tell captures to capture it."""
    captures: tuple[str, ...] = ()
    readable_ts: int = 0
    changed_ts: int = 0
    flushed_ts: int = 0
    oldest_ts: int = 0
    refusal: Refusal | None = None
    """Why it cannot be captured; None when it is captured, or when no capture has it."""

    @property
    def id(self) -> int:
        """Its logical id."""
        return self.schema.table.id

    @property
    def name(self) -> str:
        """Its name as database.table."""
        return self.schema.name

    @property
    def captured(self) -> bool:
        """Whether captures have it, even if they are still reading its first rows."""
        return bool(self.captures)

    @property
    def stored_ts(self) -> int:
        """Every change up to this timestamp is in objects of the event store."""
        return self.readable_ts if self.changed_ts <= self.flushed_ts else self.flushed_ts


@dataclass(frozen=True, slots=True)
class CaptureFact:
    """A capture with a live lease; `error` says why it does not answer."""

    id: str
    addr: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class FeedFact:
    """A changefeed; `run_by` is empty while no process runs it."""

    feed: ChangefeedRecord
    run_by: str = ""
    spool: SpoolLevel | None = None
    to_owner: bool = False
    """Whether it is shown to its account, which knows it by its name."""

    @property
    def name(self) -> str:
        """The name under which it is shown."""
        return self.feed.info.name if self.to_owner else self.feed.info.id


@dataclass(frozen=True, slots=True)
class JobFact:
    """A job and how fresh its target is."""

    job: Job
    freshness: Freshness
    verified: LastVerification | None = None
    """The last comparison of its target with its source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All facts. What could not be read is empty here, and in `unknown` with the reason."""

    now_ts: int
    tables: tuple[TableFact, ...] = ()
    captures: tuple[CaptureFact, ...] = ()
    feeds: tuple[FeedFact, ...] = ()
    jobs: tuple[JobFact, ...] = ()
    runner: str = ""
    """The process that runs jobs; empty when there is none."""
    abandoned: int = 0
    """Consumers of jobs that were canceled and have not returned, as far as metrics could be read."""
    abandoned_max: int = 0
    """With more of them, the process that runs jobs ends."""
    parts: tuple[PartStatus, ...] | None = None
    """The parts that `penstock up` runs; None when it does not run here."""
    cluster_error: str = ""
    """Why the cluster does not answer. Then everything above but the parts is empty."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    """Parts whose metrics could not be read."""
    engine: Literal["spark", "local"] = "spark"
    """Who works on rows by the settings."""
    engines: RowsByEngine | None = None
    """Who did, as far as metrics could be read."""
    starting_spark: frozenset[str] = frozenset()
    without_spark: frozenset[str] = frozenset()
    """Parts that need a Spark session and have none."""
    without_executors: frozenset[str] = frozenset()
    """Parts whose Spark jobs wait for executors."""
    flush_interval_s: float = 60.0
    """Seconds that rows wait in a capture before they become objects."""
    low_disks: Mapping[str, int] = field(default_factory=dict)
    """Free bytes of folders that are almost full, by the settings key of the folder."""
    locks: Mapping[int, HoldingLock] = field(default_factory=dict)
    """The lock that holds a table back, by table id; for the slowest tables only."""
    growth: Growth = field(default_factory=Growth)
