"""Comparisons and repairs of tenants' targets in processes that can be ended.

What lies in a tenant's target, or what its server answers, may be made to take all memory or to crash a
library. That ends the process of the comparison, and nobody else's work. Jobs of admins are compared where
they are asked for.
"""

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock import eventloop
from penstock.clock import SYSTEM, Clock
from penstock.errors import PenstockError, Unavailable
from penstock.follow.follower import ScanFollower
from penstock.follow.source import ScanSource
from penstock.jobs.api import Jobs
from penstock.jobs.job import JobId
from penstock.kv import AsyncClient, Client
from penstock.secret_keys import Keyring
from penstock.settings import Settings
from penstock.tables import Catalog
from penstock.targets import TenantRefused, TenantTargets
from penstock.verify.compare import Counts
from penstock.verify.target import RepairAction, TargetRepair, TargetVerification, TargetVerifyReport
from penstock.worker_processes import (
    ANSWERED,
    TaskDied,
    TaskLate,
    WorkerAnswer,
    WorkerProcesses,
    WorkerSetup,
)

__all__ = ["IsolatedVerification", "verification_processes"]

_SETTLE_S = 10.0


def verification_processes(settings: Settings, *, count: int, clock: Clock = SYSTEM) -> WorkerProcesses:
    """Return at most `count` processes for comparisons; none runs before the first."""
    setup = WorkerSetup(
        memory_bytes=settings.jobs.verify_bytes,
        task_s=settings.jobs.verify_s,
        answered=(TenantRefused, *ANSWERED),
        warm_up=partial(_warm_up, settings),
    )
    return WorkerProcesses(setup, count=count, clock=clock)


class IsolatedVerification:
    """Verifies and repairs targets as TargetVerification does, those of tenants in processes. Blocks.

    `jobs` are those of `account`, or all. `source` returns the source of comparisons in this process. One in
    another process raises Unavailable at a limit (`jobs.verify_s`, `jobs.verify_bytes`), and when it does not
    proceed for `stall_s`.
    """

    def __init__(
        self,
        jobs: Jobs,
        source: Callable[[], ScanSource],
        settings: Settings,
        processes: WorkerProcesses,
        *,
        account: str | None = None,
        stall_s: float | None = None,
    ) -> None:
        self._jobs = jobs
        self._source = source
        self._settings = settings
        self._processes = processes
        self._account = account
        self._stall_s = stall_s

    def verify(self, job_id: JobId, *, proceed: Callable[[], None] = lambda: None) -> TargetVerifyReport:
        """Compare a job's target with its source at the target's watermark."""
        if not self._is_tenants(job_id):
            return self._here().verify(job_id, proceed=proceed)
        return _read_report(job_id, self._ask(job_id, proceed, repair=False)["report"])

    def repair(self, job_id: JobId, *, rebuild: bool = False) -> TargetRepair:
        """Repair a job's target, or have it filled anew; let the job go on."""
        if not self._is_tenants(job_id):
            return self._here().repair(job_id, rebuild=rebuild)
        head = self._ask(job_id, lambda: None, repair=True, rebuild=rebuild)
        report = None if head["report"] is None else _read_report(job_id, head["report"])
        return TargetRepair(RepairAction(head["action"]), int(head["table_id"]), report)

    def _is_tenants(self, job_id: JobId) -> bool:
        job = self._jobs.get_job(job_id)
        return TenantTargets.of(self._settings, job.account, recorded=job.confined) is not None

    def _here(self) -> TargetVerification:
        return TargetVerification(self._jobs, self._source(), self._settings)

    def _ask(
        self, job_id: JobId, proceed: Callable[[], None], *, repair: bool, rebuild: bool = False
    ) -> dict[str, Any]:
        limits = self._settings.jobs
        with TemporaryDirectory(prefix="penstock-verify-") as folder:  # the process may be killed
            task = _TargetTask(
                self._settings, self._account, job_id, Path(folder), repair=repair, rebuild=rebuild
            )
            try:
                answer = self._processes.run(task, proceed=proceed, stall_s=self._stall_s)
            except TaskLate as error:
                raise Unavailable(
                    f"the comparison of {job_id} was given up: {error} (jobs.verify_s, {limits.verify_s:g});"
                    " check its target"
                ) from None
            except TaskDied:
                raise Unavailable(
                    f"the process that compared {job_id} ended, perhaps by its limit of memory"
                    f" (jobs.verify_bytes, {limits.verify_bytes}); check its target, or fill it anew with"
                    f" `penstock job repair --rebuild {job_id}`"
                ) from None
        return dict(answer.head)


@dataclass(frozen=True, slots=True)
class _TargetTask:
    """One comparison or repair; pickled."""

    settings: Settings
    account: str | None
    job_id: JobId
    folder: Path
    """For its files; the process that asks removes it."""
    repair: bool
    rebuild: bool

    def __call__(self, proceed: Callable[[], None]) -> WorkerAnswer:
        client, source = _connect(self.settings)
        jobs = Jobs(
            client, account=self.account, catalog=Catalog(client), keys=Keyring(self.settings.secrets_dir)
        )
        targets = TargetVerification(jobs, source, self.settings, scratch=self.folder)
        if not self.repair:
            return WorkerAnswer({"report": _report_tree(targets.verify(self.job_id, proceed=proceed))})
        done = targets.repair(self.job_id, rebuild=self.rebuild, proceed=proceed)
        report = None if done.report is None else _report_tree(done.report)
        return WorkerAnswer({"action": done.action.value, "table_id": done.table_id, "report": report})


_connection: list[tuple[Client, ScanFollower]] = []
"""The connection of this process: all of its tasks have the same settings."""


def _warm_up(settings: Settings) -> None:
    """Connect, so that the threads and buffers of connections do not count as memory of comparisons."""
    with contextlib.suppress(PenstockError):  # a task tries again, and says what is wrong
        _connect(settings)


def _connect(settings: Settings) -> tuple[Client, ScanFollower]:
    if not _connection:
        _connection.append(eventloop.run(_open(settings)))
    return _connection[0]


async def _open(settings: Settings) -> tuple[Client, ScanFollower]:
    client = await AsyncClient.connect(settings.pd_addrs, tls=settings.tls, settings=settings.kv)
    source = await ScanFollower.connect(settings, client, flight_tls=settings.capture.flight_client_tls)
    await source.settle(_SETTLE_S)
    return Client(client), source


def _report_tree(report: TargetVerifyReport) -> dict[str, Any]:
    return {name: value for name, value in asdict(report).items() if name != "job"}


def _read_report(job_id: JobId, tree: dict[str, Any]) -> TargetVerifyReport:
    return TargetVerifyReport(**{**tree, "job": job_id, "counts": Counts(**tree["counts"])})
