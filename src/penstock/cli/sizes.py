"""Sizes for people."""

__all__ = ["GIB", "MIB", "size"]

MIB = 1 << 20
GIB = 1 << 30
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def size(nbytes: float) -> str:
    """As in 1.5 GiB."""
    step = 0
    while abs(nbytes) >= 1024 and step < len(_UNITS) - 1:
        nbytes /= 1024
        step += 1
    return f"{nbytes:,.0f} {_UNITS[step]}" if step == 0 or nbytes >= 100 else f"{nbytes:.1f} {_UNITS[step]}"
