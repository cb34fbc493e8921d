"""What becomes of a target's columns, as a table of cases."""

from dataclasses import replace

import pytest

from penstock.consumers.postgres.columns import is_wider, parse_columns, postgres_type
from penstock.consumers.schema_evolution import TargetColumn, plan_evolution, to_json
from penstock.errors import Corrupt, Invalid
from penstock.tables.columns import SchemaState
from penstock.tables.define import define_table, parse_definition

KEY = TargetColumn(1, "id", "bigint", key=True)


def column(number: int, name: str, kind: str = "text", *, gone: bool = False) -> TargetColumn:
    return TargetColumn(number, name, kind, gone=gone)


def shown(
    known: list[TargetColumn], wanted: list[TargetColumn], *, seen_id: int = 3
) -> tuple[list[str], list[str]]:
    found = plan_evolution([KEY, *known], seen_id, [KEY, *wanted], is_wider)
    acts = [
        " ".join(filter(None, [each.act.value, each.was, each.column.name])) for each in found.alterations
    ]
    return acts, [f"{each.name}{'?' * each.gone}" for each in found.columns[1:]]


@pytest.mark.parametrize(
    ("known", "wanted", "acts", "columns"),
    [
        ([column(2, "a")], [column(2, "a")], [], ["a"]),
        ([column(2, "a")], [column(2, "a"), column(4, "b")], ["add b"], ["a", "b"]),
        ([column(2, "a"), column(3, "b")], [column(3, "b")], [], ["b", "a?"]),
        ([column(2, "a"), column(3, "b", gone=True)], [column(2, "a")], [], ["a", "b?"]),
        ([column(2, "a", gone=True)], [column(4, "a")], ["drop a", "add a"], ["a"]),
        ([column(2, "a")], [column(4, "a")], ["drop a", "add a"], ["a"]),
        (
            [column(2, "a")],
            [column(2, "b")],
            ["rename a penstock_column_2", "rename penstock_column_2 b"],
            ["b"],
        ),
        (
            [column(2, "a"), column(3, "b")],
            [column(2, "b")],
            ["drop b", "rename a penstock_column_2", "rename penstock_column_2 b"],
            ["b"],
        ),
        ([column(2, "a", "integer")], [column(2, "a", "bigint")], ["widen a"], ["a"]),
    ],
)
def test_columns_follow_their_ids(
    known: list[TargetColumn], wanted: list[TargetColumn], acts: list[str], columns: list[str]
) -> None:
    assert shown(known, wanted) == (acts, columns)


@pytest.mark.parametrize(
    ("known", "wanted", "why"),
    [
        ([], [column(3, "a")], "column a was left out until now"),
        ([column(2, "a", gone=True)], [column(2, "a")], "column a was left out for a while"),
        (
            [column(2, "a")],
            [column(2, "a", "integer")],
            "column a is text in the target and needs integer now",
        ),
    ],
)
def test_what_rows_do_not_allow_is_refused_with_the_remedy(
    known: list[TargetColumn], wanted: list[TargetColumn], why: str
) -> None:
    with pytest.raises(Invalid, match=rf"{why}; rebuild the target with `penstock job repair --rebuild`"):
        shown(known, wanted)


def test_another_key_is_refused() -> None:
    with pytest.raises(Invalid, match="another primary key now; rebuild"):
        plan_evolution([KEY], 3, [TargetColumn(2, "b", "bigint", key=True)], is_wider)


def test_a_renamed_key_is_the_same_key() -> None:
    assert (
        len(plan_evolution([KEY], 3, [TargetColumn(1, "number", "bigint", key=True)], is_wider).alterations)
        == 2
    )


@pytest.mark.parametrize(
    ("old", "new", "wider"),
    [
        ("smallint", "bigint", True),
        ("bigint", "integer", False),
        ("bigint", "numeric(20)", True),
        ("real", "double precision", True),
        ("double precision", "real", False),
        ("numeric(8,2)", "numeric(10,2)", True),
        ("numeric(8,2)", "numeric(10,4)", True),
        ("numeric(8,2)", "numeric(9,4)", False),
        ("numeric(8,2)", "numeric(8)", False),
        ("bit(8)", "bit(9)", False),
        ("text", "bytea", False),
    ],
)
def test_wider_types_have_every_value(old: str, new: str, wider: bool) -> None:
    assert is_wider(old, new) is wider


@pytest.mark.parametrize(
    ("definition", "kind"),
    [
        ("tinyint unsigned", "smallint"),
        ("smallint unsigned", "integer"),
        ("mediumint", "integer"),
        ("int unsigned", "bigint"),
        ("bigint unsigned", "numeric(20)"),
        ("decimal(65,30)", "numeric(65,30)"),
        ("year", "smallint"),
        ("bit", "bit(1)"),
        ("char(3)", "text"),
        ("binary(3)", "bytea"),
        ("longtext", "text"),
        ("longblob", "bytea"),
        ("set('a')", "text"),
        ("time(6)", "interval"),
        ("timestamp", "timestamptz"),
        ("vector", "real[]"),
    ],
)
def test_each_type_of_the_source_has_one_in_postgres(definition: str, kind: str) -> None:
    assert postgres_type(parse_definition(definition).type) == kind


def test_columns_are_kept_as_json() -> None:
    columns = [KEY, column(2, "a", gone=True)]
    assert parse_columns(to_json(columns)) == columns


@pytest.mark.parametrize(
    "tree", [None, [1], [{}], [{"id": 1, "name": "a", "type": "int); drop", "key": 0, "gone": 0}]]
)
def test_damaged_columns_are_not_taken(tree: object) -> None:
    with pytest.raises(Corrupt, match="rebuild the target"):
        parse_columns(tree)


def test_a_column_that_an_online_change_adds_was_not_left_out() -> None:
    table = define_table("t", [("id", "bigint primary key"), ("a", "int")])
    coming = replace(table.columns[1], id=3, name="b", offset=2, state=SchemaState.WRITE_REORG)
    changing = replace(table, columns=(*table.columns, coming), max_column_id=3)
    assert (table.settled_column_id, changing.settled_column_id) == (2, 2)
    known = [TargetColumn(1, "id", "bigint", key=True), TargetColumn(2, "a", "integer")]
    wanted = [*known, TargetColumn(3, "b", "integer")]
    evolution = plan_evolution(known, changing.settled_column_id, wanted, is_wider)
    assert [alteration.column.name for alteration in evolution.alterations] == ["b"]
