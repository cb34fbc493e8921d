"""Merging a table's objects away from its capture: planned and committed by it, written by whoever can."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock.errors import Corrupt, Unavailable
from penstock.eventstore.read.find import find_table
from penstock.eventstore.read.flight_client import FlightReader
from penstock.eventstore.upkeep.merge import MergeOutput, MergePlan, write_merge
from penstock.eventstore.upkeep.mergewire import read_plan, write_output
from penstock.follow.owners import find_owners
from penstock.kv.cluster_ref import ClusterRef
from penstock.object_storage import StorageRef
from penstock.settings import Settings, TlsSettings

_COMMIT_TIMEOUT_S = 600.0  # rows that were deleted meanwhile are moved first
_OVERTAKEN_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeReport:
    """What a job did; `overtaken` merges were written in vain, because others were first."""

    table: str
    merges: int = 0
    overtaken: int = 0
    objects_read: int = 0
    objects_written: int = 0


@dataclass(frozen=True)
class MergeTask:
    """One merge to write, wherever there is a processor. Can be pickled, and repeated."""

    storage: StorageRef
    plan_id: str
    plan: MergePlan

    def run(self) -> MergeOutput:
        """Write it. Raises Unavailable when an input is gone, or storage does not answer."""
        with TemporaryDirectory(prefix="penstock-merge-") as scratch:
            return write_merge(self.plan, self.storage.open(), Path(scratch))


MergeRun = Callable[[Sequence[MergeTask]], list[MergeOutput]]
"""Runs every task, anywhere and in any order; returns the outputs in the order of the tasks."""


def merge(
    settings: Settings, name: str, run: MergeRun, *, flight_tls: TlsSettings | None = None
) -> MergeReport:
    """Merge the objects of `database.table` until it is in good shape.

    Raises Invalid when there is no such table, Unavailable when no capture owns it or somebody does not
    answer: what was committed until then stays.
    """
    client = ClusterRef.of(settings).client()
    storage = StorageRef(settings.capture.storage, settings.capture.storage_options)
    owners = find_owners(client, tls=flight_tls, token=settings.capture.read_flight_token())
    view = find_table(storage, name, rows=owners.get)
    missing = [each.table_id for each in view.partitions if each.table_id not in owners]
    if missing:
        raise Unavailable(f"{name} is captured by nobody that answers (table {missing[0]}); start a capture")
    report = MergeReport(table=name)
    in_vain = 0
    while in_vain < _OVERTAKEN_MAX:
        tasks = [
            (owners[each.table_id], task)
            for each in view.partitions
            for task in _planned(owners[each.table_id], storage, each.table_id)
        ]
        if not tasks:
            break
        outputs = run([task for _, task in tasks])
        before = report.merges
        for (owner, task), output in zip(tasks, outputs, strict=True):
            report = _counted(report, task, output, committed=_commit(owner, task.plan_id, output))
        in_vain += report.merges == before
    return report


def _planned(owner: FlightReader, storage: StorageRef, table_id: int) -> list[MergeTask]:
    answer = owner.act("plan_merge", json.dumps({"table_id": table_id}).encode())
    try:
        found: Any = json.loads(answer)
        return [MergeTask(storage, str(each["plan_id"]), read_plan(each["plan"])) for each in found]
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"the capture's merge plan of table {table_id} is not understood; upgrade") from error


def _commit(owner: FlightReader, plan_id: str, output: MergeOutput) -> bool:
    answer = owner.act("commit_merge", write_output(plan_id, output), timeout_s=_COMMIT_TIMEOUT_S)
    return bool(json.loads(answer)["committed"])


def _counted(report: MergeReport, task: MergeTask, output: MergeOutput, *, committed: bool) -> MergeReport:
    return MergeReport(
        table=report.table,
        merges=report.merges + committed,
        overtaken=report.overtaken + (not committed),
        objects_read=report.objects_read + len(task.plan.data) + len(task.plan.tombstones),
        objects_written=report.objects_written + len(output.objects),
    )
