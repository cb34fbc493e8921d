"""What a reader still needs of its tables' history, kept on storage for as long as it may be away.

A hold that is older than need be keeps a little more than is needed. So it is written anew only when it would
run out, or when it has fallen far behind: ten thousand tables are not ten thousand writes for every step.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.clock import physical_ms

TTL_S = 86_400.0
"""How long after its last sign of life a reader finds the history that it needs."""
BEHIND_MS = 30 * 60 * 1000
"""How far a hold may fall behind what is needed."""
RENEWED_MAX = 256
"""How many holds are written again in one call, so that those that are due together are spread."""


@dataclass(frozen=True, slots=True)
class _Held:
    ts: int
    at: float


class HoldPolicy:
    """Which holds are to be written. Pure."""

    def __init__(self, *, ttl_s: float = TTL_S) -> None:
        self._renew_s = ttl_s / 3
        self._held: dict[int, _Held] = {}

    @property
    def empty(self) -> bool:
        """Whether nothing is held."""
        return not self._held

    @property
    def tables(self) -> frozenset[int]:
        """Those for which something is held."""
        return frozenset(self._held)

    def due(self, needed: Mapping[int, int], now: float) -> list[int]:
        """The tables whose hold at what is needed is to be written: new and lowered ones, the oldest others.

        `needed` has the timestamp after which history is needed, by table.
        """
        new = [each for each, ts in needed.items() if each not in self._held or ts < self._held[each].ts]
        old = [
            each
            for each, ts in needed.items()
            if each in self._held and ts >= self._held[each].ts and self._stale(each, ts, now)
        ]
        old.sort(key=lambda each: self._held[each].at)
        return new + old[:RENEWED_MAX]

    def _stale(self, table_id: int, ts: int, now: float) -> bool:
        held = self._held[table_id]
        behind_ms = physical_ms(ts) - physical_ms(held.ts)
        return now >= held.at + self._renew_s or behind_ms >= BEHIND_MS

    def wrote(self, table_id: int, ts: int, now: float) -> None:
        """A hold is on storage."""
        self._held[table_id] = _Held(ts, now)

    def forget(self, table_ids: Iterable[int]) -> None:
        """Nothing is held for these any more."""
        for each in table_ids:
            self._held.pop(each, None)
