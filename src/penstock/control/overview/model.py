"""The overview of a deployment as `penstock status`, the API and the pages show it: models only."""

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock.control.part_states import PartKind, PartState

__all__ = [
    "ChangefeedRow",
    "FlowStage",
    "HeldBy",
    "HolderKind",
    "JobRow",
    "LastVerified",
    "Overview",
    "PartRow",
    "Problem",
    "ProblemKind",
    "RowsByEngine",
    "SpoolLevel",
    "StageRow",
    "TableRefusal",
    "TableRow",
    "Totals",
]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class HolderKind(StrEnum):
    """The kind of thing that holds a table, changefeed or job back."""

    LOCK = "lock"
    TABLE = "table"
    CAPTURE = "capture"
    CHANGEFEED = "changefeed"
    JOB = "job"


class HeldBy(_Model):
    """What holds a table, changefeed, job or stage back, and why."""

    kind: HolderKind
    name: str
    """Its name; for a lock, the start timestamp of its transaction."""
    detail: str
    """The reason, as one sentence."""


class ProblemKind(StrEnum):
    """What is wrong, for scripts: these values do not change."""

    CLUSTER_SILENT = "cluster_silent"
    PART_NOT_RUNNING = "part_not_running"
    PART_RESTARTS = "part_restarts"
    PART_SILENT = "part_silent"
    SPARK_LOST = "spark_lost"
    """The Spark session of a part died, or could not be built."""
    SPARK_NO_EXECUTORS = "spark_no_executors"
    """The Spark jobs of a part wait, and no executor runs any."""
    DISK_LOW = "disk_low"
    UNKNOWN = "unknown"
    """A fact could not be read."""
    NO_CAPTURE = "no_capture"
    TABLE_NOT_CAPTURED = "table_not_captured"
    TABLE_UNCAPTURABLE = "table_uncapturable"
    """A capture has the table and cannot capture it, for the reason in the message."""
    TABLE_BEHIND = "table_behind"
    CHANGEFEED_FAILED = "changefeed_failed"
    CHANGEFEED_WARNING = "changefeed_warning"
    CHANGEFEED_NOT_RUN = "changefeed_not_run"
    CHANGEFEED_BEHIND = "changefeed_behind"
    NO_RUNNER = "no_runner"
    CONSUMERS_HANG = "consumers_hang"
    JOB_ERROR = "job_error"
    JOB_RETRYING = "job_retrying"
    JOB_NOT_CAPTURED = "job_not_captured"
    TARGET_DIFFERS = "target_differs"
    TARGET_NOT_VERIFIED = "target_not_verified"


class Problem(_Model):
    """Something that is wrong, and how to fix it."""

    part: str
    """What has the problem: capture-1, shop.orders, the name of a changefeed or a job."""
    what: ProblemKind
    message: str
    remedy: str


class PartRow(_Model):
    """A process of the deployment."""

    name: str
    kind: PartKind
    state: PartState
    pid: int | None = None
    restarts: int = 0
    since: str | None = None
    """When it entered this state; null when that is unknown."""
    error: str = ""
    """Why it ended the last time, or what it has lost."""
    addr: str | None = None


class FlowStage(StrEnum):
    """A stage that changes pass on their way."""

    COMMIT = "commit"
    CAPTURE = "capture"
    STORE = "store"
    """Objects of the event store."""
    CHANGEFEEDS = "changefeeds"
    JOBS = "jobs"


class StageRow(_Model):
    """How far a stage is behind the database, and what holds it back."""

    stage: FlowStage
    lag_s: float | None = None
    """Seconds since the commit of the slowest in this stage; null when there is none, or it is unknown."""
    rate: float | None = None
    """Rows per second; null when unknown."""
    held_by: HeldBy | None = None


class TableRefusal(_Model):
    """Why a table cannot be captured, with the remedy, and since when its changes are not captured."""

    reason: str
    since_ts: int
    since_time: str | None = None


class TableRow(_Model):
    """A table, and up to where it is captured."""

    table: str
    table_id: int
    readable_ts: int | None = None
    """Every change up to this timestamp can be read; null when no capture that answers has the table."""
    readable_time: str | None = None
    lag_s: float | None = None
    changed_ts: int | None = None
    """No readable change is newer than this timestamp."""
    captured: bool
    refusal: TableRefusal | None = None
    """null when it is captured, or when no capture has it."""
    held_by: HeldBy | None = None


class SpoolLevel(_Model):
    """How full the spool of a changefeed is. `level`, `high` and `low` are shares of its quota."""

    bytes: int
    """Encoded bytes that are not on the remote yet."""
    quota_bytes: int
    level: float
    high: float
    """Above this level the changefeed stops reading."""
    low: float
    """Below this level it reads again."""


class ChangefeedRow(_Model):
    """The state and lag of a changefeed."""

    id: str
    account: str
    state: str
    checkpoint_ts: int
    checkpoint_time: str
    lag_s: float
    error: str = ""
    warning: str = ""
    """Which tables it goes on without, or waits for, and why; empty when no table is missing."""
    spool: SpoolLevel | None = None
    """null when its process does not report it."""
    held_by: HeldBy | None = None


class LastVerified(_Model):
    """The result of the last scheduled comparison of a target with its source."""

    same: bool | None
    """null when the comparison failed, for the reason in `error`."""
    ended: str
    at_ts: int
    at_time: str | None = None
    differences: int = 0
    error: str = ""


class JobRow(_Model):
    """The state and freshness of a job, as `penstock job list` shows it."""

    job: str
    account: str
    consumer: str | None
    trigger: str
    state: str
    watermark: int
    watermark_time: str | None = None
    lag_s: float | None = None
    lacks: str | None = None
    """Why changes are missing in its target; null when it has every readable change."""
    lacks_because: str | None = None
    """The message of the last error, or why its table cannot be captured."""
    verified: LastVerified | None = None
    """null when it has not been verified yet."""
    error_code: int = 0
    error: str = ""
    held_by: HeldBy | None = None


class RowsByEngine(_Model):
    """Rows that were read, encoded, written and consumed since the processes started, by who did it."""

    spark: int = 0
    local: int = 0


class Totals(_Model):
    """How many there are of each; the lists show only the worst."""

    tables: int = 0
    changefeeds: int = 0
    jobs: int = 0
    problems: int = 0


class Overview(_Model):
    """A deployment at one moment. The lists are limited, with the largest lag first."""

    now_ts: int
    """The database's time; from this machine's clock when the database does not answer."""
    now_time: str
    healthy: bool
    engine: Literal["spark", "local"] = "spark"
    """Who works on rows by the settings."""
    engines: RowsByEngine | None = None
    """Who did; null when no part serves metrics here, and for accounts, because parts serve all together."""
    problems: list[Problem] = Field([])
    parts: list[PartRow] = Field([])
    stages: list[StageRow] = Field([])
    tables: list[TableRow] = Field([])
    changefeeds: list[ChangefeedRow] = Field([])
    jobs: list[JobRow] = Field([])
    indexes: list[str] = Field([])
    """Jobs that can be searched."""
    totals: Totals = Totals()
