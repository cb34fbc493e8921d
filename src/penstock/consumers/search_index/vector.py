"""Vector search: the nearest rows by a column of vectors, or by vectors that are made of texts, on Lance."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from lance.dataset import LanceDataset
from pydantic import Field, model_validator

from penstock.columnar.row_hash import hashes_of
from penstock.consumers.options import Names
from penstock.consumers.search_index.columns import named
from penstock.consumers.search_index.consumer import IndexConsumer, IndexOptions
from penstock.consumers.search_index.earlier import Earlier
from penstock.consumers.search_index.embedding import HASHING, Embedding, vectors_of
from penstock.consumers.search_index.lance_table import IndexVersion
from penstock.consumers.search_index.nearest import VECTOR, NearestIndex
from penstock.consumers.search_index.query import SearchQuery
from penstock.consumers.search_index.tokenizing import joined_texts
from penstock.consumers.search_index.upkeep import Limits
from penstock.errors import Invalid
from penstock.jobs.consumer import JobContext
from penstock.tables.fieldtypes import Tp
from penstock.tables.schema import TableInfo

__all__ = ["Vector", "VectorMaker", "VectorOptions"]

SOURCE = "_source"
_HASHING_DIMENSION = 256


class VectorOptions(IndexOptions):
    """What is indexed, and how."""

    vector_column: str | None = None
    """A column of vectors: VECTOR, JSON or text such as [1, 2.5], or a blob of little-endian floats."""
    text_columns: Names = ()
    """Else the columns whose texts vectors are made of, with commas between them."""
    embedding: str = HASHING
    """What makes them: hashing, or module:function over an Arrow array of texts."""
    dimension: int | None = Field(None, ge=1, le=65_536)
    """How many numbers a vector has, where neither the column's type nor the embedding says it."""
    metric: Literal["l2", "cosine", "dot"] = "cosine"
    """What near means."""
    index: Literal["ivf_pq", "ivf_hnsw_sq", "ivf_hnsw_pq", "hnsw", "none"] = "ivf_pq"
    """The kind of index; hnsw is ivf_hnsw_sq, and none compares all vectors."""
    index_rows_min: int = Field(10_000, ge=256)
    """Rows from which there is an index; fewer are all compared, which is exact."""
    partitions: int | None = Field(None, ge=1)
    """Partitions of the index; Lance chooses by the number of rows."""
    sub_vectors: int | None = Field(None, ge=1)
    """Parts that product quantisation divides a vector into; by itself about a number in eight."""
    recall_loss: float = Field(0.1, gt=0, le=1)
    """Recall that may be lost since the index was made, before it is made anew."""

    @model_validator(mode="after")
    def _has_one_source(self) -> "VectorOptions":
        if bool(self.vector_column) == bool(self.text_columns):
            raise ValueError("give one of vector_column and text_columns")
        return self


@dataclass(frozen=True, slots=True)
class VectorMaker:
    """Puts a row's vector beside its columns, and a hash of what it was made of.

    A row without a vector is left out. Where the hash has not changed, an embedding is not asked again.
    """

    columns: tuple[str, ...]
    dimension: int
    embedding: str | None
    """None: the column is a vector itself."""

    @property
    def recipe(self) -> str:
        """See RowMaker."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, recipe: str) -> "VectorMaker":
        """The maker of a recipe."""
        tree = json.loads(recipe)
        return cls(tuple(tree["columns"]), tree["dimension"], tree["embedding"])

    @property
    def derived(self) -> pa.Schema:
        """See RowMaker."""
        return pa.schema([(SOURCE, pa.uint64()), (VECTOR, pa.list_(pa.float32(), self.dimension))])

    @property
    def replaced(self) -> tuple[str, ...]:
        """See RowMaker."""
        return () if self.embedding else self.columns

    def made(self, rows: pa.RecordBatch, earlier: Earlier | None) -> pa.RecordBatch:
        """See RowMaker."""
        hashes = pa.array(hashes_of(rows, self.columns), pa.uint64())
        if self.embedding is None:
            vectors = vectors_of(rows.column(self.columns[0]), self.dimension, f"column {self.columns[0]}")
        else:
            vectors = self._embedded(rows, hashes, earlier)
        full = rows.append_column(SOURCE, hashes).append_column(VECTOR, vectors)
        return full.filter(vectors.is_valid()).drop_columns(list(self.replaced))

    def _embedded(self, rows: pa.RecordBatch, hashes: pa.Array, earlier: Earlier | None) -> pa.Array:
        texts = joined_texts([rows.column(name) for name in self.columns])
        kind = self.derived.field(VECTOR).type
        places = np.full(len(rows), -1)
        known = pa.array([], kind)
        if earlier is not None:
            dataset, mine, theirs = earlier.same(pa.table(rows.select(earlier.keys)), SOURCE, hashes)
            known = _taken(dataset, theirs, kind)
            places[mine] = np.arange(len(mine))
        fresh = np.flatnonzero((places < 0) & texts.is_valid().to_numpy(zero_copy_only=False))
        assert self.embedding is not None
        made = Embedding(self.embedding, self.dimension)(texts.take(pa.array(fresh)))
        places[fresh] = len(known) + np.arange(len(fresh))
        return pa.concat_arrays([known, made]).take(pa.array(places, mask=places < 0))


def _taken(dataset: LanceDataset, places: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    """Vectors at some places of a dataset, in the order given."""
    if not len(places):
        return pa.array([], kind)
    order = np.argsort(places)
    found = dataset.take(places[order].tolist(), columns=[VECTOR]).column(VECTOR).combine_chunks()
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return found.take(pa.array(back))


class Vector(IndexConsumer):
    """Keeps an index of vectors equal to what a table has, or to what is made of its texts."""

    options_type = VectorOptions

    def __init__(self, job: JobContext) -> None:
        self._own = VectorOptions.parse(job.info)
        super().__init__(job, self._own)

    @property
    def limits(self) -> Limits:
        """See IndexConsumer."""
        own = self._own
        rows_min = None if own.index == "none" else own.index_rows_min
        return Limits(rows_min=rows_min, changed_share=own.retrain_share, recall_loss=own.recall_loss)

    def maker(self, table: TableInfo, columns: pa.Schema) -> VectorMaker:
        """See IndexConsumer."""
        own = self._own
        names = named(own.text_columns or [str(own.vector_column)], columns, table.name)
        for name in names if own.text_columns else ():
            if not pa.types.is_string(columns.field(name).type):
                raise Invalid(f"column {name} of table {table.name} has no text; mend option text_columns")
        embedding = own.embedding if own.text_columns else None
        maker = VectorMaker(names, self._dimension(table, names[0]), embedding)
        maker.made(pa.RecordBatch.from_pylist([], columns), None)
        return maker

    def _dimension(self, table: TableInfo, column: str) -> int:
        own = self._own
        kind = table.column(column).type
        declared = kind.flen if own.vector_column and kind.tp is Tp.VECTOR_FLOAT32 and kind.flen > 0 else None
        if own.text_columns and own.embedding == HASHING:
            declared = own.dimension or _HASHING_DIMENSION
        if declared and own.dimension not in {None, declared}:
            raise Invalid(
                f"column {column} of table {table.name} has {declared} dimensions; mend option dimension"
            )
        if not (declared or own.dimension):
            raise Invalid("consumer vector needs the option dimension: how many numbers a vector has")
        return declared or own.dimension or 0

    def known_maker(self, recipe: str) -> VectorMaker:
        """See IndexConsumer."""
        return VectorMaker.parse(recipe)

    def kind(self, dataset: LanceDataset) -> NearestIndex:
        """See IndexConsumer."""
        own = self._own
        kind = "ivf_hnsw_sq" if own.index == "hnsw" else own.index
        dimension = dataset.schema.field(VECTOR).type.list_size
        return NearestIndex(kind, own.metric, dimension, own.partitions, own.sub_vectors)

    def ask(self, standing: IndexVersion, question: SearchQuery) -> dict[str, Any]:
        """See IndexConsumer."""
        vector = self._asked(VectorMaker.parse(standing.marker.recipe), question)
        nearest = self.kind(standing.dataset).nearest(vector, question.k)
        return {"nearest": nearest, "score": "_distance"}

    def _asked(self, maker: VectorMaker, question: SearchQuery) -> np.ndarray[Any, Any]:
        if question.words is not None:
            if maker.embedding is None:
                raise Invalid(f"job {self.job.id} has vectors of a column, not of texts; ask with a vector")
            made = Embedding(maker.embedding, maker.dimension)(pa.array([question.words], pa.string()))
        else:
            made = vectors_of(
                pa.array([question.vector], pa.list_(pa.float32())), maker.dimension, "the vector"
            )
        if made.null_count:
            raise Invalid("these words say nothing that could be searched; use others")
        return np.asarray(made.values.to_numpy())
