"""Tables for reads with Spark: found by name, fixed at a version, with the types that Spark expects.

Executors read objects from storage. Rows that are not flushed yet come over Flight from the capture that owns
the table: the one that the option flightAddr names, or the one that has a lease in the key-value store.
Without either, a table can be read as far as its objects go. A read fixes its timestamp first; then its
columns are checked.
"""

import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import Invalid, StaleRead, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.read.find import find_table
from penstock.eventstore.read.partition import TableView
from penstock.object_storage import StorageRef
from penstock.spark.arrow_types import json_columns, require_columns, spark_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.eventstore.read.flight_client import FlightReader
    from penstock.spark.filters import ReadFilter
    from penstock.spark.options import SourceOptions
    from penstock.spark.tasks import Parallelism
    from penstock.tables.schema import TableInfo

__all__ = [
    "FilteredReader",
    "TableAtVersion",
    "TableRead",
    "VersionedRead",
    "name_stale_reads",
    "newest_ts",
    "open_table",
    "plan_with_retry",
    "require_readable",
    "require_storage",
]


T = TypeVar("T")

_log = logging.getLogger(__name__)
_CLOCK_SKEW_MS = 60_000  # by which the clocks of machines may differ


class FilteredReader(Protocol):
    """A reader of a table. `filter` is set before it plans; rows that do not pass are left out."""

    filter: "ReadFilter | None"

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of the read."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part that pass, in the Arrow schema of the declared columns."""


class TableRead(Protocol):
    """One read of one table, from its options to its plan. Must be picklable.

    Spark creates it in one Python process, asks it for the schema there, and sends it pickled to another
    process, which plans it. So an implementation fixes its timestamp in `schema` and keeps it: schema and
    rows are then of the same timestamp, and a data frame that is evaluated twice gives the same rows twice.
    `schema` is not called when the caller gave a schema.
    """

    def schema(self) -> "StructType":
        """Return columns and types of the rows; raise a PenstockError of one line."""

    def reader(self, schema: "StructType") -> "FilteredReader":
        """Return a picklable reader whose batches have exactly the Arrow schema of the declared columns."""


def open_table(options: "SourceOptions", *, at_ts: int | None = None) -> TableView:
    """Return the table that has the name of the options at `at_ts`, or now. Can be pickled.

    No capture is asked when objects reach `at_ts` already. Raises Invalid when there is no such table or no
    such folder, or a capture refuses the token; Unavailable when storage, or the capture that flightAddr
    names, does not answer.
    """
    capture = options.settings.capture
    storage = StorageRef(capture.storage, capture.storage_options)
    require_storage(storage)
    if at_ts is not None:
        flushed = _find_flushed(storage, options.table, at_ts)
        if flushed is not None:
            return flushed
    owners = _find_owners(options)
    return find_table(storage, options.table, at_ts=at_ts, rows=owners.get)


def newest_ts(view: TableView) -> int:
    """Return up to which timestamp every partition can be read; raise Unavailable when there is none."""
    newest = min(partition.state().newest_ts for partition in view.partitions)
    if not newest:
        raise Unavailable(
            f"nothing of {view.name} can be read yet; wait for its first flush, or name its capture with"
            " pdAddrs or flightAddr"
        )
    return newest


def plan_with_retry(view: TableView, plan: Callable[[TableView], T], reopen: Callable[[], TableView]) -> T:
    """Plan with a view; after a failure plan with a new one: another capture may own the table now."""
    try:
        return plan(view)
    except Unavailable:
        return plan(reopen())


def require_readable(view: TableView, ts: int, *, clock: Clock = SYSTEM) -> None:
    """Raise Invalid when `ts` is in the future, Unavailable when the table cannot be read up to it yet."""
    newest = newest_ts(view)
    if ts <= newest:
        return
    known = f"{view.name} can be read up to {newest} ({_format_ts(newest)}), not {ts}"
    if physical_ms(ts) > clock.wall_ms() + _CLOCK_SKEW_MS:
        raise Invalid(f"{known}, which is in the future; leave the end open to read the newest")
    if any(partition.rows is None for partition in view.partitions):
        raise Unavailable(
            f"{known}: newer rows are with its capture, which is not found; give pdAddrs or flightAddr,"
            " or wait for its next flush"
        )
    raise Unavailable(f"{known}; wait, or leave the end open to read the newest")


@contextmanager
def name_stale_reads(table: str, *, inclusive: bool = False) -> Iterator[None]:
    """Raise StaleRead of the block with the table's name.

    With `inclusive`, its timestamps are those of the options for changes, which name the first change that is
    read.
    """
    shift = 1 if inclusive else 0
    try:
        yield
    except StaleRead as error:
        raise StaleRead(
            table, error.ts + shift, oldest_ts=error.oldest_ts + shift, replaced=error.replaced
        ) from error


def require_storage(storage: StorageRef, table_id: int | None = None) -> None:
    """Raise when storage is a folder that this machine does not have: Invalid, or Unavailable for a table.

    Opening the storage would create an empty folder, in which every object is missing.
    """
    parts = urlsplit(storage.url)
    if parts.scheme != "file":
        return
    folder = Path(unquote(parts.netloc + parts.path))
    if table_id is None and not folder.is_dir():
        raise Invalid(
            f"storage {storage.url} is not a folder on {socket.gethostname()}; correct option storage"
        )
    if table_id is not None and not (folder / paths.table_root(table_id)).is_dir():
        raise Unavailable(
            f"storage {storage.url} is not on {socket.gethostname()}, where an executor runs; mount it on"
            " every worker at the same path, or keep events on s3://, gs:// or az://"
        )


def _find_flushed(storage: StorageRef, name: str, ts: int) -> TableView | None:
    """Return the table at `ts` when its objects reach `ts`; None otherwise."""
    try:
        view = find_table(storage, name, at_ts=ts)
    except Unavailable:
        return None  # no schema on storage yet: its capture may have one
    flushed_ts = min(partition.state().flushed_ts for partition in view.partitions)
    return view if ts <= flushed_ts else None


def _find_owners(options: "SourceOptions") -> "Mapping[int, FlightReader]":
    # Imported here, because executors, and plans that read objects only, do not need them.
    from penstock.eventstore.read.flight_client import FlightReader
    from penstock.follow.captures import find_owners
    from penstock.kv.cluster_ref import ClusterRef
    from penstock.settings import Settings

    token = options.settings.capture.read_flight_token()
    if options.flight_addr is not None:
        reader = FlightReader(options.flight_addr, tls=options.flight_tls, token=token)
        return {table.table_id: reader for table in reader.tables()}
    try:
        client = ClusterRef.of(options.settings).client()
        return find_owners(client, tls=options.flight_tls, token=token)
    except Unavailable as error:
        # With the default address there may be no cluster on purpose.
        level = logging.INFO if options.settings.pd_addrs == Settings().pd_addrs else logging.WARNING
        _log.log(level, "table %s is read as far as its objects go: %s", options.table, error)
        return {}


def _format_ts(ts: int) -> str:
    return datetime.fromtimestamp(physical_ms(ts) / 1000, UTC).isoformat(" ", "milliseconds")


@dataclass(frozen=True)
class TableAtVersion:
    """A table at one timestamp."""

    view: "TableView"
    ts: int
    table: "TableInfo"

    @classmethod
    def of(cls, options: "SourceOptions", ts: int | None) -> "TableAtVersion":
        """Return the table of the options, at `ts` or the newest timestamp.

        Raises Invalid when there is no such table or folder, or a capture refuses the token; Unavailable when
        `ts` cannot be read yet, or storage or the capture does not answer.
        """
        view = open_table(options, at_ts=ts)
        if ts is None:
            ts = newest_ts(view)
        else:
            require_readable(view, ts)
        return cls(view, ts, view.partitions[0].state(from_ts=ts).schema_at(ts).table)


class ResolvedSchema(Protocol):
    """A read whose timestamp is fixed."""

    @property
    def schema(self) -> "pa.Schema":
        """The columns of the rows."""

    @property
    def info(self) -> "TableInfo":
        """The table at that timestamp."""


F = TypeVar("F", bound=ResolvedSchema)
R = TypeVar("R", bound=DataSourceReader)


class VersionedRead(ABC, Generic[F, R]):
    """A read of rows at one timestamp, which `schema` fixes; implements TableRead.

    `parallelism` is how many tasks Spark runs at once: a table that is large enough is read by as many.
    """

    def __init__(self, options: "SourceOptions", *, parallelism: "Parallelism") -> None:
        self.options = options
        self.parallelism = parallelism
        self._fixed: F | None = None

    def schema(self) -> "StructType":
        """Fix the timestamp; return the wanted columns as the table has them there, and the read's own."""
        self._fixed = self._fix(self.options.columns)
        variants = json_columns(self._fixed.info) if self.options.json_as_variant else ()
        return spark_schema(self._fixed.schema, variants)

    def reader(self, schema: "StructType") -> R:
        """Return a reader of these columns; raise Invalid when the rows do not have them with these types."""
        fixed = self._fixed or self._fix(self.options.columns or tuple(schema.names))
        require_columns(schema, fixed.schema, table=self.options.table, json=json_columns(fixed.info))
        return self._reader(fixed, schema)

    @abstractmethod
    def _fix(self, columns: Sequence[str] | None) -> F:
        """Fix the timestamp, for these columns or all."""

    @abstractmethod
    def _reader(self, fixed: F, schema: "StructType") -> R:
        """Return a reader of a fixed read; its columns have been checked."""
