"""Who gets into a capture's Flight service, over real TLS on loopback."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight
from pydantic import SecretStr

from penstock.errors import Invalid, Unavailable
from penstock.eventstore.capture.capture import Capture
from penstock.eventstore.capture.flight_server import FlightAccess
from penstock.eventstore.capture.flight_service import FlightService
from penstock.eventstore.capture.reader import Reader
from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.read.flight_client import FlightReader
from penstock.eventstore.read.partition import CaptureProgress, ReadRange
from penstock.object_storage import ObjectStorage, open_storage
from penstock.settings import CaptureSettings, ServerTlsSettings, Settings, TlsSettings
from penstock.tables.decoding.decoder import TidbRowDecoder
from support.capture import CaptureProcess
from support.certificates import issue
from support.events import FixedSchemas, a_table, change
from support.rawbatches import raw

TOKEN = SecretStr("a-token-of-some-length")
OTHER = SecretStr("a-token-of-same-length")
WHOLE = ReadRange(table_id=1, from_ts=0, to_ts=100)


class Files:
    """An authority, what it signed, and a stranger."""

    def __init__(self, folder: Path) -> None:
        self.ca, self.stranger = issue(folder, "ca"), issue(folder, "stranger")
        self.server, self.client = issue(folder, "server", self.ca), issue(folder, "client", self.ca)
        self.outsider = issue(folder, "outsider", self.stranger)

    def serving(self, *, check_clients: bool) -> ServerTlsSettings:
        ca_path = self.ca.cert_path if check_clients else None
        return ServerTlsSettings(
            cert_path=self.server.cert_path, key_path=self.server.key_path, ca_path=ca_path
        )

    def reading(self, who: str | None = None, authority: str = "ca") -> TlsSettings:
        shown = {}
        if who is not None:
            identity = getattr(self, who)
            shown = {"cert_path": identity.cert_path, "key_path": identity.key_path}
        return TlsSettings(ca_path=getattr(self, authority).cert_path, **shown)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[tuple[str, EventStore, ObjectStorage]]:
    chosen = CaptureSettings(data=folder / "data", flight_addr="127.0.0.1:0", **settings)
    storage = open_storage("memory:///")
    decoder = TidbRowDecoder()
    store = EventStore(chosen, storage, decoder=decoder, schemas=FixedSchemas.of(a_table()))
    store.start()
    try:
        table = store.open_table(1)
        stored: list[bool] = []
        batch = raw([change(a_table(), ts, {"id": ts, "name": "x"}) for ts in range(1, 51)])
        assert table.consume_kv_events(batch, lambda: stored.append(True))
        store._wal.forget(99)  # returns after what was queued before it is on the disk
        assert stored
        table.advance_resolved_ts(100)
        service = FlightService(
            chosen.flight_addr, store, Reader(store, storage, decoder), FlightAccess.of(chosen)
        )
        try:
            yield service.addr, store, storage
        finally:
            service.close()
    finally:
        store.close(flush=False)


def rows(reader: FlightReader) -> int:
    return sum(batch.num_rows for part in reader.parts(WHOLE) for batch in reader.read(part.wanted)[1])


@pytest.mark.parametrize("check_clients", [False, True])
def test_whoever_has_certificate_and_token_reads_everything(
    tmp_path: Path, files: Files, check_clients: bool
) -> None:
    tls = files.serving(check_clients=check_clients)
    with serving(tmp_path, flight_tls=tls, flight_token=TOKEN) as (addr, _, _):
        ours = files.reading("client" if check_clients else None)
        with pickle.loads(pickle.dumps(FlightReader(addr, tls=ours, token=TOKEN))) as reader:
            assert reader.tables() == [reader.progress(1)] == [CaptureProgress(1, 100, 100, 0, 50)]
            assert rows(reader) == 50


@pytest.mark.parametrize(("who", "authority"), [(None, "ca"), ("outsider", "ca"), ("client", "stranger")])
def test_a_certificate_of_the_wrong_authority_gets_no_answer(
    tmp_path: Path, files: Files, who: str | None, authority: str
) -> None:
    tls = files.serving(check_clients=True)
    with (
        serving(tmp_path, flight_tls=tls, flight_token=TOKEN) as (addr, _, _),
        FlightReader(addr, tls=files.reading(who, authority), token=TOKEN) as reader,
        pytest.raises(Unavailable, match=addr),
    ):
        reader.tables()


def test_a_caller_without_tls_gets_no_answer(tmp_path: Path, files: Files) -> None:
    with (
        serving(tmp_path, flight_tls=files.serving(check_clients=False)) as (addr, _, _),
        FlightReader(addr) as reader,
        pytest.raises(Unavailable, match=addr),
    ):
        reader.tables()


@pytest.mark.parametrize(
    ("token", "says"),
    [(None, "needs a token"), (OTHER, "not the one"), (SecretStr("x" * 5000), "not the one")],
)
def test_a_wrong_or_missing_token_is_refused_in_one_line(
    tmp_path: Path, token: SecretStr | None, says: str
) -> None:
    with serving(tmp_path, flight_token=TOKEN) as (addr, _, _), FlightReader(addr, token=token) as reader:
        for call in (reader.tables, lambda: reader.progress(1), lambda: rows(reader)):
            with pytest.raises(Invalid, match=says) as caught:
                call()
            assert "\n" not in str(caught.value)
            assert TOKEN.get_secret_value() not in str(caught.value)


CALLS: dict[str, Callable[[flight.FlightClient, flight.FlightCallOptions], Any]] = {
    "list_flights": lambda client, options: list(client.list_flights(options=options)),
    "list_actions": lambda client, options: client.list_actions(options),
    "do_action": lambda client, options: list(client.do_action("resolved_ts", options)),
    "get_flight_info": lambda client, options: client.get_flight_info(
        flight.FlightDescriptor.for_command(b""), options
    ),
    "get_schema": lambda client, options: client.get_schema(
        flight.FlightDescriptor.for_command(b""), options
    ),
    "do_get": lambda client, options: client.do_get(flight.Ticket(b""), options).read_all(),
    "do_put": lambda client, options: client.do_put(
        flight.FlightDescriptor.for_command(b""), pa.schema([]), options
    )[0].close(),
    "do_exchange": lambda client, options: client.do_exchange(
        flight.FlightDescriptor.for_command(b""), options
    )[1].read_all(),
}


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", TOKEN.get_secret_value().encode())],
        [(b"authorization", b"Bearer " + OTHER.get_secret_value().encode())],
        [(b"authorization", b"Bearer " + each.get_secret_value().encode()) for each in (TOKEN, OTHER)],
    ],
)
def test_no_method_answers_without_the_token(
    tmp_path: Path, method: str, headers: list[tuple[bytes, bytes]]
) -> None:
    refusals = (flight.FlightUnauthenticatedError, OSError)  # pyarrow's get_schema knows no Flight errors
    with (
        serving(tmp_path, flight_token=TOKEN) as (addr, _, _),
        flight.connect(f"grpc://{addr}") as client,
        pytest.raises(refusals, match=r"unauthenticated.*token"),
    ):
        CALLS[method](client, flight.FlightCallOptions(headers=headers, timeout=10))


def test_the_readers_errors_say_what_to_do_next(tmp_path: Path) -> None:
    with serving(tmp_path) as (addr, _, _), FlightReader(addr) as reader:
        with pytest.raises(Unavailable, match="table 9 is not captured here"):
            reader.progress(9)
        with pytest.raises(Invalid, match=r"\(5, 5\] is no range; from_ts must be below to_ts$"):
            reader.parts(ReadRange(table_id=1, from_ts=5, to_ts=5))
    with FlightReader(addr) as reader, pytest.raises(Unavailable, match="failed to connect"):
        reader.tables()


@pytest.mark.parametrize("addr", ["0.0.0.0:8815", "[::]:8815", "10.1.2.3:0", ":8815", "db.example.com:8815"])
@pytest.mark.parametrize("given", ["nothing", "tls", "token"])
def test_an_address_for_other_machines_needs_tls_and_token(files: Files, addr: str, given: str) -> None:
    settings = CaptureSettings(
        flight_addr=addr,
        flight_tls=files.serving(check_clients=True) if given == "tls" else None,
        flight_token=TOKEN if given == "token" else None,
    )
    with pytest.raises(Invalid, match=r"flight_tls and capture\.flight_token") as caught:
        FlightAccess.of(settings)
    assert "\n" not in str(caught.value)


def test_with_both_it_may_be_served_there(files: Files) -> None:
    settings = CaptureSettings(
        flight_addr="0.0.0.0:0", flight_tls=files.serving(check_clients=False), flight_token=TOKEN
    )
    access = FlightAccess.of(settings)
    assert access.credentials() is not None
    assert TOKEN.get_secret_value() not in repr(access)
    assert "PRIVATE" not in repr(access)


@pytest.mark.parametrize("addr", ["127.0.0.1:0", "127.9.9.9:1", "[::1]:0", "localhost:8815"])
def test_loopback_needs_neither(addr: str) -> None:
    assert FlightAccess.of(CaptureSettings(flight_addr=addr)) == FlightAccess()


def test_certificate_and_key_that_do_not_fit_are_refused(tmp_path: Path, files: Files) -> None:
    tls = ServerTlsSettings(cert_path=files.server.cert_path, key_path=files.client.key_path)
    with pytest.raises(Invalid, match=r"capture\.flight_tls"), serving(tmp_path, flight_tls=tls):
        pass


async def test_a_capture_refuses_an_open_address_before_it_connects_anywhere(tmp_path: Path) -> None:
    settings = CaptureSettings(data=tmp_path / "data", flight_addr="0.0.0.0:0")
    with pytest.raises(Invalid, match="can be reached by other machines"):
        await Capture.start(Settings(pd_addrs=("127.0.0.1:1",), capture=settings))
    assert not (tmp_path / "data").exists()


def test_the_command_refuses_it_in_one_line(tmp_path: Path) -> None:
    process = CaptureProcess(tmp_path, {"capture": {"flight_addr": "0.0.0.0:0"}})
    with pytest.raises(Invalid, match=r"penstock: capture\.flight_addr = '0\.0\.0\.0:0' can be reached"):
        process.start()
    assert process.log.count("\n") == 1


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(first: bytes, second: bytes) -> bool:
        compared.append((first, second))
        return False

    monkeypatch.setattr("hmac.compare_digest", compare)
    assert FlightAccess(token=TOKEN).refuse([("authorization", "Bearer x")]) is not None
    assert compared == [(b"Bearer x", b"Bearer a-token-of-some-length")]
