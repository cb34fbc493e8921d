"""Durations as people write them: 10s, 5m, 1h30m."""

import re

from penstock.errors import Invalid

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DAYS_MAX = 36_500


def parse_duration(text: str) -> float:
    """Seconds; raise Invalid when it is no duration."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise Invalid(f"{text!r} is no duration; write 500ms, 10s, 5m, 1h or 1h30m")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds > _DAYS_MAX * _SECONDS["d"]:
        raise Invalid(f"a duration is longer than {_DAYS_MAX} days; write a shorter one")
    return seconds
