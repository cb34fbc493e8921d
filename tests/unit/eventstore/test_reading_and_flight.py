"""Reading what a capture holds: the same rows before and after a flush, here and over Flight."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from penstock.errors import Invalid, Unavailable
from penstock.eventstore.building import SchemaVersion
from penstock.eventstore.flight import FlightService, read_ticket, write_ticket
from penstock.eventstore.reading import Reader, ReadRange
from penstock.eventstore.storage import open_storage
from penstock.eventstore.store import EventStore
from penstock.settings import CaptureSettings
from penstock.tables.decoding.decoder import TidbRowDecoder
from penstock.tables.define import define_table
from penstock.testing.events import FixedSchemas, a_table, change
from penstock.testing.rawbatches import raw

TABLE = a_table()
WIDER = replace(
    define_table("items", [("id", "bigint primary key"), ("name", "varchar(64)"), ("more", "int")]), id=1
)
NOW = 1 << 58


def row(number: int, name: str = "x") -> dict[str, Any]:
    return {"id": number, "name": name}


class Held:
    """A store with some changes, and what reads it."""

    def __init__(self, folder: Path) -> None:
        storage = open_storage("memory:///")
        self.schemas = FixedSchemas(SchemaVersion(0, 1, TABLE), SchemaVersion(NOW + 100, 2, WIDER))
        settings = CaptureSettings(
            data=folder, flush_interval_s=3600, idle_flush_interval_s=10**9, large_txn_bytes=300
        )
        self.store = EventStore(settings, storage, decoder=TidbRowDecoder(), schemas=self.schemas)
        self.store.start()
        self.rows = self.store.open_table(1)
        self.reader = Reader(self.store, storage, TidbRowDecoder())
        changes = [change(TABLE, NOW + ts, row(ts)) for ts in range(1, 20)]
        changes += [change(TABLE, NOW + 10, row(100 + number, "y" * 30)) for number in range(8)]  # large
        changes += [change(TABLE, NOW + 30, row(3, "b"), row(3)), change(TABLE, NOW + 31, None, row(4))]
        changes += [change(WIDER, NOW + 120, {**row(500), "more": 1})]
        self.rows.consume_kv_events(raw(changes[::-1]), lambda: None)
        self.store._wal.mark_resolved(99, 1)
        _until(lambda: len(self.rows.held(0, NOW + 500)) == 1)
        self.rows.advance_resolved_ts(NOW + 200)

    def read(self, from_ts: int, to_ts: int, **rest: Any) -> list[dict[str, Any]]:
        _, batches = self.reader.read(ReadRange(table_id=1, from_ts=from_ts, to_ts=to_ts, **rest))
        return [each for batch in batches for each in batch.to_pylist()]


def _until(holds: Callable[[], bool]) -> None:
    never = threading.Event()
    for _ in range(500):
        if holds():
            return
        never.wait(0.01)
    raise AssertionError("it did not come to pass")


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    made = Held(tmp_path)
    yield made
    made.store.close(flush=False)


RANGES: list[dict[str, Any]] = [
    {"from_ts": 0, "to_ts": NOW + 99},
    {"from_ts": NOW + 3, "to_ts": NOW + 12},
    {"from_ts": 0, "to_ts": NOW + 99, "side": "tombstone"},
    {"from_ts": 0, "to_ts": NOW + 99, "columns": ("name", "_commit_ts")},
    {"from_ts": 0, "to_ts": NOW + 99, "handle_from": (1 << 63 | 5).to_bytes(8, "big")},
    {"from_ts": 0, "to_ts": NOW + 99, "handle_to": (1 << 63 | 5).to_bytes(8, "big")},
    {"from_ts": NOW + 99, "to_ts": NOW + 200},
    {"from_ts": NOW + 50, "to_ts": NOW + 60},
]


@pytest.mark.parametrize("wanted", RANGES)
def test_a_flush_in_between_changes_nothing(held: Held, wanted: dict[str, Any]) -> None:
    before = held.read(**wanted)
    held.store.schemas.resolved = NOW + 11  # type: ignore[attr-defined] # the double's own knob
    assert held.store.flush(1)
    held.store.schemas.resolved = NOW + 200  # type: ignore[attr-defined]
    between = held.read(**wanted)
    assert held.store.flush(1)
    assert before == between == held.read(**wanted)
    assert before or wanted["from_ts"] == NOW + 50


def test_rows_come_in_order(held: Held) -> None:
    found = [(each["_commit_ts"] - NOW, each["id"]) for each in held.read(NOW + 8, NOW + 12)]
    assert found == [(9, 9), *((10, number) for number in (10, *range(100, 108))), (11, 11), (12, 12)]


@pytest.mark.parametrize(
    ("wanted", "error", "why"),
    [
        ({"from_ts": 0, "to_ts": NOW + 201}, Unavailable, "wait"),
        ({"from_ts": 5, "to_ts": 5}, Invalid, "no range"),
        ({"from_ts": 0, "to_ts": NOW + 150}, Invalid, f"changes after {NOW + 99}"),
        ({"from_ts": 0, "to_ts": NOW + 9, "columns": ("zz",)}, Invalid, "no column 'zz'"),
    ],
)
def test_what_cannot_be_read_is_refused(held: Held, wanted: dict[str, Any], error: type, why: str) -> None:
    with pytest.raises(error, match=why):
        held.read(**wanted)


def test_flight_serves_tables_ranges_and_timestamps(held: Held) -> None:
    service = FlightService("127.0.0.1:0", held.store, held.reader)
    try:
        with flight.connect(f"grpc://{service.addr}") as client:
            (listed,) = client.list_flights()
            assert json.loads(listed.descriptor.command)["readable_ts"] == NOW + 200
            whole = ReadRange(table_id=1, from_ts=0, to_ts=NOW + 200)
            info = client.get_flight_info(flight.FlightDescriptor.for_command(write_ticket(whole)))
            tables = [client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints]
            assert [table.num_rows for table in tables] == [28, 1]
            assert tables[1].to_pylist() == held.read(NOW + 99, NOW + 200)
            (answer,) = client.do_action(flight.Action("resolved_ts", b'{"table_id": 1}'))
            assert json.loads(answer.body.to_pybytes())["resolved_ts"] == NOW + 200
            assert [action.type for action in client.list_actions()] == ["resolved_ts"]
            with pytest.raises(flight.FlightUnavailableError, match="not captured here"):
                list(client.do_action(flight.Action("resolved_ts", b'{"table_id": 9}')))
            with pytest.raises(pa.ArrowInvalid, match="no action"):
                list(client.do_action(flight.Action("other", b"")))
            with pytest.raises(pa.ArrowInvalid, match="no range"):
                client.do_get(flight.Ticket(b"junk")).read_all()
    finally:
        service.close()


def test_an_address_in_use_is_refused_with_a_remedy(held: Held) -> None:
    service = FlightService("127.0.0.1:0", held.store, held.reader)
    try:
        with pytest.raises(Invalid, match=r"flight_addr"):
            FlightService(service.addr, held.store, held.reader)
    finally:
        service.close()


def test_a_ticket_survives_writing_and_reading() -> None:
    wanted = ReadRange(
        table_id=1,
        from_ts=2,
        to_ts=3,
        side="tombstone",
        columns=("a",),
        handle_from=b"\x00",
        handle_to=b"\xff",
    )
    assert read_ticket(write_ticket(wanted)) == wanted


@pytest.mark.parametrize(
    "ticket",
    [
        b"",
        b"[]",
        b"{}",
        b'{"table_id":1,"from_ts":1,"to_ts":2,"side":"x"}',
        b'{"table_id":1,"from_ts":1,"to_ts":2,"place":"x"}',
        b'{"table_id":1,"from_ts":1,"to_ts":2,"handle_to":"?"}',
    ],
)
def test_a_ticket_that_is_none_is_refused(ticket: bytes) -> None:
    with pytest.raises(Invalid):
        read_ticket(ticket)
