"""Vectors of columns and of texts."""

import numpy as np
import pyarrow as pa
import pytest

from penstock.consumers.search_index.vector import Embedding, read_vectors
from penstock.errors import Invalid

PACKED = [np.array(each, "<f4").tobytes() for each in ([1, 2], [3, -4.5])]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1, 2], None, [3, -4.5]], pa.list_(pa.float32())),
        pa.array([[1, 2], None, [3, -4.5]], pa.list_(pa.float64(), 2)),
        pa.array([[1, 2], None, [3, -4.5]], pa.large_list(pa.float64())),
        pa.array(["[1, 2]", None, " [3.0,-45e-1] "]),
        pa.array(["1,2", None, "+3 , -4.5"]),
        pa.array([PACKED[0], None, PACKED[1]]),
    ],
    ids=["list", "fixed", "large", "json", "text", "blob"],
)
def test_vectors_are_read_in_any_form(column: pa.Array) -> None:
    expected = [[1, 2], None, [3, -4.5]]
    assert read_vectors(column, 2, "column v").to_pylist() == expected
    assert read_vectors(column.slice(1), 2, "column v").to_pylist() == expected[1:]
    assert read_vectors(column.slice(0, 0), 2, "column v").to_pylist() == []
    assert read_vectors(column.slice(1, 1), 2, "column v").type == pa.list_(pa.float32(), 2)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            pa.array([[1.0, 2.0], [1.0], None, []]),
            "column v has a vector of other than 2 dimensions in 2 of 4 rows",
        ),
        (pa.array(["[1, 2, 3]"]), "other than 2 dimensions in 1 of 1"),
        (pa.array(["[1, 2]", '{"a": 1}', "[]", ""]), "a text that is no list of numbers in 3 of 4"),
        (pa.array(["[1e, 2]"]), "a text that is no list of numbers"),
        (pa.array(["[[1, 2]]"]), "a text that is no list of numbers"),
        (pa.array([b"1234567"]), "dimensions of 4 bytes in 1 of 1"),
        (pa.array([[1.0, None]]), "a NULL in it"),
        (pa.array([[1.0, float("inf")]]), "not finite in 1 of 1"),
        (pa.array([np.array([1, np.nan], "<f4").tobytes()]), "not finite"),
        (pa.array([7]), "has the type int64"),
    ],
)
def test_what_is_no_vector_is_refused_without_being_shown(column: pa.Array, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        read_vectors(column, 2, "column v")


def test_hashing_is_the_same_everywhere_and_of_length_one() -> None:
    texts = pa.array(["Green shoes, green shoes", "green SHOES", "", "...", "red wine"])
    made = Embedding("hashing", 64)(texts)
    assert made.to_pylist()[2:4] == [None, None]
    vectors = np.array([each for each in made.to_pylist() if each])
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert np.allclose(vectors[0], vectors[1])
    assert vectors[0] @ vectors[2] < 0.5
    assert Embedding("hashing", 8)(pa.array(["penstock"]))[0].as_py() == [0, 0, 0, 0, 0, 0, 0, 1]


def test_words_that_take_each_other_away_still_make_a_vector() -> None:
    words = [f"w{number}" for number in range(40)]
    texts = pa.array([f"{one} {other}" for one in words for other in words])
    assert Embedding("hashing", 2)(texts).null_count == 0


def test_a_function_of_ones_own_is_asked_for_texts_and_checked() -> None:
    own = Embedding("support.indexfunctions:embedded", 2)
    assert own(pa.array(["one two", "three"])).to_pylist() == [[7, 2], [5, 1]]
    assert own(pa.array([], pa.string())).to_pylist() == []
    assert len(Embedding("support.indexfunctions:wrong", 3)(pa.array(["a"]))) == 1
    for name, message in (
        ("support.indexfunctions:wrong", "other than 2 dimensions"),
        ("builtins:len", "a vector for each text"),
        ("nowhere:f", "cannot be imported"),
        ("best", "is no embedding; there is hashing"),
    ):
        with pytest.raises(Invalid, match=message):
            Embedding(name, 2)(pa.array(["a"]))
