"""Settings of the process that runs jobs.

Settings of the Spark session.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from penstock.settings.frozen import Frozen, as_text


class JobsSettings(Frozen):
    """Change propagation: the runner of jobs, and what one iteration may take."""

    data: Path = Path("penstock-data/jobs")
    """Directory for scratch files of iterations; each runner has its own."""
    interval_s: float = Field(10, gt=0)
    """How often tables are looked at for jobs that are due."""
    greedy_interval_s: float = Field(0.2, gt=0)
    """How often they are for greedy jobs."""
    workers: int = Field(10, ge=1, le=256)
    """Iterations that run at the same time."""
    queue_max: int = Field(10_000, ge=1)
    """Iterations that may wait for a worker."""
    rows_max: int = Field(1_000_000, ge=1)
    """Changes that one iteration takes; a larger transaction is taken whole."""
    bytes_max: int = Field(256 << 20, ge=1)
    """Bytes of changes that it takes."""
    span_s: float = Field(1800, gt=0)
    """Time that it covers."""
    spark_rows: int = Field(200_000, ge=0)
    """Changes from which consumers work on executors; fewer are handled in this process without Spark."""
    consumer_batches: int = Field(8, ge=1)
    """Batches by which a consumer may hold back the others of its iteration."""
    consumer_patience_s: float = Field(1.0, ge=0)
    """How long they wait for it then, before it goes on alone with what it has not taken kept on disk."""
    spool_bytes: int = Field(4 << 30, ge=0)
    """Disk for such a consumer; one that needs more is cut off and catches up in an iteration of its own."""
    attempts: int = Field(5, ge=1)
    """How often an iteration is tried before it is left to the next."""
    backoff_s: float = Field(1.0, gt=0)
    """Wait before the second try; it doubles with each, up to a minute."""
    lease_ttl_s: float = Field(15, gt=0)
    """How long the jobs of a silent runner stay its own."""
    watermark_interval_s: float = Field(3600, gt=0)
    """How often watermarks that only moved in memory are written to the log."""
    collect_interval_s: float = Field(3600, gt=0)
    """How often dropped jobs are collected."""
    dropped_ttl_s: float = Field(86_400, ge=0)
    """How long a dropped job stays in the log."""


class PoolSettings(Frozen):
    """The share of a Spark session that the jobs of one account get."""

    weight: int = Field(1, ge=1, le=1000)
    """Share against the other pools."""
    min_share: int = Field(0, ge=0)
    """Cores that it gets first, before the rest is shared by weight."""


class SparkSettings(Frozen):
    """The Spark session that Penstock builds, and what its jobs may use."""

    master: str = "local[*]"
    """Where jobs run: local[*], local[N], spark://host:port, yarn or k8s://https://host:port."""
    driver_memory: str = Field("2g", pattern=r"^[1-9][0-9]*[mgt]$")
    """Java heap of the driver; with a local master all work is done in it."""
    executor_memory: str = Field("2g", pattern=r"^[1-9][0-9]*[mgt]$")
    """Java heap of each executor."""
    python: str | None = None
    """Python of executors and of planning; none takes PYSPARK_PYTHON, or else the one that is running."""
    ui_port: int = Field(0, ge=0, le=65535)
    """Port of Spark's own web pages; 0 leaves them off."""
    log_level: Literal["off", "error", "warn", "info", "debug"] = "error"
    """The least important lines that Spark may write to the console."""
    pools: dict[str, PoolSettings] = Field({})
    """Shares by account; an account that is not listed has a pool of weight 1."""
    conf: dict[str, str] = Field({}, repr=False)
    """Further Spark configuration, spark.* keys; it wins over what Penstock sets."""

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
            raise ValueError(f"{foreign[0]!r} is no key of Spark's; its keys begin with 'spark.'")
        return conf
