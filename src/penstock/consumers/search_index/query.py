"""What is asked of an index. Pure.

Conditions on rows, before the index library sees them. Pure.

The library walks a condition by recursion, in native code: one of a thousand terms ends the process.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import Invalid

__all__ = ["SearchQuery", "check_filter"]


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


_CHARS_MAX = 16_384
_TERMS_MAX = 256
_FLAT = re.compile(r"\b(?:and|or|in|[0-9.]+(?:e[+-]?[0-9]+)?)\b|[,()\s]", re.IGNORECASE)
"""What a condition may have as much of as fits: the library does not nest it, or counts it itself."""
_TERM = re.compile(r"\w+|[^\w\s]")


def check_filter(condition: str) -> None:
    """Raise Invalid for a condition that is too long, or has too many words and operators."""
    if len(condition) > _CHARS_MAX:
        raise Invalid(f"the filter has more than {_CHARS_MAX} characters; write a shorter one")
    rest = _FLAT.sub(" ", condition)  # in quotes too: how texts are quoted is the library's business
    if len(_TERM.findall(rest)) > _TERMS_MAX:
        raise Invalid(f"the filter has more than {_TERMS_MAX} words and operators; write a simpler one")
