"""Random changes of tables of every kind, against a dict; indexes are compared entry by entry."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import KeyExists
from penstock.kv import Client
from penstock.tables import Catalog, DuplicateRow, Index, Table
from penstock.tables.indexes import entry, handle_in, written_indexes
from penstock.tables.keys import decode_record_key, index_prefix, prefix_end, record_range
from penstock.tables.records import read_record
from support.warmstore import WarmStore

STEPS = 120
COLUMNS = [("a", "varchar(6)"), ("b", "int"), ("email", "varchar(6)"), ("n", "int")]
KINDS = {"int": (["b"], True), "common": (["a", "b"], True), "implicit": (["a"], False)}
INDEXES = [Index("by_email", ["email"], unique=True), Index("by_n", ["n", "email(2)"])]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    data: Path = tmp_path_factory.mktemp("model") / "store"
    with WarmStore.start(data, stores=1) as store, Client.connect([store.pd_addr]) as connected:
        yield connected


class Model:
    """Rows by primary key, as a person would say it: strings without their trailing spaces."""

    def __init__(self, key: list[str]) -> None:
        self.key = key
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}

    def key_of(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(fold(row[name]) for name in self.key)

    def fits(self, row: dict[str, Any], *, instead: tuple[Any, ...] | None) -> bool:
        email = fold(row["email"])
        others = (other for key, other in self.rows.items() if key != instead)
        return email is None or all(fold(other["email"]) != email for other in others)


def fold(value: Any) -> Any:
    return value.rstrip(" ") if isinstance(value, str) else value


def random_row(chance: np.random.Generator) -> dict[str, Any]:
    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.25 else value

    def text() -> str:
        return "".join(chance.choice(list("xy "), 2)).lstrip()

    return {
        "a": text(),
        "b": int(chance.integers(4)),
        "email": maybe(text()),
        "n": maybe(int(chance.integers(3))),
    }


def key_argument(model: Model, row: dict[str, Any]) -> Any:
    values = tuple(row[name] for name in model.key)
    return values[0] if len(values) == 1 else values


def step(table: Table, model: Model, chance: np.random.Generator) -> str:
    row = random_row(chance)
    key = model.key_of(row)
    action = str(chance.choice(["insert", "update", "delete", "upsert"]))
    if action == "insert":
        fresh = key not in model.rows and model.fits(row, instead=None)
        accept(fresh, lambda: table.insert([row]), lambda: model.rows.update({key: row}))
    elif action == "upsert":
        accept(
            model.fits(row, instead=key), lambda: table.upsert([row]), lambda: model.rows.update({key: row})
        )
    elif action == "update":
        changed = {**model.rows.get(key, row), "email": row["email"], "n": row["n"]}
        known = key in model.rows
        given = {**{name: row[name] for name in model.key}, "email": row["email"], "n": row["n"]}
        fine = not known or model.fits(changed, instead=key)
        accept(
            fine, lambda: table.update([given]), lambda: model.rows.update({key: changed} if known else {})
        )
    else:
        assert table.delete([key_argument(model, row)]) == (model.rows.pop(key, None) is not None)
    return action


def accept(fine: bool, change: Any, record: Any) -> None:
    if fine:
        change()
        record()
    else:
        with pytest.raises(DuplicateRow):
            change()


def check_indexes(client: Client, table: Table) -> None:
    info = table.info
    snapshot = client.snapshot(client.timestamp())
    stored = list(snapshot.iter(*record_range(info.id)))
    for index in written_indexes(info):
        expected = {}
        for key, value in stored:
            made = entry(info, index, read_record(info, key, value), decode_record_key(key)[1])
            expected[made.key] = made.value
        prefix = index_prefix(info.id, index.id)
        assert dict(snapshot.iter(prefix, prefix_end(prefix))) == expected
        handles = {handle_in(index, key, value) for key, value in expected.items()}
        assert handles == {decode_record_key(key)[1] for key, _ in stored}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_table_is_a_dict_with_indexes(client: Client, kind: str, seed: int) -> None:
    key, clustered = KINDS[kind]
    db = Catalog(client)
    name = f"{kind}_{seed}"
    db.create_database(name)
    db.create_table(f"{name}.t", COLUMNS, primary_key=key, indexes=INDEXES, clustered=clustered)
    table, model = db.table(f"{name}.t"), Model(key)
    chance = np.random.default_rng(seed)
    seen = {step(table, model, chance) for _ in range(STEPS)}
    assert seen == {"insert", "update", "delete", "upsert"}
    found = {model.key_of(row): row for row in table.to_arrow().to_pylist()}
    assert found.keys() == model.rows.keys()
    for row_key, row in model.rows.items():
        assert {name: found[row_key][name] for name in ("email", "n")} == {
            name: row[name] for name in ("email", "n")
        }
    check_indexes(client, table)


def test_key_exists_is_what_a_duplicate_is() -> None:
    assert issubclass(DuplicateRow, KeyExists)
