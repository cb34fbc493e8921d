"""Processes that run jobs, to be killed, stopped and continued."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock import eventloop
from penstock.clock import SYSTEM, Clock
from penstock.jobs.log.job_log import RUNNER_LEASE
from penstock.kv import AsyncClient
from penstock.kv.lease import LeaseRecord, read_lease
from support.command import ServiceProcess
from support.warmstart import WarmStart

__all__ = ["JobRunners"]

_WAIT_S = 120.0
_LOOK_S = 0.05
_IMPORTED = (
    "penstock.cli.services.jobs",
    "penstock.consumers.lake.delta",
    "penstock.consumers.lake.iceberg",
    "penstock.consumers.kv",
    "penstock.consumers.lake.parquet",
    "penstock.consumers.postgres",
    "penstock.consumers.webhook",
)  # and not those of Lance, which is to be imported after a fork


class JobRunners:
    """Any number of `penstock job run`, of which one works at a time. A context that ends them all."""

    def __init__(self, folder: Path, config: Path, client: AsyncClient, *, clock: Clock = SYSTEM) -> None:
        self.running: dict[str, ServiceProcess] = {}
        """Those that are ready, by the name under which they hold the lease."""
        self._folder = folder
        self._config = config
        self._client = client
        self._clock = clock
        self._starting: list[Future[ServiceProcess]] = []
        self._stopped: list[ServiceProcess] = []
        self._count = 0
        self._warm = WarmStart(*_IMPORTED)
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="starting")

    def start(self) -> None:
        """Start one more, without waiting for it."""
        self._count += 1
        log = self._folder / f"runner-{self._count}.log"
        process = ServiceProcess(log, "job", "run", "--config", str(self._config), warm=self._warm)
        self._starting.append(self._pool.submit(process.start))

    def _gather(self) -> dict[str, ServiceProcess]:
        for done in [start for start in self._starting if start.done()]:
            self._starting.remove(done)
            process = done.result()
            self.running[process.ready["runner"]] = process
        return self.running

    @property
    def expected(self) -> int:
        """How many there are, with those that are about to start."""
        return len(self.running) + len(self._starting)

    def lease(self) -> LeaseRecord:
        """Return the holder of the lease."""
        return eventloop.run(read_lease(self._client, RUNNER_LEASE))

    def active(self, *, after: int = 0) -> LeaseRecord:
        """Wait for one of them to hold the lease, under an epoch after this one."""
        found = LeaseRecord()

        def held() -> bool:
            nonlocal found
            found = self.lease()
            return found.epoch > after and found.owner in self._gather()

        self._until(held, "nobody takes the lease over")
        return found

    def kill(self, name: str) -> None:
        """End one at once."""
        self.running.pop(name).kill()

    def stop(self, name: str) -> ServiceProcess:
        """Let one stand still: for everybody else it is as good as dead."""
        process = self.running.pop(name)
        os.kill(process.pid, signal.SIGSTOP)
        self._stopped.append(process)
        return process

    def go_on(self, process: ServiceProcess) -> None:
        """Let one go on that stood still, and knows nothing of that."""
        self._stopped.remove(process)
        os.kill(process.pid, signal.SIGCONT)
        self.running[process.ready["runner"]] = process

    def kill_all(self) -> None:
        """End those that are ready or about to be, and wait until they are gone."""
        self._until(lambda: self._gather() is not None and not self._starting, "runners do not start")
        for name in list(self.running):
            self.kill(name)

    def logs(self) -> str:
        """Return the logs of all runners."""
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("runner-*.log")))

    def __enter__(self) -> Self:
        self._warm.__enter__()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()
        for future in self._starting:
            if future.exception() is None:
                future.result().kill()
        for process in [*self._stopped, *self.running.values()]:
            process.kill()
        self._warm.__exit__()

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = self._clock.monotonic() + _WAIT_S
        while not holds():
            assert self._clock.monotonic() < deadline, what
            self._clock.pause(_LOOK_S)
