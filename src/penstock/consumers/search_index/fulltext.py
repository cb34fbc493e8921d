"""Fulltext search: an inverted index with BM25 ranking over the words of text columns, on Lance.

Texts are split into terms by the same code for rows, on executors too, and for queries. The terms of a row
are one text with single spaces between them, so that the index only has to split at spaces.
"""

import importlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.dataset import LanceDataset
from lance.query import FullTextOperator, MatchQuery
from pydantic import Field, field_validator

from penstock.consumers.options import Names
from penstock.consumers.search_index.columns import find_columns
from penstock.consumers.search_index.consumer import IndexConsumer, IndexOptions
from penstock.consumers.search_index.lance_table import Earlier, IndexVersion
from penstock.consumers.search_index.query import SearchQuery
from penstock.consumers.search_index.upkeep import INDEX
from penstock.errors import Invalid
from penstock.jobs.consumer import JobContext
from penstock.tables.schema import TableInfo

__all__ = [
    "PARSERS",
    "TERMS",
    "Fulltext",
    "FulltextOptions",
    "TermsMaker",
    "Tokenizer",
    "join_texts",
    "load_function",
    "words",
]


Parser = Callable[[pa.Array], pa.Array]
"""Texts to terms: for each text one text with spaces between terms, or a list of texts. NULL stays NULL."""


@dataclass(frozen=True, slots=True)
class _Breaks:
    """Patterns that end a term. A pattern is compiled for every array; the first takes milliseconds."""

    unicode: str
    ascii: str  # the same for texts of ASCII characters only


_WORD_BREAKS = _Breaks(r"[^\p{L}\p{N}\p{M}_]+", r"[^0-9A-Za-z_]+")
_SPACES = _Breaks(r"[\s\p{Z}]+", r"\s+")


def words(texts: pa.Array) -> pa.Array:
    """Return runs of letters, digits, marks and underscores."""
    return _split(texts, _WORD_BREAKS)


def whitespace(texts: pa.Array) -> pa.Array:
    """Return whatever stands between spaces."""
    return _split(texts, _SPACES)


def ngrams(texts: pa.Array, *, size: int) -> pa.Array:
    """Return the overlapping parts of `size` characters of every word; a shorter word is one part."""
    cut = partial(_grams, size=size)
    terms = [None if text is None else cut(text) for text in words(texts).to_pylist()]
    return pa.array(terms, pa.string())


def _grams(text: str, *, size: int) -> str:
    found = re.finditer(r"\S+", text)
    return " ".join(
        word[at : at + size]
        for word in (match[0] for match in found)
        for at in range(max(1, len(word) - size + 1))
    )


def _split(texts: pa.Array, breaks: _Breaks) -> pa.Array:
    plain = pc.all(pc.string_is_ascii(texts), min_count=0).as_py()
    pattern = breaks.ascii if plain else breaks.unicode
    return pc.utf8_trim(pc.replace_substring_regex(texts, pattern, " "), " ")


PARSERS = ("words", "whitespace", "ngram")


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A parser by name (words, whitespace, ngram, or module:function), and what is done with its terms."""

    parser: str = "words"
    lower: bool = True
    ngram: int = 2

    @property
    def whole(self) -> bool:
        """Whether a text must have all of a query's terms: single parts of words say little."""
        return self.parser == "ngram"

    def terms(self, texts: pa.Array) -> pa.Array:
        """Return the terms of each text; raise Invalid when the parser is not found or returns no texts."""
        plain = pc.utf8_normalize(texts.cast(pa.string()), "NFKC")
        terms = self._find_parser()(pc.utf8_lower(plain) if self.lower else plain)
        if isinstance(terms, pa.ChunkedArray):
            terms = terms.combine_chunks()
        if isinstance(terms, pa.NullArray):
            terms = terms.cast(pa.string())
        if not isinstance(terms, pa.Array) or len(terms) != len(texts):
            raise Invalid(f"parser {self.parser} must return an Arrow array with one element for each text")
        if pa.types.is_list(terms.type) or pa.types.is_large_list(terms.type):
            terms = pc.binary_join(terms.cast(pa.list_(pa.string())), " ")
        if not pa.types.is_string(terms.type):
            raise Invalid(
                f"parser {self.parser} must return texts, or lists of texts; it returns {terms.type}"
            )
        return terms

    def _find_parser(self) -> Parser:
        if self.parser == "words":
            return words
        if self.parser == "whitespace":
            return whitespace
        if self.parser == "ngram":
            return partial(ngrams, size=self.ngram)
        function: Parser = load_function(self.parser, f"parser; there are {', '.join(PARSERS)}")
        return function


def join_texts(columns: Sequence[pa.Array]) -> pa.Array:
    """Return the texts of some columns as one, a line for each that has one; null where none has."""
    if len(columns) == 1:
        return columns[0]
    texts = pc.binary_join_element_wise(*columns, "\n", null_handling="replace", null_replacement="")
    present = np.any([column.is_valid().to_numpy(zero_copy_only=False) for column in columns], axis=0)
    return pc.if_else(pa.array(present), pc.utf8_trim(texts, "\n"), None)


def load_function(name: str, what: str) -> Callable[..., pa.Array]:
    """Return the function called `module:function`; raise Invalid when there is none."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise Invalid(f"{name!r} is no {what}, or module:function")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise Invalid(f"{name} cannot be imported; install it where jobs run") from error
    if not callable(found):
        raise Invalid(f"{name} is not a function; name one")
    function: Callable[..., pa.Array] = found
    return function


TERMS = "_terms"


class FulltextOptions(IndexOptions):
    """What is indexed, and how texts become terms."""

    text_columns: Names = Field(min_length=1)
    """The columns whose texts are indexed, separated by commas."""
    parser: str = "words"
    """How texts are split: words, whitespace, ngram, or module:function over Arrow arrays of texts."""
    ngram: int = Field(2, ge=1, le=16)
    """The number of characters of the parts that parser=ngram makes."""
    lower: bool = True
    """Whether case is ignored."""
    language: str = "English"
    """The language of stemming and of stop words."""
    stem: bool = False
    """Whether words also find other words of the same stem."""
    stop_words: bool = False
    """Whether words without a meaning of their own, such as «the», are left out."""
    fold_ascii: bool = False
    """Whether letters with marks are also found without them: é as e."""

    @field_validator("parser")
    @classmethod
    def _is_known(cls, parser: str) -> str:
        if parser not in PARSERS and ":" not in parser:
            raise ValueError(f"write {', '.join(PARSERS)} or module:function")
        return parser


@dataclass(frozen=True, slots=True)
class TermsMaker:
    """Adds the terms of a row's texts to its columns."""

    columns: tuple[str, ...]
    tokenizer: Tokenizer
    replaced: ClassVar[tuple[str, ...]] = ()

    @property
    def recipe(self) -> str:
        """The columns and the tokenizer, as JSON."""
        return json.dumps({"columns": self.columns, **asdict(self.tokenizer)})

    @classmethod
    def parse(cls, recipe: str) -> "TermsMaker":
        """Return the maker of a recipe."""
        tree = json.loads(recipe)
        return cls(tuple(tree.pop("columns")), Tokenizer(**tree))

    @property
    def derived(self) -> pa.Schema:
        """The column of terms."""
        return pa.schema([(TERMS, pa.string())])

    def make(self, rows: pa.RecordBatch, earlier: Earlier | None) -> pa.RecordBatch:
        """Return the rows with their terms."""
        del earlier
        texts = join_texts([rows.column(name) for name in self.columns])
        return rows.append_column(TERMS, self.tokenizer.terms(texts))


@dataclass(frozen=True, slots=True)
class InvertedIndex:
    """Lance's inverted index over terms that are already split."""

    language: str
    stem: bool
    stop_words: bool
    fold_ascii: bool

    @property
    def signature(self) -> str:
        """The parameters, as JSON."""
        return json.dumps(asdict(self))

    def create(self, dataset: LanceDataset) -> None:
        """Build the index over the terms of all rows, in place of an existing one."""
        dataset.create_scalar_index(
            TERMS,
            "INVERTED",
            name=INDEX,
            replace=True,
            base_tokenizer="whitespace",
            with_position=False,
            max_token_length=None,
            lower_case=False,  # the tokenizer does that if it is wanted
            language=self.language,
            stem=self.stem,
            remove_stop_words=self.stop_words,
            ascii_folding=self.fold_ascii,
        )

    def recall(self, dataset: LanceDataset) -> float:
        """Return 0, because answers are exact."""
        del dataset
        return 0.0


class Fulltext(IndexConsumer):
    """Keeps an index of words equal to the text columns of a table."""

    options_type = FulltextOptions

    def __init__(self, job: JobContext) -> None:
        self._own = FulltextOptions.parse(job.info)
        super().__init__(job, self._own)

    def maker(self, table: TableInfo, columns: pa.Schema) -> TermsMaker:
        """Return what adds the terms; raise Invalid when a column is missing or has no text."""
        names = find_columns(self._own.text_columns, columns, table.name)
        for name in names:
            if not pa.types.is_string(columns.field(name).type):
                raise Invalid(f"column {name} of table {table.name} has no text; fix option text_columns")
        tokenizer = Tokenizer(self._own.parser, self._own.lower, self._own.ngram)
        self.check_function(tokenizer.parser, PARSERS, "parser")
        tokenizer.terms(pa.array([], pa.string()))
        return TermsMaker(names, tokenizer)

    def parse_maker(self, recipe: str) -> TermsMaker:
        """Return what made the existing rows, from the marker's recipe."""
        maker = TermsMaker.parse(recipe)
        self.check_function(maker.tokenizer.parser, PARSERS, "parser")
        return maker

    def kind(self, dataset: LanceDataset) -> InvertedIndex:
        """Return the inverted index with the job's options."""
        del dataset
        own = self._own
        return InvertedIndex(own.language, own.stem, own.stop_words, own.fold_ascii)

    def scan_arguments(self, current: IndexVersion, query: SearchQuery) -> dict[str, Any]:
        """Return a full-text scan for the words of a query; raise Invalid for a vector."""
        if query.words is None:
            raise Invalid(f"job {self.job.id} is a fulltext index; ask with words")
        tokenizer = self.parse_maker(current.marker.recipe).tokenizer
        terms = tokenizer.terms(pa.array([query.words], pa.string()))[0].as_py()
        every = query.every or tokenizer.whole
        operator = FullTextOperator.AND if every else FullTextOperator.OR
        match = MatchQuery(terms, TERMS, operator=operator)
        return {"full_text_query": match, "limit": query.k, "score": "_score"}
