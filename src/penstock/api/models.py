"""The requests and answers of the API."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    ValidationError,
    model_validator,
)

from penstock.jobs.spec import JobSpec
from penstock.settings import (
    ChangefeedSettings,
    ColumnSelectorSettings,
    RowFilterSettings,
    parse_changefeed,
)

__all__ = [
    "ChangefeedDetail",
    "ChangefeedModel",
    "ChangefeedPatch",
    "ChangesPage",
    "FeedId",
    "FeedName",
    "HealthModel",
    "JobDetail",
    "JobPatch",
    "JobSummary",
    "Me",
    "NewChangefeed",
    "NewJob",
    "ProblemDetails",
    "Readiness",
    "RepairAnswer",
    "RepairRequest",
    "SearchAnswer",
    "SearchRequest",
    "TableDetail",
    "TableSummary",
    "VerifyAnswer",
]

FeedName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*$", max_length=128)]
FeedId = Annotated[
    str,
    StringConstraints(
        pattern=r"^([A-Za-z0-9_-]{1,64}\.)?[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*$",
        max_length=200,
    ),
]
JobName = Annotated[
    str, StringConstraints(pattern=r"^[^./]+\.[^/]+/[A-Za-z0-9_]+([.-]?[A-Za-z0-9_]+)*$", max_length=400)
]
Ts = Annotated[int, Field(ge=0)]


def _parse_spec(tree: Any) -> Any:
    """Return a spec by JSON's own types: a spec file may have texts for numbers, a request may not."""
    try:
        return JobSpec.model_validate_json(json.dumps(tree), strict=True)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise ValueError(f"{where}: {first['msg']}") from None


Spec = Annotated[JobSpec, BeforeValidator(_parse_spec)]


class _ResponseModel(BaseModel):
    """An answer may have more fields than are declared, because views grow."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


class _Request(BaseModel):
    """A request has no fields but the declared ones."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )


class ProblemDetails(_ResponseModel):
    """Why a request was refused (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    """One line: what is wrong, and what to do."""


class HealthModel(_ResponseModel):
    """The process answers."""

    status: Literal["ok"]


class Readiness(_ResponseModel):
    """Whether the API can serve requests."""

    ready: bool
    reasons: list[str]
    """Why it cannot."""


class Me(_ResponseModel):
    """The caller of the request."""

    account: str
    admin: bool


class ColumnModel(_ResponseModel):
    """A column of a table."""

    name: str
    type: str
    """The type as SQL writes it."""
    nullable: bool
    primary_key: bool


class RefusalModel(_ResponseModel):
    """Why a table cannot be captured, with the remedy, and since when its changes are not captured."""

    reason: str
    since_ts: Ts
    since_time: str | None


class TableSummary(_ResponseModel):
    """A table, and up to where it can be read."""

    table: str
    table_id: int
    account: str
    captured: bool
    refusal: RefusalModel | None = None
    """Why the table cannot be captured; null when it is captured, or when no capture has it."""
    readable_ts: Ts | None
    readable_time: str | None
    changed_ts: Ts | None
    """No change up to readable_ts is newer than this timestamp."""
    lag_s: float | None


class SchemaOfTable(_ResponseModel):
    """A table between two changes of its schema."""

    version: int
    since_ts: Ts
    since_time: str | None
    table: str
    columns: list[ColumnModel]


class ObjectsOfKind(_ResponseModel):
    """The objects of one side and kind of a table."""

    side: str
    kind: str
    objects: int
    rows: int
    bytes: int
    from_ts: Ts
    to_ts: Ts


class ObjectSpan(_ResponseModel):
    """An object with rows that were committed from from_ts to to_ts."""

    kind: str
    side: str
    from_ts: Ts
    to_ts: Ts
    rows: int
    bytes: int
    replaced_ts: Ts | None
    """When another object replaced it."""


class TableDetail(TableSummary):
    """The columns, schema versions and objects of a table."""

    oldest_ts: Ts | None
    """History before this timestamp is gone."""
    flushed_ts: Ts | None
    """Every change up to this timestamp is in objects."""
    columns: list[ColumnModel]
    schemas: list[SchemaOfTable]
    kinds: list[ObjectsOfKind]
    objects: list[ObjectSpan]
    """The newest objects."""
    objects_left_off: int


class ChangesPage(_ResponseModel):
    """Changes of a table in (from_ts, to_ts]."""

    table: str
    from_ts: Ts
    to_ts: Ts
    rows: list[dict[str, Any]]
    """Each row has _op (insert, update, delete) and _commit_ts, then its columns."""
    more: bool
    """Whether the range has more changes."""
    next_from_ts: Ts | None
    """The from_ts of the next page, with the same to_ts; null at the end."""
    next_skip: int
    """The `skip` of the next page."""


class ChangefeedModel(_ResponseModel):
    """The state and lag of a changefeed."""

    id: str
    account: str
    state: str
    checkpoint_ts: Ts
    checkpoint_time: str
    lag_s: float
    error: str
    warning: str = ""
    """Which tables it goes on without, or waits for, and why; empty when no table is missing."""


class LeftOutModel(_ResponseModel):
    """A table that cannot be captured, and without whose changes since then a changefeed goes on."""

    table: str
    table_id: int
    reason: str
    since_ts: Ts
    since_time: str | None


class ChangefeedDetail(ChangefeedModel):
    """The state and settings of a changefeed, with secrets masked."""

    start_ts: Ts
    snapshot: bool
    ddl_ts: Ts
    left_out: list[LeftOutModel] = []
    settings: dict[str, Any]


_PATTERN_CHARS_MAX = 300
_PATTERNS_CHARS_MAX = 65_536
_WHERE_CHARS_MAX = 16_384
_SINK_CHARS_MAX = 65_536


def _check_chars(what: str, texts: list[str], chars_max: int) -> None:
    if sum(map(len, texts)) > chars_max:
        raise ValueError(f"{what} have more than {chars_max} characters in all; make several changefeeds")


class ChangefeedPatch(_Request):
    """Changes of a paused changefeed; omitted fields stay. Fields as in the settings' changefeeds."""

    sink_uri: SecretStr = SecretStr("")
    sink: dict[str, str] = Field({}, repr=False)
    storage_options: dict[str, str] = Field({}, repr=False)
    tables: list[str] = []
    target_ts: int | None = Field(None, ge=1)
    column_selectors: list[ColumnSelectorSettings] = []
    row_filters: list[RowFilterSettings] = []
    split_rows: int = Field(0, ge=0)
    ignore_ineligible_table: bool = True

    @model_validator(mode="after")
    def _is_short(self) -> Self:
        """Refuse what takes seconds to parse, here and again in the process that runs the changefeed."""
        patterns = [*self.tables, *(pattern for rule in self.row_filters for pattern in rule.tables)]
        for selector in self.column_selectors:
            patterns += [*selector.tables, *selector.columns]
        sink = [self.sink_uri.get_secret_value(), *self.sink.values(), *self.storage_options.values()]
        _check_chars("patterns of tables and columns", patterns, _PATTERNS_CHARS_MAX)
        _check_chars("conditions of row filters", [rule.where for rule in self.row_filters], _WHERE_CHARS_MAX)
        _check_chars("sink_uri, sink and storage_options", sink, _SINK_CHARS_MAX)
        if any(len(pattern) > _PATTERN_CHARS_MAX for pattern in patterns):
            raise ValueError(f"a pattern has more than {_PATTERN_CHARS_MAX} characters; write a shorter one")
        return self

    @property
    def changes(self) -> dict[str, Any]:
        """The given fields as they are stored, with secrets."""
        changes = self.model_dump(mode="json", exclude_unset=True)
        if "sink_uri" in changes:
            changes["sink_uri"] = self.sink_uri.get_secret_value()
        return changes


class NewChangefeed(ChangefeedPatch):
    """A changefeed to create. Fields as in the settings' changefeeds."""

    id: FeedName
    """Its name, unique among the changefeeds of the account. Admins see those of accounts as account.name."""
    sink_uri: SecretStr
    start: Literal["now", "snapshot"] | Annotated[int, Field(ge=1)] = "now"

    @property
    def settings(self) -> ChangefeedSettings:
        """Its settings. Raises Invalid when they are wrong."""
        tree = {name: value for name, value in self.changes.items() if name != "id"}
        return parse_changefeed(tree, origin=f"changefeed {self.id}")


class JobSummary(_ResponseModel):
    """The state and freshness of a job."""

    job: str
    consumer: str
    trigger: str
    state: str
    watermark: Ts
    watermark_time: str | None
    lag_s: float | None = None
    lacks: str | None = None
    """Why changes are missing in the target; null when none is."""
    lacks_because: str | None = None
    """The message of the last error, or why the table cannot be captured."""
    error_code: int
    error: str


class JobDetail(JobSummary):
    """The state, spec and last iteration of a job, with secrets masked."""

    paused: bool
    failures: int
    account: str
    table_id: int
    created: str
    iteration: dict[str, Any]
    spec: dict[str, Any]


class NewJob(_Request):
    """A job to register."""

    job: JobName
    """Its name, as database.table/job."""
    spec: Spec


class JobPatch(_Request):
    """Changes of a job; what is left out stays."""

    spec: Spec = JobSpec()
    interrupt: bool = False
    """Whether to end the queued or running iteration, so that the change applies at once."""


class RepairRequest(_Request):
    """How to repair a target."""

    rebuild: bool = False
    """Whether to fill the target again from the start, whatever it contains."""


class VerifyAnswer(_ResponseModel):
    """The result of comparing a target with its source."""

    job: str
    same: bool
    at_ts: Ts
    at_time: str | None
    source_rows: int
    target_rows: int
    missing: int
    different: int
    extra: int
    duplicates: int


class RepairAnswer(_ResponseModel):
    """The action that a repair took."""

    job: str
    action: str
    table_id: int


class SearchRequest(_Request):
    """A search of an index, by words or by a vector."""

    words: str | None = Field(None, max_length=10_000)
    vector: list[Annotated[float, Field(allow_inf_nan=False)]] | None = Field(None, max_length=65_536)
    k: int = Field(10, ge=1, le=10_000)
    """The number of rows to return."""
    filter: str | None = Field(None, max_length=16_384)
    """An SQL condition on the rows."""
    columns: list[str] | None = Field(None, max_length=4096)
    """Columns to return; null for all."""
    all: bool = False
    """Whether a row must contain all of the words."""


class SearchAnswer(_ResponseModel):
    """The rows that an index found, and how fresh they are."""

    job: str
    watermark: Ts
    watermark_time: str | None
    lag_s: float
    complete: bool
    rows: list[dict[str, Any]]
