"""When a cron spec of six fields (second minute hour day month weekday) comes round. Pure; UTC."""

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
# What cronsim has beyond this (L, W, #) is none of these specs.
_PIECE = re.compile(r"([*?]|(\d+|[a-z]{3})(-(\d+|[a-z]{3}))?)(/0*[1-9]\d*)?", re.ASCII | re.IGNORECASE)
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class CronSpec:
    """A checked spec: *, ?, lists, ranges, steps and names; Invalid when it is wrong or never comes round.

    With both a day and a weekday given, either of them makes a day fit.
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
        expression = " ".join(_field(part, name) for part, name in zip(parts, _RANGES, strict=True))
        object.__setattr__(self, "_expression", expression)
        self.next_ms(0)

    def next_ms(self, after_ms: int) -> int:
        """The first time after `after_ms` (milliseconds since the epoch) that fits."""
        after = datetime.fromtimestamp(after_ms // 1000, UTC)
        try:
            found = next(CronSim(self._expression, after))
        except (CronSimError, StopIteration):  # each field is right by itself
            raise Invalid(f"cron spec {self.text!r} never comes round; there is no such day") from None
        return int(found.timestamp()) * 1000


def _field(part: str, name: str) -> str:
    """A field as cronsim takes it; raise Invalid for the first piece of its list that is wrong."""
    pieces = [_piece(piece, name) for piece in part.split(",")]
    return "*" if "*" in pieces else ",".join(pieces)


def _piece(piece: str, name: str) -> str:
    written = _written(piece.lower().replace("?", "*"), name)
    if not _PIECE.fullmatch(piece) or not _is_in_range(written, name):
        low, high = _RANGES[name]
        raise Invalid(
            f"{name} {piece!r} of a cron spec is refused; write {low} to {high}, or a step like */5"
        )
    return written


def _is_in_range(written: str, name: str) -> bool:
    if name == "weekday" and "7" in written.partition("/")[0]:  # to cronsim, another Sunday
        return False
    try:
        CronSim(" ".join(written if each == name else "*" for each in _RANGES), _EPOCH)
    except CronSimError:
        return False
    return True


def _written(piece: str, name: str) -> str:
    """The piece in words that mean the same to cronsim, which reads some steps as Debian's cron does."""
    bounds, slash, step = piece.partition("/")
    first, dash, last = bounds.partition("-")
    if not slash:
        return piece
    if first == last:  # 5-5/2 would be 5/2
        return first
    if first == "*" and name in {"day", "weekday"}:  # a star would ask for both the day and the weekday
        low, high = _RANGES[name]
        return f"{low}-{high}/{step}"
    if name == "weekday" and not dash:  # the step would go on to 7, which is Sunday
        return first if first in {"6", "sat"} else f"{first}-6/{step}"
    return piece
