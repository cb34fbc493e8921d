"""The seam between iterations and those who consume changes: what a consumer is, and what it is given.

A consumer is a class that anybody may write, named in a job's spec by a short name or as `module:Class`:

    class Printer(Consumer):
        def consume(self, data: DataRetriever) -> None:
            while True:
                inserts, deletes, no_more_data = data.next()
                ...
                if no_more_data:
                    return

Finding a consumer by its name: ours, one that an installed package offers, or `module:Class`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import pyarrow as pa
from pydantic import BaseModel

from penstock.clock import SYSTEM, Clock
from penstock.columnar.spill_queue import SPOOL_BYTES
from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.error_codes import TargetDiffers
from penstock.jobs.job import JobId, JobKey
from penstock.jobs.spec import ConsumerInfo
from penstock.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.changes.net_change import NetChanges
    from penstock.kv import Transaction


class DataType(IntEnum):
    """What the changes of an iteration are."""

    SNAPSHOT = 0
    """All rows of the table: they take the place of whatever the target has. There are no deletes."""
    TAIL = 1
    """What changed since the last iteration."""


class Retrieved(NamedTuple):
    """Some changes, each side by `_commit_ts`; smaller ones come first, and of equal ones the deletes.

    `inserts` has the columns and `_commit_ts`, also for rows that were there before. `deletes` has the
    primary key (`_handle`, where there is none) and `_commit_ts`. Either may have no rows.
    """

    inserts: pa.RecordBatch
    deletes: pa.RecordBatch
    no_more_data: bool


class DataRetriever(Protocol):
    """The changes of one iteration for one consumer; used from its thread.

    The same changes come again, in the same order, when the iteration has to be repeated: until the
    watermark is `to_ts`, nothing of it counts. All batches have the schema of the table at `to_ts`: what was
    added later reads as its default in older rows, what was dropped is left out.
    """

    @property
    def data_type(self) -> DataType:
        """What the changes are."""

    @property
    def from_ts(self) -> int:
        """They begin after it."""

    @property
    def to_ts(self) -> int:
        """They end with it; the watermark of a target that has them all."""

    @property
    def schema(self) -> SchemaVersion:
        """The table at `to_ts`, with all its columns."""

    @property
    def columns(self) -> pa.Schema:
        """Those of `inserts`, without `_commit_ts`; the primary key's come first."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row: the primary key, or `_handle`."""

    @property
    def large(self) -> bool:
        """Whether there are so many changes that executors should have them: see `dataframe`."""

    def next(self) -> Retrieved:
        """The next changes; raise what keeps them from being read, and Aborted once the job is canceled."""

    def dataframe(self) -> "DataFrame":
        """All changes as one DataFrame instead, shared with those who ask for it too; it is persisted.

        One row for each key that changed: its columns as they are at `to_ts`, `_commit_ts`, and `_deleted`,
        true where only the key's columns count.
        """

    def update_watermark(self, txn: "Transaction") -> None:
        """Write the watermark into the log, as part of a transaction with the consumer's own rows.

        Raises Fenced when the job is not this iteration's any more: roll back. Once it was called, the
        iteration writes nothing more for this job; a consumer that does not call it need not.
        """


@dataclass(frozen=True)
class JobContext:
    """What a consumer knows of its job."""

    id: JobId
    key: JobKey
    account: str
    info: ConsumerInfo
    settings: Settings
    scratch: Path
    """A directory of its own for the time of an iteration, made when it is first used."""
    spark: "Callable[[], SparkSession]" = field(repr=False)
    """The session, for consumers that work on executors; raises Invalid where there is none."""
    clock: Clock = SYSTEM

    @property
    def owner(self) -> str:
        """What the target keeps beside the watermark, so that it knows whose it is."""
        return self.key.owner

    def check_takeover(self, owner: str, job: str, place: str) -> None:
        """Check that a first sync of this job may replace what the job `owner` left at a target.

        `job` is that job's name as the target keeps it; empty where the target does not. A job that was
        registered anew takes over from its predecessor. Raises Invalid when the target belongs to a job of
        another name, and TargetDiffers when it belongs to a later registration of this one: then this job
        was unregistered, or the log that it is in was restored from a backup.
        """
        if owner == self.owner:
            return
        there = JobKey.of_owner(owner)
        same = (there.account_id, there.job_name) == (self.key.account_id, self.key.job_name)
        if not same or (there.table_id != self.key.table_id and job not in {"", str(self.id)}):
            raise Invalid(
                f"{place} is kept by job {job or there.job_name}; give {self.id} a target of its own, or"
                " unregister that job and remove what it left"
            )
        if (there.table_id, there.job_id) > (self.key.table_id, self.key.job_id):
            # A recovered table has a lower id than the one between: no new registration outdoes that.
            cure = "register this one anew, or " if there.table_id == self.key.table_id else ""
            raise TargetDiffers(
                f"{place} is kept by a newer job {self.id}, registered after this one or for a later table of"
                f" that name; {cure}give it another target"
            )


class Consumer(ABC):
    """Carries the changes of one job into its target. Made for each iteration, used by one thread.

    Exactly once: `consume` returns when every change is durable in the target. A target with transactions
    keeps the watermark itself, in the same transaction as the rows, and compares before it sets: a commit
    whose `from_ts` is not what the target has raises Fenced and changes nothing (an iteration that was given
    up may still be writing). Before each iteration `committed_ts` is asked, and the log follows it.

    Invalid says that somebody has to repair the job: the iteration is not tried again. Whatever else is
    raised is tried again with all of its changes.
    """

    options_type: ClassVar[type[BaseModel] | None] = None
    """What the options are read into: values of its fields are shown to people, unless they are SecretStr.
    Without it no value of an option is shown."""

    @classmethod
    def placed(cls, options: Mapping[str, str]) -> dict[str, str]:
        """The options of a job as they are kept: paths among them are absolute.

        Called where the job is registered; its folder is what relative paths are relative to. The job runs
        in processes that have other folders.
        """
        made = getattr(cls.options_type, "placed", dict)
        return dict(made(options))

    def __init__(self, job: JobContext) -> None:
        """Check the options; raise Invalid for one that is missing, unknown or wrong. No I/O."""
        self.job = job

    @abstractmethod
    def consume(self, data: DataRetriever) -> None:
        """Apply all changes. A SNAPSHOT replaces whatever the target has, also of an attempt that failed."""

    def committed_ts(self) -> int | None:
        """The watermark that the target has of this very job; 0: none of it. None: the log alone knows."""
        return None

    def check(self, schema: SchemaVersion) -> None:
        """Raise Invalid when a table like this cannot be carried: said when the job is registered."""
        del schema

    def close(self) -> None:
        """Let go of what is open."""
        return


class Comparable(Protocol):
    """What a consumer has whose target can be compared with its source, and mended, also while it is written.

    `at_ts` is the watermark at which both are compared: what `committed_ts` said, or the log where that says
    nothing. Whoever finds that the target has another one by now raises Fenced, and has changed nothing.
    """

    def expected(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """What the target should have of these rows of the source: the key's columns, then others.

        Keys have the names and values of the source, and perhaps a type that these are cast to. A target that
        cannot have a value has another one, here too.
        """

    def present(self, at_ts: int) -> Iterator[pa.RecordBatch]:
        """What the target has, in the same columns, all of it as of one moment at which it is at `at_ts`."""

    def mend(self, upserts: pa.Table, deletes: pa.Table, at_ts: int) -> None:
        """Put rows of the source in (all columns), and take keys out, in one commit; the watermark stays.

        No key is in both. A key that is taken out goes with every row that the target has of it.
        """


def is_comparable(consumer: Consumer | type[Consumer]) -> bool:
    """Whether a consumer has what Comparable has."""
    return all(hasattr(consumer, name) for name in ("expected", "present", "mend"))


def every(data: DataRetriever) -> Iterator[Retrieved]:
    """All batches, one by one; raises what `next` raises."""
    done = False
    while not done:
        batch = data.next()
        done = batch.no_more_data
        yield batch


def gather(data: DataRetriever, scratch: Path, *, memory_bytes: int = SPOOL_BYTES) -> "NetChanges":
    """Take all changes of a retriever. Files are made in `scratch`; none is left there.

    A SNAPSHOT has each key once: its rows are only collected, and a consumer that can take them batch by
    batch (`every`) needs no disk for them. Raises what `next` raises.
    """
    from penstock.changes.net_change import net_of  # which takes a while

    return net_of(
        ((inserts, deletes) for inserts, deletes, _ in every(data)),
        data.columns,
        data.keys,
        scratch,
        distinct=data.data_type is DataType.SNAPSHOT,
        memory_bytes=memory_bytes,
    )


GROUP = "penstock.consumers"
"""The group of entry points in which packages offer consumers by name."""

_OURS = {
    "delta": "penstock.consumers.lake.delta:Delta",
    "fulltext": "penstock.consumers.search_index.fulltext:Fulltext",
    "iceberg": "penstock.consumers.lake.iceberg:Iceberg",
    "kv": "penstock.consumers.kv:KvTable",
    "parquet": "penstock.consumers.lake.parquet:ParquetCopy",
    "postgres": "penstock.consumers.postgres:Postgres",
    "vector": "penstock.consumers.search_index.vector:Vector",
    "webhook": "penstock.consumers.webhook:Webhook",
}
BUILT_IN = frozenset(_OURS)
"""The short names of those that come with Penstock."""


def consumer_names() -> list[str]:
    """The short names that there are."""
    return sorted({*_OURS, *(each.name for each in entry_points(group=GROUP))})


def find_consumer(name: str) -> type[Consumer]:
    """The class of a consumer; raise Invalid when there is none of that name, or it is something else.

    Runs the code of its module: who may register jobs may run code in the process of the runner.
    """
    found = _load(_place(name), name)
    if not (isinstance(found, type) and issubclass(found, Consumer)):
        raise Invalid(f"{name!r} is no consumer; a consumer is a subclass of penstock.jobs.Consumer")
    return found


def _place(name: str) -> str:
    if ":" in name:
        return name
    if name in _OURS:
        return _OURS[name]
    offered = [each.value for each in entry_points(group=GROUP, name=name)]
    if not offered:
        raise Invalid(
            f"there is no consumer {name!r}; there are {', '.join(consumer_names())}, or module:Class"
        )
    return offered[0]


def _load(place: str, name: str) -> object:
    module_name, _, path = place.partition(":")
    try:
        found: object = import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:  # its module is code of somebody else's, and may raise anything
        why = str(error) if isinstance(error, ImportError | AttributeError) else type(error).__name__
        raise Invalid(
            f"consumer {name!r} cannot be loaded ({why}); check its module and class, and that the runner's"
            " Python has it"
        ) from error
    return found
