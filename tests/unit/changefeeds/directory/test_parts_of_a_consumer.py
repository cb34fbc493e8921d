"""Renames, repetitions, state files, lines of JSON and steps of an ALTER, each by itself."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.changefeeds.codecs.decoded_changes import DecodedChanges, no_old
from penstock.changefeeds.directory.listing import old_name
from penstock.changefeeds.directory.progress import DirectoryProgress, FilePosition, StateFile
from penstock.changefeeds.directory.reader import Ddl, RepeatFilter, TableChanges
from penstock.changefeeds.directory.replay import AlterStep, alter_steps
from penstock.cli.consume import Printer
from penstock.errors import Corrupt, Invalid
from penstock.object_storage import StorageRef
from penstock.tables.arrow import arrow_schema
from penstock.tables.define import define_table
from support.everytype import EVERY_CELL, EVERY_TYPE

ITEMS = define_table("items", [("id", "bigint primary key"), ("note", "varchar(20)")])


@pytest.mark.parametrize(
    ("query", "old"),
    [
        ("RENAME TABLE `shop`.`orders` TO `shop`.`sold`", ("shop", "orders")),
        ("rename tables orders to sold", ("shop", "orders")),
        ("RENAME TABLE a TO b, other.x TO `shop`.`SOLD`, c TO d", ("other", "x")),
        ("ALTER TABLE orders RENAME TO sold", ("shop", "orders")),
        ("ALTER TABLE `old``db`.`or.ders` RENAME AS `shop`.`sold` ;", ("old`db", "or.ders")),
        ("ALTER TABLE orders RENAME sold", ("shop", "orders")),
        ("RENAME TABLE orders TO gone", None),
        ("ALTER TABLE orders RENAME COLUMN a TO b", None),
        ("TRUNCATE TABLE sold", None),
    ],
)
def test_a_statement_tells_what_a_table_was_called(query: str, old: tuple[str, str] | None) -> None:
    assert old_name(query, "shop", "sold") == old


def changes(*given: tuple[int | None, int], op: str = "I") -> DecodedChanges:
    rows = pa.RecordBatch.from_pylist([{"id": key, "note": "x"} for _, key in given], arrow_schema(ITEMS))
    stamps = pa.array([ts for ts, _ in given], pa.uint64())
    return DecodedChanges(pa.array([op] * len(given)), stamps, rows, no_old(rows))


def passed(repetition: RepeatFilter, *given: tuple[int | None, int], op: str = "I") -> list[int]:
    return list(repetition.drop_repeats(changes(*given, op=op)).rows.column("id").to_pylist())


def test_only_what_was_delivered_is_a_repetition() -> None:
    repetition = RepeatFilter(ITEMS, resolved_ts=100)
    assert passed(repetition, (90, 1), (100, 2), (101, 3), (110, 4)) == [3, 4]
    assert passed(repetition, (101, 3), (110, 4), (110, 5), (111, 4)) == [5, 4]
    assert passed(repetition, (111, 4), op="D") == [4]
    assert passed(repetition, (111, 4)) == []
    assert passed(repetition, (None, 4), (None, 4)) == [4, 4]


def test_identical_rows_of_a_table_without_a_key_are_no_repetition() -> None:
    keyless = define_table("items", [("id", "bigint"), ("note", "varchar(20)")])
    repetition = RepeatFilter(keyless, resolved_ts=100)
    assert passed(repetition, (110, 1), (110, 1)) == [1, 1]
    assert passed(repetition, (109, 1), (110, 1)) == [1]


def test_a_state_file_keeps_what_was_saved_last(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "state.json", StorageRef("s3://bucket/feed"))
    assert state.load() == DirectoryProgress()
    for rows in (1, 2):
        progress = DirectoryProgress(
            5, {"a/b": 3}, {"a/b": 4, "a": 1}, {"a/b/3/meta/CDC.index": FilePosition(7, rows)}
        )
        state.save(progress)
        assert state.load() == progress
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_a_state_file_that_is_none_or_anothers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    StateFile(path, StorageRef("s3://one")).save(DirectoryProgress())
    with pytest.raises(Invalid, match="is of s3://one"):
        StateFile(path, StorageRef("s3://two")).load()
    with pytest.raises(Invalid, match="is of s3://one/;"):  # a bucket of the same name elsewhere
        StateFile(path, StorageRef("s3://one", {"endpoint": "https://minio"})).load()
    path.write_text(
        json.dumps({"directory": "s3://one/", **DirectoryProgress().to_json()})
    )  # by an older release
    assert StateFile(path, StorageRef("s3://one")).load() == DirectoryProgress()
    for content in (b"{", b"[]", b"{}", b'{"format": 1, "directory": "s3://two"}'):
        path.write_bytes(content)
        with pytest.raises(Corrupt, match=r"state\.json"):
            StateFile(path, StorageRef("s3://two")).load()
    with pytest.raises(Invalid, match="cannot be written"):
        StateFile(tmp_path / "no" / "state", StorageRef("s3://two")).save(DirectoryProgress())
    with pytest.raises(Invalid, match="cannot be read"):
        StateFile(tmp_path, StorageRef("s3://two")).load()


def printed(delivery: Any) -> list[dict[str, Any]]:
    lines: list[str] = []
    Printer(lines.append).take(delivery)
    text = "".join(lines)
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def test_every_type_has_a_form_in_json() -> None:
    rows = pa.RecordBatch.from_pylist([EVERY_CELL, dict.fromkeys(EVERY_CELL)], arrow_schema(EVERY_TYPE))
    stamps = pa.array([7, None], pa.uint64())
    (first, second) = printed(
        TableChanges("shop", EVERY_TYPE, 1, DecodedChanges(pa.array(["I", "D"]), stamps, rows, no_old(rows)))
    )
    assert second == {"table": "shop.items", "op": "delete", "row": dict.fromkeys(EVERY_CELL)}
    assert first == {
        "table": "shop.items",
        "op": "insert",
        "commit_ts": 7,
        "row": {
            "id": -5,
            "tiny": -1,
            "big": 18446744073709551615,
            "single": 0.5,
            "real_": 0.25,
            "price": "12.50",
            "wide": "1.5000000000",
            "day": "2026-02-28",
            "at": "2026-02-28 01:02:03.000004",
            "utc": "2026-02-28 01:02:03.000",
            "span": "-01:00:00",
            "year_": 2026,
            "bits": 5,
            "text_": "ü",
            "raw": "AP8=",
            "doc": '{"a": 1}',
            "choice": "b",
        },
    }


def test_updates_show_the_row_before_them() -> None:
    rows = pa.RecordBatch.from_pylist([{"id": 1, "note": "new"}, {"id": 2, "note": "b"}], arrow_schema(ITEMS))
    old = pa.array([{"id": 1, "note": "old"}, None], pa.struct(list(rows.schema)))
    given = DecodedChanges(pa.array(["U", "I"]), pa.nulls(2, pa.uint64()), rows, old)
    first, second = printed(TableChanges("shop", ITEMS, 1, given))
    assert first["old"] == {"id": 1, "note": "old"}
    assert "old" not in second


def test_ddls_and_schemas_are_lines_of_their_own() -> None:
    assert printed(Ddl("shop", ITEMS, 100, 3, "CREATE TABLE items")) == [
        {
            "table": "shop.items",
            "op": "ddl",
            "type": 3,
            "query": "CREATE TABLE items",
            "version": 100,
            "columns": {"id": "bigint", "note": "varchar(20)"},
            "key": ["id"],
        }
    ]
    assert printed(Ddl("shop", ITEMS, 100, 0, ""))[0]["op"] == "schema"
    assert printed(Ddl("shop", None, 90, 1, "CREATE DATABASE shop")) == [
        {"database": "shop", "op": "ddl", "type": 1, "query": "CREATE DATABASE shop", "version": 90}
    ]


def altered(
    old: list[tuple[str, str]], new: list[tuple[str, str]], query: str = "", **more: bool
) -> list[AlterStep]:
    return list(
        alter_steps(define_table("t", old), define_table("t", new), query, **{"renames": False, **more})
    )


KEY = ("id", "bigint primary key")


def test_columns_are_added_dropped_and_modified_as_they_differ() -> None:
    old = [KEY, ("a", "int"), ("b", "varchar(10) collate utf8mb4_general_ci comment 'so'"), ("c", "int")]
    new = [KEY, ("x", "int not null default 5"), ("B", "varchar(20)"), ("c", "int")]
    assert altered(old, new, "alter table t drop column a") == [
        AlterStep("drop", "a"),
        AlterStep("add", "x", "int NOT NULL DEFAULT '5'", after="id"),
        AlterStep("modify", "B", "varchar(20) COLLATE utf8mb4_general_ci COMMENT 'so'"),
    ]
    assert altered(old, old) == []


def test_columns_that_only_the_target_has_stay_unless_the_ddl_drops() -> None:
    assert altered([KEY, ("own", "int")], [KEY], "ALTER TABLE t ADD INDEX dropped (id)") == []


def test_a_column_with_a_new_name_is_refused() -> None:
    with pytest.raises(Invalid, match="column a of t got another name"):
        altered([KEY, ("a", "int")], [KEY, ("b", "int")], "ALTER TABLE t CHANGE a b int", renames=True)
    assert altered([KEY, ("own", "int"), ("a", "int")], [KEY, ("a", "bigint")], renames=True) == [
        AlterStep("modify", "a", "bigint")
    ]


def test_the_default_of_a_bit_column_is_its_number() -> None:
    old, new = define_table("t", [KEY]), define_table("t", [KEY, ("b", "bit(8)")])
    spelled = new.with_columns([*new.columns[:1], replace(new.columns[1], default="\x05")])
    (step,) = alter_steps(old, spelled, "", renames=False)
    assert step.definition == "bit(8) DEFAULT '5'"
