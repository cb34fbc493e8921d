"""What a job is to do: when it runs, and what with the changes. In the log it is JSON."""

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
    """A part of a spec. A field that is None is empty: it takes its value from the spec before."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Schedule(_Spec):
    """When a job runs, as far as its type leaves that open."""

    interval: str | None = None
    """Of periodic jobs: how far the watermark may fall behind, as in 10s, 5m, 1h."""
    share: bool | None = None
    """Whether it takes part in iterations with its table's other jobs; else it is independent of them."""

    @field_validator("interval")
    @classmethod
    def _is_a_duration(cls, interval: str | None) -> str | None:
        if interval is not None and parse_duration(interval) <= 0:
            raise ValueError("an interval is longer than nothing")
        return interval


class TriggerSpec(_Spec):
    """When iterations begin. A change takes effect after the current iteration."""

    job_type: str | None = None
    """default, greedy, periodic, or a trigger of one's own: module:function, or an entry point's name."""
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
    """Who consumes, and how."""

    consumer: str | None = None
    """fulltext, vector, delta, iceberg, parquet, postgres, kv, webhook, or module:Class."""
    columns: tuple[str, ...] | None = None
    """The columns that it gets, beside the primary key; none: all."""
    options: dict[str, str] = Field({}, repr=False)
    """What the consumer wants to know, by its own names; those not given keep their values."""


class IterationDetail(_Spec):
    """How iterations are executed."""

    priority: int | None = Field(None, ge=-128, le=127)
    """Which of those that wait runs first: the greater."""
    consumer: ConsumerInfo = ConsumerInfo()
    rows_max: int | None = Field(None, ge=1)
    """Changes that one iteration takes; a larger transaction is taken whole."""
    bytes_max: int | None = Field(None, ge=1)
    """Bytes that it takes."""
    span: str | None = None
    """Time that it covers, as in 30m."""
    verify: str | None = None
    """How often the target is compared with its source, as in 1h; never: not at all, as without it."""

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
    """Everything that a job is to do."""

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

    def merged(self, newer: "JobSpec") -> "JobSpec":
        """This spec with everything that is not empty in a newer one."""
        return JobSpec.model_validate(_merged(self.model_dump(), newer.model_dump()))

    def dump(self) -> dict[str, Any]:
        """As it is kept: without what is empty."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def job_type(self) -> str:
        """The kind of trigger, `default` where nothing is said."""
        return self.trigger.job_type or DEFAULT

    @property
    def shares(self) -> bool:
        """Whether it takes part in iterations with others: greedy ones never, default ones unless told."""
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
        """Which of those that wait runs first."""
        return self.detail.priority or 0

    @property
    def verify_s(self) -> float | None:
        """How often the target is compared with its source; None: never."""
        verify = self.detail.verify
        return None if verify in {None, NEVER} else parse_duration(verify or "")

    @property
    def consumer(self) -> str:
        """Who consumes; empty only in a spec that is to be merged."""
        return self.detail.consumer.consumer or ""

    @property
    def columns(self) -> frozenset[str] | None:
        """The columns that the consumer gets beside the primary key, in small letters; None: all."""
        chosen = self.detail.consumer.columns
        return None if chosen is None else frozenset(name.lower() for name in chosen)


class UpdateOptions(_Spec):
    """How a new spec takes effect."""

    interrupt: bool = False
    """Whether iterations that are queued or running end, so that it takes effect at once."""


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(old)
    for key, value in new.items():
        if isinstance(value, Mapping):
            found[key] = _merged(old.get(key) or {}, value)
        elif value is not None:
            found[key] = value
    return found
