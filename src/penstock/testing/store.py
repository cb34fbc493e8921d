"""The embedded store as its own process, and its admin calls, for tests that crash and disturb it."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol, Self

import grpc

from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid, Unavailable
from penstock.proto import metapb_pb2 as metapb
from penstock.proto import storepb_pb2 as storepb
from penstock.proto.services import Stub

__all__ = ["Admin", "ChildProcess", "StoreProcess"]

_READY_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 20.0
_CALL_TIMEOUT_S = 10.0


class ChildProcess(Protocol):
    """The part of `subprocess.Popen` that is used here."""

    pid: int

    @property
    def stdout(self) -> IO[str] | None:
        """The pipe that the process writes to."""

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; raise TimeoutExpired when the process runs for longer."""


class StoreProcess:
    """`penstock store` as a child process on 127.0.0.1.

    A restart keeps the data directory and the address. As a context manager it ends the process.
    """

    def __init__(self, command: Sequence[str], data: Path, *, clock: Clock = SYSTEM) -> None:
        self._command = list(command)
        self._data = data
        self._clock = clock
        self._child: ChildProcess | None = None
        self.pd_addr = ""
        self.store_addrs: dict[int, str] = {}
        self.cluster_id = 0

    @classmethod
    def start(
        cls,
        data: Path,
        *,
        stores: int = 3,
        faults: bool = True,
        config: Path | None = None,
        arguments: Iterable[str] = (),
        pd_addr: str = "127.0.0.1:0",
        clock: Clock = SYSTEM,
    ) -> "StoreProcess":
        """Return start a store and wait until it is ready; raise Invalid with its message when it refuses."""
        command = ["--data", str(data), "--stores", str(stores), *arguments]
        command += ["--enable-faults"] if faults else []
        command += ["--config", str(config)] if config is not None else []
        process = cls(command, data, clock=clock)
        process.pd_addr = pd_addr
        process._launch()
        return process

    @property
    def log(self) -> Path:
        """What the process wrote to standard error."""
        return self._data.with_name(f"{self._data.name}.log")

    @property
    def pid(self) -> int:
        assert self._child is not None, "the process was not started"
        return self._child.pid

    def _launch(self) -> None:
        assert self._child is None or self._child.poll() is not None, "the process still runs"
        with self.log.open("a") as log:
            self._child = self._start_child(["store", "--pd-addr", self.pd_addr, *self._command], log)
        ready = json.loads(self._first_line())
        self.pd_addr = ready["pd"]
        self.store_addrs = {int(store_id): addr for store_id, addr in ready["stores"].items()}
        self.cluster_id = ready["cluster_id"]

    def _start_child(self, arguments: Sequence[str], log: IO[str]) -> ChildProcess:
        """Return start `penstock` with these arguments: its output is a pipe, its errors go to `log`."""
        command = [sys.executable, "-m", "penstock.cli.main", *arguments]
        return subprocess.Popen(  # noqa: S603 - our own command
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
        )

    def _first_line(self) -> str:
        assert self._child is not None
        assert self._child.stdout is not None
        line = _line_within(self._child.stdout, _READY_TIMEOUT_S)
        if line:
            return line
        self.kill()
        reason = (self.log.read_text().strip().splitlines() or ["no message"])[-1]
        raise Invalid(f"the store did not start: {reason}")

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Stop the process with SIGTERM; return its exit code."""
        return self._end(signal.SIGTERM)

    def wait(self, timeout_s: float = _STOP_TIMEOUT_S) -> int:
        """Wait until the process has ended by itself, and return its exit code."""
        assert self._child is not None, "the process was not started"
        code = self._child.wait(timeout_s)
        if self._child.stdout is not None:
            self._child.stdout.close()
        return code

    def restart(self) -> None:
        """Start again after the end, with the same data at the same address."""
        self._launch()

    def _end(self, number: signal.Signals) -> int:
        assert self._child is not None, "the process was not started"
        if self._child.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(self._child.pid, number)
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _line_within(stream: IO[str], timeout_s: float) -> str:
    """Read a line from a pipe; return nothing when it ends or stays silent for too long."""
    readable, _, _ = select.select([stream], [], [], timeout_s)
    return stream.readline() if readable else ""


class Admin:
    """Admin calls of a running store; blocking code runs them through `eventloop.run`.

    Raise Invalid when the store refuses a call, Unavailable when it does not answer.
    """

    def __init__(self, pd_addr: str, *, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._pd_addr = pd_addr
        self._credentials = credentials
        self._channel: grpc.aio.Channel | None = None

    @staticmethod
    def fault(
        kind: str, *, method: str = "", store_id: int = 0, times: int = 0, skip: int = 0, delay_ms: int = 0
    ) -> storepb.Fault:
        """Describe a fault by the name of its kind, such as "SERVER_IS_BUSY"."""
        return storepb.Fault(
            kind=kind, method=method, store_id=store_id, times=times, skip=skip, delay_ms=delay_ms
        )

    async def split(self, raw_keys: Sequence[bytes]) -> list[metapb.Region]:
        """Split at raw keys; return the regions that begin there."""
        response = await self._call("Split", storepb.SplitRequest(keys=raw_keys))
        return list(response.regions)

    async def merge(self, region_id: int) -> metapb.Region:
        """Give a region's range to its right neighbour (the last one's to its left); return that one."""
        response = await self._call("Merge", storepb.MergeRequest(region_id=region_id))
        merged: metapb.Region = response.region
        return merged

    async def transfer_leader(self, region_id: int, store_id: int) -> None:
        """Make the peer on a store the leader of a region."""
        request = storepb.TransferLeaderRequest(region_id=region_id, store_id=store_id)
        await self._call("TransferLeader", request)

    async def set_faults(self, faults: Sequence[storepb.Fault]) -> None:
        """Replace all faults; an empty list clears them."""
        await self._call("SetFaults", storepb.SetFaultsRequest(faults=faults))

    async def stop_store(self, store_id: int) -> None:
        """Turn a store off; other stores lead its regions."""
        await self._call("StopStore", storepb.StopStoreRequest(store_id=store_id))

    async def start_store(self, store_id: int) -> None:
        """Turn a store on again."""
        await self._call("StartStore", storepb.StartStoreRequest(store_id=store_id))

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await self._channel.close(None)

    async def _call(self, method: str, request: Any) -> Any:
        if self._channel is None:
            self._channel = (
                grpc.aio.insecure_channel(self._pd_addr)
                if self._credentials is None
                else grpc.aio.secure_channel(self._pd_addr, self._credentials)
            )
        call = getattr(Stub(self._channel, "penstock.storepb.Admin"), method)
        try:
            return await call(request, timeout=_CALL_TIMEOUT_S, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                raise Invalid(error.details() or "refused") from error
            raise Unavailable(f"{method} of {self._pd_addr} failed ({error.details()}); try again") from error
