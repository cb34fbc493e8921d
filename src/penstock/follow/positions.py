"""How far a dispatcher's changes have gone: a place in their order. Pure."""

from dataclasses import dataclass
from functools import total_ordering
from typing import Any, Self

from penstock.errors import Corrupt


@total_ordering
@dataclass(frozen=True, slots=True)
class Position:
    """Every change up to `ts` is done; with a handle, of those at `ts` only the rows before it.

    Changes are ordered by (commit_ts, handle), and so is a snapshot, whose rows all count as committed at its
    timestamp: `Position(ts, b"")` is the beginning of the snapshot at ts, and `Position(ts)` its end.
    """

    ts: int
    handle: bytes | None = None

    @property
    def checkpoint_ts(self) -> int:
        """Every commit up to it is done."""
        return self.ts if self.handle is None else self.ts - 1

    def __lt__(self, other: "Position") -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[int, bool, bytes]:
        return self.ts, self.handle is None, self.handle or b""

    def to_json(self) -> dict[str, Any]:
        """What is kept of it."""
        return {"ts": self.ts} if self.handle is None else {"ts": self.ts, "handle": self.handle.hex()}

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Self:
        """Read what `to_json` wrote; raise Corrupt when it is something else."""
        try:
            handle = tree.get("handle")
            return cls(int(tree["ts"]), None if handle is None else bytes.fromhex(handle))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Corrupt("a position lacks its timestamp or has a damaged handle") from error
