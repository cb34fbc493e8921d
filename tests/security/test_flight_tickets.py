"""A Flight caller with the token may send anything: it gets INVALID_ARGUMENT, and the capture lives on."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyarrow import flight

from penstock.eventstore.capture.flight_service import FlightService


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


def test_a_descriptor_with_a_path_and_an_unknown_action_are_invalid(client: flight.FlightClient) -> None:
    with pytest.raises(pa.ArrowInvalid, match="ticket"):
        client.get_flight_info(flight.FlightDescriptor.for_path("..", "etc", "passwd"))
    with pytest.raises(pa.ArrowInvalid, match="there is no action"):
        list(client.do_action(flight.Action("x\n\x1b[2J", b"")))


def test_a_mistake_of_ours_is_told_without_its_details(client: flight.FlightClient) -> None:
    with pytest.raises(flight.FlightInternalError, match="the log of the capture says why") as told:
        list(client.do_action(flight.Action("resolved_ts", b'{"table_id": 1}')))
    assert "reached progress" not in str(told.value)
