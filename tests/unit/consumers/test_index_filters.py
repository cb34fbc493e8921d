"""Conditions that the index library would not survive are refused before it sees them."""

import pytest

from penstock.consumers.search_index.query import check_filter
from penstock.errors import Invalid


@pytest.mark.parametrize(
    "condition",
    [
        "price < 100",
        "price < 100 AND (name LIKE '%+%' OR name IN ('a', 'b'))",
        f"id IN ({', '.join(map(str, range(2000)))})",
        " AND ".join(["id = 1"] * 120),
        "",
    ],
)
def test_what_people_ask_is_let_through(condition: str) -> None:
    check_filter(condition)


@pytest.mark.parametrize(
    "condition",
    [
        "id = " + "+".join(["1"] * 300),
        "id = " + "1+" * 300,
        "id" + "::int" * 200,
        "id" + " is null" * 200,
        "a" + "[0]" * 300,
        "not " * 300 + "id = 1",
        "id = /* ' */ " + "1+" * 300 + "1 /* ' */",
        r"name = E'a\'' || " + "'a' || " * 300 + "'a'",
        " " * 20_000,
    ],
)
def test_what_would_end_the_process_is_refused(condition: str) -> None:
    with pytest.raises(Invalid):
        check_filter(condition)
