"""Fault switches: what goes wrong on purpose, for which calls and how often.

A fault without a method strikes every call of a store; it strikes a call of the placement driver only by its
name. The decision is pure; the servers carry it out.
"""

import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import grpc

from penstock.clock import SYSTEM, Clock
from penstock.proto import errorpb_pb2 as errorpb
from penstock.proto import storepb_pb2 as storepb
from penstock.store.refusals import region_not_found, server_is_busy, stale_command

__all__ = ["Fault", "FaultStruck", "Faults"]

Fault = storepb.Fault

_REFUSALS: dict[int, Callable[[int], errorpb.Error]] = {
    Fault.SERVER_IS_BUSY: lambda _: server_is_busy("fault"),
    Fault.NOT_LEADER: lambda region_id: errorpb.Error(
        message="fault", not_leader=errorpb.NotLeader(region_id=region_id)
    ),
    Fault.EPOCH_NOT_MATCH: lambda _: errorpb.Error(message="fault", epoch_not_match=errorpb.EpochNotMatch()),
    Fault.STALE_COMMAND: lambda _: stale_command(),
    Fault.REGION_NOT_FOUND: region_not_found,
    Fault.MAX_TIMESTAMP_NOT_SYNCED: lambda _: errorpb.Error(
        message="fault", max_timestamp_not_synced=errorpb.MaxTimestampNotSynced()
    ),
}


class FaultStruck(Exception):
    """A fault ends this call with a status; without a status the call is never answered."""

    def __init__(self, code: grpc.StatusCode | None) -> None:
        super().__init__("fault")
        self.code = code


@dataclass(slots=True)
class _Switch:
    fault: storepb.Fault
    skipped: int = 0
    struck: int = 0

    def matches(self, method: str, store_id: int) -> bool:
        fault = self.fault
        if fault.method != method and (fault.method or not store_id):
            return False
        return not fault.store_id or fault.store_id == store_id

    def strikes(self) -> bool:
        """Count a matching call; return whether the fault strikes it."""
        if self.skipped < self.fault.skip:
            self.skipped += 1
            return False
        if self.fault.times and self.struck >= self.fault.times:
            return False
        self.struck += 1
        return True


class Faults:
    """The switches that are on. `active` is False when there are none, the usual case."""

    def __init__(self, *, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._switches: list[_Switch] = []
        self.active = False

    def set(self, faults: Iterable[storepb.Fault]) -> None:
        """Replace all faults; an empty list clears them."""
        self._switches = [_Switch(fault) for fault in faults]
        self.active = bool(self._switches)

    def strike(self, method: str, store_id: int = 0) -> storepb.Fault | None:
        """Count a call; return the first fault that strikes it. The placement driver is store 0."""
        for switch in self._switches:
            if switch.matches(method, store_id) and switch.strikes():
                return switch.fault
        return None

    def refusal(self, fault: storepb.Fault, region_id: int) -> errorpb.Error | None:
        """Return the region error that a fault answers with, if it is of that kind."""
        make = _REFUSALS.get(fault.kind)
        return make(region_id) if make is not None else None

    def before(self, fault: storepb.Fault) -> None:
        """Do what a fault does before the call is applied; raise FaultStruck when it ends the call."""
        if fault.kind == Fault.DROP:
            raise FaultStruck(None)
        if fault.kind in {Fault.UNAVAILABLE, Fault.STREAM_RESET}:
            raise FaultStruck(grpc.StatusCode.UNAVAILABLE)

    async def after(self, fault: storepb.Fault) -> None:
        """Do what a fault does after the call is applied; raise FaultStruck when it withholds the answer."""
        if fault.kind == Fault.DELAY:
            await self._clock.sleep(fault.delay_ms / 1000)
        elif fault.kind == Fault.UNDETERMINED:
            raise FaultStruck(grpc.StatusCode.UNAVAILABLE)
        elif fault.kind == Fault.CRASH:
            os.kill(os.getpid(), signal.SIGKILL)
