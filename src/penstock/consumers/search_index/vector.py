"""Vector search: the nearest rows by a column of vectors, or by vectors that are made of texts, on Lance.

`read_vectors` reads vectors from a column of numbers; `Embedding` makes them of texts by a function that is
given by name. `NearestIndex` is Lance's index of vectors.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance.dataset import LanceDataset
from pydantic import Field, model_validator

from penstock.columnar.row_hash import hashes_of
from penstock.consumers.options import Names
from penstock.consumers.search_index.columns import find_columns
from penstock.consumers.search_index.consumer import IndexConsumer, IndexOptions
from penstock.consumers.search_index.fulltext import join_texts, load_function, words
from penstock.consumers.search_index.lance_table import Earlier, IndexVersion
from penstock.consumers.search_index.query import SearchQuery
from penstock.consumers.search_index.upkeep import INDEX, Limits
from penstock.errors import Invalid
from penstock.jobs.consumer import JobContext
from penstock.tables.columns import Tp
from penstock.tables.schema import TableInfo

__all__ = [
    "HASHING",
    "VECTOR",
    "Embedding",
    "NearestIndex",
    "Vector",
    "VectorMaker",
    "VectorOptions",
    "read_vectors",
]


VECTOR = "_vector"
_LANCE_TYPES = {"ivf_pq": "IVF_PQ", "ivf_hnsw_sq": "IVF_HNSW_SQ", "ivf_hnsw_pq": "IVF_HNSW_PQ"}
_SAMPLE, _SAMPLE_K = 20, 10
_PROBES, _REFINED, _EF_MIN = 20, 4, 64
"""How thorough a search is: partitions, candidates that are compared exactly, and breadth in a graph."""


@dataclass(frozen=True, slots=True)
class NearestIndex:
    """Lance's index of vectors; type `none` compares all vectors."""

    type: str
    metric: str
    dimension: int
    partitions: int | None
    sub_vectors: int | None

    @property
    def signature(self) -> str:
        """The parameters, as JSON."""
        return json.dumps(asdict(self))

    def create(self, dataset: LanceDataset) -> None:
        """Build the index over the vectors of all rows, in place of an existing one."""
        dataset.create_index(
            VECTOR,
            _LANCE_TYPES[self.type],
            name=INDEX,
            metric=self.metric,
            replace=True,
            num_partitions=self.partitions,
            num_sub_vectors=self._sub_vectors() if self.type.endswith("pq") else None,
        )

    def _sub_vectors(self) -> int:
        if self.sub_vectors:
            return self.sub_vectors
        wanted = max(1, self.dimension // 8)
        return next(count for count in range(wanted, 0, -1) if self.dimension % count == 0)

    def nearest(self, vector: Any, k: int, *, exact: bool = False) -> dict[str, Any]:
        """Return the arguments of Lance's search for the rows nearest to a vector."""
        query: dict[str, Any] = {"column": VECTOR, "q": vector, "k": k, "metric": self.metric}
        if exact or self.type == "none":
            return query | {"use_index": False}
        if "hnsw" in self.type:
            query["ef"] = max(_EF_MIN, _REFINED * k)
        return query | {"nprobes": _PROBES, "refine_factor": _REFINED}

    def recall(self, dataset: LanceDataset) -> float:
        """Return the share of the exact nearest rows that it finds, for rows spread over the dataset."""
        rows = dataset.count_rows()
        positions = np.unique(np.linspace(0, rows - 1, _SAMPLE).astype(np.int64))
        sample = dataset.take(positions.tolist(), columns=[VECTOR]).column(VECTOR).drop_null()
        found = expected = 0
        for vector in sample.to_pylist():
            exact, ours = (self._ids(dataset, vector, exact=exact) for exact in (True, False))
            found += len(exact & ours)
            expected += len(exact)
        return found / expected if expected else 0.0

    def _ids(self, dataset: LanceDataset, vector: list[float], *, exact: bool) -> set[int]:
        query = self.nearest(np.array(vector, np.float32), _SAMPLE_K, exact=exact)
        rows = dataset.to_table(columns=["_distance"], nearest=query, with_row_id=True)
        return set(rows.column("_rowid").to_pylist())


HASHING = "hashing"
_NUMBERS = r"^\[?\s*[-+.\dEe]+\s*(?:,\s*[-+.\dEe]+\s*)*\]?$"
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Embedding:
    """A function from texts to vectors: `hashing`, or module:function over Arrow arrays.

    Such a function gets an array of texts without nulls, and returns a list of numbers for each: an Arrow
    array of lists, or a matrix. The same text must give the same vector.
    """

    name: str
    dimension: int

    def __call__(self, texts: pa.Array) -> pa.FixedSizeListArray:
        """Return the vectors of some texts; null for a text without words."""
        function = (
            None if self.name == HASHING else load_function(self.name, f"embedding; there is {HASHING}")
        )
        if not len(texts):
            return pa.array([], pa.list_(pa.float32(), self.dimension))
        if function is None:
            return hash_words(texts, self.dimension)
        vectors = function(texts)
        if isinstance(vectors, np.ndarray) and vectors.ndim == 2:
            vectors = pa.FixedSizeListArray.from_arrays(
                pa.array(vectors.astype(np.float32).ravel()), vectors.shape[1]
            )
        if isinstance(vectors, pa.ChunkedArray):
            vectors = vectors.combine_chunks()
        if not isinstance(vectors, pa.Array) or len(vectors) != len(texts):
            raise Invalid(f"embedding {self.name} must return a vector for each text")
        return read_vectors(vectors, self.dimension, f"embedding {self.name}")


def hash_words(texts: pa.Array, dimension: int) -> pa.FixedSizeListArray:
    """Hash words to vectors: each word adds to or subtracts from one component, and vectors have length one.

    It needs no model and is the same everywhere; texts with many words in common are near each other.
    """
    terms = pc.split_pattern(words(pc.utf8_lower(pc.utf8_normalize(texts, "NFKC"))), " ")
    rows = pc.list_parent_indices(terms).to_numpy()
    encoded = pc.list_flatten(terms).dictionary_encode()
    features = np.array([_feature(word) for word in encoded.dictionary.to_pylist()], np.uint64)
    if not len(features):
        return pa.nulls(len(texts), pa.list_(pa.float32(), dimension))
    mine = features[encoded.indices.to_numpy()]
    # The lowest bit of a feature is its sign, the others choose the component; feature 0 is no word.
    places = rows * dimension + ((mine >> np.uint64(1)) % np.uint64(dimension)).astype(np.int64)
    signs = np.where(mine & np.uint64(1), 1.0, -1.0) * (mine != 0)
    sums = np.bincount(places, signs, len(texts) * dimension).reshape(len(texts), dimension)
    lengths = np.linalg.norm(sums, axis=1)
    if not lengths.all():  # where words cancel each other out, they count without their signs
        counts = np.bincount(places, np.abs(signs), len(texts) * dimension).reshape(len(texts), dimension)
        sums = np.where(lengths[:, None], sums, counts)
        lengths = np.linalg.norm(sums, axis=1)
    vectors = (sums / np.where(lengths, lengths, 1)[:, None]).astype(np.float32)
    return _make_vectors(vectors, lengths == 0)


def _feature(word: str) -> int:
    """Return a number for a word; 0 for an empty one."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest()) if word else 0


def read_vectors(column: pa.Array, dimension: int, name: str) -> pa.FixedSizeListArray:
    """Read vectors from lists of numbers, JSON or text such as [1, 2.5], or 4-byte little-endian floats.

    NULL stays NULL. Raises Invalid, naming the column and no value, when one is no vector or has another
    dimension.
    """
    kind = column.type
    if pa.types.is_string(kind):
        column = _parse_texts(column, name)
    elif pa.types.is_binary(kind):
        return _unpack_floats(column, dimension, name)
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise Invalid(
            f"{name} has the type {kind}, which cannot be read as a vector; name a column of floats"
        )
    lengths = pc.list_value_length(column)
    _check_rows(pc.not_equal(lengths, dimension), name, f"a vector of other than {dimension} dimensions")
    present = column.is_valid().to_numpy(zero_copy_only=False)
    numbers = pc.list_flatten(column.drop_null() if column.null_count else column)
    if numbers.null_count:
        raise Invalid(f"{name} has a vector with a NULL in it; fix the source's row")
    matrix = np.zeros((len(column), dimension), np.float32)
    matrix[present] = numbers.cast(pa.float32()).to_numpy().reshape(-1, dimension)
    _check_rows(pa.array(~np.isfinite(matrix).all(axis=1)), name, "a vector with a number that is not finite")
    return _make_vectors(matrix, ~present)


def _parse_texts(column: pa.Array, name: str) -> pa.Array:
    plain = pc.utf8_trim_whitespace(column)
    _check_rows(
        pc.invert(pc.match_substring_regex(plain, _NUMBERS)), name, "a text that is no list of numbers"
    )
    parts = pc.split_pattern(pc.utf8_trim(plain, "[] \t\n"), ",")
    try:
        numbers = pc.utf8_trim_whitespace(parts.values).cast(pa.float32())
    except pa.ArrowInvalid:
        raise Invalid(f"{name} has a text that is no list of numbers; fix the source's row") from None
    mask = parts.is_null() if parts.null_count else None
    return pa.ListArray.from_arrays(parts.offsets, numbers, mask=mask)


def _unpack_floats(column: pa.Array, dimension: int, name: str) -> pa.FixedSizeListArray:
    wrong = pc.not_equal(pc.binary_length(column), 4 * dimension)
    _check_rows(wrong, name, f"a vector of other than {dimension} dimensions of 4 bytes")
    packed = pc.fill_null(column, bytes(4 * dimension)).cast(pa.binary(4 * dimension))
    start, end = packed.offset * 4 * dimension, (packed.offset + len(packed)) * 4 * dimension
    floats = np.frombuffer(packed.buffers()[1] or b"", "<f4", (end - start) // 4, start)
    matrix = floats.reshape(-1, dimension)
    _check_rows(pa.array(~np.isfinite(matrix).all(axis=1)), name, "a vector with a number that is not finite")
    return _make_vectors(matrix, column.is_null().to_numpy(zero_copy_only=False))


def _check_rows(wrong: pa.Array, name: str, what: str) -> None:
    count = pc.sum(wrong).as_py() or 0
    if count:
        raise Invalid(f"{name} has {what} in {count} of {len(wrong)} rows; fix the source's rows")


def _make_vectors(matrix: Floats, missing: npt.NDArray[np.bool_]) -> pa.FixedSizeListArray:
    mask = pa.array(missing) if missing.any() else None
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), matrix.shape[1], mask=mask)


SOURCE = "_source"
_HASHING_DIMENSION = 256


class VectorOptions(IndexOptions):
    """What is indexed, and how."""

    vector_column: str | None = None
    """A column of vectors: VECTOR, JSON or text such as [1, 2.5], or a blob of little-endian floats."""
    text_columns: Names = ()
    """The columns whose texts vectors are made of, separated by commas, if there is no vector_column."""
    embedding: str = HASHING
    """What makes vectors of texts: hashing, or module:function over an Arrow array of texts."""
    dimension: int | None = Field(None, ge=1, le=65_536)
    """The numbers of a vector, if neither the column's type nor the embedding defines it."""
    metric: Literal["l2", "cosine", "dot"] = "cosine"
    """The measure of distance."""
    index: Literal["ivf_pq", "ivf_hnsw_sq", "ivf_hnsw_pq", "hnsw", "none"] = "ivf_pq"
    """The kind of index; hnsw is ivf_hnsw_sq, and none compares all vectors."""
    index_rows_min: int = Field(10_000, ge=256)
    """With fewer rows there is no index: all vectors are compared, which is exact."""
    partitions: int | None = Field(None, ge=1)
    """Partitions of the index; by default Lance chooses by the number of rows."""
    sub_vectors: int | None = Field(None, ge=1)
    """Parts into which product quantisation divides a vector; by default about one for eight numbers."""
    recall_loss: float = Field(0.1, gt=0, le=1)
    """Recall that may be lost since the index was built before it is rebuilt."""

    @model_validator(mode="after")
    def _has_one_source(self) -> "VectorOptions":
        if bool(self.vector_column) == bool(self.text_columns):
            raise ValueError("give one of vector_column and text_columns")
        return self


@dataclass(frozen=True, slots=True)
class VectorMaker:
    """Adds a row's vector to its columns, and a hash of what it was made of.

    A row without a vector is left out. Where the hash has not changed, the embedding is not called again.
    """

    columns: tuple[str, ...]
    dimension: int
    embedding: str | None
    """None: the column is a vector itself."""

    @property
    def recipe(self) -> str:
        """The columns, the dimension and the embedding, as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, recipe: str) -> "VectorMaker":
        """Return the maker of a recipe."""
        tree = json.loads(recipe)
        return cls(tuple(tree["columns"]), tree["dimension"], tree["embedding"])

    @property
    def derived(self) -> pa.Schema:
        """The columns of the hash and of the vector."""
        return pa.schema([(SOURCE, pa.uint64()), (VECTOR, pa.list_(pa.float32(), self.dimension))])

    @property
    def replaced(self) -> tuple[str, ...]:
        """The vector column of the source, if there is one."""
        return () if self.embedding else self.columns

    def make(self, rows: pa.RecordBatch, earlier: Earlier | None) -> pa.RecordBatch:
        """Return the rows that have a vector, with it and the hash."""
        hashes = pa.array(hashes_of(rows, self.columns), pa.uint64())
        if self.embedding is None:
            vectors = read_vectors(rows.column(self.columns[0]), self.dimension, f"column {self.columns[0]}")
        else:
            vectors = self._embed(rows, hashes, earlier)
        full = rows.append_column(SOURCE, hashes).append_column(VECTOR, vectors)
        return full.filter(vectors.is_valid()).drop_columns(list(self.replaced))

    def _embed(self, rows: pa.RecordBatch, hashes: pa.Array, earlier: Earlier | None) -> pa.Array:
        """Return the vectors of the rows' texts; reuse those that `earlier` has of the same texts."""
        texts = join_texts([rows.column(name) for name in self.columns])
        kind = self.derived.field(VECTOR).type
        places = np.full(len(rows), -1)
        known = pa.array([], kind)
        if earlier is not None:
            dataset, mine, theirs = earlier.find_same(pa.table(rows.select(earlier.keys)), SOURCE, hashes)
            known = _take_vectors(dataset, theirs, kind)
            places[mine] = np.arange(len(mine))
        fresh = np.flatnonzero((places < 0) & texts.is_valid().to_numpy(zero_copy_only=False))
        assert self.embedding is not None
        computed = Embedding(self.embedding, self.dimension)(texts.take(pa.array(fresh)))
        places[fresh] = len(known) + np.arange(len(fresh))
        return pa.concat_arrays([known, computed]).take(pa.array(places, mask=places < 0))


def _take_vectors(dataset: LanceDataset, places: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    """Return the vectors at some positions of a dataset, in the order given."""
    if not len(places):
        return pa.array([], kind)
    order = np.argsort(places)
    found = dataset.take(places[order].tolist(), columns=[VECTOR]).column(VECTOR).combine_chunks()
    back = np.empty_like(order)  # the inverse of `order`, because Lance is asked in ascending order
    back[order] = np.arange(len(order))
    return found.take(pa.array(back))


class Vector(IndexConsumer):
    """Keeps an index of vectors equal to a table's vectors, or to those made of its texts."""

    options_type = VectorOptions

    def __init__(self, job: JobContext) -> None:
        self._own = VectorOptions.parse(job.info)
        super().__init__(job, self._own)

    @property
    def limits(self) -> Limits:
        """How far the index may decay; type `none` has no index."""
        own = self._own
        rows_min = None if own.index == "none" else own.index_rows_min
        return Limits(rows_min=rows_min, changed_share=own.retrain_share, recall_loss=own.recall_loss)

    def maker(self, table: TableInfo, columns: pa.Schema) -> VectorMaker:
        """Return what adds the vectors; raise Invalid when a column is missing or has no text."""
        own = self._own
        names = find_columns(own.text_columns or [str(own.vector_column)], columns, table.name)
        for name in names if own.text_columns else ():
            if not pa.types.is_string(columns.field(name).type):
                raise Invalid(f"column {name} of table {table.name} has no text; fix option text_columns")
        embedding = own.embedding if own.text_columns else None
        self.check_function(embedding, (HASHING,), "embedding")
        maker = VectorMaker(names, self._dimension(table, names[0]), embedding)
        maker.make(pa.RecordBatch.from_pylist([], columns), None)
        return maker

    def _dimension(self, table: TableInfo, column: str) -> int:
        own = self._own
        kind = table.column(column).type
        declared = kind.flen if own.vector_column and kind.tp is Tp.VECTOR_FLOAT32 and kind.flen > 0 else None
        if own.text_columns and own.embedding == HASHING:
            declared = own.dimension or _HASHING_DIMENSION
        if declared and own.dimension not in {None, declared}:
            raise Invalid(
                f"column {column} of table {table.name} has {declared} dimensions; fix option dimension"
            )
        if not (declared or own.dimension):
            raise Invalid("consumer vector needs the option dimension: how many numbers a vector has")
        return declared or own.dimension or 0

    def parse_maker(self, recipe: str) -> VectorMaker:
        """Return what made the existing rows, from the marker's recipe."""
        maker = VectorMaker.parse(recipe)
        self.check_function(maker.embedding, (HASHING,), "embedding")
        return maker

    def kind(self, dataset: LanceDataset) -> NearestIndex:
        """Return the index of vectors with the job's options."""
        own = self._own
        kind = "ivf_hnsw_sq" if own.index == "hnsw" else own.index
        dimension = dataset.schema.field(VECTOR).type.list_size
        return NearestIndex(kind, own.metric, dimension, own.partitions, own.sub_vectors)

    def scan_arguments(self, current: IndexVersion, query: SearchQuery) -> dict[str, Any]:
        """Return a scan for the rows nearest to the query's vector, or to the vector of its words."""
        vector = self._query_vector(self.parse_maker(current.marker.recipe), query)
        nearest = self.kind(current.dataset).nearest(vector, query.k)
        return {"nearest": nearest, "score": "_distance"}

    def _query_vector(self, maker: VectorMaker, query: SearchQuery) -> np.ndarray[Any, Any]:
        if query.words is not None:
            if maker.embedding is None:
                raise Invalid(f"job {self.job.id} has vectors of a column, not of texts; ask with a vector")
            vectors = Embedding(maker.embedding, maker.dimension)(pa.array([query.words], pa.string()))
        else:
            vectors = read_vectors(
                pa.array([query.vector], pa.list_(pa.float32())), maker.dimension, "the vector"
            )
        if vectors.null_count:
            raise Invalid("these words have no vector; use others")
        return np.asarray(vectors.values.to_numpy())
