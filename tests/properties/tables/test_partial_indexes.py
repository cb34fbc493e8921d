"""A row is in a partial index when its condition holds, by SQL's logic with three values."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.tables import indexes
from penstock.tables.define import Index, define_table
from penstock.tables.records import to_record
from support.campaign import examples

Row = dict[str, int | None]
COLUMNS = ("a", "b")
TABLE = define_table(
    "t", [("id", "bigint primary key"), ("a", "int"), ("b", "int")], indexes=[Index("i", ["a"])]
)


@dataclass(frozen=True)
class Condition:
    """A condition as TiDB writes it, and what it is for a row."""

    text: str
    holds: Callable[[Row], bool | None]


def compared(column: str, sign: str, constant: int | None) -> Condition:
    compare: dict[str, Callable[[int, int], bool]] = {
        "=": lambda x, y: x == y,
        "!=": lambda x, y: x != y,
        "<": lambda x, y: x < y,
        ">=": lambda x, y: x >= y,
    }

    def holds(row: Row) -> bool | None:
        value = row[column]
        return None if value is None or constant is None else compare[sign](value, constant)

    return Condition(f"`{column}`{sign}{'NULL' if constant is None else constant}", holds)


def between(column: str, low: int, high: int) -> Condition:
    def holds(row: Row) -> bool | None:
        value = row[column]
        return None if value is None else low <= value <= high

    return Condition(f"`{column}` BETWEEN {low} AND {high}", holds)


def listed(column: str, constants: list[int | None], *, negated: bool) -> Condition:
    def holds(row: Row) -> bool | None:
        value = row[column]
        if value is None:
            return None
        if value in constants:
            return not negated
        return None if None in constants else negated

    values = ",".join("NULL" if constant is None else str(constant) for constant in constants)
    return Condition(f"`{column}` {'NOT ' * negated}IN ({values})", holds)


def is_null(column: str, *, negated: bool) -> Condition:
    return Condition(f"`{column}` IS {'NOT ' * negated}NULL", lambda row: (row[column] is None) != negated)


def joined(left: Condition, word: str, right: Condition) -> Condition:
    decides = word == "OR"

    def holds(row: Row) -> bool | None:
        sides = {left.holds(row), right.holds(row)}
        return decides if decides in sides else None if None in sides else not decides

    return Condition(f"({left.text}) {word} ({right.text})", holds)


def inverted(inner: Condition) -> Condition:
    def holds(row: Row) -> bool | None:
        value = inner.holds(row)
        return None if value is None else not value

    return Condition(f"NOT ({inner.text})", holds)


NAMES, NUMBERS = st.sampled_from(COLUMNS), st.integers(-2, 2)
LEAVES = st.one_of(
    st.builds(compared, NAMES, st.sampled_from(["=", "!=", "<", ">="]), st.none() | NUMBERS),
    st.builds(between, NAMES, NUMBERS, NUMBERS),
    st.builds(listed, NAMES, st.lists(st.none() | NUMBERS, min_size=1, max_size=3), negated=st.booleans()),
    st.builds(is_null, NAMES, negated=st.booleans()),
)
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(joined, inner, st.sampled_from(["AND", "OR"]), inner) | st.builds(inverted, inner)
    ),
    max_leaves=6,
)
ROWS: st.SearchStrategy[Any] = st.fixed_dictionaries(dict.fromkeys(COLUMNS, st.none() | NUMBERS))


@settings(deadline=None, max_examples=examples(100))
@given(condition=CONDITIONS, rows=st.lists(ROWS, min_size=1, max_size=8))
def test_a_row_has_an_entry_when_the_condition_is_true_for_it(condition: Condition, rows: list[Row]) -> None:
    index = replace(TABLE.indexes[0], extra={"condition_expr_string": condition.text})
    table = replace(TABLE, indexes=(index,))
    for row in rows:
        record = to_record(table, {"id": 1, **row}, start_ts=0)
        assert indexes.has_entry(table, index, record) == (condition.holds(row) is True)
