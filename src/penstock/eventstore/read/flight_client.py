"""Reading a capture's tables from elsewhere, over Arrow Flight: the reader, and its tickets.

A caller and a service know each other by TLS and a bearer token.
"""

import base64
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self, get_args

import pyarrow as pa
from pyarrow import flight
from pydantic import SecretStr

from penstock.clock import TS_MAX
from penstock.errors import Corrupt, Invalid, PenstockError, StaleRead, Unavailable
from penstock.eventstore.paths import Side
from penstock.eventstore.read.partition import (
    CaptureCatalog,
    CaptureProgress,
    PhysicalHistory,
    ReadRange,
    Refusal,
    SchemaRange,
)
from penstock.eventstore.schema_version import SchemaVersion
from penstock.settings import TlsSettings

__all__ = [
    "CORRUPT",
    "HEADER",
    "STALE",
    "FlightReader",
    "bearer",
    "read_names",
    "read_number",
    "read_object_of_json",
    "read_ticket",
    "write_stale",
    "write_ticket",
]


_ANSWER_TIMEOUT_S = 30.0
_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 2 * 1024 * 1024)]
"""How much of a stream is received before it is taken. Left alone, gRPC widens it without bound when one
reader has many streams open."""
_CROWDED = "Concurrent RPC limit exceeded"  # gRPC's words; pyarrow takes it for a wrong argument
_ADDED_BY_FLIGHT = re.compile(r"\. (?:Detail|gRPC client debug context): .*", re.DOTALL)


class FlightReader:
    """Reads from the capture at `addr`; implements RangeReader.

    A context; connects when it is first used. Thread-safe; can be pickled. Every method raises Unavailable
    when the capture does not answer or does not own the table, Invalid when it refuses the token or the
    request, StaleRead when history is gone, Corrupt when its objects are damaged. A service whose
    certificate, or ours, is not accepted counts as one that does not answer.
    """

    def __init__(self, addr: str, *, tls: TlsSettings | None = None, token: SecretStr | None = None) -> None:
        self._addr = addr
        self._tls = tls
        self._token = token
        self._client: flight.FlightClient | None = None
        self._connecting = threading.Lock()

    def tables(self, *, timeout_s: float = _ANSWER_TIMEOUT_S) -> list[CaptureProgress]:
        """Return every table that the capture owns, by id, in one call however many there are."""
        return _progress_of_all(json.loads(self.run_action("progress", b"", timeout_s=timeout_s)))

    def catalog(self, patterns: Sequence[str], since_ts: int) -> CaptureCatalog:
        """Return the tables whose names match patterns and changed after `since_ts`, and the progress of
        those that match.

        Raises Invalid, with the remedy, when the capture is of a release that cannot answer.
        """
        body = json.dumps({"patterns": list(patterns), "since_ts": since_ts}).encode()
        try:
            tree = json.loads(self.run_action("catalog", body))
        except Invalid as error:
            if "there is no action" not in str(error):
                raise
            raise Invalid(f"the capture at {self._addr} is of an earlier release; upgrade it") from error
        histories = {
            int(table_id): PhysicalHistory(
                tuple(map(SchemaVersion.from_fact, known["versions"])), tuple(known["ends"])
            )
            for table_id, known in tree["histories"].items()
        }
        progress = tuple(_progress_of_all(tree["progress"]))
        return CaptureCatalog(tree["resolved_ts"], tree["ddl_ts"], progress, histories)

    def refusals(self, *, timeout_s: float = _ANSWER_TIMEOUT_S) -> list[Refusal]:
        """Return the tables that the capture owns and cannot capture; none for a capture of release 0.1.0."""
        try:
            answer = self.run_action("refusals", b"", timeout_s=timeout_s)
        except Invalid as error:
            if "there is no action" not in str(error):
                raise
            return []
        return [Refusal(**tree) for tree in json.loads(answer)]

    def progress(self, table_id: int) -> CaptureProgress:
        """Return how far a table can be read."""
        return _progress(self.run_action("resolved_ts", json.dumps({"table_id": table_id}).encode()))

    def run_action(self, name: str, body: bytes, *, timeout_s: float = _ANSWER_TIMEOUT_S) -> bytes:
        """Have the capture run one of its actions; return the answer."""
        with self._errors():
            (answer,) = self._connection().do_action(flight.Action(name, body), self._options(timeout_s))
            found: bytes = answer.body.to_pybytes()
            return found

    def parts(self, wanted: ReadRange) -> list[SchemaRange]:
        """Have the capture divide a range where the table's schema changes."""
        descriptor = flight.FlightDescriptor.for_command(write_ticket(wanted))
        with self._errors():
            info = self._connection().get_flight_info(descriptor, self._options(_ANSWER_TIMEOUT_S))
            return [_part(endpoint) for endpoint in info.endpoints]

    def read(self, wanted: ReadRange) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the schema and the rows of a part; rows are sent as they are taken."""
        with self._errors():
            stream = self._connection().do_get(flight.Ticket(write_ticket(wanted)), self._options())
            return stream.schema, self._batches(stream)

    def _batches(self, stream: flight.FlightStreamReader) -> Iterator[pa.RecordBatch]:
        whole = False
        try:
            with self._errors():
                for chunk in stream:
                    yield chunk.data
            whole = True
        finally:
            if not whole:
                stream.cancel()

    def close(self) -> None:
        """End the connection; the next call makes a new one."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(FlightReader, tls=self._tls, token=self._token), (self._addr,)

    def _connection(self) -> flight.FlightClient:
        with self._connecting:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> flight.FlightClient:
        if self._tls is None:
            return flight.FlightClient(f"grpc://{self._addr}", generic_options=_WINDOW)
        authority, certificate, key = self._tls.read()
        return flight.FlightClient(
            f"grpc+tls://{self._addr}",
            tls_root_certs=authority,
            cert_chain=certificate,
            private_key=key,
            generic_options=_WINDOW,
        )

    def _options(self, timeout_s: float | None = None) -> flight.FlightCallOptions:
        headers = [(HEADER.encode(), bearer(self._token))] if self._token is not None else []
        return flight.FlightCallOptions(timeout=timeout_s, headers=headers)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (flight.FlightError, pa.ArrowException) as error:
            raise _translate(error, f"capture at {self._addr}") from error


def _translate(error: Exception, service: str) -> PenstockError:
    extra = getattr(error, "extra_info", b"")
    if extra.startswith(STALE):
        gone = json.loads(extra.removeprefix(STALE))
        return StaleRead(gone["table"], gone["ts"], oldest_ts=gone["oldest_ts"])
    message = f"{service}: {_message(error)}"
    if extra == CORRUPT:
        return Corrupt(message)
    refused = (
        isinstance(error, pa.ArrowInvalid | flight.FlightUnauthenticatedError) and _CROWDED not in message
    )
    return Invalid(message) if refused else Unavailable(message)


def _part(endpoint: flight.FlightEndpoint) -> SchemaRange:
    schema = SchemaVersion.from_fact(json.loads(endpoint.app_metadata))
    return SchemaRange(read_ticket(endpoint.ticket.ticket), schema)


def _progress_of_all(columns: Mapping[str, list[int]]) -> list[CaptureProgress]:
    return [
        CaptureProgress(**dict(zip(columns, values, strict=True)))
        for values in zip(*columns.values(), strict=True)
    ]


def _progress(answer: bytes) -> CaptureProgress:
    return CaptureProgress(**json.loads(answer))


def _message(error: Exception) -> str:
    """Return the capture's own message, in one line."""
    words = _ADDED_BY_FLIGHT.sub("", str(error)).rpartition("with message: ")[2]
    return " ".join(words.split()) or type(error).__name__


CORRUPT = b"penstock.corrupt"  # marks an internal error as damage
STALE = b"penstock.stale "  # marks an internal error as history that is gone; its details follow as JSON


def write_stale(error: StaleRead) -> bytes:
    """Encode which history is gone, as the details of an internal error."""
    gone = {"table": error.table, "ts": error.ts, "oldest_ts": error.oldest_ts}
    return STALE + json.dumps(gone).encode()


_RANGE_KEYS = {"table_id", "from_ts", "to_ts", "side", "columns", "handle_from", "handle_to", "backfills"}


def write_ticket(wanted: ReadRange) -> bytes:
    """Encode a range as a ticket."""
    tree = {
        "table_id": wanted.table_id,
        "from_ts": wanted.from_ts,
        "to_ts": wanted.to_ts,
        "side": wanted.side,
        "columns": list(wanted.columns),
        "handle_from": base64.b64encode(wanted.handle_from).decode(),
        "handle_to": base64.b64encode(wanted.handle_to).decode(),
        "backfills": wanted.backfills,
    }
    return json.dumps(tree, separators=(",", ":")).encode()


_MESSAGE_BYTES_MAX = 1 << 20
_INT_MAX = (1 << 63) - 1


def read_object_of_json(data: bytes) -> dict[str, Any]:
    """Return the JSON object that a caller sent; raise ValueError for anything else, however it is broken."""
    if len(data) > _MESSAGE_BYTES_MAX:
        raise ValueError("too long")
    try:
        tree = json.loads(data)
    except RecursionError as error:  # brackets within brackets, as nobody needs them
        raise ValueError("nested too deeply") from error
    if not isinstance(tree, dict):
        raise ValueError("not an object")  # noqa: TRY004 - one error for everything that is malformed
    return tree


def read_number(value: object, largest: int) -> int:
    """Return a whole number from 0 to `largest`; raise ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= largest:
        raise ValueError("not a number in range")
    return value


def read_names(value: object) -> tuple[str, ...]:
    """Return a list of names that a caller sent; raise ValueError for anything else."""
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise ValueError("not a list of names")
    return tuple(value)


def read_ticket(ticket: bytes) -> ReadRange:
    """Decode the range of a ticket; raise Invalid when the ticket has none."""
    try:
        tree = read_object_of_json(ticket)
        unknown = sorted(set(tree) - _RANGE_KEYS)
        wanted = ReadRange(
            table_id=read_number(tree["table_id"], _INT_MAX),
            from_ts=read_number(tree["from_ts"], TS_MAX),
            to_ts=read_number(tree["to_ts"], TS_MAX),
            side=tree.get("side", "data"),
            columns=read_names(tree.get("columns", ())),
            handle_from=base64.b64decode(tree.get("handle_from", ""), validate=True),
            handle_to=base64.b64decode(tree.get("handle_to", ""), validate=True),
            backfills=bool(tree.get("backfills", False)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise Invalid("the ticket is no range; it needs table_id, from_ts and to_ts as JSON") from error
    if unknown:
        raise Invalid(
            f"the ticket has an unknown key {unknown[0]!r}; there are {', '.join(sorted(_RANGE_KEYS))}"
        )
    if wanted.side not in get_args(Side):
        raise Invalid(f"a table has no side {wanted.side!r}; there are {' and '.join(get_args(Side))}")
    return wanted


HEADER = "authorization"


def bearer(token: SecretStr) -> bytes:
    """Return the value of the header that carries a token."""
    return b"Bearer " + token.get_secret_value().encode("ascii")
