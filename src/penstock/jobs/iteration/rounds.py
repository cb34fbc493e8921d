"""Reads the ranges of all iterations in rounds: one Spark job reads as many as possible.

A task reads the parts of several ranges with some threads, and answers with their changes in order. No part
waits for another one that is slower: large parts have jobs of their own, and a task leaves parts unfinished
when none of its parts has ended for a while; they are read again among the slow ones.

`PartWork` is what an executor does with a part.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.changes.batches import ChangeBatch, Hint
from penstock.changes.plan import ChangesPartition
from penstock.errors import PenstockError, Unavailable
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.iteration.ordering import BatchProjection, ConsumerBatch, iter_in_order
from penstock.spark.rounds import (
    LaneQueue,
    LaneRules,
    PieceProgress,
    Round,
    RoundJobs,
    Rounds,
    SparkRoundJobs,
    Task,
    TaskResult,
    answer,
    fail,
    run_side_by_side,
    unexpected_error,
    warm_up_rounds,
)
from penstock.spark.tasks import spread

ANSWER_BYTES = 8 << 20
"""A task ends a part after about so many bytes, where a reader can resume; another task reads the rest."""
LARGE_BYTES = 1 << 20
"""A part of so many expected bytes has a job of its own: others would wait while it is read."""
_ROUND_BYTES = 16 << 20
_TASK_BYTES = 256 << 10
_PART_COST = 16 << 10  # what a part without rows costs, in bytes that are read in the same time
_GATHER_S = 0.02  # for which the first part of a round waits for others
_TRIES_MAX = 3

# What reads ranges, and what writes frames.
warm_up = partial(
    warm_up_rounds, what="jobs", modules=("penstock.changes.net_change", "penstock.spark.tables")
)
"""Run a round without parts on a session: what reads ranges is then loaded in its workers."""


class ReadLane(IntEnum):
    """Which rounds a part may be in, by how long it takes. Slow parts share a task, and so one core."""

    SMALL = 0
    SLOW = 1
    LARGE = 2


_LANES = {
    ReadLane.SMALL: LaneRules(2.0, threads=8, jobs=2, pieces=1024, share=1.0, brief=True),
    # The last job of these is for an account that has none.
    ReadLane.SLOW: LaneRules(30.0, threads=32, jobs=2, pieces=256),
    ReadLane.LARGE: LaneRules(900.0, threads=1, jobs=9, pieces=1),
}


@dataclass(frozen=True, slots=True)
class PartWork:
    """A part of a range, for an executor: its changes in `columns` of `schema`, which include the key's."""

    part: ChangesPartition
    schema: SchemaVersion
    columns: tuple[str, ...]
    answer_bytes: int = ANSWER_BYTES

    def read(self) -> "PartAnswer":
        """Read the part; read it again if the capture that has it gives it up meanwhile."""
        try:
            return self._read()
        except Unavailable:
            return self._read()

    def _read(self) -> "PartAnswer":
        from penstock.spark.tables import require_storage  # here: the driver has no use for it

        for partition in self.part.table.partitions:
            require_storage(partition.storage, partition.table_id)
        projection = BatchProjection(self.schema, self.columns, impossible_dates=True)
        with self.part.collect() as handle, tempfile.TemporaryDirectory(prefix="penstock-range-") as folder:
            source = _Bounded(handle, self.part, self.answer_bytes)
            with closing(iter_in_order(source, projection, Path(folder))) as ordered:
                batches = [batch for batch in ordered if batch.rows]
        return PartAnswer(
            _pack([batch.inserts for batch in batches]),
            _pack([batch.deletes for batch in batches]),
            sum(batch.rows for batch in batches),
            source.resume_ts,
        )


class _Bounded:
    """Yields the batches of a part; ends after some bytes, once a reader can resume from `resume_ts`."""

    def __init__(self, batches: Iterable[ChangeBatch], part: ChangesPartition, nbytes_max: int) -> None:
        self._batches = batches
        self._part = part
        self._nbytes_max = nbytes_max
        self.resume_ts: int | None = None

    def __iter__(self) -> Iterator[ChangeBatch]:
        nbytes = 0
        for batch in self._batches:
            yield batch
            nbytes += batch.data.nbytes + batch.tombstones.nbytes
            resumable = batch.hint is Hint.TAIL_DONE and self._part.from_ts < batch.complete_ts
            if resumable and batch.complete_ts < self._part.to_ts and nbytes >= self._nbytes_max:
                self.resume_ts = batch.complete_ts
                return


@dataclass(frozen=True, slots=True)
class PartAnswer:
    """The changes of a part, packed; with `resume_ts` those up to that timestamp, and others follow."""

    inserts: bytes
    deletes: bytes
    rows: int
    resume_ts: int | None = None

    def batches(self) -> list[ConsumerBatch]:
        """Return the changes in order."""
        pairs = zip(_unpack(self.inserts), _unpack(self.deletes), strict=True)
        return [ConsumerBatch(inserts, deletes) for inserts, deletes in pairs]


def _pack(batches: Sequence[pa.RecordBatch]) -> bytes:
    if not batches:
        return b""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(out.getvalue())


def _unpack(packed: bytes) -> list[pa.RecordBatch]:
    return list(pa.ipc.open_stream(packed)) if packed else []


@dataclass(eq=False, slots=True)
class RoundPart:
    """A part that somebody waits for; `account` is whose share of rounds it takes."""

    account: str
    work: PartWork
    nbytes: int
    """About how many bytes are expected."""
    answer: "Future[PartAnswer]" = field(default_factory=Future)
    tries: int = 0
    slow: bool = False
    seconds: float = 0.0
    """How long tasks have worked on it."""

    @property
    def weight(self) -> int:
        """About how many bytes are expected."""
        return self.nbytes

    @property
    def lane(self) -> ReadLane:
        """The rounds that it may be in."""
        if self.nbytes >= LARGE_BYTES:
            return ReadLane.LARGE
        return ReadLane.SLOW if self.slow else ReadLane.SMALL


ReadRound = Round[ReadLane, RoundPart]


class ReadQueue(LaneQueue[ReadLane, RoundPart]):
    """Parts that wait for a job, by lane and account. Decides which of them the next job reads. Pure."""

    def __init__(self) -> None:
        super().__init__(_LANES, round_bytes=_ROUND_BYTES, cores_left=1)

    def add(self, piece: RoundPart) -> None:
        """Queue a part."""
        self._wait_in(piece.lane, piece)

    def take(self, cores: int) -> ReadRound | None:
        """Return the next job; None when nothing waits, or enough jobs run."""
        for lane, rules in _LANES.items():
            if self._running[lane] >= rules.jobs:
                continue
            parts = self._take_allowed(lane, cores)
            if parts:
                wanted = max(-(-len(parts) // rules.threads), sum(map(_weight, parts)) // _TASK_BYTES, 1)
                return self._begin(spread(parts, min(wanted, rules.tasks(cores)), weight=_weight), lane)
        return None


def _weight(part: RoundPart) -> int:
    return part.nbytes + _PART_COST


@dataclass(frozen=True)
class ReadTask:
    """The parts of one task, each with its number in the round."""

    works: tuple[tuple[int, PartWork], ...]
    patience_s: float
    threads: int

    def run(self) -> Iterator[TaskResult[PartAnswer | PenstockError]]:
        """Read the parts, several at a time; yield the answer or the failure of each as it ends.

        Parts are left unfinished when none has ended for `patience_s`.
        """
        works = {number: partial(_read, work) for number, work in self.works}
        return run_side_by_side(works, threads=self.threads, patience_s=self.patience_s)


def _read(work: PartWork, _: PieceProgress) -> PartAnswer | PenstockError:
    try:
        return work.read()
    except PenstockError as error:
        return error
    except Exception as error:  # noqa: BLE001 - it fails its own part only
        return unexpected_error("a range could not be read", work.schema.name, error)


class SparkReadJobs(SparkRoundJobs[ReadLane, RoundPart]):
    """Runs the jobs of rounds of reads with Spark."""

    def _tasks(self, round_: ReadRound) -> list[Task]:
        rules = _LANES[round_.lane]
        number = 0
        tasks: list[Task] = []
        for parts in round_.tasks:
            works = tuple((number + place, part.work) for place, part in enumerate(parts))
            number += len(parts)
            tasks.append(ReadTask(works, rules.patience_s, rules.threads))
        return tasks

    def _describe(self, round_: ReadRound) -> tuple[str, str]:
        tables = {part.work.schema.name for part in round_.pieces}
        accounts = {part.account for part in round_.pieces}
        what = f"jobs: read {min(tables)}" if len(tables) == 1 else f"jobs: read {len(tables)} tables"
        return what, min(accounts) if len(accounts) == 1 else ""


class ReadRounds(Rounds[ReadLane, RoundPart]):
    """Reads parts for all iterations of a process.

    A job that fails because Spark does is repeated, with a new session if the last one died.
    """

    def __init__(self, jobs: RoundJobs[ReadLane, RoundPart], *, gather_s: float = _GATHER_S) -> None:
        super().__init__(ReadQueue(), jobs, gather_s=gather_s, ended="the runner ends")

    def _settle(
        self, round_: ReadRound, results: Mapping[int, TaskResult[Any]], failure: PenstockError | None
    ) -> list[RoundPart]:
        """Give everybody who waits an answer; return the parts to read again."""
        again: list[RoundPart] = []
        for number, part in enumerate(round_.pieces):
            task = results.get(number)
            found = None if task is None else task.result
            part.seconds += 0.0 if task is None else task.seconds
            if isinstance(found, PartAnswer):
                answer(part, found)
                continue
            error = failure if task is None else found
            slow = task is not None and error is None
            part.tries += 1
            part.slow |= slow
            if part.answer.cancelled():
                continue
            if part.tries < _TRIES_MAX and (slow or (task is None and isinstance(error, Unavailable))):
                again.append(part)
                continue
            fail(part, error or Unavailable(f"{part.work.schema.name} cannot be read in time; it is retried"))
        return again


def resume(part: RoundPart, resume_ts: int) -> RoundPart:
    """Return what is left of a part after an answer that ended at `resume_ts`."""
    work = replace(part.work, part=replace(part.work.part, from_ts=resume_ts))
    return RoundPart(part.account, work, max(part.nbytes, ANSWER_BYTES))
