"""The spec of a job: when it runs, and what it does with the changes. The log keeps it as JSON."""

import re
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from penstock.durations import parse_duration
from penstock.errors import Invalid

DEFAULT, GREEDY, PERIODIC = "default", "greedy", "periodic"
NEVER = "never"
_TRIGGER = re.compile(r"[\w.-]+(:[\w.]+)?")


class _Spec(BaseModel):
    """A part of a spec. A field that is None is empty: an update leaves the former value in place."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Schedule(_Spec):
    """When a job runs, as far as its type leaves that open."""

    interval: str | None = None
    """How far the watermark of a periodic job may fall behind, such as 10s, 5m or 1h."""
    share: bool | None = None
    """Whether the job shares iterations with the other jobs of its table; if not, it has its own."""

    @field_validator("interval")
    @classmethod
    def _is_a_duration(cls, interval: str | None) -> str | None:
        if interval is not None and parse_duration(interval) <= 0:
            raise ValueError("an interval is longer than nothing")
        return interval


class TriggerSpec(_Spec):
    """When iterations begin. A change takes effect after the current iteration."""

    job_type: str | None = None
    """default, greedy, periodic, or a custom trigger: module:function, or an entry point's name."""
    schedule: Schedule = Schedule()
    paused: bool | None = None
    """Whether no iteration begins."""

    @field_validator("job_type")
    @classmethod
    def _is_a_name(cls, job_type: str | None) -> str | None:
        if job_type is not None and not _TRIGGER.fullmatch(job_type):
            raise ValueError("write default, greedy, periodic, module:function or the name of a trigger")
        return job_type


class ConsumerInfo(_Spec):
    """Which consumer processes the changes, and its options."""

    consumer: str | None = None
    """fulltext, vector, delta, iceberg, parquet, postgres, kv, webhook, or module:Class."""
    columns: tuple[str, ...] | None = None
    """The columns that the consumer gets, beside the primary key; none: all."""
    options: dict[str, str] = Field({}, repr=False)
    """Options of the consumer, by its own names; options that an update leaves out keep their values."""


class IterationDetail(_Spec):
    """How iterations are executed."""

    priority: int | None = Field(None, ge=-128, le=127)
    """Among waiting iterations, those with a greater priority run first."""
    consumer: ConsumerInfo = ConsumerInfo()
    rows_max: int | None = Field(None, ge=1)
    """The most changes that one iteration reads; a larger transaction is read whole."""
    bytes_max: int | None = Field(None, ge=1)
    """The most bytes that one iteration reads."""
    span: str | None = None
    """The time that one iteration covers, such as 30m."""
    verify: str | None = None
    """How often the target is compared with its source, such as 1h; never, or no value: not at all."""

    @field_validator("verify")
    @classmethod
    def _is_a_duration_or_never(cls, verify: str | None) -> str | None:
        if verify is not None and verify != NEVER and parse_duration(verify) <= 0:
            raise ValueError("an interval is longer than nothing")
        return verify

    @field_validator("span")
    @classmethod
    def _is_a_duration(cls, span: str | None) -> str | None:
        if span is not None and parse_duration(span) <= 0:
            raise ValueError("a span is longer than nothing")
        return span


class JobSpec(_Spec):
    """When a job runs and what each of its iterations does."""

    trigger: TriggerSpec = TriggerSpec()
    detail: IterationDetail = IterationDetail()

    @classmethod
    def parse(cls, tree: Any, *, origin: str = "job spec") -> Self:
        """Check a tree; raise Invalid naming the first wrong key, and never the value of an option."""
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "it"
            raise Invalid(f"{origin}: {where} is refused: {first['msg']}") from None

    def merge(self, newer: "JobSpec") -> "JobSpec":
        """Return this spec, updated with all fields of a newer one that are not empty."""
        return JobSpec.model_validate(_merge_trees(self.model_dump(), newer.model_dump()))

    def dump(self) -> dict[str, Any]:
        """Return the JSON of the spec, without its empty fields."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def job_type(self) -> str:
        """The kind of trigger; `default` if the spec has none."""
        return self.trigger.job_type or DEFAULT

    @property
    def shares(self) -> bool:
        """Whether the job shares iterations: a greedy job never does, a default job does by default."""
        share = self.trigger.schedule.share
        if self.job_type == GREEDY:
            return False
        return self.job_type == DEFAULT if share is None else share

    @property
    def interval_s(self) -> float:
        """How far a periodic job's watermark may fall behind."""
        return parse_duration(self.trigger.schedule.interval or "10s")

    @property
    def paused(self) -> bool:
        """Whether no iteration begins."""
        return bool(self.trigger.paused)

    @property
    def priority(self) -> int:
        """Among waiting iterations, those with a greater priority run first."""
        return self.detail.priority or 0

    @property
    def verify_s(self) -> float | None:
        """How often the target is compared with its source; None: never."""
        verify = self.detail.verify
        return None if verify in {None, NEVER} else parse_duration(verify or "")

    @property
    def consumer(self) -> str:
        """The name of the consumer; empty only in a spec that updates another one."""
        return self.detail.consumer.consumer or ""

    @property
    def columns(self) -> frozenset[str] | None:
        """The columns that the consumer gets beside the primary key, in lower case; None: all."""
        chosen = self.detail.consumer.columns
        return None if chosen is None else frozenset(name.lower() for name in chosen)


class UpdateOptions(_Spec):
    """How a new spec takes effect."""

    interrupt: bool = False
    """Whether queued and running iterations of the job are canceled, so that the spec takes effect at once.
    """


def _merge_trees(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for key, value in new.items():
        if isinstance(value, Mapping):
            merged[key] = _merge_trees(old.get(key) or {}, value)
        elif value is not None:
            merged[key] = value
    return merged
