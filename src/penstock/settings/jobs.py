"""Settings of the process that runs jobs, and of its Spark session."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from penstock.settings.frozen import Frozen, as_text


class JobsSettings(Frozen):
    """The runner of jobs, and the limits of one iteration."""

    data: Path = Path("penstock-data/jobs")
    """Directory for scratch files of iterations. Each runner needs its own."""
    allowed_code: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")], ...] = ()
    """Modules and packages from which jobs may use consumers, triggers, parsers and embeddings."""
    interval_s: float = Field(10, gt=0)
    """Seconds between checks of the tables for jobs that are due."""
    greedy_interval_s: float = Field(0.2, gt=0)
    """Seconds between checks for greedy jobs."""
    workers: int = Field(10, ge=1, le=256)
    """Iterations to run at the same time. An account that runs none gets one more worker."""
    account_workers: int | None = Field(None, ge=1, le=256)
    """Most workers of one account while others have work. By default three quarters of all."""
    iteration_consumers: int = Field(64, ge=1)
    """Most jobs of a table that share one iteration, and so one scan. Others of the table have another."""
    account_consumers: int = Field(256, ge=1)
    """Consumers of one account that run at the same time. Its iterations beyond that wait."""
    queue_max: int = Field(10_000, ge=1)
    """Iterations that may wait for a worker."""
    rows_max: int = Field(1_000_000, ge=1)
    """Most changes of one iteration. A larger transaction is still processed whole."""
    bytes_max: int = Field(256 << 20, ge=1)
    """Most bytes of changes of one iteration."""
    span_s: float = Field(1800, gt=0)
    """Most seconds of changes that one iteration covers."""
    consumer_batches: int = Field(8, ge=1)
    """Batches by which a consumer may fall behind the others of its iteration before they wait for it."""
    consumer_patience_s: float = Field(1.0, ge=0)
    """Seconds that they wait for it. Then it continues alone, from a copy of its batches on disk."""
    spool_bytes: int = Field(4 << 30, ge=0)
    """Disk for such copies per consumer. A consumer that needs more catches up in its own iteration."""
    attempts: int = Field(5, ge=1)
    """Tries of an iteration before it is left to the next one."""
    backoff_s: float = Field(1.0, gt=0)
    """Seconds before the second try. They double with each try, up to a minute."""
    stall_s: float = Field(900, gt=0)
    """Seconds without progress after which an iteration is ended: nothing was taken or acknowledged."""
    abandoned_max: int = Field(32, ge=1)
    """Consumers that may ignore their end, a quarter of them per account. Beyond that the process ends."""
    verify_s: float = Field(3600, gt=0)
    """Seconds after which a comparison or repair of a tenant's target is ended."""
    verify_bytes: int = Field(1 << 30, ge=256 << 20)
    """Memory that it may use, on Linux. One that needs more is ended."""
    lease_ttl_s: float = Field(15, gt=0)
    """Seconds after which another runner takes over the jobs of a silent one."""
    watermark_interval_s: float = Field(3600, gt=0)
    """Seconds between writes to the log of watermarks that moved only in memory."""
    collect_interval_s: float = Field(3600, gt=0)
    """Seconds between removals of dropped jobs from the log."""
    dropped_ttl_s: float = Field(86_400, ge=0)
    """Seconds that a dropped job stays in the log."""


class PoolSettings(Frozen):
    """The share of a Spark session for the jobs of one account."""

    weight: int = Field(1, ge=1, le=1000)
    """Weight of the pool relative to the other pools."""
    min_share: int = Field(0, ge=0)
    """Cores that the pool gets before the rest is shared by weight."""


class SparkSettings(Frozen):
    """The Spark session that Penstock builds."""

    master: str = "local[*]"
    """Spark master: local[*], local[N], spark://host:port, yarn, k8s://https://host:port or sc://host:port."""
    driver_memory: str = Field("2g", pattern=r"^[1-9][0-9]*[mgt]$")
    """Java heap of the driver. With a local master the driver does all the work."""
    executor_memory: str = Field("2g", pattern=r"^[1-9][0-9]*[mgt]$")
    """Java heap of each executor."""
    python: str | None = None
    """Python of the executors and of planning; by default PYSPARK_PYTHON, else the running Python."""
    ui_port: int = Field(0, ge=0, le=65535)
    """Port of Spark's web pages; 0 turns them off."""
    log_level: Literal["off", "error", "warn", "info", "debug"] = "error"
    """Lowest level of the log lines that Spark writes to the console."""
    pools: dict[str, PoolSettings] = Field({})
    """Pools by account. An account without one has a pool of weight 1."""
    connectors: tuple[Literal["delta", "iceberg", "kafka"], ...] = ()
    """Connectors that the session gets. Their jars are fetched once, at the latest when a session starts."""
    connectors_dir: Path | None = None
    """Folder for the jars of connectors; by default penstock/jars in the user's cache folder."""
    insecure: bool = False
    """Use a standalone master without a secret. Everyone who reaches it, or the driver, can run code."""
    conf: dict[str, str] = Field({}, repr=False)
    """Further Spark configuration, by spark.* keys. It overrides what Penstock sets."""

    @field_validator("conf", mode="before")
    @classmethod
    def _conf_is_text(cls, conf: Any) -> Any:
        if not isinstance(conf, dict):
            return conf
        return {key: as_text(value) for key, value in conf.items()}

    @field_validator("conf")
    @classmethod
    def _conf_is_for_spark(cls, conf: dict[str, str]) -> dict[str, str]:
        foreign = sorted(key for key in conf if not key.startswith("spark."))
        if foreign:
            raise ValueError(f"{foreign[0]!r} is not a Spark key; keys begin with 'spark.'")
        return conf
