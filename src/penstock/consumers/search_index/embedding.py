"""Vectors of rows: read from a column of numbers, or made of texts by a function given by name. Pure."""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.consumers.search_index.tokenizing import load_function, words
from penstock.errors import Invalid

__all__ = ["HASHING", "Embedding", "vectors_of"]

HASHING = "hashing"
_NUMBERS = r"^\[?\s*[-+.\dEe]+\s*(?:,\s*[-+.\dEe]+\s*)*\]?$"
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Embedding:
    """A function from texts to vectors: `hashing`, or module:function over Arrow arrays.

    Such a function gets an array of texts, none of them null, and gives a list of numbers for each: an Arrow
    array of lists, or a matrix. The same text must give the same vector.
    """

    name: str
    dimension: int

    def __call__(self, texts: pa.Array) -> pa.FixedSizeListArray:
        """The vectors of some texts; null where a text says nothing."""
        function = (
            None if self.name == HASHING else load_function(self.name, f"embedding; there is {HASHING}")
        )
        if not len(texts):
            return pa.array([], pa.list_(pa.float32(), self.dimension))
        if function is None:
            return hashed(texts, self.dimension)
        made = function(texts)
        if isinstance(made, np.ndarray) and made.ndim == 2:
            made = pa.FixedSizeListArray.from_arrays(pa.array(made.astype(np.float32).ravel()), made.shape[1])
        if isinstance(made, pa.ChunkedArray):
            made = made.combine_chunks()
        if not isinstance(made, pa.Array) or len(made) != len(texts):
            raise Invalid(f"embedding {self.name} must give a vector for each text")
        return vectors_of(made, self.dimension, f"embedding {self.name}")


def hashed(texts: pa.Array, dimension: int) -> pa.FixedSizeListArray:
    """Feature hashing: each word adds to or takes from one component, and the vector has length one.

    It needs no model and is the same everywhere; texts with many words in common are near each other.
    """
    terms = pc.split_pattern(words(pc.utf8_lower(pc.utf8_normalize(texts, "NFKC"))), " ")
    rows = pc.list_parent_indices(terms).to_numpy()
    encoded = pc.list_flatten(terms).dictionary_encode()
    features = np.array([_feature(word) for word in encoded.dictionary.to_pylist()], np.uint64)
    if not len(features):
        return pa.nulls(len(texts), pa.list_(pa.float32(), dimension))
    mine = features[encoded.indices.to_numpy()]
    places = rows * dimension + ((mine >> np.uint64(1)) % np.uint64(dimension)).astype(np.int64)
    signs = np.where(mine & np.uint64(1), 1.0, -1.0) * (mine != 0)
    sums = np.bincount(places, signs, len(texts) * dimension).reshape(len(texts), dimension)
    lengths = np.linalg.norm(sums, axis=1)
    if not lengths.all():  # words that took each other away count without their signs
        counts = np.bincount(places, np.abs(signs), len(texts) * dimension).reshape(len(texts), dimension)
        sums = np.where(lengths[:, None], sums, counts)
        lengths = np.linalg.norm(sums, axis=1)
    made = (sums / np.where(lengths, lengths, 1)[:, None]).astype(np.float32)
    return _fixed(made, lengths == 0)


def _feature(word: str) -> int:
    """A number for a word; 0 for none."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest()) if word else 0


def vectors_of(column: pa.Array, dimension: int, name: str) -> pa.FixedSizeListArray:
    """Vectors of lists of numbers, of JSON or text such as [1, 2.5], or of 4-byte little-endian floats.

    NULL stays NULL. Raises Invalid, naming the column and no value, when one has another dimension or is
    no vector.
    """
    kind = column.type
    if pa.types.is_string(kind):
        column = _parsed(column, name)
    elif pa.types.is_binary(kind):
        return _unpacked(column, dimension, name)
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise Invalid(f"{name} has the type {kind}, of which no vector can be made; name another column")
    lengths = pc.list_value_length(column)
    _refuse(pc.not_equal(lengths, dimension), name, f"a vector of other than {dimension} dimensions")
    present = column.is_valid().to_numpy(zero_copy_only=False)
    numbers = pc.list_flatten(column.drop_null() if column.null_count else column)
    if numbers.null_count:
        raise Invalid(f"{name} has a vector with a NULL in it; mend the source's row")
    made = np.zeros((len(column), dimension), np.float32)
    made[present] = numbers.cast(pa.float32()).to_numpy().reshape(-1, dimension)
    _refuse(pa.array(~np.isfinite(made).all(axis=1)), name, "a vector with a number that is not finite")
    return _fixed(made, ~present)


def _parsed(column: pa.Array, name: str) -> pa.Array:
    plain = pc.utf8_trim_whitespace(column)
    _refuse(pc.invert(pc.match_substring_regex(plain, _NUMBERS)), name, "a text that is no list of numbers")
    parts = pc.split_pattern(pc.utf8_trim(plain, "[] \t\n"), ",")
    try:
        numbers = pc.utf8_trim_whitespace(parts.values).cast(pa.float32())
    except pa.ArrowInvalid:
        raise Invalid(f"{name} has a text that is no list of numbers; mend the source's row") from None
    mask = parts.is_null() if parts.null_count else None
    return pa.ListArray.from_arrays(parts.offsets, numbers, mask=mask)


def _unpacked(column: pa.Array, dimension: int, name: str) -> pa.FixedSizeListArray:
    wrong = pc.not_equal(pc.binary_length(column), 4 * dimension)
    _refuse(wrong, name, f"a vector of other than {dimension} dimensions of 4 bytes")
    packed = pc.fill_null(column, bytes(4 * dimension)).cast(pa.binary(4 * dimension))
    start, end = packed.offset * 4 * dimension, (packed.offset + len(packed)) * 4 * dimension
    floats = np.frombuffer(packed.buffers()[1] or b"", "<f4", (end - start) // 4, start)
    made = floats.reshape(-1, dimension)
    _refuse(pa.array(~np.isfinite(made).all(axis=1)), name, "a vector with a number that is not finite")
    return _fixed(made, column.is_null().to_numpy(zero_copy_only=False))


def _refuse(wrong: pa.Array, name: str, what: str) -> None:
    count = pc.sum(wrong).as_py() or 0
    if count:
        raise Invalid(f"{name} has {what} in {count} of {len(wrong)} rows; mend the source's rows")


def _fixed(made: Floats, missing: npt.NDArray[np.bool_]) -> pa.FixedSizeListArray:
    mask = pa.array(missing) if missing.any() else None
    return pa.FixedSizeListArray.from_arrays(pa.array(made.ravel()), made.shape[1], mask=mask)
