"""Who owns which table, and which tables are wanted."""

import pytest

from penstock.eventstore.capture.tables import matches_patterns, owner_of


def test_everybody_agrees_and_all_get_a_share() -> None:
    captures = ["a", "b", "c"]
    owners = [owner_of(table_id, captures) for table_id in range(300)]
    assert owners == [owner_of(table_id, reversed(captures)) for table_id in range(300)]
    assert all(50 < owners.count(capture) < 150 for capture in captures)


def test_when_one_leaves_only_its_tables_move() -> None:
    before = {table_id: owner_of(table_id, ["a", "b", "c"]) for table_id in range(300)}
    after = {table_id: owner_of(table_id, ["a", "b"]) for table_id in range(300)}
    assert all(after[table_id] == before[table_id] for table_id in before if before[table_id] != "c")


def test_nobody_owns_a_table_of_nobody() -> None:
    assert owner_of(1, []) is None


@pytest.mark.parametrize(
    ("database", "table", "patterns", "is_wanted"),
    [
        ("shop", "orders", ("*.*",), True),
        ("Shop", "Orders", ("shop.orders",), True),
        ("shop", "orders", ("shop.o?ders", "x.y"), True),
        ("shop", "orders", ("shop",), False),
        ("shop", "orders", (), False),
        ("mysql", "user", ("*.*",), False),
        ("mysql", "user", ("m*.*",), False),
        ("mysql", "user", ("mysql.user",), True),
        ("mysql", "user", ("mysql.*",), False),
        ("mysql", "user", ("mysql.use?",), False),
        ("tidb_cdc", "syncpoint_v1", ("*.*",), False),
        ("penstock", "iscp_log", ("*.*", "penstock.*", "penst*.*", "*.iscp_log", "p?nstock.iscp_log"), False),
        ("Penstock", "ISCP_Log", ("shop.*", "penstock.iscp_log"), True),
        ("penstocks", "iscp_log", ("penst*.*",), True),
    ],
)
def test_tables_are_chosen_by_patterns(
    database: str, table: str, patterns: tuple[str, ...], is_wanted: bool
) -> None:
    assert matches_patterns(database, table, patterns) is is_wanted
