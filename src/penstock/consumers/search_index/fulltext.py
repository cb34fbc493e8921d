"""Fulltext search: an inverted index with BM25 ranking over the words of text columns, on Lance."""

import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import pyarrow as pa
from lance.dataset import LanceDataset
from lance.query import FullTextOperator, MatchQuery
from pydantic import Field, field_validator

from penstock.consumers.options import Names
from penstock.consumers.search_index.columns import named
from penstock.consumers.search_index.consumer import IndexConsumer, IndexOptions
from penstock.consumers.search_index.earlier import Earlier
from penstock.consumers.search_index.keeper import INDEX
from penstock.consumers.search_index.lance_table import IndexVersion
from penstock.consumers.search_index.query import SearchQuery
from penstock.consumers.search_index.tokenizing import PARSERS, Tokenizer, joined_texts
from penstock.errors import Invalid
from penstock.jobs.consumer import JobContext
from penstock.tables.schema import TableInfo

__all__ = ["TERMS", "Fulltext", "FulltextOptions", "TermsMaker"]

TERMS = "_terms"


class FulltextOptions(IndexOptions):
    """What is indexed, and how texts become terms."""

    text_columns: Names = Field(min_length=1)
    """The columns whose texts are indexed, with commas between them."""
    parser: str = "words"
    """How texts are split: words, whitespace, ngram, or module:function over Arrow arrays of texts."""
    ngram: int = Field(2, ge=1, le=16)
    """Characters of the pieces that parser=ngram makes."""
    lower: bool = True
    """Whether case makes no difference."""
    language: str = "English"
    """Whose words are stemmed, and whose stop words are left out."""
    stem: bool = False
    """Whether words are found by others of the same stem."""
    stop_words: bool = False
    """Whether words that say nothing, such as «the», are left out."""
    fold_ascii: bool = False
    """Whether letters with marks are found without them: é as e."""

    @field_validator("parser")
    @classmethod
    def _is_known(cls, parser: str) -> str:
        if parser not in PARSERS and ":" not in parser:
            raise ValueError(f"write {', '.join(PARSERS)} or module:function")
        return parser


@dataclass(frozen=True, slots=True)
class TermsMaker:
    """Puts the terms of a row's texts beside its columns."""

    columns: tuple[str, ...]
    tokenizer: Tokenizer
    replaced: ClassVar[tuple[str, ...]] = ()

    @property
    def recipe(self) -> str:
        """See RowMaker."""
        return json.dumps({"columns": self.columns, **asdict(self.tokenizer)})

    @classmethod
    def parse(cls, recipe: str) -> "TermsMaker":
        """The maker of a recipe."""
        tree = json.loads(recipe)
        return cls(tuple(tree.pop("columns")), Tokenizer(**tree))

    @property
    def derived(self) -> pa.Schema:
        """See RowMaker."""
        return pa.schema([(TERMS, pa.string())])

    def made(self, rows: pa.RecordBatch, earlier: Earlier | None) -> pa.RecordBatch:
        """See RowMaker."""
        del earlier
        texts = joined_texts([rows.column(name) for name in self.columns])
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
        """See IndexKind."""
        return json.dumps(asdict(self))

    def create(self, dataset: LanceDataset) -> None:
        """See IndexKind."""
        dataset.create_scalar_index(
            TERMS,
            "INVERTED",
            name=INDEX,
            replace=True,
            base_tokenizer="whitespace",
            with_position=False,
            max_token_length=None,
            lower_case=False,  # the tokenizer did that, where it is wanted
            language=self.language,
            stem=self.stem,
            remove_stop_words=self.stop_words,
            ascii_folding=self.fold_ascii,
        )

    def recall(self, dataset: LanceDataset) -> float:
        """See IndexKind: its answers are exact."""
        del dataset
        return 0.0


class Fulltext(IndexConsumer):
    """Keeps an index of words equal to what text columns of a table say."""

    options_type = FulltextOptions

    def __init__(self, job: JobContext) -> None:
        self._own = FulltextOptions.parse(job.info)
        super().__init__(job, self._own)

    def maker(self, table: TableInfo, columns: pa.Schema) -> TermsMaker:
        """See IndexConsumer."""
        names = named(self._own.text_columns, columns, table.name)
        for name in names:
            if not pa.types.is_string(columns.field(name).type):
                raise Invalid(f"column {name} of table {table.name} has no text; mend option text_columns")
        tokenizer = Tokenizer(self._own.parser, self._own.lower, self._own.ngram)
        tokenizer.terms(pa.array([], pa.string()))
        return TermsMaker(names, tokenizer)

    def known_maker(self, recipe: str) -> TermsMaker:
        """See IndexConsumer."""
        return TermsMaker.parse(recipe)

    def kind(self, dataset: LanceDataset) -> InvertedIndex:
        """See IndexConsumer."""
        del dataset
        own = self._own
        return InvertedIndex(own.language, own.stem, own.stop_words, own.fold_ascii)

    def ask(self, standing: IndexVersion, question: SearchQuery) -> dict[str, Any]:
        """See IndexConsumer."""
        if question.words is None:
            raise Invalid(f"job {self.job.id} is a fulltext index; ask with words")
        tokenizer = TermsMaker.parse(standing.marker.recipe).tokenizer
        terms = tokenizer.terms(pa.array([question.words], pa.string()))[0].as_py()
        every = question.every or tokenizer.whole
        operator = FullTextOperator.AND if every else FullTextOperator.OR
        query = MatchQuery(terms, TERMS, operator=operator)
        return {"full_text_query": query, "limit": question.k, "score": "_score"}
