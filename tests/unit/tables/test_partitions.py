"""The partition of a row: as TiDB chose it for the rows of its record, and for each way to divide a table."""

from collections import Counter
from datetime import date
from typing import Any

import pytest

from penstock.errors import Invalid, Unavailable
from penstock.tables import PartitionBy, define_table
from penstock.tables.keys import META_PREFIX, decode_meta_key, decode_record_key, is_record_key
from penstock.tables.meta import parse_json
from penstock.tables.online import check_writable
from penstock.tables.partitions import Partitions
from penstock.tables.records import Record, read_record, to_record
from penstock.tables.schema import TableInfo
from support.tidb_history import is_golden, load_record

LIMITS = (
    "not one that Penstock evaluates",
    "of a type that Penstock does not take",
    "has a date that no calendar has",
)
UNKNOWN = TableInfo(id=0, name="", columns=())
COLUMNS = [("id", "bigint"), ("name", "varchar(9)"), ("day", "date"), ("at", "datetime"), ("ts", "timestamp")]


def test_every_row_that_tidb_wrote_is_in_the_partition_that_we_find() -> None:
    tables: dict[int, TableInfo] = {}
    seen: Counter[str] = Counter()
    for txn in load_record().txns:
        for mutation in txn.mutations:
            if mutation.key.startswith(META_PREFIX) and mutation.value:
                field = decode_meta_key(mutation.key).field or b""
                if field.startswith(b"Table:"):
                    table = TableInfo.from_json(parse_json(mutation.value))
                    tables = {number: one for number, one in tables.items() if one.id != table.id}
                    tables.update(dict.fromkeys(table.physical_ids, table))
        for mutation in txn.mutations:
            if not is_record_key(mutation.key) or not mutation.value:
                continue
            physical_id, _ = decode_record_key(mutation.key)
            table = tables.get(physical_id, UNKNOWN)
            if table.physical_ids != (table.id,) and not table.unreadable:
                found = _locate(table, read_record(table, mutation.key, mutation.value))
                assert found in {physical_id, None}, table.name
                seen[table.name] += found is not None
    if is_golden():
        assert {"prange", "phash", "plist", "pkey", "prcol", "gidx", "topart"} <= set(seen)


def _locate(table: TableInfo, record: Record) -> int | None:
    """Return the partition of a row; None where only TiDB computes it: it alone writes such a row."""
    try:
        return Partitions(table).locate(record)
    except Invalid as error:
        if not any(limit in str(error) for limit in LIMITS):
            raise
        return None


def located(by: PartitionBy, **row: Any) -> int:
    table = define_table("t", COLUMNS, partition_by=by)
    partition = table.extra["partition"]
    for number, part in enumerate(partition["definitions"]):
        part["id"] = number
    return Partitions(table).locate(to_record(table, row, start_ts=0))


RANGE = PartitionBy.range("id", {"low": 10, "middle": 20, "rest": None})
CASES: list[tuple[PartitionBy, dict[str, Any], int]] = [
    (RANGE, {"id": -5}, 0),
    (RANGE, {"id": 10}, 1),
    (RANGE, {"id": 20}, 2),
    (RANGE, {"id": None}, 0),
    (PartitionBy.range("year(day)", {"a": 2024, "b": 2025}), {"day": date(2024, 12, 31)}, 1),
    (PartitionBy.range("TO_DAYS(`at`)", {"a": 739251, "b": None}), {"at": "2023-12-31 23:59:59"}, 0),
    (PartitionBy.range("TO_DAYS(`at`)", {"a": 739251, "b": None}), {"at": "2024-01-01 00:00:00"}, 1),
    (PartitionBy.range("year(day)", {"a": 1, "b": None}), {"day": "0000-00-00"}, 0),
    (PartitionBy.hash("day(day)", 40), {"day": "2024-02-31"}, 31),
    (PartitionBy.range("UNIX_TIMESTAMP(ts)", {"a": 1704067200, "b": None}), {"ts": "2023-12-31 23:59:59"}, 0),
    (PartitionBy.range("UNIX_TIMESTAMP(ts)", {"a": 1704067200, "b": None}), {"ts": "2024-01-01 00:00:00"}, 1),
    (PartitionBy.range("UNIX_TIMESTAMP(ts)", {"a": 1, "b": None}), {"ts": "0000-00-00 00:00:00"}, 0),
    (PartitionBy.range(["day"], {"a": date(2024, 1, 1), "b": "2025-01-01"}), {"day": date(2024, 1, 1)}, 1),
    (PartitionBy.range(["name", "id"], {"a": ("m", 5), "b": (None, None)}), {"name": "m", "id": 4}, 0),
    (PartitionBy.range(["name", "id"], {"a": ("m", 5), "b": (None, None)}), {"name": "m", "id": 5}, 1),
    (PartitionBy.range(["name", "id"], {"a": ("m", None), "b": None}), {"name": "m", "id": 999}, 0),
    (PartitionBy.list("id", {"odd": [1, 3], "even": [2, None]}), {"id": None}, 1),
    (PartitionBy.list(["name"], {"a": ["x", "it's"], "b": [None]}), {"name": "it's "}, 0),
    (PartitionBy.list(["name"], {"a": ["x", "it's"], "b": [None]}), {"name": None}, 1),
    (PartitionBy.hash("id", 4), {"id": -7}, 3),
    (PartitionBy.hash("id", 4), {"id": None}, 0),
    (PartitionBy.hash("month(day)", 5), {"day": date(2024, 7, 1)}, 2),
    (PartitionBy.key(["id"], 1), {"id": 3}, 0),
]


@pytest.mark.parametrize(("by", "row", "place"), CASES)
def test_a_row_belongs_to_one_partition(by: PartitionBy, row: dict[str, Any], place: int) -> None:
    assert located(by, **row) == place


def test_a_table_whose_partitions_are_being_removed_is_read_and_written_later() -> None:
    table = define_table("t", COLUMNS, primary_key=["id"], partition_by=PartitionBy.hash("id", 1))
    tree = table.extra["partition"]
    tree |= {"type": 0, "expr": "", "columns": None, "ddl_state": 4, "ddl_action": 72}
    tree["definitions"][0]["id"] = 77
    assert Partitions(table).locate(to_record(table, {"id": 5}, start_ts=0)) == 77
    with pytest.raises(Unavailable, match="wait until the change is finished"):
        check_writable("d.t", table)


def test_a_row_that_no_partition_takes_is_refused() -> None:
    for by, row in (
        (PartitionBy.range("id", {"low": 10}), {"id": 10}),
        (PartitionBy.list(["name"], {"a": ["x"]}), {"name": "y"}),
    ):
        with pytest.raises(Invalid, match="no partition of t takes a row"):
            located(by, **row)


def test_mistakes_in_partitions_are_named() -> None:
    mistakes = {
        "not one that Penstock evaluates": PartitionBy.hash("id * 2", 4),
        "expression name": PartitionBy.hash("name", 4),
        "must ascend": PartitionBy.range("id", {"a": 20, "b": 10}),
        "have one value": PartitionBy.list("id", {"a": [1], "b": [1]}),
        "two partitions of one name": PartitionBy.range("id", {"a": 1, "A": 2}),
        "needs 1 to 8192 partitions": PartitionBy.hash("id", 0),
        "no column 'nope'": PartitionBy.key(["nope"], 2),
        "neither a whole number": PartitionBy.range("id", {"a": 1.5}),
    }
    for message, by in mistakes.items():
        with pytest.raises(Invalid, match=message):
            define_table("t", COLUMNS, partition_by=by)
    with pytest.raises(Invalid, match="the primary key of t must have column name"):
        define_table("t", COLUMNS, primary_key=["id"], partition_by=PartitionBy.key(["name"], 2))
