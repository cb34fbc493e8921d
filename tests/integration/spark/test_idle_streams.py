"""What a stream costs while nothing happens, counted in calls of the capture and of storage.

The readers are planned as Spark plans them, without a session.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from penstock.errors import Invalid, Unavailable
from penstock.eventstore.capture.flight_server import FlightServer
from penstock.eventstore.capture.flight_service import FlightService
from penstock.eventstore.read.flight_client import FlightReader
from penstock.follow.catalog import WatchedTable
from penstock.object_storage import LocalStorage, ObjectStorage
from penstock.spark.many_tables import ManyTablesRead
from penstock.spark.options import parse_options
from penstock.spark.stream import STREAM_READER, MicroBatchReader
from penstock.spark.tasks import Parallelism
from penstock.testing.clock import ManualClock
from support.itemtables import item
from support.servedworld import ServedDatabase
from support.spark import HAS_ADMISSION, latest_offset

READS = ("read", "exists", "size", "open", "read_range", "names", "find", "folders", "list_objects")
TRIGGERS = 5


def count_calls(monkeypatch: pytest.MonkeyPatch, calls: Counter[str]) -> None:
    """Note every call of every Flight service."""
    serve = FlightServer.serve

    def counted(server: FlightServer, *call: Any) -> Iterator[bytes]:
        calls["flight"] += 1
        return serve(server, *call)

    monkeypatch.setattr(FlightServer, "serve", counted)


class Idle:
    """Two tables, and a capture whose calls are counted with those of storage."""

    def __init__(self, world: ServedDatabase, service: FlightService, calls: Counter[str]) -> None:
        self.world = world
        self.calls = calls
        self.service = service
        self.given = {"storage": world.storage.url, "flightAddr": service.addr}
        self.offset: dict[str, Any] = {"ts": 0}

    def one_table(self, schema: StructType | None = None) -> MicroBatchReader:
        options = parse_options({**self.given, "table": "shop.items", "readChangeFeed": "true"})
        return STREAM_READER(options, schema or StructType(), None, parallelism=Parallelism(1))

    def many_tables(self) -> MicroBatchReader:
        read = ManyTablesRead(parse_options({**self.given, "tables": "shop.*"}), parallelism=Parallelism(1))
        return read.stream_reader(read.schema())

    def ask(self, reader: MicroBatchReader) -> bool:
        """Whether there is another batch."""
        self.calls.clear()
        before, self.offset = self.offset, latest_offset(reader, self.offset)
        return self.offset != before

    def stop(self) -> None:
        self.service.close()

    def start(self, *captured: str) -> None:
        """Serve again, where the capture was."""
        patterns = captured or ("*.*",)
        self.service = FlightService(
            self.service.addr, self.world.store, self.world.reader, captured=patterns
        )

    def put(self, number: int) -> None:
        self.world.commit((self.world.tables["shop.items"], [], [item("integer", number, "x")]))


@pytest.fixture
def idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Idle]:
    monkeypatch.setattr("penstock.spark.stream._POLL_S", 0.0)
    calls: Counter[str] = Counter()
    count_calls(monkeypatch, calls)

    def counted(kind: type, name: str) -> Callable[..., Any]:
        inner = getattr(kind, name)

        def call(*given: Any, **more: Any) -> Any:
            calls["storage"] += 1
            return inner(*given, **more)

        return call

    with ServedDatabase(tmp_path / "world") as world:
        for name in ("shop.items", "shop.others"):
            table = world.create_table(name, "integer", 2)
            world.commit((table, [], [item("integer", number, "x") for number in range(4)]))
        world.resolve_all()
        world.flush(world.tables["shop.items"].info.physical_ids[0])
        for kind in (ObjectStorage, LocalStorage):
            for name in READS:
                if name in vars(kind):
                    monkeypatch.setattr(kind, name, counted(kind, name))
        service = FlightService("127.0.0.1:0", world.store, world.reader)
        found = Idle(world, service, calls)
        try:
            yield found
        finally:
            found.service.close()


@pytest.mark.parametrize("kind", ["one_table", "many_tables"])
def test_an_idle_trigger_asks_the_capture_once_and_storage_nothing(idle: Idle, kind: str) -> None:
    reader: MicroBatchReader = getattr(idle, kind)()
    assert idle.ask(reader), "the first rows"
    assert idle.calls["storage"]
    idle.put(10)
    idle.world.resolve_all()
    assert idle.ask(reader), "a change"
    idle.world.resolve_all()
    assert not idle.ask(reader)
    for trigger in range(TRIGGERS):
        idle.world.resolve_all()
        if trigger == 2:
            idle.world.flush(idle.world.tables["shop.items"].info.physical_ids[1])
        assert not idle.ask(reader)
        assert idle.calls == {"flight": 1}
    idle.put(11)
    idle.world.resolve_all()
    assert idle.ask(reader), "a change ends the quiet"
    idle.world.resolve_all()
    assert not idle.ask(reader)
    idle.world.add_partition(idle.world.tables["shop.items"])
    for number in (12, 13, 14):
        idle.put(number)
    idle.world.resolve_all()
    assert idle.ask(reader), "so do changes in a partition that came"


def test_a_batch_of_new_rows_is_planned_without_storage_until_a_flush(idle: Idle) -> None:
    reader = idle.one_table(StructType([StructField("id", LongType())]))
    assert idle.ask(reader), "the first rows"
    ids = idle.world.tables["shop.items"].info.physical_ids
    storage_calls = []
    for number in range(10, 15):
        if number == 13:
            idle.world.flush(ids[0])
        idle.put(number)
        idle.world.resolve_all()
        begin = idle.offset
        assert idle.ask(reader), "a change"
        parts = reader.partitions(begin, idle.offset)
        storage_calls.append(idle.calls["storage"])
        rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        assert [row["id"] for row in rows] == [number]
    before, *others = storage_calls
    assert before, "the first look after the first rows reads manifests"
    assert others[:2] == [0, 0]
    assert 0 < others[2] < before, "a manifest, and no name"
    assert others[3] == 0


def test_a_stream_ends_when_a_table_that_was_there_is_captured_only_now(
    idle: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.follow.catalog._OBJECTS_S", 0.0)
    idle.stop()
    idle.start("shop.items")
    reader = idle.many_tables()
    assert idle.ask(reader), "the first rows"
    late = idle.world.create_table("shop.late", "integer")
    idle.world.commit((late, [], [item("integer", 1, "x")]))
    idle.put(10)
    idle.world.resolve_all()
    assert idle.ask(reader), "a change"
    idle.stop()
    idle.start("shop.items", "shop.late")
    idle.world.resolve_all()
    with pytest.raises(Invalid, match=r"table shop\.late .* capture\.tables was changed; start the query"):
        idle.ask(reader)
    with pytest.raises(Invalid, match=r"a table of this stream .* with a new checkpoint"):
        idle.ask(idle.many_tables())  # after a restart from its checkpoint too


@pytest.mark.skipif(HAS_ADMISSION, reason="from Spark 4.2 on availableNow has as many batches as it needs")
def test_limits_that_end_a_run_early_are_said_once(
    idle: Idle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.spark.stream._warned_of_one_batch", False)
    idle.many_tables()
    assert not caplog.text
    idle.given["maxRowsPerTrigger"] = "10"
    idle.many_tables()
    idle.one_table()
    assert caplog.text.count("ends availableNow and once after one limited batch") == 1


@pytest.mark.parametrize("kind", ["one_table", "many_tables"])
def test_a_stream_waits_for_its_only_capture(
    idle: Idle, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first: MicroBatchReader = getattr(idle, kind)()
    assert idle.ask(first), "the first rows"
    reader: MicroBatchReader = getattr(idle, kind)()
    assert not idle.ask(reader)
    idle.put(10)
    idle.world.resolve_all()
    idle.stop()
    assert not idle.ask(reader)
    assert "a stream waits" not in caplog.text
    monkeypatch.setattr("penstock.spark.stream._SILENT_S", 0.0)
    assert not idle.ask(reader)
    assert not idle.ask(reader)
    assert caplog.text.count("a stream waits") == 1
    with pytest.raises(Unavailable, match="start the query again"):
        idle.ask(getattr(idle, kind)())  # nobody has ever answered this one
    if HAS_ADMISSION:
        with pytest.raises(Unavailable, match="start the query again"):
            reader.prepareForTriggerAvailableNow()  # type: ignore[attr-defined]
    idle.start()
    assert idle.ask(reader), "the change that came meanwhile"


def test_a_capture_that_does_not_get_on_is_not_believed_for_long(idle: Idle) -> None:
    clock = ManualClock(wall_ms=1000)
    ids = idle.world.tables["shop.items"].info.physical_ids
    quiet_ts = idle.world.resolve_all()
    with FlightReader(idle.given["flightAddr"]) as reader:
        watch = WatchedTable("shop.items", dict.fromkeys(ids, reader), quiet_ts, clock=clock)
        assert watch.read_progress()
        clock.advance(9)
        assert watch.read_progress()
        idle.world.resolve_all()
        assert watch.read_progress()
        clock.advance(9)
        assert watch.read_progress(), "it got on"
        clock.advance(2)
        assert not watch.read_progress()
    gone = WatchedTable("shop.items", {ids[0]: FlightReader("127.0.0.1:1")}, quiet_ts, clock=clock)
    assert not gone.read_progress()
