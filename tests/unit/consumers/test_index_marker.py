"""The marker row of an index."""

from dataclasses import replace

import pytest

from penstock.consumers.search_index.lance_table import Marker
from penstock.consumers.search_index.query import SearchQuery
from penstock.errors import Corrupt, Invalid

MARKER = Marker(owner="0/1/job/2", watermark=1 << 60, recipe="{}", last_id=4, attempt="a1", recall=0.5)


def test_a_marker_is_read_as_it_was_written() -> None:
    assert Marker.parse(MARKER.dump()) == MARKER


def test_what_an_older_penstock_did_not_write_has_its_default() -> None:
    text = '{"format": 1, "owner": "o", "watermark": 7, "recipe": "r", "last_id": 1}'
    assert Marker.parse(text) == Marker(owner="o", watermark=7, recipe="r", last_id=1)


@pytest.mark.parametrize("text", ["", "[]", "7", "{}", '{"format": 1}', '{"format": "one", "owner": "o"}'])
def test_what_is_no_marker_is_corrupt(text: str) -> None:
    with pytest.raises(Corrupt, match="rebuild the index"):
        Marker.parse(text)


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(Invalid, match="format 2"):
        Marker.parse(MARKER.dump().replace('"format": 1', '"format": 2'))


def test_the_watermark_counts_for_its_owner_and_once_complete() -> None:
    assert MARKER.of("0/1/job/2") == 1 << 60
    assert MARKER.of("0/1/job/3") == 0
    assert replace(MARKER, complete=False).of("0/1/job/2") == 0


def test_a_question_is_words_or_a_vector() -> None:
    assert SearchQuery(words="").k == 10
    for wrong in ({}, {"words": "a", "vector": [1.0]}, {"words": "a", "k": 0}, {"words": "a", "k": 10_001}):
        with pytest.raises(Invalid):
            SearchQuery(**wrong)  # type: ignore[arg-type]
