"""A query of an index, and the check of its filter. Pure.

Lance walks a filter by recursion in native code, where a thousand terms end the process. So a filter is
limited before Lance sees it.
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
    """The number of rows wanted, the best ones."""
    every: bool = False
    """Whether all words must be there, not just any."""

    def __post_init__(self) -> None:
        if (self.words is None) == (self.vector is None):
            raise Invalid("ask with either words or a vector")
        if not 1 <= self.k <= _K_MAX:
            raise Invalid(f"k must be 1 to {_K_MAX}; it is the number of rows")


_CHARS_MAX = 16_384
_TERMS_MAX = 256
_FLAT = re.compile(r"\b(?:and|or|in|[0-9.]+(?:e[+-]?[0-9]+)?)\b|[,()\s]", re.IGNORECASE)
"""Parts of a filter that are not limited: Lance does not nest them, or limits them itself."""
_TERM = re.compile(r"\w+|[^\w\s]")


def check_filter(condition: str) -> None:
    """Raise Invalid for a filter that is too long, or has too many words and operators."""
    if len(condition) > _CHARS_MAX:
        raise Invalid(f"the filter has more than {_CHARS_MAX} characters; write a shorter one")
    rest = _FLAT.sub(" ", condition)  # also inside quotes: only Lance knows how texts are quoted
    if len(_TERM.findall(rest)) > _TERMS_MAX:
        raise Invalid(f"the filter has more than {_TERMS_MAX} words and operators; write a simpler one")
