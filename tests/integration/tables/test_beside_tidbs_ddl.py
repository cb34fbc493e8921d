"""Rows of ours between the states of DDLs that a real TiDB made: its record is committed step by step."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from penstock.kv import Client
from penstock.tables import Catalog
from penstock.tables.columns import SchemaState
from penstock.tables.keys import META_PREFIX, TABLE_PREFIX, decode_int
from support.onlinestates import assert_entries_agree
from support.tidb_history import GOLDEN, Mutation, RecordedTxn, load_record
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


def concerns(table_ids: Collection[int], key: bytes) -> bool:
    return key[:1] == META_PREFIX or (key[:1] == TABLE_PREFIX and decode_int(key, 1) in table_ids)


def state_of(db: Catalog, name: str) -> SchemaState:
    info = db.table_info(name)
    states = [column.state for column in info.columns] + [index.state for index in info.indexes]
    return min(states)


class Beside:
    """Writes rows to a table in every state of it that asks for entries."""

    def __init__(self, client: Client, db: Catalog, name: str) -> None:
        self._client = client
        self._db = db
        self._name = name
        self._number = 9000
        self._ours: list[int] = []
        self._state = SchemaState.PUBLIC
        self.table_id = 0
        self.written: list[SchemaState] = []

    def look(self) -> None:
        """Take note of what the table is now."""
        self.table_id = self._db.table_info(self._name).id if exists(self._db, self._name) else 0
        self._state = state_of(self._db, self._name) if self.table_id else SchemaState.PUBLIC

    def write(self) -> None:
        """Write a row if the table is in such a state."""
        if self._state not in WRITTEN:
            return
        self._number += 1
        self._db.table(self._name).insert([{"id": self._number, **given(self._db, self._name)}])
        self._ours.append(self._number)
        self.written.append(self._state)

    def check(self) -> None:
        """Check the rows that were written during a statement, which has ended; remove them."""
        if not self._ours:
            return
        db, name = self._db, self._name
        assert all(element.state is SchemaState.PUBLIC for element in db.table_info(name).columns)
        assert_entries_agree(self._client, name, garbage=True)
        rows = {row["id"]: row for row in db.table(name).to_arrow().to_pylist()}
        for column in ROWS[name]:
            assert len({rows[number].get(column) for number in self._ours}) == 1
        assert db.table(name).delete(self._ours) == len(self._ours)
        self._ours = []


def test_rows_between_the_states_of_tidbs_ddls_are_whole(tmp_path: Path) -> None:
    by_statement: dict[int, list[RecordedTxn]] = defaultdict(list)
    for recorded in load_record(str(GOLDEN)).txns:
        by_statement[recorded.statement].append(recorded)
    with WarmStore.start(tmp_path / "store", stores=1) as store, Client.connect([store.pd_addr]) as client:
        db = Catalog(client)
        tables = [Beside(client, db, name) for name in ROWS]
        for statement in sorted(by_statement):
            for recorded in by_statement[statement]:
                ids = {table.table_id for table in tables}
                wanted = [mutation for mutation in recorded.mutations if concerns(ids, mutation.key)]
                commit(client, wanted)
                if any(mutation.key[:1] == META_PREFIX for mutation in wanted):
                    for table in tables:
                        table.look()
                for table in tables:
                    table.write()
            for table in tables:
                table.check()
    for table in tables:
        assert len(table.written) >= 8
        assert set(table.written) == WRITTEN


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
