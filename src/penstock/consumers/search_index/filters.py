"""Conditions on rows, before the index library sees them. Pure.

The library walks a condition by recursion, in native code: one of a thousand terms ends the process.
"""

import re

from penstock.errors import Invalid

__all__ = ["check_filter"]

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
