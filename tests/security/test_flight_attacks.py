"""Callers of Flight, with and without the token, who take more than their share: others do not notice."""

import contextlib
import socket
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pyarrow as pa
import pytest
from prometheus_client import REGISTRY
from pyarrow import flight
from pydantic import SecretStr

from penstock.clock import SYSTEM
from penstock.errors import Invalid, Unavailable
from penstock.eventstore.capture.flight_server import CallBoard, FlightAccess, FlightLimits, ThreadForEachCall
from penstock.eventstore.capture.flight_service import FlightService
from penstock.eventstore.read.flight_client import FlightReader, write_ticket
from penstock.eventstore.read.partition import ReadRange

TOKEN = SecretStr("a-token-of-some-length")
HEADERS = [("authorization", f"Bearer {TOKEN.get_secret_value()}")]
SERVICE = "/arrow.flight.protocol.FlightService/"
TICKET = write_ticket(ReadRange(table_id=1, from_ts=0, to_ts=1))
BATCH = pa.RecordBatch.from_pydict({"a": ["x" * 1000] * 1000})
WINDOW = [("grpc.http2.bdp_probe", 0)]  # else gRPC takes gigabytes for a caller that reads slowly
LIMITS = FlightLimits(calls=4, request_s=0.5, stall_s=0.5, handshake_s=1, makes_room_s=0.0)


class Endless:
    """A table whose rows never end, unless told; counts the reads that are open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.open = 0
        self.sent = 0  # about: streams count at the same time
        self.batches = [BATCH]
        self.ends = False

    def read(self, _: ReadRange) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        return BATCH.schema, self._batches()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        with self._lock:
            self.open += 1
        try:
            while True:
                for batch in self.batches:
                    self.sent += 1
                    yield batch
                if self.ends:
                    return
        finally:
            with self._lock:
                self.open -= 1


class Served:
    """A service with small limits, and callers."""

    def __init__(self, limits: FlightLimits) -> None:
        self.table = Endless()
        store = SimpleNamespace(tables=list, plan_merges=None, commit_merge=None)
        self.service = FlightService(
            "127.0.0.1:0",
            cast("Any", store),
            cast("Any", self.table),
            FlightAccess(token=TOKEN),
            limits=limits,
        )
        self._held = contextlib.ExitStack()

    def close(self) -> None:
        self._held.close()
        self.service.close()

    def hang_up(self) -> None:
        """End every connection of the callers."""
        self._held.close()

    def is_answering(self) -> bool:
        with contextlib.suppress(Unavailable):
            self.answers()
            return True
        return False

    def channel(self) -> grpc.Channel:
        """Return a connection of its own, because channels of one process share theirs."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1), *WINDOW]
        return self._held.enter_context(grpc.insecure_channel(self.service.addr, options=options))

    def call(self, method: str, requests: Iterator[bytes], *, headers: Any = HEADERS, **rest: Any) -> Any:
        channel: Any = self.channel()
        made = channel.stream_stream(SERVICE + method)(requests, metadata=headers, timeout=60, **rest)
        self._held.callback(made.cancel)
        return made

    def read_nothing(self) -> Any:
        """Ask for rows, take the first message, and no more."""
        stream = self.call("DoGet", iter([flight.Ticket(TICKET).serialize()]))
        next(stream)
        return stream

    def read_all(self) -> tuple[pa.Schema, list[pa.RecordBatch]]:
        with FlightReader(self.service.addr, token=TOKEN) as reader:
            schema, batches = reader.read(ReadRange(table_id=1, from_ts=0, to_ts=1))
            return schema, list(batches)

    def answers(self) -> None:
        with FlightReader(self.service.addr, token=TOKEN) as reader:
            assert reader.tables() == []

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = SYSTEM.monotonic() + 30
        while not holds():
            assert SYSTEM.monotonic() < deadline, what
            SYSTEM.pause(0.02)


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served(LIMITS)
    yield made
    made.close()


def refusals(why: str) -> float:
    return REGISTRY.get_sample_value("penstock_eventstore_flight_refused_total", {"why": why}) or 0


def never(ended: threading.Event) -> Iterator[bytes]:
    ended.wait(60)
    yield from ()


def test_a_caller_that_does_not_read_is_cut_off_and_holds_no_thread(served: Served) -> None:
    slow = refusals("slow")
    stream = served.read_nothing()
    served.until(lambda: served.table.open == 1, "the read did not begin")
    served.until(lambda: served.table.open == 0, "a caller that does not read holds a thread")
    assert refusals("slow") == slow + 1
    with pytest.raises(grpc.RpcError):
        list(stream)
    served.answers()


def test_a_caller_that_reads_slowly_but_steadily_gets_its_rows(served: Served) -> None:
    with flight.connect(f"grpc://{served.service.addr}", generic_options=WINDOW) as client:
        headers = [(name.encode(), value.encode()) for name, value in HEADERS]
        stream = client.do_get(flight.Ticket(TICKET), flight.FlightCallOptions(headers=headers))
        end = SYSTEM.monotonic() + 4 * LIMITS.stall_s
        while SYSTEM.monotonic() < end:
            assert stream.read_chunk().data.num_rows >= 1000
            SYSTEM.pause(LIMITS.stall_s / 50)
        stream.cancel()


def test_those_who_read_nothing_make_room_for_others() -> None:
    served = Served(FlightLimits(calls=4, stall_s=300, makes_room_s=0.0))
    try:
        for _ in range(4):
            served.read_nothing()
        served.until(lambda: served.table.open == 4, "the reads did not begin")
        served.answers()  # in place of the one that has waited longest
        served.until(lambda: served.table.open == 3, "a call that made room holds a thread")
    finally:
        served.close()


def test_callers_beyond_the_cap_are_told_to_wait() -> None:
    served = Served(FlightLimits(calls=2, stall_s=300, makes_room_s=300))
    try:
        for _ in range(2):
            served.read_nothing()
        with (
            FlightReader(served.service.addr, token=TOKEN) as reader,
            pytest.raises(Unavailable, match="too many calls at a time; try again"),
        ):
            reader.tables()
    finally:
        served.close()


def test_one_reader_may_have_a_stream_for_each_of_many_partitions() -> None:
    """It takes rows of all in turn: a stream that waits for another to end would wait for ever."""
    served = Served(FlightLimits())
    wanted = ReadRange(table_id=1, from_ts=0, to_ts=1)
    try:
        with FlightReader(served.service.addr, token=TOKEN) as reader, contextlib.ExitStack() as held:
            opened = ThreadPoolExecutor(1).submit(lambda: [reader.read(wanted) for _ in range(150)])
            for _, batches in opened.result(60):
                held.callback(cast("Generator[pa.RecordBatch]", batches).close)
                assert next(batches).num_rows >= 1000
            assert served.table.sent < 150 * 8, "much more is sent than taken"
    finally:
        served.close()


def test_our_client_does_not_widen_its_windows(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """How far gRPC would widen them depends on the machine: to gigabytes on a busy one."""
    made: list[dict[str, Any]] = []
    connect = flight.FlightClient

    def note(addr: str, **options: Any) -> flight.FlightClient:
        made.append(options)
        return connect(addr, **options)

    monkeypatch.setattr(flight, "FlightClient", note)
    served.answers()
    (options,) = made
    assert dict(options["generic_options"])["grpc.http2.bdp_probe"] == 0


def test_connections_beyond_the_cap_are_closed_and_others_come_in_later() -> None:
    served = Served(FlightLimits(connections=4))
    try:
        for _ in range(4):
            grpc.channel_ready_future(served.channel()).result(30)
        with pytest.raises(grpc.FutureTimeoutError):
            grpc.channel_ready_future(served.channel()).result(1)
        served.hang_up()
        served.until(served.is_answering, "no connection is taken any more")
    finally:
        served.close()


@pytest.mark.parametrize("method", ["DoGet", "DoAction", "GetFlightInfo", "DoPut", "DoExchange", "Handshake"])
@pytest.mark.parametrize("headers", [HEADERS, []], ids=["token", "no token"])
def test_a_call_without_a_request_ends_soon(served: Served, method: str, headers: Any) -> None:
    ended = threading.Event()
    try:
        calls = [served.call(method, never(ended), headers=headers) for _ in range(3)]
        for call in calls:
            assert call.code() is not grpc.StatusCode.OK
        if not headers:
            assert {call.code() for call in calls} == {grpc.StatusCode.UNAUTHENTICATED}
    finally:
        ended.set()
    served.answers()


def test_a_message_of_any_size_is_not_taken(served: Served) -> None:
    large = flight.Action("progress", b"x" * (LIMITS.request_bytes + 1)).serialize()
    call = served.call("DoAction", iter([large]))
    assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    with (
        FlightReader(served.service.addr, token=TOKEN) as reader,
        pytest.raises(Invalid, match="larger than max"),
    ):
        reader.run_action("progress", b"x" * (LIMITS.request_bytes + 1))


def test_a_small_message_that_grows_is_not_taken(served: Served) -> None:
    bomb = flight.Action("progress", b"\0" * (1 << 20)).serialize()
    call = served.call("DoAction", iter([bomb]), compression=grpc.Compression.Gzip)
    assert call.code() is grpc.StatusCode.UNIMPLEMENTED


def test_silent_connections_are_closed(served: Served) -> None:
    host, _, port = served.service.addr.rpartition(":")
    with contextlib.ExitStack() as held:
        silent = [
            held.enter_context(socket.create_connection((host, int(port)), timeout=30)) for _ in range(50)
        ]
        for number, connection in enumerate(silent):
            connection.sendall(b"PRI * HTTP/2.0"[:number])
        served.answers()
        for connection in silent:
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(4096):  # the settings of a server come first
                    pass


def test_a_caller_that_answers_no_ping_is_closed() -> None:
    """Its machine may be gone. It speaks HTTP/2 first: the deadline of the handshake does not end it."""
    served = Served(FlightLimits(ping_s=1, ping_timeout_s=0.5))
    host, _, port = served.service.addr.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=30) as silent:
            silent.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
            with contextlib.suppress(ConnectionResetError):
                while silent.recv(4096):
                    pass
    finally:
        served.close()


def test_a_request_that_is_no_message_is_an_invalid_argument(served: Served) -> None:
    for method in ("DoGet", "DoAction", "GetFlightInfo"):
        call = served.call(method, iter([b"\xff" * 100]))
        assert call.code() is grpc.StatusCode.INVALID_ARGUMENT, method
    assert served.call("DoGet", iter([])).code() is grpc.StatusCode.INVALID_ARGUMENT
    assert served.call("Unknown", iter([b""])).code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_request_does_not_come_back_whole_in_its_refusal(served: Served) -> None:
    with (
        FlightReader(served.service.addr, token=TOKEN) as reader,
        pytest.raises(Invalid, match="there is no action 'xxxx") as refused,
    ):
        reader.run_action("x" * 1_000_000, b"")
    assert len(str(refused.value)) < 3000


def test_a_call_that_gets_no_thread_ends_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    failed = ThreadForEachCall().submit(print)
    assert "start new thread" in str(failed.exception(0))


def test_small_batches_travel_together_and_large_ones_in_parts(served: Served) -> None:
    small = [BATCH.slice(0, rows) for rows in (1, 0, 100, 50, 60)]
    large = pa.concat_batches([BATCH] * 10)
    sent = [*small, large, *small, large, BATCH]
    served.table.batches = sent
    served.table.ends = True
    _, received = served.read_all()
    assert [batch.num_rows for batch in received] == [211, *[1000] * 10, 211, *[1000] * 11]
    assert pa.Table.from_batches(received).equals(pa.Table.from_batches(sent))


def test_a_batch_of_another_schema_is_not_sent(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.table.batches = [pa.RecordBatch.from_pydict({"a": [1, 2, 3]})]
    with pytest.raises(Unavailable, match="the log of the capture says why"):
        served.read_all()
    assert "the batches of a stream have its schema" in caplog.text


def test_a_service_stops_in_time_whatever_its_callers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.eventstore.capture.flight_service.STOP_TIMEOUT_S", 0.5)
    served = Served(FlightLimits())
    ended = threading.Event()
    try:
        streams = [served.read_nothing() for _ in range(3)]
        served.call("DoGet", never(ended))
        served.until(lambda: served.table.open == 3, "the reads did not begin")
        begun = SYSTEM.monotonic()
        served.service.close()
        assert SYSTEM.monotonic() - begun < 5
        for stream in streams:
            with pytest.raises(grpc.RpcError):
                list(stream)
        served.until(lambda: served.table.open == 0, "a reader is still open")
    finally:
        ended.set()
        served.close()


def test_the_call_that_waited_longest_makes_room() -> None:
    board: CallBoard[str] = CallBoard(2, makes_room_s=1.0)
    assert (board.enter("a", 0), board.enter("b", 0)) == (None, None)
    assert board.enter("c", 5) == "c", "both work"
    board.wait("b", 5, 10)
    assert board.enter("c", 5.5) == "c", "b may be about to go on"
    board.wait("a", 5.5, 1)
    assert board.enter("c", 6) == "b"
    assert len(board) == 2
    assert board.take_late(6.4) == []
    assert board.take_late(6.5) == ["a"]
    board.work("c")
    board.leave("c")
    board.leave("c")
    assert len(board) == 0
