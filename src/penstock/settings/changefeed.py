"""Settings of changefeeds."""

from typing import Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from penstock.settings.frozen import Frozen, as_text


class ColumnSelectorSettings(Frozen):
    """Columns to send of some tables. The first selector that matches a table applies."""

    tables: tuple[str, ...] = Field(min_length=1)
    """Tables it applies to, as database.table with * and ?; !pattern excludes tables."""
    columns: tuple[str, ...] = Field(min_length=1)
    """Columns to send, with * and ?; !column excludes one. Primary keys are always sent."""


class RowFilterSettings(Frozen):
    """Rows to send of some tables. The first filter that matches a table applies."""

    tables: tuple[str, ...] = Field(min_length=1)
    """Tables it applies to, as database.table with * and ?; !pattern excludes tables."""
    where: str = Field(min_length=1)
    """SQL predicate. Rows that do not satisfy it do not exist for the consumer."""


class ChangefeedSettings(Frozen):
    """A changefeed: the changes of some tables, as files on object storage."""

    sink_uri: SecretStr
    """Target and format of the files: s3://bucket/prefix?protocol=canal-json; see docs/changefeed.md."""
    sink: dict[str, str] = Field({}, repr=False)
    """Parameters of the sink, by the names that the URI uses. Parameters in the URI win."""
    storage_options: dict[str, str] = Field({}, repr=False)
    """Endpoint, region and credentials by obstore's names. The cloud's environment variables apply too."""
    tables: tuple[str, ...] = ("*.*",)
    """Tables to send: database.table; * and ? match all but system tables; !pattern excludes; last wins."""
    start: Literal["now", "snapshot"] | int = "now"
    """Start now, with a snapshot of every table, or after a timestamp."""
    target_ts: int | None = Field(None, ge=1)
    """Timestamp at which the changefeed ends; none: never."""
    column_selectors: tuple[ColumnSelectorSettings, ...] = ()
    """Columns to send, for tables whose columns are not all sent."""
    row_filters: tuple[RowFilterSettings, ...] = ()
    """Rows to send, for tables whose rows are not all sent."""
    split_rows: int = Field(0, ge=0)
    """Split large tables into key ranges of this many rows, one dispatcher each; 0 splits no table."""
    ignore_ineligible_table: bool = True
    """Go on without tables that cannot be captured, and warn; false: fail until they can be."""
    lease_ttl_s: float = Field(15, ge=1, le=3600)
    """Seconds after which another process may run the changefeed of a silent one."""

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
