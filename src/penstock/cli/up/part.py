"""A part of `penstock up`, as its supervisor starts it: `python -m penstock.cli.up.part NAME`.

Its configuration comes on standard input, which stays open while the part should run. The end of input means
to stop, so that no part outlives a supervisor that was killed. A live supervisor writes a line before it.
"""

import asyncio
import os
import signal
import sys
import threading

from penstock import process
from penstock.cli.up.parts import STOP, ServiceConfig
from penstock.clock import SYSTEM
from penstock.control.part_states import PartKind
from penstock.errors import PenstockError
from penstock.settings import Settings

__all__ = ["main"]

_INPUT = 0
_CHUNK_BYTES = 1 << 16
_STORE_DELAY_S = 3.0
"""Seconds that the store waits for the other parts to end first, when the supervisor is gone."""


def main() -> None:
    """Run a part until its input ends; an error is one line on standard error and exit code 2."""
    process.prepare_libraries()
    try:
        config = ServiceConfig.parse(_read_line())
        process.configure_logs(style=config.log_format, level=config.log_level)
        threading.Thread(target=_stop_at_end_of_input, args=(config,), daemon=True).start()
        _serve(config.kind, config.settings)
    except PenstockError as error:
        print(f"penstock: {process.printable(str(error))}", file=sys.stderr)
        sys.exit(2)


def _serve(kind: PartKind, settings: Settings) -> None:
    """Serve in the foreground until SIGTERM. Each part imports only what it needs."""
    match kind:
        case PartKind.STORE:
            from penstock.cli.services import store

            client = store.store_client(settings.store, settings)
            asyncio.run(store.serve(settings.store, client, metrics_addr=settings.metrics_addr))
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
    """Read the first line of input. It avoids sys.stdin, whose lock the waiting thread would hold at exit."""
    line = b""
    while not line.endswith(b"\n") and (chunk := os.read(_INPUT, _CHUNK_BYTES)):
        line += chunk
    return line


def _stop_at_end_of_input(config: ServiceConfig) -> None:
    """Run on a thread: at the end of input send SIGTERM to the service; kill it when it does not end."""
    rest = b""
    while chunk := os.read(_INPUT, _CHUNK_BYTES):
        rest += chunk
    if rest != STOP and config.kind is PartKind.STORE:
        SYSTEM.pause(_STORE_DELAY_S)
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.pthread_kill(main_thread, signal.SIGTERM)
    SYSTEM.pause(config.settings.up.stop_s)
    if os.getpgrp() == os.getpid():  # under a supervisor it leads its group: kill what it started too
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
