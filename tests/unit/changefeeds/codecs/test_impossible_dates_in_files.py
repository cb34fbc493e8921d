"""Dates that no calendar has (0000-00-00, 2024-02-31) from a table's rows to files and readers of changes."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client import REGISTRY

from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.changefeeds.codecs.parquet import parquet_file
from penstock.changes import collect_changes
from penstock.eventstore.read.snapshot import plan_snapshot, read_snapshot
from penstock.eventstore.schema_version import Projection
from penstock.tables import impossible_dates
from penstock.tables.alter import add_column
from penstock.tables.define import define_table
from support.slices import encode_slice, slice_of
from support.tableworld import TableWorld

TABLE = define_table(
    "items",
    [
        ("id", "bigint primary key"),
        ("day", "date"),
        ("since", "date not null"),
        ("at", "datetime(3)"),
        ("seen", "timestamp null"),
    ],
)
HIDDEN = "penstock_changes_hidden_dates_total"
ZERO = {
    "id": 1,
    "day": "0000-00-00",
    "since": "2024-00-00",
    "at": "2024-02-31 10:00:00.500",
    "seen": "0000-00-00 00:00:00",
}
REAL = {"id": 1, "day": "2024-02-29", "since": "2024-03-01", "at": None, "seen": None}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TableWorld]:
    with TableWorld(tmp_path, TABLE) as made:
        yield made


def rest(world: TableWorld) -> None:
    world.resolve()


def merge(world: TableWorld) -> None:
    world.flush()
    world.store.merge(1)


def lines(world: TableWorld, from_ts: int, protocol: Any, **options: Any) -> list[bytes]:
    chosen = EncoderOptions(protocol=protocol, terminator="\n", **options)
    chunks = encode_slice(slice_of(world, from_ts, world.ts), chosen)
    return [line for chunk in chunks for line in chunk.payload.splitlines()]


@pytest.mark.parametrize("settle", [rest, TableWorld.flush, merge])
def test_canal_json_has_the_text_of_tidb(world: TableWorld, settle: Any) -> None:
    start = world.ts
    world.commit(ZERO)
    world.commit(REAL)
    world.commit(delete=[(1,)])
    settle(world)
    inserted, updated, deleted = (json.loads(line) for line in lines(world, start, "canal-json"))
    spelled = {**ZERO, "id": "1"}
    assert inserted["data"] == [spelled]
    assert updated["old"] == [spelled]
    assert deleted["data"][0]["day"] == "2024-02-29"


@pytest.mark.parametrize("settle", [rest, TableWorld.flush, merge])
def test_a_snapshot_has_the_text_of_tidb(world: TableWorld, settle: Any) -> None:
    world.commit(ZERO)
    settle(world)
    (line,) = lines(world, 0, "canal-json")
    assert json.loads(line)["data"] == [{**ZERO, "id": "1"}]


def test_csv_has_the_text_of_tidb(world: TableWorld) -> None:
    start = world.ts
    world.commit(ZERO)
    world.resolve()
    (line,) = lines(world, start, "csv")
    values = ",".join(f'"{value}"' for name, value in ZERO.items() if name != "id")
    assert line.decode().endswith(f",1,{values}")


@pytest.fixture
def named(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Lines that name columns with dates that no calendar has, as if the process had written none before."""
    monkeypatch.setattr(impossible_dates, "_named", set())
    caplog.set_level(logging.WARNING)
    return lambda: [text for text in caplog.messages if "no calendar has" in text]


def test_debezium_has_what_ticdc_writes(world: TableWorld, named: Callable[[], list[str]]) -> None:
    start = world.ts
    world.commit(ZERO)
    world.resolve()
    (line,) = lines(world, start, "debezium")
    after = json.loads(line)["after"]
    assert after == {"id": 1, "day": None, "since": 0, "at": None, "seen": "1970-01-01T00:00:00Z"}
    lines(world, start, "debezium")
    assert [(line.split(" of ")[0], line.rsplit(" ", 1)[1]) for line in sorted(named())] == [
        ("column at", "NULL"),
        ("column day", "NULL"),
        ("column seen", "1970-01-01"),
        ("column since", "1970-01-01"),
    ]


def test_parquet_has_null(world: TableWorld, named: Callable[[], list[str]]) -> None:
    start = world.ts
    world.commit(ZERO)
    world.resolve()
    chunks = encode_slice(slice_of(world, start, world.ts), EncoderOptions(protocol="parquet"))
    file = parquet_file([chunk.payload for chunk in chunks], {})
    (row,) = pq.read_table(io.BytesIO(file)).to_pylist()
    assert [row[name] for name in TABLE_NAMES] == [1, None, None, None, None]
    assert len(named()) == 4


TABLE_NAMES = [column.name for column in TABLE.columns]


def test_a_row_filter_takes_them_for_null(world: TableWorld) -> None:
    start = world.ts
    world.commit(ZERO)
    world.commit({**REAL, "id": 2})
    world.resolve()
    assert len(lines(world, start, "canal-json", where="day > '2000-01-01'")) == 1
    assert len(lines(world, start, "canal-json", where="day IS NULL")) == 1


def test_readers_of_changes_get_null_and_the_log_names_the_column(
    world: TableWorld, named: Callable[[], list[str]]
) -> None:
    start = world.ts
    world.commit(ZERO)
    world.commit(REAL)
    world.flush()
    counted = REGISTRY.get_sample_value(HIDDEN)
    with collect_changes(world.view(), start, world.ts, coalesce=False, old_rows=True) as changes:
        (batch,) = (each for each in changes if each.data.num_rows)
    first = batch.data.to_pylist()[0]
    assert [first[name] for name in TABLE_NAMES] == [1, None, None, None, None]
    assert batch.tombstones.to_pylist()[0]["_old"]["since"] is None
    assert REGISTRY.get_sample_value(HIDDEN) == (counted or 0) + 1
    assert [line.split(" of ")[0] for line in named()] == [
        "column at",
        "column day",
        "column seen",
        "column since",
    ]
    assert not any("2024" in line for line in named())


def test_a_column_that_was_added_reads_as_the_zero_date(world: TableWorld) -> None:
    world.commit(ZERO)
    world.flush()
    before = world.versions.table
    world.alter(add_column(before, "due", "date not null"))
    world.resolve()
    (line,) = lines(world, 0, "canal-json")
    assert json.loads(line)["data"][0]["due"] == "0000-00-00"
    with collect_changes(world.view(), 0, world.ts) as changes:
        assert [row["due"] for batch in changes for row in batch.data.to_pylist()] == [None]
    older = pa.RecordBatch.from_pylist([{"id": 1}], pa.schema([("id", pa.int64())]))
    assert Projection(before, world.versions.table, ["id", "due"]).apply(older).to_pylist() == [
        {"id": 1, "due": None}
    ]


def test_a_snapshot_of_the_event_store_has_null(world: TableWorld, named: Callable[[], list[str]]) -> None:
    world.commit(ZERO)
    world.flush()
    (row,) = (row for batch in read_snapshot(world.view(), world.ts) for row in batch.to_pylist())
    assert [row[name] for name in TABLE_NAMES] == [1, None, None, None, None]
    (part,) = plan_snapshot(world.view(), world.ts, columns=TABLE_NAMES)
    (batch,) = part.read()
    assert batch.to_pylist() == [dict.fromkeys(TABLE_NAMES) | {"id": 1}]
    assert len(named()) == 4
