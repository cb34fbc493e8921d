"""A range of raw keys."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """Keys from `start` up to, not including, `end`; an empty `end` is the end of the key space."""

    start: bytes = b""
    end: bytes = b""

    def contains(self, key: bytes) -> bool:
        """Tell whether `key` lies inside."""
        return self.start <= key and (not self.end or key < self.end)

    def clamp(self, start: bytes, end: bytes) -> "KeyBounds | None":
        """Return the part of [start, end) that lies inside, or None when there is none."""
        lower = max(start, self.start)
        upper = min(end, self.end) if end and self.end else end or self.end
        return None if upper and lower >= upper else KeyBounds(lower, upper)


EVERYTHING = KeyBounds()
