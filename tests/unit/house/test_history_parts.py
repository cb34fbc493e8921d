"""What tests compare of a record of TiDB follows from the record: it may have any number of points."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.tables.codec.rows import encode, int_cell
from penstock.tables.columns import SchemaState
from penstock.tables.define import define_table
from penstock.tables.keys import meta_hash_key, record_key
from support.tidb_history import Part, PointTable, load_record, part_behind


@pytest.mark.parametrize("points", range(1, 12))
@pytest.mark.parametrize("share", [0.0, 1 / 3, 0.5, 2 / 3])
def test_a_part_begins_at_a_point_and_reaches_the_end(points: int, share: float) -> None:
    part = part_behind(points, share)
    assert 1 <= part.start <= points
    assert part.first == part.start - 1, "the point that it begins at is not compared"
    assert part.last == points


def test_every_point_is_compared_of_what_begins_with_the_first() -> None:
    assert part_behind(1, 0.0) == part_behind(1, 2 / 3) == Part(1, 0, 1)
    assert part_behind(9, 0.0) == Part(1, 0, 9)


def test_texts_of_a_definition_say_nothing_of_the_column() -> None:
    lines = [
        "CREATE TABLE `t` (",
        "  `a` int(11) DEFAULT NULL COMMENT 'GENERATED ALWAYS AS it''s VIRTUAL \\' NOT NULL\x85',",
        "  `v` int(11) GENERATED ALWAYS AS (`a` + 1) VIRTUAL,",
        "  `s` date GENERATED ALWAYS AS ('2024-01-01') STORED NOT NULL",
        ") ENGINE=InnoDB",
    ]
    table = PointTable("d.t", ("a", "v", "s"), ("int", "int", "date"), "\n".join(lines), ())
    assert table.virtual_columns == {"v"}
    assert table.not_null_columns == {"s"}


ROW = record_key(70, 1)
HIDDEN = {1: int_cell(1), 2: int_cell(5), 3: b"x", 4: b"hidden"}


@pytest.mark.parametrize(
    ("after", "is_backfill"),
    [
        (HIDDEN, True),
        (HIDDEN | {5: None}, True),
        (HIDDEN | {5: int_cell(7)}, True),
        (HIDDEN | {5: int_cell(8)}, False),
        (HIDDEN | {3: b"y"}, False),
        ({2: int_cell(5), 3: b"x", 5: int_cell(7)}, False),
    ],
)
def test_only_what_a_backfill_writes_counts_as_one(
    tmp_path: Path, after: dict[int, bytes | None], *, is_backfill: bool
) -> None:
    """Beside MODIFY COLUMN another session may give a value to a column that was added since."""
    columns = [("id", "int primary key"), ("a", "int"), ("b", "varchar(9)"), ("h", "blob"), ("c", "int")]
    table = define_table("t", columns)
    hidden = replace(table.columns[3], state=SchemaState.WRITE_REORG)
    added = replace(table.columns[4], origin_default=7)
    described = replace(table, id=70, columns=(*table.columns[:3], hidden, added)).to_json()
    meta = meta_hash_key(b"DB:1", b"Table:70"), json.dumps(described, separators=(",", ":")).encode()
    written = [meta, (ROW, encode({2: int_cell(5), 3: b"x"})), (ROW, encode(after))]
    with gzip.open(tmp_path / "txns.jsonl.gz", "wt") as lines:
        for ts, (key, value) in enumerate(written, 1):
            mutation = {"op": "put", "key": key.hex(), "value": value.hex()}
            txn = {"start_ts": ts, "commit_ts": ts, "stmt": 1, "muts": [mutation]}
            print(json.dumps(txn), file=lines)
    with gzip.open(tmp_path / "statements.jsonl.gz", "wt") as lines:
        print(json.dumps({"n": 1, "sql": "ALTER TABLE d.t MODIFY COLUMN b BLOB"}), file=lines)
    with gzip.open(tmp_path / "points.jsonl.gz", "wt") as lines:
        print(json.dumps({"name": "end", "ts": 9, "tables": {}}), file=lines)
    assert bool(load_record(str(tmp_path)).txns[-1].source) is is_backfill
