"""Rounds over a directory that was written by hand, as TiCDC lays it out."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock.changefeeds.codecs.decoded_changes import row_dicts
from penstock.changefeeds.codecs.decoder import FileOptions
from penstock.changefeeds.directory.listing import DirectoryLayout
from penstock.changefeeds.directory.progress import DirectoryProgress
from penstock.changefeeds.directory.reader import Ddl, Delivery, DirectoryReader, TableVersion
from penstock.changefeeds.sinks.storage.schema_file import SchemaFile
from penstock.errors import Corrupt, Invalid
from penstock.object_storage import open_storage
from support.blankfiles import blank_file
from support.ticdcfiles import TicdcDirectory, canal_line, column

ORDERS = [column("id", "BIGINT", pk=True), column("note", "VARCHAR", ColumnPrecision="20")]


@pytest.fixture
def directory(tmp_path: Path) -> TicdcDirectory:
    return TicdcDirectory(open_storage(f"file://{tmp_path}/out"))


def reader(
    directory: TicdcDirectory, progress: DirectoryProgress | None = None, **layout: Any
) -> DirectoryReader:
    return DirectoryReader(directory.storage, FileOptions(), DirectoryLayout(**layout), progress)


def told(deliveries: Iterable[Delivery]) -> list[Any]:
    found: list[Any] = []
    for each in deliveries:
        if isinstance(each, Ddl):
            found.append(f"{each.name} v{each.version} {each.query or 'columns'}")
            continue
        rows = zip(
            each.changes.ops.to_pylist(),
            each.changes.commit_ts.to_pylist(),
            row_dicts(each.changes.rows),
            strict=True,
        )
        found += [f"{each.name} {op}{row['id']}@{ts}" for op, ts, row in rows]
    return found


def insert(key: int, commit_ts: int | None, note: str = "n", **more: Any) -> bytes:
    return canal_line("INSERT", {"id": str(key), "note": note}, commit_ts=commit_ts, **more)


def test_a_round_delivers_the_schema_and_then_its_changes(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, ORDERS, query="CREATE TABLE ...", type=3)
    directory.data("shop/orders/100", 1, insert(1, 110) + insert(2, 120))
    directory.checkpoint(200)
    assert told(reader(directory).round()) == [
        "shop.orders v100 CREATE TABLE ...",
        "shop.orders I1@110",
        "shop.orders I2@120",
    ]


def test_what_is_above_the_checkpoint_waits_for_a_later_round_which_goes_on_exactly_there(
    directory: TicdcDirectory,
) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    directory.schema("shop/orders", 130, ORDERS[:1], query="ALTER TABLE ...", type=6)
    directory.data("shop/orders/100", 1, insert(1, 110) + insert(2, 120) + insert(3, 121))
    directory.data("shop/orders/130", 1, canal_line("INSERT", {"id": "4"}, commit_ts=140))
    directory.checkpoint(120)
    rounds = reader(directory)
    assert told(rounds.round()) == ["shop.orders v100 columns", "shop.orders I1@110", "shop.orders I2@120"]
    assert told(rounds.round()) == []
    directory.checkpoint(135)
    assert told(rounds.round()) == ["shop.orders I3@121", "shop.orders v130 ALTER TABLE ..."]
    directory.checkpoint(140)
    assert told(rounds.round()) == ["shop.orders I4@140"]


def test_progress_that_went_through_json_goes_on_where_it_was(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    directory.data("shop/orders/100", 1, insert(1, 110) + insert(2, 120))
    directory.checkpoint(115)
    first = reader(directory)
    told(first.round())
    directory.checkpoint(150)
    kept = DirectoryProgress.from_json(json.loads(json.dumps(first.progress.to_json())))
    assert told(reader(directory, kept).round()) == ["shop.orders I2@120"]


def test_a_delivery_that_failed_comes_again(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    directory.data("shop/orders/100", 1, insert(1, 110))
    directory.data("shop/orders/100", 2, insert(2, 120))
    directory.checkpoint(200)
    rounds = reader(directory)
    deliveries = rounds.round()
    taken = [next(deliveries), next(deliveries), next(deliveries)]
    deliveries.close()  # the third one was not worked off
    assert told(taken)[-1] == "shop.orders I2@120"
    assert told(rounds.round()) == ["shop.orders I2@120"]


def test_only_files_up_to_the_index_are_read(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    directory.data("shop/orders/100", 1, insert(1, 110))
    directory.data("shop/orders/100", 2, insert(2, 120)[:40], indexed=False)  # still being written
    directory.checkpoint(200)
    rounds = reader(directory)
    assert told(rounds.round())[1:] == ["shop.orders I1@110"]
    directory.data("shop/orders/100", 2, insert(2, 220))
    directory.checkpoint(300)
    assert told(rounds.round()) == ["shop.orders I2@220"]


def test_versions_come_in_order_over_tables_partitions_and_dates(directory: TicdcDirectory) -> None:
    directory.schema("shop", 50, (), query="CREATE DATABASE shop", type=1)
    directory.schema("shop/orders", 100, ORDERS)
    directory.schema("shop/orders", 150, ORDERS, query="TRUNCATE TABLE orders", type=11)
    directory.schema("shop/carts", 120, ORDERS)
    directory.data("shop/orders/150", 1, insert(5, 160))
    directory.data("shop/orders/100/7", 1, insert(3, 105))
    directory.data("shop/orders/100/6", 1, insert(2, 107), date="2026-02-05")
    directory.data("shop/orders/100/6", 1, insert(1, 104))
    directory.data("shop/carts/120", 1, insert(4, 130))
    directory.checkpoint(1000)
    assert told(reader(directory).round()) == [
        "shop v50 CREATE DATABASE shop",
        "shop.orders v100 columns",
        "shop.orders I1@104",
        "shop.orders I3@105",
        "shop.orders I2@107",
        "shop.carts v120 columns",
        "shop.carts I4@130",
        "shop.orders v150 TRUNCATE TABLE orders",
        "shop.orders I5@160",
    ]


def test_dispatchers_of_a_split_table_are_merged_by_commit(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    directory.data("shop/orders/100", 1, insert(1, 110) + insert(1, 130) + insert(1, 150), dispatcher="77")
    directory.data("shop/orders/100", 1, insert(9, 105) + insert(9, 140), dispatcher="55")
    directory.data("shop/orders/100", 2, insert(9, 145), dispatcher="55")
    directory.checkpoint(149)
    rounds = reader(directory)
    assert told(rounds.round())[1:] == [
        "shop.orders I9@105",
        "shop.orders I1@110",
        "shop.orders I1@130",
        "shop.orders I9@140",
        "shop.orders I9@145",
    ]
    directory.checkpoint(150)
    assert told(rounds.round()) == ["shop.orders I1@150"]


def test_a_key_that_goes_to_another_dispatchers_row_in_one_commit_is_given_up_first(
    directory: TicdcDirectory,
) -> None:
    gone = canal_line("DELETE", {"id": "5", "note": "n"}, commit_ts=110)
    directory.schema("shop/orders", 100, ORDERS)
    directory.data("shop/orders/100", 1, insert(5, 110), dispatcher="1")
    directory.data("shop/orders/100", 1, gone + insert(6, 110), dispatcher="2")
    directory.checkpoint(149)
    assert told(reader(directory).round())[1:] == [
        "shop.orders D5@110",
        "shop.orders I5@110",
        "shop.orders I6@110",
    ]


def test_a_key_that_goes_to_a_row_of_another_partition_is_given_up_first(directory: TicdcDirectory) -> None:
    gone = canal_line("DELETE", {"id": "5", "note": "n"}, commit_ts=110)
    directory.schema("shop/orders", 100, ORDERS)
    directory.data("shop/orders/100/6", 1, insert(5, 110) + insert(7, 120))
    directory.data("shop/orders/100/8", 1, insert(5, 105) + gone)
    directory.checkpoint(115)
    rounds = reader(directory)
    assert told(rounds.round())[1:] == [f"shop.orders {change}" for change in ("I5@105", "D5@110", "I5@110")]
    directory.checkpoint(149)
    assert told(rounds.round()) == ["shop.orders I7@120"]


def test_all_partitions_are_read_when_they_are_too_many_to_be_merged(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    for number in range(1, 259):
        directory.data(f"shop/orders/100/{number}", 1, insert(number, 400 - number))
    directory.checkpoint(500)
    found = told(reader(directory).round())[1:]
    assert found == [f"shop.orders I{number}@{400 - number}" for number in (*range(256, 0, -1), 258, 257)]


@pytest.mark.parametrize("extension", [".json", ".json.gz", ".json.zst", ".csv", ".csv.gz", ".parquet"])
def test_files_without_rows_are_passed_over(directory: TicdcDirectory, extension: str) -> None:
    path = directory.schema("shop/orders", 100, ORDERS)
    content = directory.storage.read(path)
    assert content is not None
    blank = blank_file(extension, SchemaFile.from_json(content))
    directory.data("shop/orders/100", 1, blank, extension=extension)
    directory.data("shop/orders/100", 2, insert(1, 110))
    directory.checkpoint(149)
    assert told(reader(directory).round())[1:] == ["shop.orders I1@110"]


def test_dispatchers_follow_each_other_where_commits_are_not_known(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    directory.data("shop/orders/100", 1, insert(1, None) + insert(2, None), dispatcher="77")
    directory.data("shop/orders/100", 1, insert(8, None) + insert(9, None), dispatcher="55")
    directory.checkpoint(200)
    found = told(reader(directory).round())
    assert found[1:] == [f"shop.orders I{key}@None" for key in (8, 9, 1, 2)]


def test_what_ticdc_repeats_after_a_restart_is_left_out(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    directory.data("shop/orders/100", 1, insert(1, 110) + insert(2, 120) + insert(3, 120))
    directory.data("shop/orders/100", 2, insert(1, 110) + insert(2, 120) + insert(3, 120) + insert(4, 130))
    directory.checkpoint(125)
    rounds = reader(directory)
    assert told(rounds.round())[1:] == ["shop.orders I1@110", "shop.orders I2@120", "shop.orders I3@120"]
    directory.data("shop/orders/100", 3, insert(3, 120) + insert(4, 130) + insert(5, 140))
    directory.checkpoint(150)
    assert told(rounds.round()) == ["shop.orders I4@130", "shop.orders I5@140"]


def test_a_commit_that_goes_on_in_the_next_file_is_no_repetition(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    directory.data("shop/orders/100", 1, insert(1, 110) + insert(2, 110))
    directory.data("shop/orders/100", 2, insert(3, 110) + insert(4, 110))
    directory.checkpoint(125)
    assert told(reader(directory).round())[1:] == [f"shop.orders I{key}@110" for key in (1, 2, 3, 4)]


def test_changes_that_come_late_for_a_version_before_a_ddl_are_dropped(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    directory.data("shop/orders/100", 1, insert(1, None))
    directory.schema("shop/orders", 150, ORDERS, query="TRUNCATE TABLE orders", type=11)
    directory.checkpoint(200)
    rounds = reader(directory)
    told(rounds.round())
    directory.data("shop/orders/100", 2, insert(1, None))
    directory.data("shop/orders/150", 1, insert(2, None))
    assert told(rounds.round()) == ["shop.orders I2@None"]


def test_a_rename_also_ends_what_comes_late_under_the_old_name(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    directory.data("shop/orders/100", 1, insert(1, None))
    query = "RENAME TABLE `shop`.`orders` TO `shop`.`sold`"
    directory.schema("shop/sold", 150, ORDERS, query=query, type=14)
    directory.checkpoint(200)
    rounds = reader(directory)
    (*_, rename) = rounds.round()
    assert isinstance(rename, Ddl)
    assert rename.renamed_from == ("shop", "orders")
    directory.data("shop/orders/100", 2, insert(1, None))
    assert told(rounds.round()) == []


def test_a_dropped_database_ends_what_comes_late_for_its_tables(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    directory.schema("shopping/orders", 100, ORDERS)
    directory.schema("shop", 150, (), query="DROP DATABASE shop", type=2)
    directory.checkpoint(200)
    rounds = reader(directory)
    told(rounds.round())
    directory.data("shop/orders/100", 1, insert(1, None))
    directory.data("shopping/orders/100", 1, insert(2, None))
    assert told(rounds.round()) == ["shopping.orders I2@None"]


def test_tables_by_their_ids_have_the_names_of_their_schema_files(directory: TicdcDirectory) -> None:
    directory.schema("112", 100, ORDERS, name=("shop", "orders"))
    directory.data("112/100", 1, insert(1, 110))
    directory.checkpoint(200)
    assert told(reader(directory, table_id_as_path=True).round())[1:] == ["shop.orders I1@110"]


@pytest.mark.parametrize(("separator", "date"), [("none", ""), ("year", "2026"), ("month", "2026-02")])
def test_every_date_separator_is_read(directory: TicdcDirectory, separator: str, date: str) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    directory.data("shop/orders/100", 1, insert(1, 110), date=date)
    directory.checkpoint(200)
    assert told(reader(directory, date_separator=separator).round())[1:] == ["shop.orders I1@110"]


def test_marks_of_files_that_were_cleaned_up_are_forgotten(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    gone = directory.data("shop/orders/100", 1, insert(1, 110))
    directory.data("shop/orders/100", 1, insert(2, 120), date="2026-02-05")
    directory.checkpoint(200)
    rounds = reader(directory)
    told(rounds.round())
    assert len(rounds.progress.marks) == 2
    directory.storage.delete(gone)
    directory.storage.delete("shop/orders/100/2026-02-04/meta/CDC.index")
    assert told(rounds.round()) == []
    assert list(rounds.progress.marks) == ["shop/orders/100/2026-02-05/meta/CDC.index"]


def _missing_metadata(directory: TicdcDirectory) -> None:
    directory.storage.delete("metadata")


def _other_checksum(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 160, ORDERS, checksum=7)


def _other_version(directory: TicdcDirectory) -> None:
    path = directory.schema("shop/orders", 160, ORDERS)
    content = directory.storage.read(path)
    assert content is not None
    directory.storage.write(path, content.replace(b"160", b"161"))


def _missing_file(directory: TicdcDirectory) -> None:
    directory.data("shop/orders/100", 3, insert(3, 130))


def _missing_schema(directory: TicdcDirectory) -> None:
    directory.data("shop/orders/101", 1, insert(3, 130))


def _broken_index(directory: TicdcDirectory) -> None:
    directory.storage.write("shop/orders/100/2026-02-04/meta/CDC.index", b"nothing\n")


def _broken_line(directory: TicdcDirectory) -> None:
    directory.data("shop/orders/100", 2, insert(3, 130)[:-5])


def _wrong_layout(directory: TicdcDirectory) -> None:
    directory.data("deep/shop/orders/100", 1, insert(3, 130))


@pytest.mark.parametrize(
    ("damage", "kind", "message"),
    [
        (_missing_metadata, Invalid, "no metadata file"),
        (_other_checksum, Corrupt, r"shop/orders/meta/schema_160_0000000007\.json"),
        (_other_version, Corrupt, r"shop/orders/meta/schema_160_"),
        (_missing_file, Corrupt, "file 2 is missing"),
        (_missing_schema, Corrupt, "no schema file"),
        (_broken_index, Corrupt, r"100/2026-02-04/meta/CDC\.index names no data file"),
        (_broken_line, Corrupt, r"CDC00000000000000000002\.json"),
        (_wrong_layout, Invalid, "date-separator"),
    ],
)
def test_a_damaged_directory_is_refused_by_name(
    directory: TicdcDirectory, damage: Callable[[TicdcDirectory], None], kind: type[Exception], message: str
) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    directory.data("shop/orders/100", 1, insert(1, 110))
    directory.checkpoint(200)
    damage(directory)
    with pytest.raises(kind, match=message) as caught:
        told(reader(directory).round())
    assert "\n" not in str(caught.value)


def test_a_checkpoint_that_went_back_is_refused(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    directory.checkpoint(200)
    rounds = reader(directory)
    told(rounds.round())
    directory.checkpoint(150)
    with pytest.raises(Invalid, match="begin without the state"):
        told(rounds.round())


def test_files_that_came_after_the_listing_are_read_when_the_index_names_them(
    directory: TicdcDirectory,
) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    directory.data("shop/orders/100", 1, insert(1, 110))
    directory.checkpoint(200)
    rounds = reader(directory)
    contents = rounds.contents()
    directory.data("shop/orders/100", 2, insert(2, 120))
    assert told(rounds.round(contents)) == [
        "shop.orders v100 columns",
        "shop.orders I1@110",
        "shop.orders I2@120",
    ]


class Heard:
    """Implements Damage."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def unreadable(self, of: TableVersion, what: str) -> None:
        self.words.append(f"{of.name} v{of.version}: {what}")

    def again(self, of: TableVersion, changes: int) -> None:
        self.words.append(f"{of.name} v{of.version}: {changes} again")


def test_who_hears_of_damage_gets_everything_that_can_be_read(directory: TicdcDirectory) -> None:
    directory.schema("shop/orders", 100, ORDERS)
    directory.data("shop/orders/100", 1, insert(1, 110))
    directory.data("shop/orders/100", 3, insert(3, 130)[:40])
    directory.data("shop/orders/100", 4, insert(4, 140))
    directory.data("shop/orders/100", 5, insert(1, 110) + insert(4, 140))
    directory.checkpoint(200)
    heard = Heard()
    rounds = DirectoryReader(directory.storage, FileOptions(), DirectoryLayout(), damage=heard)
    assert told(rounds.round()) == ["shop.orders v100 columns", "shop.orders I1@110", "shop.orders I4@140"]
    missing, damaged, again = heard.words
    assert "shop.orders v100: file 2 is missing" in missing
    assert "0003.json: a line is no JSON" in damaged
    assert again == "shop.orders v100: 2 again"
