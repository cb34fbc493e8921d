"""Durations as people write them."""

import pytest

from penstock.durations import parse_duration
from penstock.errors import Invalid


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("10ns", 1e-8),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("0s", 0),
    ],
)
def test_a_duration_is_numbers_with_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "-5s", "5s ", "5w", "1h30", "1e3s"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is not a duration; write a number with its unit"):
        parse_duration(text)
