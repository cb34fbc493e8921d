"""The decisions of a stream that need no Spark: offsets, changes of schema, holds, cuts of a snapshot."""

import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from penstock.changes.limits import HandleGroup, ReadLimit, cut_groups
from penstock.errors import Invalid, Unavailable
from penstock.eventstore.history_holds import HOLD_TTL_S, HistoryHolds
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.holds import StreamHold
from penstock.object_storage import open_storage
from penstock.spark.change_rows import DeclaredSchema
from penstock.spark.stream import Offset, RefusedStreamReader
from penstock.tables.alter import add_column
from penstock.testing.clock import ManualClock
from support.itemtables import item_table

TABLE = item_table()
WIDER = add_column(TABLE, "extra", "varchar(20)")


def version(since_ts: int, table: Any) -> SchemaVersion:
    return SchemaVersion(since_ts, since_ts, table, "shop")


@pytest.mark.parametrize("offset", [Offset(0), Offset(77), Offset(77, b"\x01\xff"), Offset(7, ids=(1, 2))])
def test_an_offset_is_read_back_from_a_checkpoint(offset: Offset) -> None:
    assert Offset.read(json.loads(json.dumps(offset.as_json()))) == offset


def test_what_follows_an_offset_is_of_a_snapshot_until_that_is_complete() -> None:
    assert [each.in_snapshot for each in (Offset(0), Offset(77, b"\x01"), Offset(77))] == [True, True, False]


@pytest.mark.parametrize(
    "tree", [{}, {"ts": "x"}, {"ts": 1, "handle": "z"}, {"ts": None}, {"ts": 1, "ids": ["x"]}]
)
def test_an_offset_of_another_source_is_refused(tree: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="offset of another source; start with a new checkpoint"):
        Offset.read(tree)


def test_a_stream_that_cannot_be_says_why_when_it_is_asked() -> None:
    refused = RefusedStreamReader(Invalid("no table is named"))
    for ask in (refused.initialOffset, lambda: refused.partitions({}, {})):
        with pytest.raises(Invalid, match="no table is named"):
            ask()


def test_a_later_version_with_other_columns_stops_a_stream() -> None:
    declared = DeclaredSchema(TABLE, 10)
    changed = version(20, WIDER)
    assert declared.first_change([version(1, TABLE), version(15, TABLE), changed]) is changed
    assert "columns of shop.items change at version 20 (extra is new)" in str(declared.stop_error(changed))


def test_versions_from_before_the_stream_was_declared_do_not_stop_it() -> None:
    assert DeclaredSchema(WIDER, 30).first_change([version(1, TABLE), version(20, WIDER)]) is None


def test_only_wanted_columns_stop_a_stream() -> None:
    assert DeclaredSchema(TABLE, 10, ("ID",)).first_change([version(20, WIDER)]) is None
    columns = [
        replace(each, type=WIDER.column("extra").type) if each.name == "id" else each
        for each in TABLE.columns
    ]
    other = version(20, replace(TABLE, columns=tuple(columns)))
    declared = DeclaredSchema(TABLE, 10, ("id",))
    assert declared.first_change([other]) is other
    assert "(id is another)" in str(declared.stop_error(other))
    assert "(extra is gone)" in str(DeclaredSchema(WIDER, 10).stop_error(version(20, TABLE)))


def test_history_is_held_at_once_then_once_a_minute_and_expires() -> None:
    clock, storage = ManualClock(wall_ms=1000), open_storage("memory:///holds", {})
    hold, watermarks = StreamHold(storage, "stream-a", clock), HistoryHolds(storage, clock)
    hold.hold([7], 0)
    assert watermarks.lowest_ts(7) is None
    hold.hold([7, 8], 100)
    hold.hold([7, 8], 200)
    assert (watermarks.lowest_ts(7), watermarks.lowest_ts(8)) == (100, 100)
    clock.advance(61)
    hold.hold([7, 8], 300)
    assert watermarks.lowest_ts(7) == 300
    clock.advance(HOLD_TTL_S + 1)
    assert watermarks.lowest_ts(7) is None


def test_storage_that_cannot_be_written_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    clock, storage = ManualClock(), open_storage("memory:///read-only", {})

    def refuse(*_: object) -> None:
        raise Unavailable("storage is read-only")

    storage.write = refuse
    hold = StreamHold(storage, "stream-a", clock)
    with caplog.at_level(logging.WARNING):
        hold.hold([7], 100)
        clock.advance(100)
        hold.hold([7], 200)
    assert [each.getMessage() for each in caplog.records] == [
        "history is not held for the stream: a restart finds it as long as captures keep it"
    ]


def test_a_snapshot_is_cut_where_the_next_rows_would_be_too_many() -> None:
    groups = [HandleGroup(b"c", 5, 50.0), HandleGroup(b"a", 5, 50.0), HandleGroup(b"b", 5, 50.0)]
    assert cut_groups(groups, ReadLimit(rows=10)) == b"c"
    assert cut_groups(groups, ReadLimit(rows=1)) == b"b", "the lowest rows come in any case"
    assert cut_groups(groups, ReadLimit(nbytes=120)) == b"c"
    assert cut_groups(groups, ReadLimit(rows=15)) is None
    assert cut_groups([HandleGroup(b"a", 5, 50.0), HandleGroup(b"a", 5, 50.0)], ReadLimit(rows=1)) is None
