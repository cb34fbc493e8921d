"""The stored row of a dispatcher, also as earlier releases wrote it."""

import json

import pytest

from penstock.changefeeds.model import DispatcherRecord, PendingFile
from penstock.changefeeds.store import read_dispatcher, write_dispatcher
from penstock.errors import Corrupt
from penstock.follow.slices import Position, TableSpan

SPAN = TableSpan("17", 5, b"\x01", b"\x09")
FIRST = PendingFile("17", "a/CDC1.json", "a/meta/CDC.index", Position(3), Position(4), 9, "id > 5")
SECOND = PendingFile("17", "a/CDC2.json", "a/meta/CDC.index", Position(4), Position(6, b"k"), followed=True)


@pytest.mark.parametrize("pending", [(), (FIRST,), (FIRST, SECOND)])
def test_a_dispatcher_is_read_as_it_was_stored(pending: tuple[PendingFile, ...]) -> None:
    record = DispatcherRecord(SPAN, Position(1, b""), pending)
    assert read_dispatcher(write_dispatcher(record)) == record


def test_a_row_of_a_release_that_had_one_file_under_way_is_read() -> None:
    tree = json.loads(write_dispatcher(DispatcherRecord(SPAN, Position(1), (FIRST,))))
    (tree["pending"],) = tree["pending"]
    del tree["pending"]["followed"]
    assert read_dispatcher(json.dumps(tree).encode()) == DispatcherRecord(SPAN, Position(1), (FIRST,))


def test_a_damaged_list_of_files_is_refused() -> None:
    tree = json.loads(write_dispatcher(DispatcherRecord(SPAN, Position(1), (FIRST, SECOND))))
    tree["pending"][1].pop("end")
    with pytest.raises(Corrupt, match="row of a changefeed's dispatcher"):
        read_dispatcher(json.dumps(tree).encode())
