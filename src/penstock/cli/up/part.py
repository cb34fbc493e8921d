"""A part of `penstock up`, as its supervisor starts it: `python -m penstock.cli.up.part NAME`.

Its order comes by standard input, which stays open for as long as it should run: the end of input means to
stop, so that nothing outlives a supervisor that was killed. A supervisor that lives says so by a line before.
"""

import asyncio
import os
import signal
import sys
import threading

from penstock import process
from penstock import process as arrowmemory
from penstock.cli.up.parts import STOP, ServiceConfig
from penstock.clock import SYSTEM
from penstock.control.part_states import PartKind
from penstock.errors import PenstockError
from penstock.settings import Settings

__all__ = ["main"]

_INPUT = 0
_CHUNK_BYTES = 1 << 16
_HEAD_START_S = 3.0
"""Of the others before the store ends, when no supervisor sees to that any more."""


def main() -> None:
    """Run a part until its input ends; an error is one line on standard error and exit code 2."""
    arrowmemory.prepare()
    try:
        order = ServiceConfig.parse(_read_line())
        process.configure(style=order.log_format, level=order.log_level)
        threading.Thread(target=_stop_at_end_of_input, args=(order,), daemon=True).start()
        _serve(order.kind, order.settings)
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        sys.exit(2)


def _serve(kind: PartKind, settings: Settings) -> None:
    """Serve in the foreground until SIGTERM; each part brings in what it needs, and no more."""
    match kind:
        case PartKind.STORE:
            from penstock.cli.services import store

            asyncio.run(store.serve(settings.store, metrics_addr=settings.metrics_addr))
        case PartKind.CAPTURE:
            from penstock.cli.services import capture

            asyncio.run(capture.serve(settings))
        case PartKind.CHANGEFEEDS:
            from penstock.cli.services import changefeeds

            changefeeds.serve(settings)
        case PartKind.JOBS:
            from penstock.cli.services import jobs

            jobs.serve(settings)
        case PartKind.API:
            from penstock.cli.services import api

            api.serve(settings)


def _read_line() -> bytes:
    """The first line of input. Not through sys.stdin, whose lock a waiting thread would keep at the end."""
    found = b""
    while not found.endswith(b"\n") and (chunk := os.read(_INPUT, _CHUNK_BYTES)):
        found += chunk
    return found


def _stop_at_end_of_input(order: ServiceConfig) -> None:
    """On a thread: ask the service to end as a person would; see to its end when it does not come."""
    asked = b""
    while chunk := os.read(_INPUT, _CHUNK_BYTES):
        asked += chunk
    if asked != STOP and order.kind is PartKind.STORE:
        SYSTEM.pause(_HEAD_START_S)
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.pthread_kill(main_thread, signal.SIGTERM)
    SYSTEM.pause(order.settings.up.stop_s)
    if os.getpgrp() == os.getpid():  # with what it started; the group is its own under a supervisor
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
