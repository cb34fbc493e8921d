"""What is asked of an index. Pure."""

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
    """Rows that are wanted, the best ones."""
    every: bool = False
    """Whether all words have to be there, and not any of them."""

    def __post_init__(self) -> None:
        if (self.words is None) == (self.vector is None):
            raise Invalid("ask with words or with a vector, one of them")
        if not 1 <= self.k <= _K_MAX:
            raise Invalid(f"k must be 1 to {_K_MAX}: how many rows are wanted")
