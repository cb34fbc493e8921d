"""Sizes and durations as people write them in a sink URI: 64MiB, 5s, 1m30s. Pure."""

import re
from decimal import Decimal

from penstock.errors import Invalid

_SIZE = re.compile(r"(?P<number>-?\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)")
_SIZE_UNITS = (
    {"": 1, "b": 1}
    | {"k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30}
    | {"t": 1 << 40, "tib": 1 << 40, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
)
_DURATION_PART = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<unit>ns|us|µs|ms|s|m|h)")
_DURATION_UNITS = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}


def parse_size(text: str, name: str) -> int:
    """Bytes: a number, perhaps with KiB, MiB, GiB, TiB (1024) or KB, MB, GB, TB (1000); else Invalid."""
    found = _SIZE.fullmatch(text.strip())
    unit = _SIZE_UNITS.get(found["unit"].lower()) if found else None
    if found is None or unit is None:
        raise Invalid(f"{name} = {text!r} is no size; write bytes, or a number with KiB, MiB or GiB")
    return int(Decimal(found["number"]) * unit)


def parse_duration(text: str, name: str) -> float:
    """Seconds of a duration such as 5s, 500ms, 1m30s or 1.5h; else Invalid."""
    text = text.strip()
    sign = -1 if text.startswith("-") else 1
    rest = text.lstrip("+-")
    parts = list(_DURATION_PART.finditer(rest))
    if not parts or "".join(part[0] for part in parts) != rest:
        raise Invalid(f"{name} = {text!r} is no duration; write a number with its unit: 500ms, 5s, 1m30s")
    return float(sign * sum(Decimal(part["number"]) * _DURATION_UNITS[part["unit"]] for part in parts))
