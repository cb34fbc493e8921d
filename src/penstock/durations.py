"""Durations as people write them: 500ms, 10s, 1h30m. Pure."""

import re
from decimal import Decimal

from penstock.errors import Invalid

_PART = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<unit>ns|us|µs|ms|s|m|h|d)")
_SECONDS = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86_400),
}
_DAYS_MAX = 36_500


def parse_duration(text: str) -> float:
    """Return the seconds of a duration; raise Invalid when the text is none or longer than 100 years."""
    parts = list(_PART.finditer(text))
    if not parts or "".join(part[0] for part in parts) != text:
        raise Invalid(f"{text!r} is not a duration; write a number with its unit: 500ms, 10s, 5m, 1h30m")
    seconds = sum(Decimal(part["number"]) * _SECONDS[part["unit"]] for part in parts)
    if seconds > _DAYS_MAX * _SECONDS["d"]:
        raise Invalid(f"duration {text!r} is longer than {_DAYS_MAX} days; write a shorter one")
    return float(seconds)
