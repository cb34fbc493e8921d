"""The contract of consumers: what a consumer implements, what it is given, and how a job's spec names it.

A consumer is a class that anybody may write. A job's spec names it by a short name or as `module:Class`:

    class Printer(Consumer):
        def consume(self, data: DataRetriever) -> None:
            while True:
                inserts, deletes, no_more_data = data.next()
                ...
                if no_more_data:
                    return

A short name belongs to a consumer of Penstock, or to an entry point of an installed package.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import pyarrow as pa
from pydantic import BaseModel, SecretStr

from penstock.clock import SYSTEM, Clock
from penstock.columnar.spill_queue import SPOOL_BYTES
from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.extras import import_with_extra
from penstock.jobs.custom_code import check_code
from penstock.jobs.error_codes import TargetDiffers
from penstock.jobs.job import JobId, JobKey
from penstock.jobs.spec import ConsumerInfo
from penstock.secret_masks import SecretMask, is_secret
from penstock.secret_references import resolve_values
from penstock.settings import Settings
from penstock.targets import Target, TenantRefused, TenantTargets, resolve_tenant_texts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.changes.net_change import NetChanges
    from penstock.kv import Transaction


class DataType(IntEnum):
    """What the changes of an iteration are relative to."""

    SNAPSHOT = 0
    """All rows of the table. They replace whatever the target has; there are no deletes."""
    TAIL = 1
    """The changes since the last iteration."""


class Retrieved(NamedTuple):
    """Some changes. Each side is ordered by `_commit_ts`; at equal timestamps the deletes come first.

    `inserts` has the columns and `_commit_ts`, for new rows and for changed ones. `deletes` has the primary
    key (`_handle` if the table has none) and `_commit_ts`. Either may have no rows.
    """

    inserts: pa.RecordBatch
    deletes: pa.RecordBatch
    no_more_data: bool


class DataRetriever(Protocol):
    """The changes of one iteration for one consumer; used from the consumer's thread.

    The same changes come again, in the same order, when the iteration has to be repeated: nothing of it
    counts until the watermark is `to_ts`. All batches have the schema of the table at `to_ts`: a column that
    was added later has its default in older rows, and a dropped column is left out.
    """

    @property
    def data_type(self) -> DataType:
        """Whether the changes are a SNAPSHOT or a TAIL."""

    @property
    def from_ts(self) -> int:
        """The timestamp after which the changes begin."""

    @property
    def to_ts(self) -> int:
        """The timestamp of the last change; the watermark of a target that has them all."""

    @property
    def schema(self) -> SchemaVersion:
        """The table at `to_ts`, with all its columns."""

    @property
    def columns(self) -> pa.Schema:
        """The columns of `inserts` without `_commit_ts`; the primary key's come first.

        They have the names that the table gives them. Where it has a column `_commit_ts` or `_deleted`
        itself, the system column of that name, which is at the end, has a space after its name.
        """

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row: the primary key, or `_handle`."""

    @property
    def on_spark(self) -> bool:
        """Whether there is Spark: then use `dataframe` if the target can be written by executors.

        With `engine: local` there is none, and `next` is the only way.
        """

    @property
    def large(self) -> bool:
        """The same as `on_spark`; its name in earlier releases."""

    def next(self) -> Retrieved:
        """Return the next changes.

        Raises Aborted once the job is canceled, and whatever keeps the changes from being read.
        """

    def dataframe(self) -> "DataFrame":
        """Return all changes as one persisted DataFrame instead; all consumers of the iteration share it.

        It has one row for each key that changed: the columns as they are at `to_ts`, `_commit_ts`, and
        `_deleted`. Where `_deleted` is true, only the key's columns have a meaning.
        """

    def update_watermark(self, txn: "Transaction") -> None:
        """Write the job's watermark into the log, in a transaction that also has the consumer's own rows.

        Raises Fenced when the iteration does not own the job any more: roll back. After this call the
        iteration itself writes nothing more for the job. The call is optional.
        """


@dataclass(frozen=True)
class JobContext:
    """What a consumer knows of its job."""

    id: JobId
    key: JobKey
    account: str
    info: ConsumerInfo
    """The consumer and its options; secrets are in clear here, and must go to the target only."""
    settings: Settings
    scratch: Path
    """A directory for the consumer's files during one iteration; it is created when it is first used."""
    spark: "Callable[[], SparkSession]" = field(repr=False)
    """Return the session, for consumers that work on executors; raise Invalid where there is none."""
    tenant: TenantTargets | None = None
    """Where the job may write: it is a tenant's. None: anywhere."""
    clock: Clock = SYSTEM
    progressed: Callable[[], None] = field(default=lambda: None, repr=False)
    """Call it when the target has acknowledged something. Taking changes is progress by itself. An iteration
    without progress for `jobs.stall_s` is ended."""

    @property
    def owner(self) -> str:
        """The text that the target keeps beside the watermark to tell which job owns it."""
        return self.key.owner

    def check_takeover(self, owner: str, job: str, place: str) -> None:
        """Check that a first sync of this job may replace what the job `owner` left at a target.

        `job` is that job's name as the target keeps it, empty if the target does not keep it. A job that was
        registered again takes over from its predecessor. Raises Invalid when the target belongs to a job of
        another name. Raises TargetDiffers when it belongs to a later registration of this job: then this job
        was unregistered, or its log was restored from a backup.
        """
        if owner == self.owner:
            return
        found = JobKey.of_owner(owner)
        same = (found.account_id, found.job_name) == (self.key.account_id, self.key.job_name)
        if not same or (found.table_id != self.key.table_id and job not in {"", str(self.id)}):
            raise Invalid(
                f"{place} is kept by job {job or found.job_name}; give {self.id} a target of its own, or"
                " unregister that job and remove what it left"
            )
        if (found.table_id, found.job_id) > (self.key.table_id, self.key.job_id):
            # A recovered table has a lower id than the table that replaced it: registering again cannot help.
            remedy = "register this one again, or " if found.table_id == self.key.table_id else ""
            raise TargetDiffers(
                f"{place} is kept by a newer job {self.id}, registered after this one or for a later table of"
                f" that name; {remedy}give it another target"
            )


def resolve_info(info: ConsumerInfo, tenant: TenantTargets | None) -> ConsumerInfo:
    """Return what a consumer gets: the references to secrets in its options are replaced.

    Raises UnresolvedReference when this process has no such secret; the iteration is retried then. Raises
    TenantRefused when a tenant's job has a reference.
    """
    resolve = resolve_values if tenant is None else resolve_tenant_texts
    return info.model_copy(update={"options": resolve(info.options)})


def hidden_options(info: ConsumerInfo, allowed_code: Sequence[str] = ()) -> set[str]:
    """Return the options of a job whose values are shown to nobody.

    Only the class of a consumer says which of them are secrets: of a consumer that is not Penstock's own, all
    are hidden, unless its module is in `allowed_code`.
    """
    public = _public_options(info.consumer or "", allowed_code)
    return {name for name in info.options if name not in public or is_secret(name)}


def secrets_of(info: ConsumerInfo, allowed_code: Sequence[str] = ()) -> SecretMask:
    """Return what takes the secrets of a job from messages. `info` has its options with their references."""
    return SecretMask(info.options, hidden_options(info, allowed_code))


def _public_options(name: str, allowed_code: Sequence[str]) -> set[str]:
    """Return the options whose values may be shown: the consumer declares them, and not as secrets."""
    try:
        declared = find_consumer(name, allowed_code).options_type
    except Invalid:  # the consumer is not installed here, or not allowed
        return set()
    fields = declared.model_fields if declared is not None else {}
    return {
        field.alias or option
        for option, field in fields.items()
        if SecretStr.__name__ not in str(field.annotation)
    }


class Consumer(ABC):
    """Writes the changes of one job into its target. One instance serves one iteration, in one thread.

    Exactly once: `consume` returns when every change is durable in the target. A target with transactions
    keeps the watermark itself, in the same transaction as the rows, and compares before it sets: a commit
    whose `from_ts` is not what the target has raises Fenced and changes nothing, because an abandoned
    iteration may still be writing. `committed_ts` is asked before each iteration, and the log follows it.

    Invalid means that somebody has to repair the job: the iteration is not retried. After any other exception
    the iteration is retried with all of its changes.
    """

    options_type: ClassVar[type[BaseModel] | None] = None
    """The model of the options. Values of its fields are shown to people, unless they are SecretStr. Without
    it no value of an option is shown."""

    patience: ClassVar[int] = 1
    """How many times `jobs.stall_s` it may work without progress: merging files or training an index shows
    none, and neither does a task on an executor before it completes."""

    @classmethod
    def absolute_options(cls, options: Mapping[str, str]) -> dict[str, str]:
        """Return a job's options as they are stored: with absolute paths.

        Called where the job is registered, whose working directory the relative paths refer to. The job runs
        in processes that have other working directories.
        """
        make_absolute = getattr(cls.options_type, "absolute_options", dict)
        return dict(make_absolute(options))

    @classmethod
    def targets(cls, info: ConsumerInfo) -> tuple[Target, ...] | None:
        """Return what a job with these options connects to, in the parts with which it connects.

        None: that is unknown, so that only admins may use the consumer. Raises Invalid for a wrong option.
        """
        del info
        return None

    def __init__(self, job: JobContext) -> None:
        """Check the options without I/O; raise Invalid for one that is missing, unknown or wrong."""
        self.job = job

    @abstractmethod
    def consume(self, data: DataRetriever) -> None:
        """Apply all changes. A SNAPSHOT replaces all that the target has, also rows of a failed attempt."""

    def committed_ts(self) -> int | None:
        """Return the watermark that the target has of this very job, 0 for none; None: ask the log."""
        return None

    def check(self, schema: SchemaVersion) -> None:
        """Raise Invalid when the consumer does not support such a table; called at registration."""
        del schema

    def interrupt(self) -> None:
        """Let a call that waits for the target fail soon, and later ones at once: the job was canceled.

        Called by another thread at any time, perhaps twice; does not block. A consumer that ignores it is
        abandoned after a while.
        """
        return

    def close(self) -> None:
        """Close what is open."""
        return


class Comparable(Protocol):
    """The methods of a consumer whose target can be compared and repaired, even while it is being written.

    `at_ts` is the watermark at which target and source are compared: what `committed_ts` returned, or the
    log's watermark when that is None. A method that finds another watermark in the target raises Fenced and
    changes nothing.
    """

    def expected(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return what the target should have of these rows of the source: the key's columns, then others.

        Keys have the names and values of the source; the source's keys are cast to their types. Where the
        target cannot hold a value and holds another one instead, the result has that one too.
        """

    def present(self, at_ts: int) -> Iterator[pa.RecordBatch]:
        """Yield what the target has, in the same columns, as of one moment at which it is at `at_ts`."""

    def repair(self, upserts: pa.Table, deletes: pa.Table, at_ts: int) -> None:
        """Put rows of the source in (all columns) and delete keys, in one commit; the watermark stays.

        No key is in both. All rows that the target has of a deleted key are deleted.
        """


def is_comparable(consumer: Consumer | type[Consumer]) -> bool:
    """Return whether a consumer has the methods of Comparable."""
    return all(hasattr(consumer, name) for name in ("expected", "present", "repair"))


def iter_batches(data: DataRetriever) -> Iterator[Retrieved]:
    """Iterate over all batches of a retriever.

    Raises Aborted once the job is canceled, and whatever keeps the changes from being read.
    """
    done = False
    while not done:
        batch = data.next()
        done = batch.no_more_data
        yield batch


def read_net_changes(data: DataRetriever, scratch: Path, *, memory_bytes: int = SPOOL_BYTES) -> "NetChanges":
    """Read all changes of a retriever and return the last one of each key. Leaves no file in `scratch`.

    A SNAPSHOT has each key once, so its rows are only collected; a consumer that can process them batch by
    batch (`iter_batches`) needs no disk for them. Raises Aborted once the job is canceled, and
    whatever keeps the changes from being read.
    """
    from penstock.changes.net_change import coalesce_by_key  # here: it takes long to import

    return coalesce_by_key(
        ((inserts, deletes) for inserts, deletes, _ in iter_batches(data)),
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
"""The short names of the consumers that come with Penstock."""


def keeps_impossible_dates(info: ConsumerInfo) -> bool:
    """Return whether batches for a consumer keep dates that no calendar has; the others have null.

    They are in the form of `tables.impossible_dates`. A DataFrame has null.
    """
    return info.consumer == "kv"


def consumer_names() -> list[str]:
    """Return the short names of all consumers that are installed."""
    return sorted({*_OURS, *(point.name for point in entry_points(group=GROUP))})


def find_consumer(name: str, allowed: Sequence[str] = ()) -> type[Consumer]:
    """Return the class of a consumer; raise Invalid when there is none of that name, or it is no consumer.

    Imports its module, which runs code: a module that is not Penstock's own must be `allowed`.
    """
    location = _find_location(name)
    if name not in _OURS:
        check_code(location, allowed, f"consumer {name!r}")
    found = _load(location, name)
    if not (isinstance(found, type) and issubclass(found, Consumer)):
        raise Invalid(f"{name!r} is no consumer; a consumer is a subclass of penstock.jobs.Consumer")
    return found


def check_tenant(tenant: TenantTargets, kind: type[Consumer], info: ConsumerInfo) -> None:
    """Raise TenantRefused unless a tenant's job may connect to everything that these options name."""
    tenant.check_account()
    targets = kind.targets(info)
    if targets is None:
        raise TenantRefused(f"consumer {info.consumer!r} is for admins only; use another one")
    for target in targets:
        tenant.check(target)


def open_consumer(context: JobContext, find: Callable[[str], type[Consumer]] | None = None) -> Consumer:
    """Make the consumer of a job; raise Invalid when there is none or an option is wrong.

    Without `find`, its class is found among those that the settings allow.
    Raises TenantRefused when a tenant's job would write where its account may not (any more).
    """
    name = context.info.consumer or ""
    kind = find_consumer(name, context.settings.jobs.allowed_code) if find is None else find(name)
    if context.tenant is not None:
        check_tenant(context.tenant, kind, context.info)
    return kind(context)


def _find_location(name: str) -> str:
    if ":" in name:
        return name
    if name in _OURS:
        return _OURS[name]
    offered = [point.value for point in entry_points(group=GROUP, name=name)]
    if not offered:
        raise Invalid(
            f"there is no consumer {name!r}; there are {', '.join(consumer_names())}, or module:Class"
        )
    return offered[0]


def _load(location: str, name: str) -> object:
    module_name, _, path = location.partition(":")
    try:
        found: object = import_with_extra(module_name, needed_by=f"consumer {name}")
        for part in path.split("."):
            found = getattr(found, part)
    except Invalid:
        raise
    except Exception as error:  # the module is foreign code and may raise anything
        why = str(error) if isinstance(error, ImportError | AttributeError) else type(error).__name__
        raise Invalid(
            f"consumer {name!r} cannot be loaded ({why}); check its module and class, and that the runner's"
            " Python has it"
        ) from error
    return found
