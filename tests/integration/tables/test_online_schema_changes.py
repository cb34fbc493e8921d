"""Rows written by our tables beside schema changes that TiDB makes, in all its online states."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import Conflict, Invalid, KeyExists
from penstock.kv import Client, Transaction
from penstock.tables import Catalog, DuplicateRow, Index, Table
from penstock.tables.columns import ColumnFlag, SchemaState
from penstock.tables.indexes import entry, handle_in
from penstock.tables.records import to_record
from support.campaign import seeds
from support.onlinestates import (
    OnlineChange,
    add_index,
    add_index_aside,
    assert_entries_agree,
    drop_index,
    modify_column,
)
from support.warmstore import WarmStore

COLUMNS = [("id", "bigint"), ("v", "varchar(20)"), ("n", "int"), ("w", "int default 7")]
KINDS = {"int": (["id"], True), "common": (["id", "n"], True), "implicit": (["id"], False)}
ADD_PLAIN = Index("added", ["v", "n"])
ADD_UNIQUE = Index("added", ["v"], unique=True)
CHANGES: dict[str, Callable[[Client, str], OnlineChange]] = {
    "add index": lambda client, name: add_index(client, name, ADD_PLAIN),
    "add unique index": lambda client, name: add_index(client, name, ADD_UNIQUE),
    "add index aside": lambda client, name: add_index_aside(client, name, ADD_PLAIN),
    "add unique index aside": lambda client, name: add_index_aside(client, name, ADD_UNIQUE),
    "drop index": lambda client, name: drop_index(client, name, "by_v"),
    "modify column": lambda client, name: modify_column(client, name, "v", "bigint"),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    data: Path = tmp_path_factory.mktemp("online") / "store"
    with WarmStore.start(data, stores=1) as store, Client.connect([store.pd_addr]) as connected:
        yield connected


@pytest.fixture
def db(client: Client) -> Iterator[Catalog]:
    catalog = Catalog(client)
    catalog.create_database("shop")
    yield catalog
    catalog.drop_database("shop")


def create(db: Catalog, kind: str = "int") -> Table:
    key, clustered = KINDS[kind]
    indexes = [Index("by_v", ["v"], unique=True), Index("by_n", ["n"])]
    db.create_table("shop.t", COLUMNS, primary_key=key, indexes=indexes, clustered=clustered)
    return db.table("shop.t")


def row(number: int, text: int | None = None) -> dict[str, Any]:
    return {"id": number, "v": str(number * 10 if text is None else text), "n": number % 3, "w": 1}


def key_of(number: int, kind: str) -> Any:
    return (number, number % 3) if kind == "common" else number


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES)
def test_rows_written_in_every_state_have_their_entries(
    db: Catalog, client: Client, change: str, kind: str
) -> None:
    table = create(db, kind)
    table.insert([row(number) for number in range(6)])
    online, number = CHANGES[change](client, "shop.t"), 100
    while not online.done:
        online.advance()
        table.insert([row(number), row(number + 1), row(number + 2)])
        table.update([{**row(number), "v": str(number * 10 + 1)}])
        table.update([{**row(number + 1), "w": 5}])
        table.delete([key_of(number + 2, kind)])
        number += 10
    table.update([{**row(0), "v": "1"}])
    table.delete([key_of(1, kind)])
    assert_entries_agree(client, "shop.t")
    typed = int if change == "modify column" else str
    if change != "drop index":
        assert [one["id"] for one in table.find("by_v", typed("1001"))] == [100]
    if change.startswith("add"):
        assert [one["id"] for one in table.find("added", "1001")] == [100]


@pytest.mark.parametrize("step", range(5))
def test_a_row_of_a_transaction_from_before_a_step_is_not_committed_after_it(
    db: Catalog, client: Client, step: int
) -> None:
    table = create(db)
    table.insert([row(1)])
    online = add_index(client, "shop.t", ADD_PLAIN)
    for _ in range(step):
        online.advance()
    late, unguarded = db.begin(), client.begin()
    table.insert([row(2)], txn=late)
    table.insert([row(3)], txn=unguarded)
    online.advance()
    if step == 3:  # only the backfill lies between, which changes no state
        late.commit()
        unguarded.commit()
    else:
        for txn in (late, unguarded):
            with pytest.raises(Conflict, match="run the transaction again"):
                txn.commit()
    table.insert([row(4)])
    online.finish()
    assert_entries_agree(client, "shop.t")


def test_what_does_not_touch_rows_does_not_end_transactions(db: Catalog, client: Client) -> None:
    table = create(db)
    with db.begin() as txn:
        table.insert([row(1)], txn=txn)
        db.add_column("shop.t", "later", "int not null default 3", after="id")
    assert table.get(1) == {**row(1), "later": 3}
    late = db.begin()
    table.update([{"id": 1, "n": 5}], txn=late)
    db.drop_column("shop.t", "w")
    with pytest.raises(Conflict, match="run the transaction again"):
        late.commit()
    assert_entries_agree(client, "shop.t")


def test_an_entry_of_another_row_in_a_new_unique_index_stays(db: Catalog, client: Client) -> None:
    db.create_table("shop.t", COLUMNS, primary_key=["id"])
    table = db.table("shop.t")
    table.insert([row(9, text=5)])
    online = add_index(client, "shop.t", ADD_UNIQUE)
    for _ in range(3):
        online.advance()
    table.insert([row(2, text=5)])
    table.update([row(9, text=6)])
    table.delete([9])
    index = online.table.index("added")
    wanted = entry(online.table, index, to_record(online.table, row(2, text=5), start_ts=0), 2)
    found = client.snapshot(client.timestamp()).get(wanted.key)
    assert found is not None
    assert handle_in(index, wanted.key, found) == 2
    online.finish()
    assert_entries_agree(client, "shop.t")


@pytest.mark.parametrize("kind", KINDS)
def test_unique_values_that_move_while_an_index_is_filled_aside_stay_unique(
    db: Catalog, client: Client, kind: str
) -> None:
    key, clustered = KINDS[kind]
    db.create_table("shop.t", COLUMNS, primary_key=key, clustered=clustered)
    table = db.table("shop.t")
    table.insert([row(number) for number in range(9)])
    online, number = add_index_aside(client, "shop.t", ADD_UNIQUE), 100
    while not online.done:
        online.advance()
        if len(online.steps) <= 6:  # the rows of before have their entries
            with pytest.raises(DuplicateRow, match="unique index added"):
                table.insert([row(number, text=80)])
            with pytest.raises(DuplicateRow, match="unique index added"):
                table.update([{**row(7), "v": "80"}])
            late = db.begin()
            table.insert([row(number, text=80)], txn=late)
            with pytest.raises(KeyExists):
                late.commit()
            with pytest.raises(KeyExists):
                table.insert([row(number, text=1), row(number + 1, text=1)])
        first, second = table.get(key_of(1, kind)), table.get(key_of(2, kind))
        table.update([{**first, "v": second["v"]}, {**second, "v": first["v"]}])
        table.delete([key_of(3, kind)])
        table.insert([row(number, text=30)])
        table.delete([key_of(number, kind)])
        table.insert([{**row(3), "w": number}])
        table.insert([row(number * 100 + each) for each in range(40)])
        table.upsert([{**row(4), "v": f"upserted {number}"}, row(number + 1)])
        with db.begin() as txn:
            table.update([{**row(5), "v": "passing"}], txn=txn)
            table.update([{**row(6), "v": "50"}], txn=txn)
            table.update([{**row(6), "v": "60"}, {**row(5), "v": "50"}], txn=txn)
        number += 10
    assert_entries_agree(client, "shop.t")
    assert [one["id"] for one in table.find("added", "30")] == [3]


def test_an_index_that_is_not_public_answers_no_reads(db: Catalog, client: Client) -> None:
    table = create(db)
    table.insert([row(1)])
    online = add_index(client, "shop.t", ADD_PLAIN)
    online.advance()
    with pytest.raises(Invalid, match=r"index added of shop\.t is being added"):
        table.find("added", "10")


def test_values_that_a_changing_column_cannot_take_are_refused(db: Catalog, client: Client) -> None:
    table = create(db)
    online = modify_column(client, "shop.t", "v", "bigint not null")
    online.advance()
    table.insert([{**row(1), "v": "11"}])
    online.advance()
    for bad in ("secret", None):
        with pytest.raises(Invalid, match=r"column v is be\w+") as refused:
            table.insert([{**row(2), "v": bad}])
        assert "secret" not in str(refused.value)
    online.finish()
    assert table.get(1) == {**row(1), "v": 11}
    assert_entries_agree(client, "shop.t")


def test_a_column_on_its_way_to_not_null_refuses_null(db: Catalog, client: Client) -> None:
    table = create(db)

    def prevent(info):
        flag = info.columns[2].type.flag | ColumnFlag.PREVENT_NULL_INSERT
        column = replace(info.columns[2], type=replace(info.columns[2].type, flag=flag))
        return replace(info, columns=(*info.columns[:2], column, *info.columns[3:]))

    OnlineChange(client, "shop.t", []).describe(prevent)
    with pytest.raises(Invalid, match="column n is becoming NOT NULL"):
        table.insert([{**row(1), "n": None}])
    db.create_table("shop.plain", COLUMNS, primary_key=["id"])
    OnlineChange(client, "shop.plain", []).describe(prevent)
    in_bulk = pa.table({"id": [1], "v": ["x"], "n": pa.array([None], pa.int32()), "w": [1]})
    with pytest.raises(Invalid, match="column n is becoming NOT NULL"):
        db.table("shop.plain").insert(in_bulk)


def test_columns_that_come_or_go_keep_their_values(db: Catalog, client: Client) -> None:
    table = create(db)
    table.insert([row(1)])

    def set_state(state: SchemaState) -> Callable[[Any], Any]:
        return lambda info: replace(
            info,
            columns=(*info.columns[:3], replace(info.columns[3], state=state, origin_default="7")),
        )

    online = OnlineChange(client, "shop.t", [])
    online.describe(set_state(SchemaState.WRITE_ONLY))
    table.insert([{"id": 2, "v": "2", "n": 2}])
    table.update([{"id": 1, "v": "x"}])
    online.describe(set_state(SchemaState.PUBLIC))
    assert [one["w"] for one in table.to_arrow().to_pylist()] == [1, 7]
    online.describe(set_state(SchemaState.DELETE_ONLY))
    table.update([{"id": 1, "v": "y"}])
    online.describe(set_state(SchemaState.PUBLIC))
    assert [one["w"] for one in table.to_arrow().to_pylist()] == [7, 7]


class Writers:
    """Transactions that are open at once, and the rows that they will have left when all have ended."""

    def __init__(self, db: Catalog, table: Table, chance: np.random.Generator) -> None:
        self.db, self.table, self.chance = db, table, chance
        self.rows: dict[int, Any] = {}
        self.open: list[tuple[Transaction, dict[int, Any]]] = []
        self.committed = self.refused = 0

    def begin(self) -> None:
        self.open.append((self.db.begin(pessimistic=bool(self.chance.integers(4) == 0)), {}))

    def write(self) -> None:
        if not self.open:
            return
        txn, effects = self.open[int(self.chance.integers(len(self.open)))]
        number = int(self.chance.integers(12))
        changed = {"id": number, "v": str(number * 10 + int(self.chance.integers(3))), "n": number % 3}
        action = self.chance.choice(["upsert", "update", "delete"])
        try:
            if action == "delete":
                written = self.table.delete([number], txn=txn)
            elif action == "update":
                written = self.table.update([changed], txn=txn)
            else:
                written = len(self.table.upsert([changed], txn=txn))
        except Conflict:
            self._end(txn, effects)
            return
        found = self.table.get(number, txn=txn)
        if written:
            effects[number] = found and int(found["v"])

    def commit(self) -> None:
        if self.open:
            self._end(*self.open[int(self.chance.integers(len(self.open)))])

    def _end(self, txn: Transaction, effects: dict[int, Any]) -> None:
        self.open = [one for one in self.open if one[0] is not txn]
        try:
            txn.commit()
        except (Conflict, KeyExists):
            self.refused += 1
            return
        self.committed += 1
        for number, value in effects.items():
            self.rows[number] = value

    def check(self) -> None:
        found = {one["id"]: int(one["v"]) for one in self.table.to_arrow().to_pylist()}
        assert found == {number: value for number, value in self.rows.items() if value is not None}


@pytest.mark.parametrize("seed", seeds(3, 20))
@pytest.mark.parametrize("change", CHANGES)
def test_any_interleaving_of_writers_and_states_leaves_rows_and_entries_that_agree(
    db: Catalog, client: Client, change: str, seed: int
) -> None:
    chance = np.random.default_rng(seed)
    table = create(db)
    writers, online = Writers(db, table, chance), CHANGES[change](client, "shop.t")
    for _ in range(60):
        act = chance.choice(["begin", "write", "commit", "advance"], p=[0.2, 0.5, 0.2, 0.1])
        if act != "advance":
            getattr(writers, act)()
        elif not online.done and not any(txn._txn.pessimistic for txn, _ in writers.open):
            online.advance()  # its backfill would wait for locks that only this thread can release
    while writers.open:
        writers.commit()
    online.finish()
    writers.check()
    assert_entries_agree(client, "shop.t")
    assert writers.committed
