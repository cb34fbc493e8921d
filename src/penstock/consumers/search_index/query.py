"""A query of an index, checked when it is made. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import Invalid

__all__ = ["SearchQuery"]

_K_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """Words or a vector; raises Invalid when it is neither, or both."""

    words: str | None = None
    vector: Sequence[float] | None = None
    k: int = 10
    """The number of rows wanted, the best ones."""
    every: bool = False
    """Whether all words must be there, not just any."""

    def __post_init__(self) -> None:
        if (self.words is None) == (self.vector is None):
            raise Invalid("ask with either words or a vector")
        if not 1 <= self.k <= _K_MAX:
            raise Invalid(f"k must be 1 to {_K_MAX}; it is the number of rows")
