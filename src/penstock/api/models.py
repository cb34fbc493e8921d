"""What the API is asked, and what it answers."""

import json
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    ValidationError,
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
    "RepairRequest",
    "Repaired",
    "SearchAnswer",
    "SearchRequest",
    "TableDetail",
    "TableSummary",
    "VerifyAnswer",
]

FeedName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*$", max_length=128)]
JobName = Annotated[
    str, StringConstraints(pattern=r"^[^./]+\.[^/]+/[A-Za-z0-9_]+([.-]?[A-Za-z0-9_]+)*$", max_length=400)
]
Ts = Annotated[int, Field(ge=0)]


def _strictly(tree: Any) -> Any:
    """A spec by JSON's own types: files of specs may have texts for numbers, requests may not."""
    try:
        return JobSpec.model_validate_json(json.dumps(tree), strict=True)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise ValueError(f"{where}: {first['msg']}") from None


Spec = Annotated[JobSpec, BeforeValidator(_strictly)]


class _Answer(BaseModel):
    """What is answered may have more than is declared: views grow."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


class _Wish(BaseModel):
    """What is asked has nothing but what is declared."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )


class ProblemDetails(_Answer):
    """Why a request was refused (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    """One line: what is wrong, and what to do."""


class HealthModel(_Answer):
    """That the process answers."""

    status: Literal["ok"]


class Readiness(_Answer):
    """Whether requests can be carried out."""

    ready: bool
    reasons: list[str]
    """Why not."""


class Me(_Answer):
    """Who asks."""

    account: str
    admin: bool


class ColumnModel(_Answer):
    """A column of a table."""

    name: str
    type: str
    """As SQL writes it."""
    nullable: bool
    primary_key: bool


class TableSummary(_Answer):
    """How far a table can be read."""

    table: str
    table_id: int
    account: str
    captured: bool
    readable_ts: Ts | None
    readable_time: str | None
    changed_ts: Ts | None
    """There is no change after it, up to readable_ts."""
    lag_s: float | None


class SchemaOfTable(_Answer):
    """A table between two changes of its schema."""

    version: int
    since_ts: Ts
    since_time: str | None
    table: str
    columns: list[ColumnModel]


class ObjectsOfKind(_Answer):
    """What there is of one kind of objects."""

    side: str
    kind: str
    objects: int
    rows: int
    bytes: int
    from_ts: Ts
    to_ts: Ts


class ObjectSpan(_Answer):
    """An object: what it holds was committed from from_ts to to_ts."""

    kind: str
    side: str
    from_ts: Ts
    to_ts: Ts
    rows: int
    bytes: int
    replaced_ts: Ts | None
    """From when on another object stands for it."""


class TableDetail(TableSummary):
    """Everything that is known of a table."""

    oldest_ts: Ts | None
    """History before it is gone."""
    flushed_ts: Ts | None
    """Everything up to it is in objects."""
    columns: list[ColumnModel]
    schemas: list[SchemaOfTable]
    kinds: list[ObjectsOfKind]
    objects: list[ObjectSpan]
    """The newest ones."""
    objects_left_off: int


class ChangesPage(_Answer):
    """Changes of a table in (from_ts, to_ts]."""

    table: str
    from_ts: Ts
    to_ts: Ts
    rows: list[dict[str, Any]]
    """Each has _op (insert, update, delete) and _commit_ts, then its columns."""
    more: bool
    """Whether the range has more."""
    next_from_ts: Ts | None
    """Where to go on, with the same to_ts; none at the end."""
    next_skip: int
    """What to give as `skip` then."""


class ChangefeedModel(_Answer):
    """How a changefeed does."""

    id: str
    account: str
    state: str
    checkpoint_ts: Ts
    checkpoint_time: str
    lag_s: float
    error: str


class ChangefeedDetail(ChangefeedModel):
    """Everything that is known of a changefeed, without its secrets."""

    start_ts: Ts
    snapshot: bool
    ddl_ts: Ts
    settings: dict[str, Any]


class ChangefeedPatch(_Wish):
    """What is to be changed of a paused changefeed; what is left out stays. See the settings' changefeeds."""

    sink_uri: SecretStr = SecretStr("")
    sink: dict[str, str] = Field({}, repr=False)
    storage_options: dict[str, str] = Field({}, repr=False)
    tables: list[str] = []
    target_ts: int | None = Field(None, ge=1)
    column_selectors: list[ColumnSelectorSettings] = []
    row_filters: list[RowFilterSettings] = []
    split_rows: int = Field(0, ge=0)

    @property
    def changes(self) -> dict[str, Any]:
        """What was given, as it is kept: with its secrets."""
        found = self.model_dump(mode="json", exclude_unset=True)
        if "sink_uri" in found:
            found["sink_uri"] = self.sink_uri.get_secret_value()
        return found


class NewChangefeed(ChangefeedPatch):
    """A changefeed that is to be made. See the settings' changefeeds."""

    id: FeedName
    """Its name; no other changefeed has it, whosever that is."""
    sink_uri: SecretStr
    start: Literal["now", "snapshot"] | Annotated[int, Field(ge=1)] = "now"

    @property
    def wanted(self) -> ChangefeedSettings:
        """What it is to do; raise Invalid when that is nothing."""
        tree = {name: value for name, value in self.changes.items() if name != "id"}
        return parse_changefeed(tree, origin=f"changefeed {self.id}")


class JobSummary(_Answer):
    """How a job does."""

    job: str
    consumer: str
    trigger: str
    state: str
    watermark: Ts
    watermark_time: str | None
    lag_s: float | None = None
    lacks: str | None = None
    """Why the target is not as fresh as its source, if it is not."""
    error_code: int
    error: str


class JobDetail(JobSummary):
    """Everything that is known of a job, without its secrets."""

    paused: bool
    failures: int
    account: str
    table_id: int
    created: str
    iteration: dict[str, Any]
    spec: dict[str, Any]


class NewJob(_Wish):
    """A job that is to be registered."""

    job: JobName
    """Its name, as database.table/job."""
    spec: Spec


class JobPatch(_Wish):
    """What is to be changed of a job; what is left out stays."""

    spec: Spec = JobSpec()
    interrupt: bool = False
    """Whether the iteration that is queued or running ends, so that it counts at once."""


class RepairRequest(_Wish):
    """How a target is to be repaired."""

    rebuild: bool = False
    """Whether it is filled anew, whatever it is."""


class VerifyAnswer(_Answer):
    """What a comparison of a target with its source found."""

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


class Repaired(_Answer):
    """What a repair did."""

    job: str
    action: str
    table_id: int


class SearchRequest(_Wish):
    """What an index is asked: words, or a vector."""

    words: str | None = Field(None, max_length=10_000)
    vector: list[Annotated[float, Field(allow_inf_nan=False)]] | None = Field(None, max_length=65_536)
    k: int = Field(10, ge=1, le=10_000)
    """How many rows."""
    filter: str | None = Field(None, max_length=16_384)
    """SQL condition that rows have to meet."""
    columns: list[str] | None = Field(None, max_length=4096)
    """Columns to show; none: all."""
    all: bool = False
    """Whether only rows count that have all of the words."""


class SearchAnswer(_Answer):
    """What an index found, and how fresh that is."""

    job: str
    watermark: Ts
    watermark_time: str | None
    lag_s: float
    complete: bool
    rows: list[dict[str, Any]]
