"""A deployment at one moment, as `penstock status`, the API and the pages show it."""

from enum import StrEnum

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
    "SpoolLevel",
    "StageRow",
    "TableRow",
    "Totals",
]


class _Shown(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class HolderKind(StrEnum):
    """What holds something back."""

    LOCK = "lock"
    TABLE = "table"
    CAPTURE = "capture"
    CHANGEFEED = "changefeed"
    JOB = "job"


class HeldBy(_Shown):
    """What holds something back, and why."""

    kind: HolderKind
    name: str
    """Its name; of a lock, the transaction that left it."""
    detail: str
    """One sentence for people."""


class ProblemKind(StrEnum):
    """What is wrong, for scripts: these words stay."""

    CLUSTER_SILENT = "cluster_silent"
    PART_NOT_RUNNING = "part_not_running"
    PART_RESTARTS = "part_restarts"
    PART_SILENT = "part_silent"
    DISK_LOW = "disk_low"
    UNKNOWN = "unknown"
    """Something could not be found out."""
    NO_CAPTURE = "no_capture"
    TABLE_NOT_CAPTURED = "table_not_captured"
    TABLE_BEHIND = "table_behind"
    CHANGEFEED_FAILED = "changefeed_failed"
    CHANGEFEED_WARNING = "changefeed_warning"
    CHANGEFEED_NOT_RUN = "changefeed_not_run"
    CHANGEFEED_BEHIND = "changefeed_behind"
    NO_RUNNER = "no_runner"
    JOB_ERROR = "job_error"
    JOB_RETRYING = "job_retrying"
    JOB_NOT_CAPTURED = "job_not_captured"
    TARGET_DIFFERS = "target_differs"
    TARGET_NOT_VERIFIED = "target_not_verified"


class Problem(_Shown):
    """Something that is wrong, and what mends it."""

    part: str
    """What it is wrong with: capture-1, shop.orders, the name of a changefeed or a job."""
    what: ProblemKind
    message: str
    remedy: str


class PartRow(_Shown):
    """A process of the deployment."""

    name: str
    kind: PartKind
    state: PartState
    pid: int | None = None
    restarts: int = 0
    since: str | None = None
    """Since when it is in this state; null where that is not known."""
    error: str = ""
    """Why it ended the last time."""
    addr: str | None = None


class FlowStage(StrEnum):
    """Where changes are on their way."""

    COMMIT = "commit"
    CAPTURE = "capture"
    STORE = "store"
    """Objects of the event store."""
    CHANGEFEEDS = "changefeeds"
    JOBS = "jobs"


class StageRow(_Shown):
    """How far behind the database a stage is, and what holds it back."""

    stage: FlowStage
    lag_s: float | None = None
    """Of the slowest that passes through it, since the commit; null: there is nothing, or it is not known."""
    rate: float | None = None
    """Rows in a second; null where it is not known."""
    held_by: HeldBy | None = None


class TableRow(_Shown):
    """A table and how far it is captured."""

    table: str
    table_id: int
    readable_ts: int | None = None
    """Every change up to it can be read; null: no capture that answers has the table."""
    readable_time: str | None = None
    lag_s: float | None = None
    changed_ts: int | None = None
    """No change that can be read is newer."""
    captured: bool
    held_by: HeldBy | None = None


class SpoolLevel(_Shown):
    """How full the spool of a changefeed is. Shares are of its quota."""

    bytes: int
    """Encoded bytes that are not on the remote yet."""
    quota_bytes: int
    level: float
    high: float
    """Above it nothing more is read,"""
    low: float
    """until it is down here."""


class ChangefeedRow(_Shown):
    """How a changefeed does."""

    id: str
    account: str
    state: str
    checkpoint_ts: int
    checkpoint_time: str
    lag_s: float
    error: str = ""
    spool: SpoolLevel | None = None
    """null where nobody says."""
    held_by: HeldBy | None = None


class LastVerified(_Shown):
    """What the last comparison of a target with its source found, of those that are made on a schedule."""

    same: bool | None
    """null: it could not be made, for the reason in `error`."""
    ended: str
    at_ts: int
    at_time: str | None = None
    differences: int = 0
    error: str = ""


class JobRow(_Shown):
    """How a job does, as `penstock job list` shows it."""

    job: str
    account: str
    consumer: str | None
    trigger: str
    state: str
    watermark: int
    watermark_time: str | None = None
    lag_s: float | None = None
    lacks: str | None = None
    """Why its target lacks changes; null: it has all that can be read."""
    verified: LastVerified | None = None
    """null: it was not verified yet."""
    error_code: int = 0
    error: str = ""
    held_by: HeldBy | None = None


class Totals(_Shown):
    """How many there are: the lists show the worst of them."""

    tables: int = 0
    changefeeds: int = 0
    jobs: int = 0
    problems: int = 0


class Overview(_Shown):
    """Everything at one moment. Lists are cut off; what lags most comes first."""

    now_ts: int
    """The database's time; by this machine's clock when the database does not answer."""
    now_time: str
    healthy: bool
    problems: list[Problem] = Field([])
    parts: list[PartRow] = Field([])
    stages: list[StageRow] = Field([])
    tables: list[TableRow] = Field([])
    changefeeds: list[ChangefeedRow] = Field([])
    jobs: list[JobRow] = Field([])
    indexes: list[str] = Field([])
    """Jobs that can be searched."""
    totals: Totals = Totals()
