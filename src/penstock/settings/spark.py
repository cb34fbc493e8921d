"""Settings of the Spark session."""

from typing import Any, Literal

from pydantic import Field, field_validator

from penstock.settings.frozen import Frozen, as_text


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
