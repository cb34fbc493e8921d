"""What an account is told of a table that it has no more: nothing that only the other account knows."""

import asyncio
from dataclasses import replace

import pytest

from penstock.errors import PenstockError, Unavailable
from penstock.eventstore.read.partition import TableView
from penstock.follow.cluster_tables import FollowedTables
from penstock.follow.ddl_history import DdlHistory
from penstock.follow.source import TableGone, TableScan
from support.ddlevents import table_schema
from support.metaevents import a_table, put_account, put_database, put_owner, put_table, remove_table
from support.rawbatches import Change, raw

ANN, BOB = 2, 3
RENAMED = (
    put_account(1, ANN, "ann"),
    put_account(1, BOB, "bob"),
    put_database(2, 1, "shop"),
    put_database(2, 2, "bank"),
    put_owner(3, 1, ANN),
    put_owner(3, 2, BOB),
    put_table(10, a_table(7, name="orders")),
    remove_table(20, 7),
    put_table(20, a_table(7, name="secret"), database_id=2),
)


class Fed:
    """A subscription that has told everything."""

    failure: PenstockError | None = None

    async def close(self) -> None:
        """Nothing is open."""


def follow(*changes: Change) -> FollowedTables:
    async def subscribe(history: DdlHistory) -> Fed:
        history.consume_kv_events(raw(changes), lambda: None)
        history.advance_resolved_ts(90)
        return Fed()

    tables = FollowedTables(subscribe)
    asyncio.run(tables.start())
    return tables


@pytest.mark.parametrize("after", [(), (remove_table(30, 7, database_id=2),)])
def test_a_job_is_not_told_the_name_that_its_table_has_in_another_account(after: tuple[Change, ...]) -> None:
    tables = follow(*RENAMED, *after)
    told = tables.why_gone(7, "ann") or ""
    assert "does not belong to account ann any more" in told
    assert "bank" not in told
    assert "secret" not in told
    assert ("table shop.orders" in told) == (not after)
    for reader in ("bob", "sys"):
        known = tables.why_gone(7, reader)
        assert known is None if not after else "table bank.secret was dropped" in (known or "")


def test_a_range_is_refused_with_the_name_that_the_account_knows() -> None:
    mine = replace(table_schema(7, "shop.orders"), account="ann")
    theirs = replace(table_schema(7, "bank.secret"), account="bob")
    scan = TableScan(
        view=TableView("bank.secret", ()),
        from_ts=5,
        to_ts=30,
        schema=theirs,
        rows=0,
        nbytes=0,
        before=mine,
        accounts=frozenset({"ann", "bob"}),
    )
    with pytest.raises(TableGone, match=r"^table shop\.orders does not belong to account ann"):
        scan.check_account("ann")
    with pytest.raises(TableGone, match=r"^table bank\.secret does not belong to account bob"):
        scan.check_account("bob")
    with pytest.raises(TableGone, match=r"^the table does not belong to account ann"):
        replace(scan, before=None).check_account("ann")


def test_accounts_that_are_not_known_let_nobody_read() -> None:
    assert follow(*RENAMED).accounts(7, 15) == {"ann", "bob"}
    with pytest.raises(Unavailable, match="account of table 7 is not known yet"):
        follow().accounts(7, 15)
