"""Settings of changefeeds."""

from typing import Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from penstock.settings.frozen import Frozen, as_text


class ColumnSelectorSettings(Frozen):
    """Columns of some tables. Of several selectors the first that fits a table counts."""

    tables: tuple[str, ...] = Field(min_length=1)
    """The tables it is for: database.table with * and ?; !pattern leaves some out."""
    columns: tuple[str, ...] = Field(min_length=1)
    """Columns to send, with * and ?, and !column for those not to; primary keys are always sent."""


class RowFilterSettings(Frozen):
    """Rows of some tables. Of several filters the first that fits a table counts."""

    tables: tuple[str, ...] = Field(min_length=1)
    """The tables it is for: database.table with * and ?; !pattern leaves some out."""
    where: str = Field(min_length=1)
    """A SQL predicate; a row that does not satisfy it does not exist for the consumer."""


class ChangefeedSettings(Frozen):
    """A changefeed: the changes of some tables, as files on object storage."""

    sink_uri: SecretStr
    """Where files go, and how: s3://bucket/prefix?protocol=canal-json; see docs/changefeed.md."""
    sink: dict[str, str] = Field({}, repr=False)
    """Parameters of the sink by the names that the URI uses; those in the URI win."""
    storage_options: dict[str, str] = Field({}, repr=False)
    """Endpoint, region and credentials by obstore's names; the cloud's environment variables count too."""
    tables: tuple[str, ...] = ("*.*",)
    """Tables to send: database.table with * and ?; !pattern leaves some out; the last that fits counts."""
    start: Literal["now", "snapshot"] | int = "now"
    """Where it begins: now, with a snapshot of every table, or after a timestamp."""
    target_ts: int | None = Field(None, ge=1)
    """Timestamp at which it ends; none goes on for ever."""
    column_selectors: tuple[ColumnSelectorSettings, ...] = ()
    """Columns to send, for tables of which not all are."""
    row_filters: tuple[RowFilterSettings, ...] = ()
    """Rows to send, for tables of which not all are."""
    split_rows: int = Field(0, ge=0)
    """Rows of a key range with a dispatcher of its own in large tables; 0 gives each table one dispatcher."""
    spark_rows: int = Field(20_000, ge=0)
    """Changes from which executors encode and write them; fewer are handled in this process without a job."""
    lease_ttl_s: float = Field(15, ge=1, le=3600)
    """How long it stays with a process that is silent before another may run it."""

    @field_validator("sink", mode="before")
    @classmethod
    def _parameters_are_text(cls, sink: Any) -> Any:
        if not isinstance(sink, dict):
            return sink
        return {key: as_text(value) for key, value in sink.items()}

    @field_validator("start")
    @classmethod
    def _starts_after_the_beginning(cls, start: str | int) -> str | int:
        if isinstance(start, int) and start < 1:
            raise ValueError("write now, snapshot, or a timestamp of 1 or more")
        return start

    @model_validator(mode="after")
    def _ends_after_it_starts(self) -> "ChangefeedSettings":
        if isinstance(self.start, int) and self.target_ts is not None and self.target_ts <= self.start:
            raise ValueError("target_ts must be after start")
        return self
