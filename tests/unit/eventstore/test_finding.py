"""Tables found on storage by their names: renamed, dropped, made again, partitioned, unknown."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import Invalid, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.manifest import dropped_fact, dropped_ts
from penstock.eventstore.manifest_log import ManifestLog, load
from penstock.eventstore.read.find import NameMarks, find_table, list_tables
from penstock.eventstore.read.partition import CaptureProgress, ReadRange, SchemaRange
from penstock.eventstore.schema_version import SchemaVersion
from penstock.object_storage import StorageRef
from penstock.tables.schema import TableInfo
from support.events import a_table


def table(name: str, table_id: int, partitions: tuple[int, ...] = ()) -> TableInfo:
    definitions = [{"id": each} for each in partitions]
    extra: dict[str, Any] = {"partition": {"enable": True, "definitions": definitions}} if partitions else {}
    return replace(a_table(table_id), name=name, extra=extra)


class Shop:
    """Storage as captures leave it."""

    def __init__(self, folder: Path) -> None:
        self.ref = StorageRef(f"file://{folder}/events")
        self.marks = NameMarks(self.ref.open())
        self.logs: dict[int, ManifestLog] = {}

    def took(self, table_id: int, *names: str) -> None:
        """A table was taken, under each of its names."""
        self.marks.mark([("Shop", name) for name in names], table_id)

    def flushed(self, table_id: int, upto: int, *versions: tuple[int, TableInfo], dropped: int = 0) -> None:
        """It was flushed with its schemas since some timestamps."""
        self.took(table_id, *(each.name for _, each in versions))
        log = self.logs.get(table_id)
        if log is None:
            root = paths.table_root(table_id)
            log = self.logs[table_id] = ManifestLog.open(self.ref.open(), root, writer="w")
        facts = [SchemaVersion(since, since, each, "Shop").as_fact() for since, each in versions]
        log.commit(flushed_ts=upto, facts=[*facts, *([dropped_fact(dropped)] if dropped else [])])

    def find(self, name: str, **rest: Any) -> list[int]:
        return [each.table_id for each in find_table(self.ref, name, **rest).partitions]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


class Newest:
    """A capture that knows one schema more than the manifest."""

    def __init__(self, version: SchemaVersion, *, away: bool = False) -> None:
        self.version = version
        self.away = away

    def progress(self, table_id: int) -> CaptureProgress:
        if self.away:
            raise Unavailable("the capture is away")
        return CaptureProgress(table_id, 200, 200, 100)

    def parts(self, wanted: ReadRange) -> list[SchemaRange]:
        return [SchemaRange(wanted, self.version)] if wanted.to_ts >= self.version.since_ts else []

    def read(self, wanted: ReadRange) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        raise AssertionError("nobody reads here")


def test_a_table_is_found_by_its_name_in_any_case(shop: Shop) -> None:
    shop.flushed(1, 100, (10, table("Items", 1)))
    shop.flushed(2, 100, (10, table("others", 2)))
    found = find_table(shop.ref, "sHoP.iTeMs")
    assert found.name == "Shop.Items"
    assert [each.table_id for each in found.partitions] == [1]
    assert found.partitions[0].storage == shop.ref
    assert found.partitions[0].rows is None
    assert list_tables(shop.ref) == ["Shop.Items", "Shop.others"]


def test_a_renamed_table_is_found_by_the_name_that_it_has_at_the_time(shop: Shop) -> None:
    shop.flushed(1, 100, (10, table("old", 1)), (50, table("new", 1)))
    assert shop.find("shop.new") == shop.find("shop.old", at_ts=49) == shop.find("shop.new", at_ts=50) == [1]
    for name, at_ts in (("shop.old", None), ("shop.old", 50), ("shop.new", 49)):
        with pytest.raises(Invalid, match="no table"):
            shop.find(name, at_ts=at_ts)
    assert list_tables(shop.ref) == ["Shop.new"]


def test_names_that_were_exchanged_lead_to_the_right_tables(shop: Shop) -> None:
    shop.flushed(1, 100, (10, table("a", 1)), (50, table("b", 1)))
    shop.flushed(2, 100, (10, table("b", 2)), (50, table("a", 2)))
    assert shop.find("shop.a", at_ts=40) == shop.find("shop.b") == [1]
    assert shop.find("shop.b", at_ts=40) == shop.find("shop.a") == [2]


def test_a_table_that_was_dropped_and_made_again_is_the_one_of_the_time(shop: Shop) -> None:
    shop.flushed(1, 60, (10, table("items", 1)), dropped=60)
    with pytest.raises(Invalid, match="no table"):
        shop.find("shop.items")
    assert shop.find("shop.items", at_ts=59) == [1]
    shop.flushed(2, 100, (70, table("items", 2)))
    assert shop.find("shop.items") == [2]
    assert shop.find("shop.items", at_ts=59) == [1]
    assert list_tables(shop.ref) == ["Shop.items"]


def test_of_a_drop_that_is_not_told_yet_the_newer_table_counts(shop: Shop) -> None:
    shop.flushed(2, 65, (10, table("items", 2)))
    shop.flushed(1, 100, (70, table("items", 1)))
    assert shop.find("shop.items") == [1]
    assert shop.find("shop.items", at_ts=65) == [2]


def test_a_table_that_came_back_is_there(shop: Shop) -> None:
    shop.flushed(1, 60, (10, table("items", 1)), dropped=60)
    shop.flushed(1, 90, (80, table("items", 1)))
    assert shop.find("shop.items") == shop.find("shop.items", at_ts=80) == [1]
    with pytest.raises(Invalid):
        shop.find("shop.items", at_ts=79)
    facts = load(shop.ref.open(), "tables/1").facts
    assert [dropped_ts(facts, ts) for ts in (59, 60, 79, 80)] == [0, 60, 60, 0]


def test_history_before_the_first_known_schema_belongs_to_the_table(shop: Shop) -> None:
    shop.flushed(1, 100, (50, table("items", 1)))
    assert shop.find("shop.items", at_ts=20) == [1]


def test_a_partitioned_table_has_the_partitions_of_the_time(shop: Shop) -> None:
    before, after = table("logs", 5, (6, 7)), table("logs", 5, (7, 8))
    shop.flushed(6, 50, (10, before), dropped=50)
    shop.flushed(7, 40, (10, before))  # behind: it does not know of the change yet
    shop.flushed(8, 100, (50, after))
    assert shop.find("shop.logs") == [7, 8]
    assert shop.find("shop.logs", at_ts=49) == [6, 7]


def test_rows_that_are_not_flushed_come_from_whoever_has_them(shop: Shop) -> None:
    renamed = SchemaVersion(150, 150, table("new", 1), "Shop")
    shop.flushed(1, 100, (10, table("old", 1)))
    shop.took(1, "new")
    newest = Newest(renamed)
    found = find_table(shop.ref, "shop.new", rows=newest)
    assert found.partitions[0].rows is newest
    assert find_table(shop.ref, "shop.new", rows=lambda table_id: newest if table_id == 1 else None) == found
    assert shop.find("shop.old", at_ts=149, rows=newest) == [1]
    with pytest.raises(Invalid):
        shop.find("shop.old", rows=newest)
    # Without the capture its last known name counts.
    assert shop.find("shop.old", rows=Newest(renamed, away=True)) == shop.find("shop.old") == [1]


def test_a_table_that_was_never_flushed_is_waited_for(shop: Shop) -> None:
    shop.took(1, "items")
    with pytest.raises(Unavailable, match=r"shop\.items has no schema .* yet; wait"):
        shop.find("shop.items")
    assert list_tables(shop.ref) == []
    made = SchemaVersion(150, 150, table("items", 1), "Shop")
    assert shop.find("shop.items", rows=Newest(made)) == [1]


def test_an_unknown_name_is_refused_with_those_that_are_close(shop: Shop) -> None:
    shop.flushed(1, 100, (10, table("items", 1)))
    shop.flushed(2, 100, (10, table("item", 2)), dropped=50)
    with pytest.raises(Invalid) as caught:
        shop.find("shop.itemz")
    assert str(caught.value) == f"there is no table shop.itemz on {shop.ref.url}; there is Shop.items"
    with pytest.raises(Invalid, match="list_tables names the tables that exist") as caught:
        shop.find("bank.accounts")
    assert "\n" not in str(caught.value)
    for name in ("items", ".items", "shop.", ""):
        with pytest.raises(Invalid, match=r"write database\.table"):
            shop.find(name)


@pytest.mark.parametrize("name", ["..", ".", "a.b", "a/b", "ä %25", "a b"])
def test_any_name_can_be_marked(shop: Shop, name: str) -> None:
    shop.flushed(1, 100, (10, table(name, 1)))
    shop.flushed(2, 100, (10, table("other", 2)))
    assert shop.find(f"shop.{name}") == [1]
    path = paths.name_mark("shop", name, 1)
    assert paths.parse_name_mark(path) == ("shop", name, 1)


def test_a_mark_is_written_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.took(1, "items")
    written: list[str] = []
    storage = shop.ref.open()
    write = storage.write

    def counted(path: str, data: bytes | Path) -> None:
        written.append(path)
        write(path, data)

    monkeypatch.setattr(storage, "write", counted)
    again = NameMarks(storage)
    again.mark([("shop", "items"), ("SHOP", "Items")], 1)
    assert written == []
    again.mark([("shop", "items"), ("shop", "goods")], 1)
    again.mark([("shop", "goods")], 1)
    assert written == [paths.name_mark("shop", "goods", 1)]
    assert again.names() == {1: {("shop", "items"), ("shop", "goods")}}
