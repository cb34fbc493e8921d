"""Tables of the event store for reads with Spark: found by name, with whoever has their newest rows.

Objects are read from storage by executors. Rows that are not flushed yet come over Flight from the capture
that owns the table: the one that the option flightAddr names, or the one whose lease in the key-value store
says so. Without either a table can be read as far as its objects go.

What reads of the event store have in common: the moment is fixed first, then columns are checked.

Arrow schemas and batches as Spark wants them.

What a kind of read must offer to the data source.
"""

import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader

from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import Invalid, StaleRead, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.read.find import find_table
from penstock.eventstore.read.partition import TableView
from penstock.object_storage import StorageRef

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.eventstore.read.flight_client import FlightReader
    from penstock.spark.options import SourceOptions
    from penstock.tables.schema import TableInfo

__all__ = [
    "TableAtVersion",
    "TableRead",
    "VersionedRead",
    "as_declared",
    "naming",
    "newest_ts",
    "open_table",
    "planned",
    "require_columns",
    "require_readable",
    "require_storage",
    "spark_schema",
]


T = TypeVar("T")

_log = logging.getLogger(__name__)
_CLOCKS_APART_MS = 60_000  # how much the clocks of machines may differ


def open_table(options: "SourceOptions", *, at_ts: int | None = None) -> TableView:
    """The table that the options name, as it is called at `at_ts` (None: now). Can be pickled.

    Nobody is asked for newer rows when `at_ts` is in objects already. Raises Invalid when there is no such
    table or no such folder, or a capture refuses the token; Unavailable when storage, or the capture that
    flightAddr names, does not answer.
    """
    capture = options.settings.capture
    storage = StorageRef(capture.storage, capture.storage_options)
    require_storage(storage)
    if at_ts is not None:
        flushed = _flushed_view(storage, options.table, at_ts)
        if flushed is not None:
            return flushed
    owners = _owners(options)
    return find_table(storage, options.table, at_ts=at_ts, rows=owners.get)


def newest_ts(view: TableView) -> int:
    """How far every partition of a table can be read; raise Unavailable when nothing of it can be yet."""
    found = min(partition.state().newest_ts for partition in view.partitions)
    if not found:
        raise Unavailable(
            f"nothing of {view.name} can be read yet; wait for its first flush, or let its capture be found"
            " with pdAddrs or flightAddr"
        )
    return found


def planned(view: TableView, plan: Callable[[TableView], T], again: Callable[[], TableView]) -> T:
    """What `plan` makes of a view; of a new one when that is old: captures come and go."""
    try:
        return plan(view)
    except Unavailable:
        return plan(again())


def require_readable(view: TableView, ts: int, *, clock: Clock = SYSTEM) -> None:
    """Raise unless a table can be read at `ts`: Invalid in the future, Unavailable when that is to come."""
    newest = newest_ts(view)
    if ts <= newest:
        return
    known = f"{view.name} can be read up to {newest} ({_moment(newest)}), not {ts}"
    if physical_ms(ts) > clock.wall_ms() + _CLOCKS_APART_MS:
        raise Invalid(f"{known}, which is in the future; leave the end open to read the newest")
    if any(partition.rows is None for partition in view.partitions):
        raise Unavailable(
            f"{known}: newer rows are with its capture, which is not found; give pdAddrs or flightAddr,"
            " or wait for its next flush"
        )
    raise Unavailable(f"{known}; wait, or leave the end open to read the newest")


@contextmanager
def naming(table: str, *, inclusive: bool = False) -> Iterator[None]:
    """Around reads: history that is gone is told with the table's name.

    With `inclusive` times are told as the options for changes count them: from the first that is read.
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

    Opening it would make an empty one, in which everything is missing.
    """
    parts = urlsplit(storage.url)
    if parts.scheme != "file":
        return
    folder = Path(unquote(parts.netloc + parts.path))
    if table_id is None and not folder.is_dir():
        raise Invalid(f"storage {storage.url} is no folder on {socket.gethostname()}; correct option storage")
    if table_id is not None and not (folder / paths.table_root(table_id)).is_dir():
        raise Unavailable(
            f"storage {storage.url} is not on {socket.gethostname()}, where an executor runs; mount it on"
            " every worker at the same path, or keep events on s3://, gs:// or az://"
        )


def _flushed_view(storage: StorageRef, name: str, ts: int) -> TableView | None:
    """The table as of `ts` when its objects have all of that."""
    try:
        view = find_table(storage, name, at_ts=ts)
    except Unavailable:
        return None  # no schema on storage yet: its capture may know more
    flushed_ts = min(partition.state().flushed_ts for partition in view.partitions)
    return view if ts <= flushed_ts else None


def _owners(options: "SourceOptions") -> "Mapping[int, FlightReader]":
    # Here, because executors and plans of what is in objects need none of them.
    from penstock.eventstore.read.flight_client import FlightReader
    from penstock.follow.captures import find_owners
    from penstock.kv.cluster_ref import ClusterRef
    from penstock.settings import Settings

    token = options.settings.capture.read_flight_token()
    if options.flight_addr is not None:
        reader = FlightReader(options.flight_addr, tls=options.flight_tls, token=token)
        return {each.table_id: reader for each in reader.tables()}
    try:
        client = ClusterRef.of(options.settings).client()
        return find_owners(client, tls=options.flight_tls, token=token)
    except Unavailable as error:
        # where nobody named a cluster there need be none
        level = logging.INFO if options.settings.pd_addrs == Settings().pd_addrs else logging.WARNING
        _log.log(level, "table %s is read as far as its objects go: %s", options.table, error)
        return {}


def _moment(ts: int) -> str:
    return datetime.fromtimestamp(physical_ms(ts) / 1000, UTC).isoformat(" ", "milliseconds")


@dataclass(frozen=True)
class TableAtVersion:
    """A table as of one timestamp."""

    view: "TableView"
    ts: int
    table: "TableInfo"

    @classmethod
    def of(cls, options: "SourceOptions", ts: int | None) -> "TableAtVersion":
        """The table that the options name, at a timestamp (None: the newest). Raises as `open_table` does."""
        view = open_table(options, at_ts=ts)
        if ts is None:
            ts = newest_ts(view)
        else:
            require_readable(view, ts)
        return cls(view, ts, view.partitions[0].state(from_ts=ts).schema_at(ts).table)


class ResolvedSchema(Protocol):
    """What a read is of, once that is fixed."""

    @property
    def schema(self) -> "pa.Schema":
        """The columns of its rows."""


F = TypeVar("F", bound=ResolvedSchema)
R = TypeVar("R", bound=DataSourceReader)


class VersionedRead(ABC, Generic[F, R]):
    """A read of rows up to one timestamp, which `schema` fixes; implements TableRead.

    `parallelism` is how many tasks Spark runs at once: what is large enough is read by as many.
    """

    def __init__(self, options: "SourceOptions", *, parallelism: int) -> None:
        self.options = options
        self.parallelism = parallelism
        self._found: F | None = None

    def schema(self) -> "StructType":
        """The columns that are wanted, as the table has them at the timestamp, and the read's own."""
        self._found = self._fixed(self.options.columns)
        return spark_schema(self._found.schema)

    def reader(self, schema: "StructType") -> R:
        """A reader of these columns; raise Invalid when the rows have them otherwise."""
        found = self._found or self._fixed(self.options.columns or tuple(schema.names))
        require_columns(schema, found.schema, table=self.options.table)
        return self._reader(found, schema)

    @abstractmethod
    def _fixed(self, columns: Sequence[str] | None) -> F:
        """Fix the timestamp, for these columns (None: all)."""

    @abstractmethod
    def _reader(self, found: F, schema: "StructType") -> R:
        """A reader of what was fixed, with a schema that fits it."""


def spark_schema(schema: pa.Schema) -> "StructType":
    """The schema that Spark declares for batches of an Arrow schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def require_columns(declared: "StructType", found: pa.Schema, *, table: str) -> None:
    """Raise Invalid unless every column of a declared schema is there with its type."""
    there = {field.name: field.dataType for field in spark_schema(found)}
    for field in declared:
        kind = there.get(field.name)
        if kind != field.dataType:
            has = "not there" if kind is None else kind.simpleString()
            raise Invalid(
                f"column {field.name} of {table} is {has}, not {field.dataType.simpleString()};"
                " leave the schema to the data source"
            )


def as_declared(batches: Iterable[pa.RecordBatch], declared: "StructType") -> Iterator[pa.RecordBatch]:
    """Batches with exactly the columns that Spark expects; nothing is copied where nothing differs."""
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted = to_arrow_schema(declared, timezone="UTC")
    for batch in batches:
        if batch.num_rows:
            yield batch if batch.schema.equals(wanted) else batch.select(wanted.names).cast(wanted)


class TableRead(Protocol):
    """One read of one table, from the moment it is asked for to its plan. Must be picklable.

    Spark makes it in one Python process, asks it for the schema there, and sends it pickled to another one to
    be planned. So an implementation fixes its timestamp in `schema` and keeps it: schema and rows are then of
    the same moment, and a data frame that is evaluated twice gives the same rows twice. Where the caller gave
    a schema, `schema` is not asked.
    """

    def schema(self) -> "StructType":
        """Columns and types of the rows; raises a PenstockError of one line."""

    def reader(self, schema: "StructType") -> "DataSourceReader":
        """A picklable reader whose batches have exactly the Arrow schema of the declared columns."""
