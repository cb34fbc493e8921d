"""Texts into terms."""

import pyarrow as pa
import pytest

from penstock.consumers.search_index.fulltext import Tokenizer, join_texts, load_function
from penstock.errors import Invalid


def terms(text: str | None, **options: object) -> str | None:
    made: str | None = Tokenizer(**options).terms(pa.array([text], pa.string()))[0].as_py()  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize(
    ("options", "text", "expected"),
    [
        ({}, "Hello, Wörld! foo_bar 3.5", "hello wörld foo_bar 3 5"),
        ({}, "  ", ""),
        ({}, None, None),
        ({"lower": False}, "Hello, World", "Hello World"),
        ({}, "cafe\u0301 ﬁne", "café fine"),  # composed, and a ligature taken apart
        ({}, "naïve-n\u0308ess", "naïve n\u0308ess"),  # a mark belongs to its letter
        ({}, "你好\uff0c世界", "你好 世界"),
        ({"parser": "whitespace"}, "a.b@c\t\nD  e\u00a0f\u2028g", "a.b@c d e f g"),
        ({"parser": "ngram"}, "世界好 a bc", "世界 界好 a bc"),
        ({"parser": "ngram", "ngram": 3}, "abcd ef", "abc bcd ef"),
        ({"parser": "ngram", "ngram": 1}, "ab", "a b"),
        (
            {"parser": "support.indexfunctions:shouted", "lower": False},
            "come NOW or NEVER",
            "NOW NEVER",
        ),
        ({"parser": "support.indexfunctions:shouted", "lower": False}, None, None),
    ],
)
def test_terms_of_a_text(options: dict[str, object], text: str | None, expected: str | None) -> None:
    assert terms(text, **options) == expected


@pytest.mark.parametrize("parser", ["words", "whitespace", "ngram"])
def test_terms_of_terms_are_the_same(parser: str) -> None:
    once = terms("Some Text, with (marks) & ümläuts", parser=parser, ngram=4)
    assert terms(once, parser="whitespace") == once


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("best", "is no parser"),
        (":f", "is no parser"),
        ("nowhere.at.all:f", "cannot be imported"),
        ("math:nothing", "cannot be imported"),
        ("math:pi", "is not a function"),
    ],
)
def test_a_function_that_is_not_there_is_refused(name: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        load_function(name, "parser; there are words")


@pytest.mark.parametrize(
    ("parser", "message"),
    [
        ("pyarrow.compute:utf8_length", "must return texts, or lists of texts; it returns int32"),
        ("pyarrow.compute:unique", "one element for each text"),
        ("builtins:len", "one element for each text"),
    ],
)
def test_what_a_parser_gives_is_checked(parser: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        Tokenizer(parser).terms(pa.array(["a", "a"]))


def test_texts_of_several_columns_are_lines_of_one() -> None:
    columns = [pa.array(["a", None, None, "d"]), pa.array(["b", "c", None, None])]
    assert join_texts(columns).to_pylist() == ["a\nb", "c", None, "d"]
    assert join_texts(columns[:1]) is columns[0]


@pytest.mark.parametrize("parser", ["words", "whitespace"])
def test_a_text_is_cut_alike_whatever_stands_beside_it(parser: str) -> None:
    texts = [f"left{chr(code)}right" for code in range(128)]
    terms = Tokenizer(parser).terms
    alone, beside = terms(pa.array(texts)), terms(pa.array([*texts, "ünïcode"]))
    assert alone.to_pylist() == beside.to_pylist()[:-1]
    assert {"left right", "leftxright"} <= set(alone.to_pylist())
