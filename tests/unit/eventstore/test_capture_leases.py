"""The rows of captures in the key-value store, of this release and of the one before."""

import json

import pytest

from penstock.errors import Corrupt
from penstock.eventstore.capture.lease import PREFIX, CaptureLease
from penstock.kv.lease import LeaseRecord

KEY = PREFIX + b"capture-1"
LEASE = CaptureLease("capture-1", "10.0.0.1:7070", LeaseRecord("a1b2", 3, 1_700_000_000_000))


def test_a_lease_is_read_as_it_was_written() -> None:
    assert CaptureLease.read(KEY, LEASE.write()) == LEASE


def test_a_row_of_release_0_1_0_is_understood() -> None:
    old = b'{"data_id": "a1b2", "flight_addr": "10.0.0.1:7070", "expires_ms": 1700000000000}'
    read = CaptureLease.read(KEY, old)
    assert (read.id, read.flight_addr) == (LEASE.id, LEASE.flight_addr)
    assert read.record == LeaseRecord("a1b2", 0, 1_700_000_000_000)
    assert read.record.is_held(1_699_999_999_999)
    assert not read.record.is_held(1_700_000_000_000)


def test_release_0_1_0_understands_a_row_of_today() -> None:
    tree = json.loads(LEASE.write())
    read_by_0_1_0 = (tree["data_id"], tree["flight_addr"], int(tree["expires_ms"]))
    assert read_by_0_1_0 == ("a1b2", "10.0.0.1:7070", 1_700_000_000_000)


@pytest.mark.parametrize(
    "value",
    [
        b"{",
        b"[]",
        b"7",
        b"{}",
        b'{"owner": "a1b2", "epoch": 1, "expires_ms": 5}',
        b'{"data_id": "a1b2", "flight_addr": "x", "expires_ms": "soon"}',
        b'{"flight_addr": "x", "expires_ms": 5}',
    ],
)
def test_a_damaged_row_is_said_so(value: bytes) -> None:
    with pytest.raises(Corrupt, match="a capture's lease row is damaged"):
        CaptureLease.read(KEY, value)
