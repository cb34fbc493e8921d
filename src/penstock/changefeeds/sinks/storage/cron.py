"""Cron specs of six fields (second minute hour day month weekday) and their next times, in UTC. Pure."""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime

from cronsim import CronSim, CronSimError

from penstock.errors import Invalid

_RANGES = {
    "second": (0, 59),
    "minute": (0, 59),
    "hour": (0, 23),
    "day": (1, 31),
    "month": (1, 12),
    "weekday": (0, 6),
}
# cronsim understands more (L, W, #), which these specs do not have.
_ITEM = re.compile(r"([*?]|(\d+|[a-z]{3})(-(\d+|[a-z]{3}))?)(/0*[1-9]\d*)?", re.ASCII | re.IGNORECASE)
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class CronSpec:
    """A valid spec: *, ?, lists, ranges, steps, names. Raises Invalid when it is wrong or never matches.

    If both a day and a weekday are given, a date matches when either does.
    """

    text: str
    _expression: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = self.text.split()
        if len(parts) != len(_RANGES):
            raise Invalid(
                f"cron spec {self.text!r} has {len(parts)} fields; write six: second minute hour day month"
                " weekday, such as 0 0 2 * * *"
            )
        expression = " ".join(_parse_field(part, name) for part, name in zip(parts, _RANGES, strict=True))
        object.__setattr__(self, "_expression", expression)
        self.next_ms(0)

    def next_ms(self, after_ms: int) -> int:
        """Return the first matching time after `after_ms`, in milliseconds since the epoch."""
        after = datetime.fromtimestamp(after_ms // 1000, UTC)
        try:
            found = next(CronSim(self._expression, after))
        except (CronSimError, StopIteration):  # each field is valid by itself, so no date matches
            raise Invalid(f"cron spec {self.text!r} never comes round; there is no such day") from None
        return int(found.timestamp()) * 1000


def _parse_field(part: str, name: str) -> str:
    """Return a field in cronsim's language; raise Invalid for the first item of its list that is wrong."""
    items = [_parse_item(item, name) for item in part.split(",")]
    return "*" if "*" in items else ",".join(items)


def _parse_item(item: str, name: str) -> str:
    translated = _translate(item.lower().replace("?", "*"), name)
    if not _ITEM.fullmatch(item) or not _is_in_range(translated, name):
        low, high = _RANGES[name]
        raise Invalid(f"{name} {item!r} of a cron spec is refused; write {low} to {high}, or a step like */5")
    return translated


def _is_in_range(item: str, name: str) -> bool:
    if name == "weekday" and "7" in item.partition("/")[0]:  # cronsim takes 7 for Sunday
        return False
    try:
        CronSim(" ".join(item if field_name == name else "*" for field_name in _RANGES), _EPOCH)
    except CronSimError:
        return False
    return True


def _translate(item: str, name: str) -> str:
    """Return an item that means the same to cronsim, which reads some steps as Debian's cron does."""
    bounds, slash, step = item.partition("/")
    first, dash, last = bounds.partition("-")
    if not slash:
        return item
    if first == last:  # 5-5/2 would be 5/2
        return first
    if first == "*" and name in {"day", "weekday"}:  # with a star both day and weekday would have to match
        low, high = _RANGES[name]
        return f"{low}-{high}/{step}"
    if name == "weekday" and not dash:  # the step would go on to 7, which is Sunday
        return first if first in {"6", "sat"} else f"{first}-6/{step}"
    return item
