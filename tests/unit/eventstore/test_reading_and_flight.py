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

from penstock.errors import Corrupt, Invalid, StaleRead, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.capture.flight_service import FlightService
from penstock.eventstore.capture.reader import Reader
from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.manifest import Archive, ManifestState, Removal, write_archive
from penstock.eventstore.read.flight_client import FlightReader, read_ticket, write_ticket
from penstock.eventstore.read.partition import CaptureProgress, RangeReader, ReadRange
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import OBJECT, OFFSET
from penstock.object_storage import open_storage
from penstock.settings import CaptureSettings
from penstock.tables.decoding.decoder import TidbRowDecoder
from penstock.tables.define import define_table
from support.events import FixedSchemas, a_table, change
from support.rawbatches import raw

TABLE = a_table()
WIDER = replace(
    define_table("items", [("id", "bigint primary key"), ("name", "varchar(64)"), ("more", "int")]), id=1
)
NOW = 1 << 58
VERSIONS = SchemaVersion(0, 1, TABLE, "shop"), SchemaVersion(NOW + 100, 2, WIDER, "shop")


def row(number: int, name: str = "x") -> dict[str, Any]:
    return {"id": number, "name": name}


class Held:
    """A store with some changes, and what reads it."""

    def __init__(self, folder: Path) -> None:
        self.storage = storage = open_storage("memory:///")
        self.schemas = FixedSchemas(*VERSIONS)
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
        for start in (4, 2, 3):  # of equal commits the earlier start comes first; 2 and 4 are large
            many = range(200 + start, 200 + start + (1 if start == 3 else 80), 10)
            changes += [
                (NOW + 15, NOW + start, *change(TABLE, NOW + 15, row(number, "z" * 30))[2:])
                for number in many
            ]
        changes += [change(WIDER, NOW + 120, {**row(500), "more": 1})]
        self.rows.consume_kv_events(raw(changes[::-1]), lambda: None)
        self.store._wal.mark_resolved(99, 1)
        _until(lambda: len(self.rows.list_held(0, NOW + 500)) == 1)
        self.rows.advance_resolved_ts(NOW + 200)

    @property
    def state(self) -> ManifestState:
        return self.store.ownership(1).state

    def read(self, from_ts: int, to_ts: int, **rest: Any) -> list[dict[str, Any]]:
        return rows_of(self.reader, ReadRange(table_id=1, from_ts=from_ts, to_ts=to_ts, **rest))


def rows_of(reader: RangeReader, wanted: ReadRange) -> list[dict[str, Any]]:
    """The rows of a range, without what only a flush can know: the row ids of tombstones."""
    schema, batches = reader.read(wanted)
    found = []
    for batch in batches:
        assert batch.schema == schema
        found += batch.drop_columns(list({OBJECT, OFFSET}.intersection(schema.names))).to_pylist()
    return found


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
    {
        "from_ts": 0,
        "to_ts": NOW + 99,
        "side": "tombstone",
        "columns": ("_handle", "_commit_ts", "_start_ts", "_update", "_old"),  # all but row ids
    },
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
    held.store.schemas.resolved = NOW + 200
    between = held.read(**wanted)
    assert held.store.flush(1)
    assert before == between == held.read(**wanted)
    assert before or wanted["from_ts"] == NOW + 50


@pytest.mark.parametrize("side", ["data", "tombstone"])
def test_a_range_stays_the_same_when_the_cluster_has_collected_its_schema(
    held: Held, tmp_path: Path, side: paths.Side
) -> None:
    wanted = ReadRange(table_id=1, from_ts=0, to_ts=NOW + 200, side=side)

    def parts(reader: RangeReader) -> list[tuple[SchemaVersion, list[dict[str, Any]]]]:
        return [(part.schema, rows_of(reader, part.wanted)) for part in reader.parts(wanted)]

    held.schemas.resolved = NOW + 110
    assert held.store.flush(1)  # the last row is not flushed
    held.schemas.resolved = NOW + 200
    before = parts(held.reader)
    held.store.close(flush=False)
    store = EventStore(
        CaptureSettings(data=tmp_path, flush_interval_s=3600, idle_flush_interval_s=10**9),
        held.storage,
        decoder=TidbRowDecoder(),
        schemas=FixedSchemas(VERSIONS[1]),
    )
    store.start()
    store.open_table(1)
    assert parts(Reader(store, held.storage, TidbRowDecoder())) == before
    assert [schema.version for schema, _ in before] == [1, 2]
    store.close(flush=False)


@pytest.fixture
def service(held: Held) -> Iterator[FlightService]:
    service = FlightService("127.0.0.1:0", held.store, held.reader)
    yield service
    service.close()


@pytest.mark.parametrize("side", ["data", "tombstone"])
@pytest.mark.parametrize("columns", [(), ("id", "_commit_ts")])
def test_here_and_over_flight_a_range_is_the_same(
    held: Held, service: FlightService, side: paths.Side, columns: tuple[str, ...]
) -> None:
    wanted = ReadRange(table_id=1, from_ts=NOW + 2, to_ts=NOW + 200, side=side, columns=columns)
    seen = []
    with FlightReader(service.addr) as remote:
        for resolved in (0, NOW + 11, NOW + 150, NOW + 200):  # flushed up to here
            held.schemas.resolved = resolved
            assert held.store.flush(1)
            held.schemas.resolved = NOW + 200
            readers: list[RangeReader] = [held.reader, remote]
            assert [each.progress(1) for each in readers] == [
                CaptureProgress(1, NOW + 200, NOW + 200, held.rows.flushed_ts, NOW + 120)
            ] * 2
            for reader in readers:
                parts = reader.parts(wanted)
                assert [each.schema.as_fact() for each in parts] == [each.as_fact() for each in VERSIONS]
                assert [(each.wanted.from_ts, each.wanted.to_ts) for each in parts] == [
                    (NOW + 2, NOW + 99),
                    (NOW + 99, NOW + 200),
                ]
                seen.append([rows_of(reader, each.wanted) for each in parts])
    assert held.rows.flushed_ts == NOW + 200
    assert all(each == seen[0] for each in seen)
    assert len(seen[0][0]) > 1


def test_history_that_is_gone_is_told_alike_here_and_over_flight(held: Held, service: FlightService) -> None:
    assert held.store.flush(1)
    archive = Archive(id="a" * 32, upto_ts=NOW + 5, objects=0)
    held.storage.write(paths.archive("tables/1", archive.id), write_archive([]))
    held.store.ownership(1).commit(archive=archive)
    assert held.read(NOW + 3, NOW + 9)
    held.store.ownership(1).commit(collect=[archive.id])
    gone = ReadRange(table_id=1, from_ts=NOW + 4, to_ts=NOW + 9)
    with FlightReader(service.addr) as remote:
        for reader in (held.reader, remote):
            assert rows_of(reader, replace(gone, from_ts=NOW + 5))
            with pytest.raises(StaleRead) as caught:
                rows_of(reader, gone)
            assert (caught.value.ts, caught.value.oldest_ts) == (NOW + 4, NOW + 5)
            with pytest.raises(StaleRead):
                rows_of(reader, replace(gone, from_ts=0))


def test_a_range_is_read_from_an_archive(held: Held) -> None:
    """History that the manifest's state no longer names."""
    assert held.store.flush(1)
    expected = held.read(0, NOW + 99)
    ownership = held.store.ownership(1)
    old = [each for each in held.state.objects.values() if each.max_ts <= NOW + 15]
    assert {each.kind for each in old} == {"appendable", "direct"}
    removed = [replace(each, delete_ts=NOW + 20) for each in old]
    ownership.commit(remove=[Removal(id=each.id, delete_ts=NOW + 20) for each in old])
    archive = Archive(id="a" * 32, upto_ts=NOW + 20, objects=len(old))
    held.storage.write(paths.archive("tables/1", archive.id), write_archive(removed))
    ownership.commit(archive=archive, forget=[each.id for each in old])
    assert held.read(0, NOW + 99) == expected
    held.storage.delete(paths.archive("tables/1", archive.id))
    with pytest.raises(Unavailable, match="archive of table 1"):
        held.read(0, NOW + 99)


def test_rows_come_in_order(held: Held) -> None:
    found = [(each["_commit_ts"] - NOW, each["id"]) for each in held.read(NOW + 8, NOW + 12)]
    assert found == [(9, 9), *((10, number) for number in (10, *range(100, 108))), (11, 11), (12, 12)]


def test_large_transactions_come_at_their_place_among_equal_commits(held: Held) -> None:
    assert held.store.flush(1)
    assert len([each for each in held.state.objects.values() if each.kind == "direct"]) == 5
    found = [(each["_start_ts"] - NOW, each["id"]) for each in held.read(NOW + 14, NOW + 15)]
    assert found == [
        *((2, number) for number in range(202, 282, 10)),
        (3, 203),
        *((4, number) for number in range(204, 284, 10)),
        (14, 15),
    ]


def test_a_damaged_object_is_named_and_kept(held: Held) -> None:
    assert held.store.flush(1)
    for info in held.state.objects.values():
        held.storage.write(paths.object_path("tables/1", info.side, info.id), b"PAR1 damaged PAR1")
    with pytest.raises(Corrupt, match=r"object tables/1/data/.*\.parquet is damaged; keep it"):
        held.read(0, NOW + 99)


def test_a_flush_while_rows_are_read_changes_nothing(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.eventstore.log.rows.SLICE_ROWS", 4)
    expected = held.read(0, NOW + 99)
    held.store.schemas.resolved = NOW + 11  # type: ignore[attr-defined] # the double's own knob
    assert held.store.flush(1)
    held.store.schemas.resolved = NOW + 200
    _, batches = held.reader.read(ReadRange(table_id=1, from_ts=0, to_ts=NOW + 99))
    found = next(batches).to_pylist()  # of an object
    assert held.store.flush(1)
    assert found + [each for batch in batches for each in batch.to_pylist()] == expected


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
            assert [table.num_rows for table in tables] == [45, 1]
            assert tables[1].to_pylist() == held.read(NOW + 99, NOW + 200)
            (answer,) = client.do_action(flight.Action("resolved_ts", b'{"table_id": 1}'))
            assert json.loads(answer.body.to_pybytes())["resolved_ts"] == NOW + 200
            actions = [action.type for action in client.list_actions()]
            readers = ["resolved_ts", "progress", "refusals", "catalog"]
            assert actions == [*readers, "plan_merge", "commit_merge"]
            with pytest.raises(flight.FlightUnavailableError, match="not captured here"):
                list(client.do_action(flight.Action("resolved_ts", b'{"table_id": 9}')))
            with pytest.raises(pa.ArrowInvalid, match="no action"):
                list(client.do_action(flight.Action("other", b"")))
            with pytest.raises(pa.ArrowInvalid, match="no range"):
                client.do_get(flight.Ticket(b"junk")).read_all()
            for body in (b"{}", b'{"patterns": "*.*", "since_ts": 0}', b'{"patterns": [], "since_ts": -1}'):
                with pytest.raises(pa.ArrowInvalid, match="the body of the action needs"):
                    list(client.do_action(flight.Action("catalog", body)))
    finally:
        service.close()


def test_a_ddl_that_resolves_during_an_answer_is_in_the_next_one(
    held: Held, service: FlightService, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.schemas.resolved = NOW + 50

    def resolve_late() -> int:
        known, held.schemas.resolved = held.schemas.resolved, NOW + 200
        return known

    monkeypatch.setattr(held.schemas, "resolved_ts", resolve_late)
    with FlightReader(service.addr) as remote:
        first = remote.catalog(["shop.*"], 0)
        second = remote.catalog(["shop.*"], first.ddl_ts)
    assert first.resolved_ts == NOW + 50
    assert [version.since_ts for version in second.histories[1].versions] == [0, NOW + 100]


def test_a_table_that_is_created_during_an_answer_is_in_the_next_one(
    held: Held, service: FlightService, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = SchemaVersion(NOW + 60, 3, replace(WIDER, id=2), "shop")
    held.schemas.resolved = NOW + 50
    known_ids = held.schemas.known_ids
    monkeypatch.setattr(held.schemas, "_versions", (SchemaVersion(NOW, 1, TABLE, "shop"), created))

    def ids_of_now() -> set[int]:
        held.schemas.resolved = NOW + 70
        return known_ids()

    monkeypatch.setattr(held.schemas, "known_ids", ids_of_now)
    with FlightReader(service.addr) as remote:
        first = remote.catalog(["shop.*"], 0)
        second = remote.catalog(["shop.*"], first.ddl_ts)
    assert (first.resolved_ts, set(first.histories)) == (NOW + 50, {1})
    assert (second.resolved_ts, set(second.histories)) == (NOW + 70, {2})


def test_a_catalog_has_the_progress_of_the_tables_that_were_asked_for(
    held: Held, service: FlightService, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    progress, versions = held.reader.progress, held.schemas.versions

    def count_progress(table_id: int) -> CaptureProgress:
        asked.append(table_id)
        return progress(table_id)

    def count_versions(table_id: int, from_ts: int, to_ts: int) -> list[SchemaVersion]:
        asked.append(table_id)
        return versions(table_id, from_ts, to_ts)

    monkeypatch.setattr(held.reader, "progress", count_progress)
    with FlightReader(service.addr) as remote:
        assert remote.catalog(["other.*"], 0).progress == ()
        assert not asked
        (found,) = remote.catalog(["SHOP.items"], 0).progress
        assert found.table_id == 1
        monkeypatch.setattr(held.schemas, "versions", count_versions)
        asked.clear()
        remote.catalog(["other.*"], NOW + 100)
        assert not asked, "an idle reader of other tables costs nothing for this one"


def test_a_reader_that_takes_nothing_does_not_hold_up_the_end(
    held: Held, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()
    schema = pa.schema([("a", pa.int64())])

    class Stuck:
        def read(self, _: ReadRange) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
            return schema, self.batches()

        def batches(self) -> Iterator[pa.RecordBatch]:
            released.wait(30)
            yield pa.RecordBatch.from_pylist([{"a": 1}], schema)

    monkeypatch.setattr("penstock.eventstore.capture.flight_service.STOP_TIMEOUT_S", 0.2)
    service = FlightService("127.0.0.1:0", held.store, Stuck())  # type: ignore[arg-type] # a double
    with flight.connect(f"grpc://{service.addr}") as client:
        stream = client.do_get(flight.Ticket(write_ticket(ReadRange(table_id=1, from_ts=0, to_ts=1))))
        service.close()
        assert "was abandoned" in caplog.text
        released.set()
        with pytest.raises((flight.FlightUnavailableError, flight.FlightCancelledError)):
            stream.read_all()


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
