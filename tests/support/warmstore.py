"""The embedded store as a process that starts at once."""

from collections.abc import Sequence
from typing import IO

from penstock.testing.store import ChildProcess, StoreProcess
from support.warmstart import shared_start


class WarmStore(StoreProcess):
    """A StoreProcess that is forked from a process which has imported the store already."""

    def _start_child(self, arguments: Sequence[str], log: IO[str]) -> ChildProcess:
        return shared_start("penstock.cli.services.store").fork(arguments, log)
