"""Batches of a handle as pieces: kept while they may be crossed, and in the schema of the end."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.changes import ChangeBatch, Hint
from penstock.changes.columns import list_read_columns
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import COMMIT_TS
from penstock.jobs.error_codes import SchemaRefused
from penstock.jobs.iteration.ordering import BatchProjection, ConsumerBatch, iter_in_order, merge_sides
from penstock.tables.columns import ColumnInfo
from penstock.tables.define import define_table
from penstock.tables.schema import TableInfo

TABLE = define_table("items", [("id", "bigint primary key"), ("name", "varchar(9)")])
NOW = SchemaVersion(0, 1, TABLE, "shop")
INSERTS = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), pa.field(COMMIT_TS, pa.int64(), nullable=False)]
)
DELETES = pa.schema([("id", pa.int64()), pa.field(COMMIT_TS, pa.int64(), nullable=False)])


def _batch(
    inserts: list[tuple[int, int]], deletes: list[tuple[int, int]], hint: Hint, schema: SchemaVersion = NOW
) -> ChangeBatch:
    """Rows by (commit_ts, id)."""
    data = [{"id": number, "name": f"{number}@{ts}", COMMIT_TS: ts} for ts, number in inserts]
    ends = [{"id": number, COMMIT_TS: ts} for ts, number in deletes]
    return ChangeBatch(
        pa.RecordBatch.from_pylist(data, INSERTS), pa.RecordBatch.from_pylist(ends, DELETES), hint, schema, 0
    )


def _steps(piece: ConsumerBatch) -> list[tuple[int, int, int]]:
    """Changes of a piece as they take effect: (commit_ts, 0 for a delete, id)."""
    ends = [(row[COMMIT_TS], 0, row["id"]) for row in piece.deletes.to_pylist()]
    begins = [(row[COMMIT_TS], 1, row["id"]) for row in piece.inserts.to_pylist()]
    return sorted(ends + begins, key=lambda step: step[:2])


def _all(batches: list[ChangeBatch], folder: Path, **options: int) -> list[ConsumerBatch]:
    return list(iter_in_order(batches, BatchProjection(NOW, ["id", "name"]), folder, **options))


def test_batches_that_are_closed_pass_as_they_are(tmp_path: Path) -> None:
    batches = [_batch([(1, 1)], [], Hint.TAIL_DONE), _batch([(2, 2)], [(2, 1)], Hint.TAIL_DONE)]
    assert [_steps(piece) for piece in _all(batches, tmp_path)] == [[(1, 1, 1)], [(2, 0, 1), (2, 1, 2)]]


def test_an_open_batch_is_applied_after_what_comes_before_it_in_time(tmp_path: Path) -> None:
    batches = [
        _batch([(5, 1), (9, 2)], [], Hint.TAIL_WIP),
        _batch([], [(3, 7), (9, 2)], Hint.TAIL_WIP),
        _batch([(4, 3)], [], Hint.TAIL_DONE),
        _batch([(11, 3)], [], Hint.TAIL_DONE),
    ]
    found = [step for piece in _all(batches, tmp_path, batch_rows=2) for step in _steps(piece)]
    assert found == [(3, 0, 7), (4, 1, 3), (5, 1, 1), (9, 0, 2), (9, 1, 2), (11, 1, 3)]


def test_the_pieces_of_one_large_commit_come_deletes_first(tmp_path: Path) -> None:
    batches = [
        _batch([], [(5, 1), (5, 2)], Hint.TAIL_WIP),
        _batch([], [(5, 3)], Hint.TAIL_WIP),
        _batch([(5, 1), (5, 2)], [], Hint.TAIL_WIP),
        _batch([(5, 3)], [], Hint.TAIL_DONE),
    ]
    pieces = _all(batches, tmp_path, batch_rows=2)
    assert [[step[1:] for step in _steps(piece)] for piece in pieces] == [
        [(0, 1), (0, 2)],
        [(0, 3)],
        [(1, 1), (1, 2)],
        [(1, 3)],
    ]


def test_what_is_kept_goes_to_disk_when_it_is_much_and_leaves_nothing_there(tmp_path: Path) -> None:
    many = [(5, number) for number in range(1000)]
    batches = [_batch([], many, Hint.TAIL_WIP), _batch(many, [], Hint.TAIL_DONE)]
    pieces = iter_in_order(batches, BatchProjection(NOW, ["id", "name"]), tmp_path / "kept", memory_bytes=100)
    first = next(pieces)
    assert (tmp_path / "kept").exists()
    assert sum(len(_steps(piece)) for piece in [first, *pieces]) == 2000
    assert not list((tmp_path / "kept").iterdir())


def test_a_reader_that_stops_early_leaves_nothing_on_disk(tmp_path: Path) -> None:
    def batches() -> Iterator[ChangeBatch]:
        yield _batch([(4, 1)], [], Hint.TAIL_DONE)
        yield _batch([(5, number) for number in range(1000)], [], Hint.TAIL_WIP)
        raise OSError("the source ended")

    pieces = iter_in_order(
        batches(), BatchProjection(NOW, ["id", "name"]), tmp_path / "kept", memory_bytes=100
    )
    next(pieces)
    with pytest.raises(OSError, match="the source ended"):
        next(pieces)
    assert not list((tmp_path / "kept").iterdir())


def test_merging_nothing_gives_nothing() -> None:
    assert list(merge_sides(INSERTS.empty_table(), DELETES.empty_table(), 5)) == []


def _with(table: TableInfo, *columns: tuple[str, str]) -> TableInfo:
    return define_table("items", [("id", "bigint primary key"), ("name", "varchar(9)"), *columns])


def test_rows_of_older_versions_come_in_the_columns_of_now() -> None:
    newer = _with(TABLE, ("price", "int default 7"))
    price = replace(newer.columns[2], origin_default=7)
    newer = replace(newer, columns=(*newer.columns[:2], price))
    projection = BatchProjection(SchemaVersion(9, 2, newer, "shop"), ["id", "price", "name"])
    piece = projection.project(_batch([(1, 1)], [(1, 2)], Hint.TAIL_DONE))
    assert piece.inserts.to_pylist() == [{"id": 1, "price": 7, "name": "1@1", COMMIT_TS: 1}]
    assert piece.inserts.schema == projection.inserts
    assert piece.deletes.to_pylist() == [{"id": 2, COMMIT_TS: 1}]


def test_a_renamed_column_is_read_by_its_old_name() -> None:
    renamed: list[ColumnInfo] = [TABLE.columns[0], replace(TABLE.columns[1], name="title")]
    now = SchemaVersion(9, 2, replace(TABLE, columns=tuple(renamed)), "shop")
    assert list_read_columns([NOW, now], now, ["id", "title"]) == {"id", "name", "title"}
    piece = BatchProjection(now, ["id", "title"]).project(_batch([(1, 1)], [], Hint.TAIL_DONE))
    assert piece.inserts.to_pylist() == [{"id": 1, "title": "1@1", COMMIT_TS: 1}]


def test_rows_with_another_key_are_refused() -> None:
    keyless = SchemaVersion(0, 5, define_table("items", [("id", "bigint"), ("name", "varchar(9)")]), "shop")
    with pytest.raises(SchemaRefused, match="primary key"):
        BatchProjection(NOW, ["id", "name"]).project(_batch([(1, 1)], [], Hint.TAIL_DONE, keyless))


def test_a_batch_without_rows_keeps_its_schema() -> None:
    nothing = BatchProjection(NOW, ["id", "name"]).nothing
    assert nothing.inserts.schema.names == ["id", "name", COMMIT_TS]
    assert nothing.deletes.schema.names == ["id", COMMIT_TS]
