"""Tables of the event store for reads with Spark: found by name, with whoever has their newest rows.

Objects are read from storage by executors. Rows that are not flushed yet come over Flight from the capture
that owns the table: the one that the option flightAddr names, or the one whose lease in the key-value store
says so. Without either a table can be read as far as its objects go.
"""

import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.errors import Invalid, StaleRead, Unavailable
from penstock.eventstore import paths
from penstock.eventstore.read.find import find_table
from penstock.eventstore.read.partition import TableView
from penstock.object_storage import StorageRef

if TYPE_CHECKING:
    from penstock.eventstore.read.flight_client import FlightReader
    from penstock.spark.options import SourceOptions

__all__ = ["naming", "newest_ts", "open_table", "planned", "require_readable", "require_storage"]

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
    from penstock.follow.owners import find_owners
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
