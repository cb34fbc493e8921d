"""When a cron spec of six fields (second minute hour day month weekday) comes round. Pure; UTC."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from penstock.errors import Invalid

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_RANGES = (
    ("second", 0, 59, ()),
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("weekday", 0, 6, _WEEKDAYS),
)
_DAYS_AHEAD_MAX = 8 * 366  # a 29th of February is at most 8 years away


@dataclass(frozen=True, slots=True)
class CronSpec:
    """A checked spec: *, ?, lists, ranges, steps and names; Invalid when it is wrong or never comes round.

    With both a day and a weekday given, either of them makes a day fit.
    """

    text: str
    _sets: tuple[frozenset[int], ...] = field(init=False, repr=False, compare=False)
    _either_day: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = self.text.split()
        if len(parts) != len(_RANGES):
            raise Invalid(
                f"cron spec {self.text!r} has {len(parts)} fields; write six: second minute hour day month"
                " weekday, such as 0 0 2 * * *"
            )
        sets = tuple(_values(part, *known) for part, known in zip(parts, _RANGES, strict=True))
        open_days = [_is_open(part) for part in (parts[3], parts[5])]
        object.__setattr__(self, "_sets", sets)
        object.__setattr__(self, "_either_day", not any(open_days))
        self.next_ms(0)

    def next_ms(self, after_ms: int) -> int:
        """The first time after `after_ms` (milliseconds since the epoch) that fits."""
        after = datetime.fromtimestamp(after_ms // 1000, UTC) + timedelta(seconds=1)
        day = after.date()
        for ahead in range(_DAYS_AHEAD_MAX):
            date = day + timedelta(days=ahead)
            if not self._fits_day(date.day, date.month, date.isoweekday() % 7):
                continue
            earliest = (after.hour, after.minute, after.second) if ahead == 0 else (0, 0, 0)
            time = self._first_time(earliest)
            if time is not None:
                hour, minute, second = time
                found = datetime(date.year, date.month, date.day, hour, minute, second, tzinfo=UTC)
                return int(found.timestamp()) * 1000
        raise Invalid(f"cron spec {self.text!r} never comes round; there is no such day")

    def _fits_day(self, day: int, month: int, weekday: int) -> bool:
        _, _, _, days, months, weekdays = self._sets
        if month not in months:
            return False
        fits = (day in days, weekday in weekdays)
        return any(fits) if self._either_day else all(fits)

    def _first_time(self, earliest: tuple[int, int, int]) -> tuple[int, int, int] | None:
        """The first time of a day that fits and is not before `earliest`."""
        seconds, minutes, hours = (sorted(each) for each in self._sets[:3])
        return next(
            (
                (hour, minute, second)
                for hour in hours
                if hour >= earliest[0]
                for minute in minutes
                if (hour, minute) >= earliest[:2]
                for second in seconds
                if (hour, minute, second) >= earliest
            ),
            None,
        )


def _is_open(part: str) -> bool:
    """Whether a field restricts nothing."""
    return any(piece.partition("/")[0] in {"*", "?"} and "/" not in piece for piece in part.split(","))


def _values(part: str, name: str, low: int, high: int, names: tuple[str, ...]) -> frozenset[int]:
    found: set[int] = set()
    for piece in part.split(","):
        bounds, _, step_text = piece.partition("/")
        start_text, dash, end_text = bounds.partition("-")
        if bounds in {"*", "?"}:
            start, end = low, high
        else:
            start = _number(start_text, name, low, high, names)
            end = _number(end_text, name, low, high, names) if dash else (high if step_text else start)
        step = int(step_text) if step_text.isdigit() else 0 if "/" in piece else 1
        if step < 1 or start > end:
            raise Invalid(
                f"{name} {piece!r} of a cron spec is refused; write {low}-{high}, or a step like */5"
            )
        found.update(range(start, end + 1, step))
    return frozenset(found)


def _number(text: str, name: str, low: int, high: int, names: tuple[str, ...]) -> int:
    if text.lower() in names:
        return names.index(text.lower()) + low
    if not text.isdigit() or not low <= int(text) <= high:
        raise Invalid(f"{name} {text!r} of a cron spec is refused; write {low} to {high}")
    return int(text)
