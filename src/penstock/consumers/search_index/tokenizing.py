"""Texts into terms: what a fulltext index is made of. Pure, and the same on executors and for queries.

Terms are kept as one text with single spaces between them, so that the index only has to split at these.
"""

import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Invalid

__all__ = ["PARSERS", "Tokenizer", "joined_texts", "load_function"]

Parser = Callable[[pa.Array], pa.Array]
"""Texts to terms: a text for each, with spaces between the terms, or a list of texts. NULL stays NULL."""


@dataclass(frozen=True, slots=True)
class _Breaks:
    """What ends a term. Each pattern is compiled for every array, which takes milliseconds for the first."""

    unicode: str
    ascii: str  # the same, where all characters are of ASCII


_WORD_BREAKS = _Breaks(r"[^\p{L}\p{N}\p{M}_]+", r"[^0-9A-Za-z_]+")
_SPACES = _Breaks(r"[\s\p{Z}]+", r"\s+")


def words(texts: pa.Array) -> pa.Array:
    """Runs of letters, digits, marks and underscores."""
    return _split(texts, _WORD_BREAKS)


def whitespace(texts: pa.Array) -> pa.Array:
    """Whatever stands between spaces."""
    return _split(texts, _SPACES)


def ngrams(texts: pa.Array, *, size: int) -> pa.Array:
    """The pieces of `size` characters of every word, overlapping; of a shorter word the word itself."""
    cut = partial(_grams, size=size)
    made = [None if text is None else cut(text) for text in words(texts).to_pylist()]
    return pa.array(made, pa.string())


def _grams(text: str, *, size: int) -> str:
    found = re.finditer(r"\S+", text)
    return " ".join(
        word[at : at + size]
        for word in (each[0] for each in found)
        for at in range(max(1, len(word) - size + 1))
    )


def _split(texts: pa.Array, breaks: _Breaks) -> pa.Array:
    plain = pc.all(pc.string_is_ascii(texts), min_count=0).as_py()
    pattern = breaks.ascii if plain else breaks.unicode
    return pc.utf8_trim(pc.replace_substring_regex(texts, pattern, " "), " ")


PARSERS = ("words", "whitespace", "ngram")


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A parser by name: words, whitespace, ngram, or module:function; and what is done with its terms."""

    parser: str = "words"
    lower: bool = True
    ngram: int = 2

    @property
    def whole(self) -> bool:
        """Whether a text is only found by all of a query's terms: pieces of words say little alone."""
        return self.parser == "ngram"

    def terms(self, texts: pa.Array) -> pa.Array:
        """The terms of each text; raise Invalid when the parser cannot be found or gives something else."""
        plain = pc.utf8_normalize(texts.cast(pa.string()), "NFKC")
        made = self._parse()(pc.utf8_lower(plain) if self.lower else plain)
        if isinstance(made, pa.ChunkedArray):
            made = made.combine_chunks()
        if isinstance(made, pa.NullArray):
            made = made.cast(pa.string())
        if not isinstance(made, pa.Array) or len(made) != len(texts):
            raise Invalid(f"parser {self.parser} must give an Arrow array with something for each text")
        if pa.types.is_list(made.type) or pa.types.is_large_list(made.type):
            made = pc.binary_join(made.cast(pa.list_(pa.string())), " ")
        if not pa.types.is_string(made.type):
            raise Invalid(f"parser {self.parser} must give texts, or lists of texts; it gives {made.type}")
        return made

    def _parse(self) -> Parser:
        if self.parser == "words":
            return words
        if self.parser == "whitespace":
            return whitespace
        if self.parser == "ngram":
            return partial(ngrams, size=self.ngram)
        function: Parser = load_function(self.parser, f"parser; there are {', '.join(PARSERS)}")
        return function


def joined_texts(columns: Sequence[pa.Array]) -> pa.Array:
    """The texts of some columns as one, a line for each that has one; null where none has."""
    if len(columns) == 1:
        return columns[0]
    texts = pc.binary_join_element_wise(*columns, "\n", null_handling="replace", null_replacement="")
    present = np.any([each.is_valid().to_numpy(zero_copy_only=False) for each in columns], axis=0)
    return pc.if_else(pa.array(present), pc.utf8_trim(texts, "\n"), None)


def load_function(name: str, what: str) -> Callable[..., pa.Array]:
    """The function called `module:function`; raise Invalid when there is none."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise Invalid(f"{name!r} is no {what}, or module:function")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise Invalid(f"{name} cannot be imported; is it installed where jobs run?") from error
    if not callable(found):
        raise Invalid(f"{name} is no function")
    function: Callable[..., pa.Array] = found
    return function
