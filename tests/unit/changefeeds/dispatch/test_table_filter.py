from dataclasses import replace

import pytest

from penstock.changefeeds.filters import (
    ColumnSelector,
    RowFilterRule,
    TableFilter,
    row_predicate,
    selected_columns,
)
from penstock.errors import Invalid
from penstock.follow.ddl_events import TableChange
from support.ddlevents import alter_table, create_database, drop_database, rename_tables, table_schema


@pytest.mark.parametrize(
    ("patterns", "name", "taken"),
    [
        (("*.*",), "shop.orders", True),
        (("shop.*",), "shop.orders", True),
        (("shop.*",), "bank.orders", False),
        (("shop.*", "!shop.log?"), "shop.log1", False),
        (("shop.*", "!shop.log?"), "shop.log12", True),
        (("*.*", "!shop.*", "shop.orders"), "shop.orders", True),
        (("*.*", "!shop.*", "shop.orders"), "shop.items", False),
        (("shop.orders", "!*.*"), "shop.orders", False),
        (("SHOP.Orders",), "shop.ORDERS", True),
        (("sh*.o*",), "shop.orders", True),
        (("shop.o",), "shop.orders", False),
        (("s.t",), "shop.s.t", False),
        (("shop.*",), "shop.a.b", True),
        (("*.*", "penstock.*", "penst*.*", "*.iscp_log"), "penstock.iscp_log", False),
        (("penstock.iscp_log",), "Penstock.ISCP_log", True),
        (("penstock.iscp_log", "*.*"), "penstock.iscp_log", True),
        (("penstock.iscp_log", "!penstock.*"), "penstock.iscp_log", False),
        (("!penstock.iscp_log", "*.*"), "penstock.iscp_log", False),
        (("mysql.*", "*.user"), "mysql.user", False),
    ],
)
def test_the_last_rule_that_fits_decides(patterns: tuple[str, ...], name: str, taken: bool) -> None:
    assert TableFilter(patterns).matches(table_schema(1, name)) is taken


@pytest.mark.parametrize("patterns", [(), ("!shop.*",), ("shop",), ("shop.",), (".t",), ("*.*", "!")])
def test_patterns_that_select_nothing_are_refused(patterns: tuple[str, ...]) -> None:
    with pytest.raises(Invalid):
        TableFilter(patterns)


@pytest.mark.parametrize(
    ("patterns", "taken"),
    [
        (("*.*",), True),
        (("shop.orders",), True),
        (("bank.*",), False),
        (("*.*", "!shop.*"), False),
        (("*.*", "!shop.orders"), True),
        (("*.*", "!shop.*", "shop.orders"), True),
    ],
)
def test_a_database_counts_when_a_table_of_it_could(patterns: tuple[str, ...], taken: bool) -> None:
    table_filter = TableFilter(patterns)
    assert table_filter.matches_database("Shop") is taken
    assert (table_filter.filter_ddl(create_database(5, "shop")) is not None) is taken


@pytest.mark.parametrize(
    ("patterns", "taken"),
    [
        (("*.*",), False),
        (("penstock.*",), False),
        (("!penstock.iscp_log", "*.*"), False),
        (("penstock.iscp_log",), True),
    ],
)
def test_a_system_database_counts_when_a_pattern_is_the_name_of_its_table(
    patterns: tuple[str, ...], taken: bool
) -> None:
    table_filter = TableFilter(patterns)
    assert table_filter.matches_database("Penstock") is taken
    assert (table_filter.filter_ddl(create_database(5, "penstock")) is not None) is taken


def test_rules_for_columns_and_rows_match_a_system_table_by_wildcards() -> None:
    log = table_schema(1, "penstock.iscp_log")
    assert selected_columns(log, [ColumnSelector(("*.*",), ("!v",))]) is not None
    assert row_predicate(log, [RowFilterRule(("pen*.*",), "id > 3")]) == "id > 3"


def test_a_ddl_keeps_only_what_is_carried() -> None:
    inside, outside = table_schema(1, "shop.a"), table_schema(2, "bank.b")
    table_filter = TableFilter(("shop.*",))
    assert table_filter.filter_ddl(alter_table(5, outside)) is None
    part = table_filter.filter_ddl(alter_table(5, inside))
    assert part is not None
    assert part.tables[0].before == inside

    both = rename_tables(5, (inside, "bank.a"), (outside, "shop.b"))
    part = table_filter.filter_ddl(both)
    assert part is not None
    assert part.tables == (TableChange(inside, None), TableChange(None, both.tables[1].after))
    assert table_filter.arriving_ids(both) == {2}

    dropped = table_filter.filter_ddl(drop_database(5, "shop", [inside]))
    assert dropped is not None
    assert dropped.tables[0].ended_ids == {1}
    assert table_filter.filter_ddl(drop_database(5, "bank", [outside])) is None


def test_a_table_that_goes_to_another_account_is_dropped_without_the_names_of_that_account() -> None:
    """Its new name stays unknown; a filter of admins has it before and after, and notices nothing."""
    mine = replace(table_schema(1, "shop.a"), account="ann")
    theirs = replace(table_schema(2, "shop.b"), account="bob")
    of_ann = TableFilter(("shop.*",), account="ann")
    assert of_ann.matches(mine)
    assert not of_ann.matches(theirs)
    assert not of_ann.matches(table_schema(3, "shop.c")), "whose it is, is not known"
    assert of_ann.filter_ddl(alter_table(5, theirs)) is None

    given = rename_tables(5, (mine, "shop.a"))
    change = TableChange(mine, replace(mine, account="bob"))
    given = replace(given, tables=(change,), query="RENAME TABLE shop.a TO bank.secret")
    part = of_ann.filter_ddl(given)
    assert part is not None
    assert (part.tables, part.query) == ((TableChange(mine, None),), "")
    assert TableFilter(("shop.*",)).filter_ddl(given) is None
    gained = TableFilter(("shop.*",), account="bob")
    assert gained.arriving_ids(given) == {1}

    made = create_database(5, "shop")
    assert of_ann.filter_ddl(replace(made, account="bob")) is None
    assert of_ann.filter_ddl(replace(made, account="ann")) is not None
