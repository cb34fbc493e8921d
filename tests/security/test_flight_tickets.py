"""A Flight caller with the token may send anything: it gets INVALID_ARGUMENT, and the capture lives on."""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyarrow import flight

from penstock.eventstore.capture.flight_service import FlightService

DEEP = b"[" * 100_000
GOOD: dict[str, Any] = {"table_id": 1, "from_ts": 0, "to_ts": 1}
MALFORMED = [
    b"",
    b"null",
    b"7",
    b"[]",
    b'"text"',
    b"\xff\xfe\x00",
    b"{",
    DEEP,
    DEEP + b"]" * 100_000,
    b'{"table_id": ' + DEEP,
    b'{"a":' * 100_000,
    b" " * (2 << 20),
    *(
        json.dumps({**GOOD, **wrong}).encode()
        for wrong in (
            {"table_id": float("inf")},
            {"table_id": float("nan")},
            {"table_id": 1.5},
            {"table_id": True},
            {"table_id": -1},
            {"table_id": 1 << 70},
            {"table_id": "1"},
            {"from_ts": None},
            {"to_ts": 1 << 64},
            {"to_ts": []},
            {"columns": "name"},
            {"columns": [1]},
            {"columns": [["name"]]},
            {"columns": {"name": 1}},
            {"handle_from": 5},
            {"handle_from": "not base64!"},
            {"side": ["data"]},
            {"side": "nothing"},
            {"unknown": 1},
        )
    ),
    b'{"table_id": ' + b"9" * 10_000 + b', "from_ts": 0, "to_ts": 1}',
]


class Reader:
    """A reader whose tables are none: what reaches it was a proper range."""

    def __getattr__(self, name: str) -> Any:
        def fail(*_: Any) -> None:
            raise AssertionError(f"a malformed message reached {name}")

        return fail


@pytest.fixture(scope="module")
def client() -> Iterator[flight.FlightClient]:
    store = SimpleNamespace(tables=list, plan_merges=Reader, commit_merge=Reader)
    service = FlightService("127.0.0.1:0", cast("Any", store), cast("Any", Reader()))
    with flight.FlightClient(f"grpc://{service.addr}") as made:
        yield made
    service.close()


@pytest.mark.parametrize("message", MALFORMED, ids=lambda message: repr(message[:40]))
def test_a_malformed_message_is_an_invalid_argument(client: flight.FlightClient, message: bytes) -> None:
    options = flight.FlightCallOptions(timeout=30)
    with pytest.raises(pa.ArrowInvalid, match=r"ticket|side"):
        client.do_get(flight.Ticket(message), options)
    with pytest.raises(pa.ArrowInvalid, match=r"ticket|side"):
        client.get_flight_info(flight.FlightDescriptor.for_command(message), options)
    if message.startswith(b"{") and b'"table_id": 1,' in message:
        return
    for action in ("resolved_ts", "plan_merge", "commit_merge"):
        with pytest.raises(pa.ArrowInvalid, match="needs"):
            list(client.do_action(flight.Action(action, message), options))


def test_a_descriptor_with_a_path_and_an_unknown_action_are_invalid(client: flight.FlightClient) -> None:
    with pytest.raises(pa.ArrowInvalid, match="ticket"):
        client.get_flight_info(flight.FlightDescriptor.for_path("..", "etc", "passwd"))
    with pytest.raises(pa.ArrowInvalid, match="there is no action"):
        list(client.do_action(flight.Action("x\n\x1b[2J", b"")))


def test_a_mistake_of_ours_is_told_without_its_details(client: flight.FlightClient) -> None:
    with pytest.raises(flight.FlightInternalError, match="the log of the capture says why") as told:
        list(client.do_action(flight.Action("resolved_ts", b'{"table_id": 1}')))
    assert "reached progress" not in str(told.value)
