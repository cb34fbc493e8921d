"""Callers of the embedded store, which has no users, who take more than their share: others do not notice."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock import eventloop
from penstock.clock import SYSTEM
from penstock.proto import pdpb_pb2 as pdpb
from penstock.proto.services import Stub
from penstock.store import server as server_module
from support.command import ServiceProcess

LATE_S = 20.0
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # the preface, and empty settings
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
STREAMS = 3000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("store")
    with ServiceProcess(
        folder / "log", "store", "--pd-addr", "127.0.0.1:0", "--data", str(folder / "data")
    ) as made:
        yield made


def addresses(store: ServiceProcess) -> list[str]:
    return [store.ready["pd"], *store.ready["stores"].values()]


def method(address: str, store: ServiceProcess) -> str:
    """A method of the service at an address."""
    return "/pdpb.PD/Tso" if address == store.ready["pd"] else "/tikvpb.Tikv/BatchCommands"


async def take_timestamp(store: ServiceProcess) -> None:
    """Be another client: connect and get a timestamp, soon; open a stream that ended again, as clients do."""
    header = pdpb.RequestHeader(cluster_id=store.ready["cluster_id"])
    async with asyncio.timeout(LATE_S):
        for _ in range(3):
            async with grpc.aio.insecure_channel(store.ready["pd"], options=OWN_CONNECTION) as channel:
                call = Stub(channel, "pdpb.PD").Tso()
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await call.write(pdpb.TsoRequest(header=header, count=1))
                    assert (await call.read()).timestamp.physical > 0
                    return
    pytest.fail("no stream gave a timestamp")


def memory_mb(store: ServiceProcess, what: str) -> int:
    lines = Path(f"/proc/{store.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(what))


@pytest.mark.parametrize("part", [0, 1], ids=["placement driver", "store"])
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "compressed"])
def test_a_message_above_the_limit_is_refused_before_it_is_in_memory(
    store: ServiceProcess, part: int, packed: bool
) -> None:
    """A compressed one is a thousand times smaller on its way; unpacking it ends at the limit."""
    address = addresses(store)[part]
    large = bytes(server_module._MESSAGE_BYTES_MAX + 1)
    Path(f"/proc/{store.pid}/clear_refs").write_text("5")  # the peak is counted from here on
    before = memory_mb(store, "VmRSS")

    async def attack() -> None:
        async with grpc.aio.insecure_channel(address, options=OWN_CONNECTION) as channel:
            compression = grpc.Compression.Gzip if packed else grpc.Compression.NoCompression
            call: Any = channel.stream_stream(method(address, store))(compression=compression, timeout=60)
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(large)
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await take_timestamp(store)

    eventloop.run(attack())
    allowed = (
        server_module._MESSAGE_BYTES_MAX >> 19 if packed else 64
    )  # twice the limit, while it is unpacked
    assert memory_mb(store, "VmHWM") - before < allowed + 64


@pytest.mark.parametrize("part", [0, 1], ids=["placement driver", "store"])
def test_thousands_of_silent_streams_on_one_connection_stop_nobody(store: ServiceProcess, part: int) -> None:
    address = addresses(store)[part]

    async def attack() -> None:
        async with grpc.aio.insecure_channel(address, options=OWN_CONNECTION) as channel:
            open_stream: Any = channel.stream_stream(method(address, store))
            calls = [open_stream() for _ in range(STREAMS)]
            await asyncio.gather(*(call.wait_for_connection() for call in calls))
            await take_timestamp(store)
            for call in calls:
                call.cancel()
        await take_timestamp(store)

    eventloop.run(attack())


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=LATE_S)


@pytest.mark.parametrize("part", [0, 1], ids=["placement driver", "store"])
def test_many_connections_of_one_address_that_speak_http_and_ask_nothing_stop_nobody(
    store: ServiceProcess, part: int
) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(1005):
            held.enter_context(connect(addresses(store)[part])).sendall(HTTP2)
        eventloop.run(take_timestamp(store))


def test_a_client_that_answers_no_ping_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine may be gone. It speaks HTTP/2 first: the deadline of the handshake does not end it."""
    soon = {server_module._PING_MS: 1000, server_module._PING_TIMEOUT_MS: 500}
    options = [(key, soon.get(value, value)) for key, value in server_module._OPTIONS]
    assert dict(options)["grpc.max_connection_idle_ms"] > LATE_S * 1000, "it would be closed anyhow"
    monkeypatch.setattr(server_module, "_OPTIONS", options)

    def closed_after(client: socket.socket) -> float:
        began = SYSTEM.monotonic()
        with contextlib.suppress(ConnectionError):
            while client.recv(1 << 16):
                pass
        return SYSTEM.monotonic() - began

    async def attack() -> None:
        endpoint = server_module.Endpoint("127.0.0.1:0")
        await endpoint.start([])
        with connect(endpoint.address) as client:
            client.sendall(HTTP2)
            assert await asyncio.to_thread(closed_after, client) < LATE_S
        await endpoint.stop()

    eventloop.run(attack())
