"""Rows of ours between the states of DDLs that a real TiDB made: its record is committed step by step."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock.kv import Client
from penstock.tables import Catalog
from penstock.tables.columns import SchemaState
from penstock.tables.keys import META_PREFIX, TABLE_PREFIX, decode_int
from support.onlinestates import assert_entries_agree
from support.tidb_history import Mutation, RecordedTxn, load_record
from support.warmstore import WarmStore

WRITTEN = {SchemaState.WRITE_ONLY, SchemaState.WRITE_REORG}
ROWS: dict[str, dict[str, Any]] = {"d1.alters": {}, "d1.lossy": {"a": 5, "b": "6", "d": 1.25, "e": 8}}


def commit(client: Client, mutations: Iterable[Mutation]) -> None:
    with client.begin() as txn:
        for op, key, value in mutations:
            if op == "put":
                txn.put(key, value)
            elif op == "del":
                txn.delete(key)


def concerns(table_id: int, key: bytes) -> bool:
    return key[:1] == META_PREFIX or (key[:1] == TABLE_PREFIX and decode_int(key, 1) == table_id)


def state_of(db: Catalog, name: str) -> SchemaState:
    info = db.table_info(name)
    states = [column.state for column in info.columns] + [index.state for index in info.indexes]
    return min(states)


@pytest.mark.parametrize("name", ROWS)
def test_rows_between_the_states_of_tidbs_ddls_are_whole(tmp_path: Path, name: str) -> None:
    by_statement: dict[int, list[RecordedTxn]] = defaultdict(list)
    for recorded in load_record().txns:
        by_statement[recorded.statement].append(recorded)
    written: list[tuple[int, SchemaState]] = []
    with WarmStore.start(tmp_path / "store", stores=1) as store, Client.connect([store.pd_addr]) as client:
        db, number = Catalog(client), 9000
        for statement in sorted(by_statement):
            ours: list[int] = []
            for recorded in by_statement[statement]:
                table_id = db.table_info(name).id if exists(db, name) else 0
                commit(client, [one for one in recorded.mutations if concerns(table_id, one.key)])
                if exists(db, name) and state_of(db, name) in WRITTEN:
                    table, number = db.table(name), number + 1
                    table.insert([{"id": number, **given(db, name)}])
                    ours.append(number)
                    written.append((statement, state_of(db, name)))
            if ours:
                assert all(element.state is SchemaState.PUBLIC for element in db.table_info(name).columns)
                assert_entries_agree(client, name, garbage=True)
                rows = {row["id"]: row for row in db.table(name).to_arrow().to_pylist()}
                for column in ROWS[name]:
                    assert len({rows[one].get(column) for one in ours}) == 1
                assert db.table(name).delete(ours) == len(ours)
    assert len(written) >= 8
    assert {state for _, state in written} == WRITTEN


def exists(db: Catalog, name: str) -> bool:
    return db.schema().has_table(name)


def given(db: Catalog, name: str) -> dict[str, Any]:
    """Return values for the columns that take them as they are given, in the types of now."""
    found = {}
    for column, value in ROWS[name].items():
        if db.table_info(name).has_column(column):
            kind = db.table_info(name).column(column).type
            found[column] = (
                str(value) if kind.is_string else int(value) if kind.tp.name == "LONGLONG" else value
            )
    return found
