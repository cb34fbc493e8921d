"""Reads with filters answer what the same reads answer without, filtered row by row as SQL does.

The readers are those that Spark runs, in the process of the test. A failure prints the table, the read and
its filters. PENSTOCK_EXAMPLES=20000 looks longer.
"""

import pickle
import random  # noqa: TID251 - seeded
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as given_data
from hypothesis import note, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from penstock.clock import physical_ms
from penstock.eventstore.objects import object_file
from penstock.spark.filters import ReadFilter
from penstock.spark.source import PenstockDataSource
from penstock.tables.alter import add_column, drop_column, rename_column, widen_column
from penstock.tables.define import define_table
from penstock.tables.schema import ROWID_COLUMN
from support.campaign import examples
from support.servedworld import ServedWorld
from support.tableworld import START

Rows = list[dict[str, Any]]

COLUMNS = [
    ("small", "tinyint"),
    ("big", "bigint unsigned"),
    ("real_", "double"),
    ("price", "decimal(12,2)"),
    ("wide", "decimal(60,10)"),
    ("day", "date"),
    ("at", "datetime(6)"),
    ("utc", "timestamp(3)"),
    ("text_", "varchar(20)"),
    ("raw", "varbinary(20)"),
    ("old", "int"),
]
KEYS: dict[str, list[tuple[str, str]]] = {
    "integer": [("id", "bigint")],
    "unsigned": [("id", "bigint unsigned")],
    "text": [("part", "varchar(8) collate utf8mb4_general_ci"), ("id", "int")],
    "no key": [("id", "bigint")],
}
ROW_GROUP_ROWS = 4


def make_row(kind: str, number: int) -> dict[str, Any]:
    """A row whose values repeat, jump and are missing, each column in its own way."""
    ident = number if kind != "unsigned" else (number if number % 2 else (1 << 64) - number - 1)
    row: dict[str, Any] = {
        "id": ident,
        "small": number % 5 - 2,
        "big": (1 << 63) + number - 20,
        "real_": [0.0, -0.0, number / 4, -1e300][number % 4],
        "price": Decimal(number * 7 % 31) / 4,
        "wide": Decimal(number) / 8,
        "day": "0000-00-00" if number % 7 == 3 else date(2026, 1, 1) + timedelta(days=number),
        "at": "2026-02-31 01:00:00" if number % 9 == 4 else datetime(2026, 3, 28) + timedelta(hours=number),
        "utc": datetime(2026, 3, 29, tzinfo=UTC) + timedelta(minutes=30 * number),
        "text_": ["", "a", "A", "é", "z\U0010ffff", f"t{number:02}"][number % 6],
        "raw": bytes([number % 4, 255]) * (number % 3),
        "old": number,
    }
    nullable = [name for name, _ in COLUMNS]
    if number % 3 == 0:
        row[nullable[number % len(nullable)]] = None
    if number % 11 == 0:
        row |= dict.fromkeys(nullable)
    if kind == "text":
        row["part"] = ["a", "A", "b ", "é"][number % 4]
    if kind == "no key":
        row[ROWID_COLUMN] = 1000 - number
    return row


@dataclass
class Filled:
    """A table with a history, and what every read of it answers without filters."""

    world: ServedWorld
    reads: dict[str, dict[str, str]]
    unpushed: dict[str, Rows] = field(default_factory=dict)

    def source(self, read: str) -> PenstockDataSource:
        return PenstockDataSource(self.world.options(**self.reads[read]))


def fill(folder: Path, kind: str) -> Filled:
    """Rows in several objects, changed columns, merged tombstones, and rows that are not flushed."""
    names = [name for name, _ in KEYS[kind]] if kind != "no key" else []
    table = replace(define_table("items", [*KEYS[kind], *COLUMNS], primary_key=names), id=1)
    world = ServedWorld(folder, table)
    keys = {number: world.key(make_row(kind, number)) for number in range(40)}
    world.commit(*(make_row(kind, number) for number in range(1, 13)))
    world.commit(*(make_row(kind, number) for number in range(13, 20)))
    world.flush()
    world.commit(*({**make_row(kind, number), "small": 99} for number in (2, 5)), delete=[keys[3], keys[14]])
    middle = world.ts
    world.flush()
    world.alter(rename_column(world.versions.table, "small", "tiny"))
    world.alter(drop_column(world.versions.table, "old"))
    world.alter(add_column(world.versions.table, "added", "int default 7"))
    widened = widen_column(world.versions.table, "tiny", "int")
    assert widened is not None
    world.alter(widened)

    def later(number: int, **more: Any) -> dict[str, Any]:
        row = {name: value for name, value in make_row(kind, number).items() if name not in {"small", "old"}}
        return {**row, "tiny": 1000 + number, "added": None if number % 2 else number, **more}

    world.commit(*(later(number) for number in range(30, 38)), delete=[keys[6]])
    world.flush()
    world.commit(*(later(number) for number in (1, 31, 40, 41)), delete=[keys[7], keys[33]])
    world.tick()
    world.resolve()
    feed, columns = {"readChangeFeed": "true"}, world.columns(world.ts)
    reads = {
        "newest snapshot": {"columns": ",".join({**dict.fromkeys(columns), "_commit_ts": 0, "_handle": 0})},
        "old snapshot": {"versionAsOf": str(middle)},
        "changes": {**feed, "startingVersion": str(START + 1)},
        "changes of the middle": {**feed, "startingVersion": str(START + 3), "endingVersion": str(middle)},
        "changes since the table began": {**feed, "startingVersion": "0"},
    }
    return Filled(world, reads)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Filled]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_file, "ROW_GROUP_ROWS", ROW_GROUP_ROWS)
        patch.setattr(object_file, "TOMBSTONE_GROUP_ROWS", 2)
        tables = {kind: fill(tmp_path_factory.mktemp("world"), kind) for kind in KEYS}
        yield tables
    for table in tables.values():
        table.world.close()


def read(source: PenstockDataSource, filters: list[Any]) -> tuple[Rows, list[Any], int]:
    """Read as Spark does; return the rows, the filters that are left to others, and the number of parts."""
    schema = source.schema()
    reader = pickle.loads(pickle.dumps(source)).reader(schema)
    left: list[Any] = []
    if filters:
        reader._inner.filter, left = ReadFilter.of(filters, schema)
    arrived = pickle.loads(pickle.dumps(reader))
    parts = reader.partitions()
    rows = [row for part in parts for batch in arrived.read(part) for row in batch.to_pylist()]
    return rows, left, len(parts)


def passes(given: Any, row: dict[str, Any]) -> bool | None:
    """A filter on a row, in SQL's three values."""
    if isinstance(given, spark.Not):
        found = passes(given.child, row)
        return None if found is None else not found
    value = row[given.attribute[0]]
    kind = type(given).__name__
    if kind == "IsNull":
        return value is None
    if kind == "IsNotNull":
        return value is not None
    if kind == "EqualNullSafe":
        return bool(value == given.value)
    if value is None:
        return None
    if kind == "In":
        return True if value in given.value else (None if None in given.value else False)
    compare: dict[str, Callable[[Any, Any], bool]] = {
        "EqualTo": lambda a, b: a == b,
        "GreaterThan": lambda a, b: a > b,
        "GreaterThanOrEqual": lambda a, b: a >= b,
        "LessThan": lambda a, b: a < b,
        "LessThanOrEqual": lambda a, b: a <= b,
        "StringStartsWith": lambda a, b: a.startswith(b),
        "StringEndsWith": lambda a, b: a.endswith(b),
        "StringContains": lambda a, b: b in a,
    }
    return compare[kind](value, given.value)


ORDERS = [spark.EqualTo, spark.EqualNullSafe, spark.GreaterThan, spark.GreaterThanOrEqual]
ORDERS += [spark.LessThan, spark.LessThanOrEqual]
TEXTS = [spark.StringStartsWith, spark.StringEndsWith, spark.StringContains]


def near(value: Any) -> list[Any]:
    """Values beside one that a row has."""
    if isinstance(value, bool):
        return []
    if isinstance(value, int | Decimal):
        return [value + 1, value - 1, value + Decimal("0.5"), value + 10**19]
    if isinstance(value, datetime):
        return [value + timedelta(microseconds=1), value - timedelta(microseconds=1)]
    return [value[:1], value + value[:1]] if isinstance(value, str | bytes) else []


def filters_on(dice: random.Random, rows: Rows) -> list[Any]:
    """Return one to three filters with values that rows have, or values beside these."""
    found = []
    for _ in range(dice.randint(1, 3)):
        name = dice.choice(sorted(rows[0]))
        values = [row[name] for row in rows if row[name] is not None]
        values += [beside for value in values for beside in near(value)]
        kinds = [*ORDERS, spark.In, spark.IsNull, spark.IsNotNull]
        kinds += TEXTS if values and isinstance(values[0], str) else []
        kind = dice.choice(kinds if values else [spark.IsNull, spark.IsNotNull])
        if kind in {spark.IsNull, spark.IsNotNull}:
            made = kind((name,))
        elif kind is spark.In:
            nulls = dice.choice([(), (), (None,)])
            made = kind((name,), (*dice.choices(values, k=dice.randint(1, 4)), *nulls))
        else:
            made = kind((name,), dice.choice(values))
        found.append(spark.Not(made) if dice.randrange(5) == 0 else made)
    return found


@settings(max_examples=examples(60, 600), deadline=None)
@given_data(kind=st.sampled_from(sorted(KEYS)), which=st.integers(0, 4), seed=st.integers(0, 1 << 32))
def test_a_read_with_filters_answers_what_it_answers_without(
    filled: dict[str, Filled], kind: str, which: int, seed: int
):
    name = sorted(filled[kind].reads)[which]
    source = filled[kind].source(name)
    everything = filled[kind].unpushed.get(name) or read(source, [])[0]
    filled[kind].unpushed[name] = everything
    assert len(everything) > ROW_GROUP_ROWS
    filters = filters_on(random.Random(seed), everything)
    note(f"{name}: {filters}")
    found, left, _ = read(source, filters)
    expected = [row for row in everything if all(passes(given, row) for given in filters)]
    found = [row for row in found if all(passes(given, row) for given in left)]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def test_versions_times_and_types_of_changes_decide_what_is_planned(filled: dict[str, Filled]):
    table = filled["integer"]
    now = table.world.ts
    later = datetime.fromtimestamp((physical_ms(now) + 1) / 1000, UTC)
    for given in (
        spark.GreaterThan(("_commit_version",), now + 1),
        spark.LessThan(("_commit_version",), START - 5),
        spark.GreaterThanOrEqual(("_commit_timestamp",), later),
        spark.EqualTo(("_change_type",), "no such"),
    ):
        assert read(table.source("changes"), [given]) == ([], [], 0)
    both = [spark.GreaterThan(("id",), 5), spark.LessThan(("id",), 3)]
    for name in table.reads:
        assert read(table.source(name), both) == ([], [], 0)


def test_a_point_read_opens_no_object_without_the_key(tmp_path: Path):
    with ServedWorld(tmp_path, define_table("items", [("id", "bigint primary key"), ("n", "int")])) as world:
        for first in (0, 100, 200):
            world.commit(*({"id": number, "n": number} for number in range(first, first + 10)))
            world.flush()
        objects = sorted(world.manifest().objects.values(), key=lambda info: info.key_min)
        folder = tmp_path / "events"
        for info in (objects[0], objects[2]):
            next(folder.rglob(f"{info.id}*")).unlink()
        for options in ({}, {"readChangeFeed": "true", "startingVersion": str(START)}):
            source = PenstockDataSource(world.options(**options))
            rows, left, parts = read(source, [spark.In(("id",), (103, 104))])
            assert (sorted(row["n"] for row in rows), left, parts) == ([103, 104], [], 1)


def test_values_that_no_column_can_have_are_left_to_spark(filled: dict[str, Filled]):
    schema = filled["integer"].source("newest snapshot").schema()
    odd = [
        spark.EqualTo(("real_",), float("nan")),
        spark.In(("real_",), (0.0,)),
        spark.EqualTo(("tiny",), 1 << 40),
        spark.EqualTo(("tiny",), Decimal("7.5")),
        spark.In(("tiny",), (Decimal("1.5"), 2)),
        spark.EqualTo(("day",), 5),
        spark.EqualTo(("at",), datetime(2026, 1, 1, tzinfo=UTC)),
        spark.EqualTo(("utc",), datetime(2026, 1, 1)),
        spark.EqualTo(("day",), datetime(2026, 1, 1)),
        spark.EqualTo(("price",), Decimal("0.001")),
        spark.EqualTo(("no such",), 1),
        spark.EqualTo(("text_", "inside"), "a"),
        spark.EqualTo(("text_",), None),
    ]
    pushed, left = ReadFilter.of(odd, schema)
    assert (pushed.conditions, left) == ((), odd)
