"""`penstock consume`: reads a directory of changes; prints JSON lines, or replays changes to a cluster."""

import asyncio
import base64
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa

from penstock import settings
from penstock.changefeeds.codecs.decoded_changes import DecodedChanges
from penstock.changefeeds.codecs.decoder import FileOptions
from penstock.changefeeds.directory.listing import DirectoryLayout
from penstock.changefeeds.directory.progress import DirectoryProgress, StateFile
from penstock.changefeeds.directory.reader import Ddl, Delivery, DirectoryReader, TableChanges
from penstock.changefeeds.directory.replay import Replayer
from penstock.changefeeds.sink_uri import split_uri
from penstock.changefeeds.sinks.storage.options import SinkOptions, parse_sink_uri
from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid, Unavailable
from penstock.kv import Client
from penstock.settings import Settings
from penstock.tables import Catalog
from penstock.tables.columns import PACKED_TIMES, FieldType, Tp
from penstock.tables.schema import TableInfo
from penstock.tables.statements import type_text
from penstock.tables.text_values import texts

__all__ = ["ConsumeOptions", "Into", "consume_directory"]


_OPS = {"I": "insert", "U": "update", "D": "delete"}
_AS_TEXT = PACKED_TIMES | {Tp.DURATION, Tp.NEW_DECIMAL}


class Printer:
    """Passes `write` a line for each change, DDL and schema, in the order of delivery.

    Integers and floats are numbers, vectors are lists, binary values are base64; everything else is text,
    with timestamps in UTC.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def take(self, delivery: Delivery) -> None:
        """Write the lines of a delivery."""
        if isinstance(delivery, Ddl):
            self._write(json.dumps(_schema_line(delivery), ensure_ascii=False) + "\n")
        else:
            self._write("".join(_change_lines(delivery)))


def _schema_line(ddl: Ddl) -> dict[str, Any]:
    line: dict[str, Any] = {"table" if ddl.table else "database": ddl.name, "op": "schema"}
    if ddl.query:
        line |= {"op": "ddl", "type": ddl.type, "query": ddl.query}
    line["version"] = ddl.version
    if ddl.table:
        line["columns"] = {column.name: type_text(column.type) for column in ddl.table.stored_columns}
        line["key"] = [column.name for column in ddl.table.primary_key]
    return line


def _change_lines(delivery: TableChanges) -> list[str]:
    changes = delivery.changes
    rows = _rows(delivery.table, changes.rows.columns)
    old = _old_rows(delivery.table, changes)
    lines = []
    for op, ts, row, before in zip(
        changes.ops.to_pylist(), changes.commit_ts.to_pylist(), rows, old, strict=True
    ):
        line: dict[str, Any] = {"table": delivery.name, "op": _OPS[op]}
        if ts is not None:
            line["commit_ts"] = ts
        line["row"] = row
        if before is not None:
            line["old"] = before
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    return lines


def _old_rows(table: TableInfo, changes: DecodedChanges) -> list[dict[str, Any] | None]:
    if changes.old.null_count == len(changes):
        return [None] * len(changes)
    valid_rows = changes.old.is_valid().to_pylist()
    rows = _rows(table, changes.old.flatten())
    return [row if valid else None for row, valid in zip(rows, valid_rows, strict=True)]


def _rows(table: TableInfo, columns: list[pa.Array]) -> list[dict[str, Any]]:
    names = [column.name for column in table.stored_columns]
    values = [
        _values(column.type, cells) for column, cells in zip(table.stored_columns, columns, strict=True)
    ]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def _values(kind: FieldType, column: pa.Array) -> list[Any]:
    if kind.tp in _AS_TEXT:
        return list(texts(kind, column).to_pylist())
    values = column.to_pylist()
    if pa.types.is_binary(column.type):
        return [None if value is None else base64.b64encode(value).decode() for value in values]
    if pa.types.is_decimal(column.type):  # unsigned integers that do not fit into a signed 64-bit integer
        return [None if value is None else int(value) for value in values]
    return list(values)


_log = logging.getLogger(__name__)

_SAVE_S = 5.0


class Into(StrEnum):
    """Where the changes go."""

    LINES = "lines"
    DATABASE = "database"

    @classmethod
    def parse(cls, name: str) -> "Into":
        """Return the value of a name; raise Invalid when there is none."""
        if name not in list(cls):
            raise Invalid(f"--into {name} is unknown; use {' or '.join(cls)}")
        return cls(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """The options of the command."""

    uri: str
    into: Into = Into.LINES
    pd_addrs: tuple[str, ...] = ()
    config: Path | None = None
    follow: bool = False
    interval_s: float = 5.0
    state: Path | None = None
    time_zone: str = "UTC"


class Output(Protocol):
    """Takes deliveries.

    Delivery is at least once: after a restart the last deliveries come again. A database must not change by
    them; printed lines may appear twice.
    """

    def take(self, delivery: Delivery) -> None:
        """Write a delivery before returning."""


async def consume_directory(options: ConsumeOptions, *, clock: Clock = SYSTEM) -> None:
    """Read the directory once, or with `follow` again and again until SIGTERM or SIGINT.

    With `follow`, Unavailable is logged and the read is repeated; other errors are raised.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    with _output(options, clock) as output:
        consumption = _Consumption(options, output, clock)
        try:
            while True:
                await _round(consumption, stopping, patient=options.follow)
                if not options.follow or stopping.is_set():
                    return
                await _wait(stopping, clock, options.interval_s)
        except BrokenPipeError:
            _discard_stdout()  # the reader of the lines has closed the pipe


async def _round(consumption: "_Consumption", stopping: asyncio.Event, *, patient: bool) -> None:
    try:
        await asyncio.to_thread(consumption.round, stopping.is_set)
    except Unavailable as error:
        if not patient:
            raise
        _log.warning("a read of the directory failed and is repeated", extra={"reason": str(error)})


async def _wait(stopping: asyncio.Event, clock: Clock, seconds: float) -> None:
    waits = [asyncio.create_task(stopping.wait()), asyncio.create_task(clock.sleep(seconds))]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


class _Consumption:
    """A directory that is read, its output, and the progress so far."""

    def __init__(self, options: ConsumeOptions, output: Output, clock: Clock) -> None:
        sink = _sink(options.uri)
        _check_zone(options.time_zone)
        protocol = split_uri(options.uri).parameters.get("protocol")
        files = FileOptions(
            protocol=sink.protocol if protocol else None,
            terminator=sink.terminator,
            csv=sink.csv,
            time_zone=options.time_zone,
        )
        layout = DirectoryLayout(sink.date_separator, sink.use_table_id_as_path)
        self._state = StateFile(options.state, sink.target) if options.state else None
        progress = self._state.load() if self._state else DirectoryProgress()
        self._reader = DirectoryReader(sink.target.open(), files, layout, progress)
        self._output = output
        self._clock = clock
        self._saved_at = clock.monotonic()
        self._save()  # fail before the first delivery when the file cannot be written

    def round(self, stopped: Callable[[], bool]) -> None:
        """Deliver every change that is complete now; end early once `stopped` returns true."""
        changes = 0
        try:
            for delivery in self._reader.round():
                if stopped():
                    break
                self._output.take(delivery)
                changes += len(delivery.changes) if isinstance(delivery, TableChanges) else 0
                self._save(every_s=_SAVE_S)
        finally:
            self._save()
        _log.info(
            "a read of the directory is done",
            extra={"changes": changes, "checkpoint_ts": self._reader.progress.resolved_ts},
        )

    def _save(self, *, every_s: float = 0.0) -> None:
        if self._state is not None and self._clock.monotonic() - self._saved_at >= every_s:
            self._state.save(self._reader.progress)
            self._saved_at = self._clock.monotonic()


def _sink(uri: str) -> SinkOptions:
    """Parse the URI of a sink. Without a protocol, the files themselves say it."""
    sink = parse_sink_uri(uri, parameters={"protocol": "canal-json"})
    parts = urlsplit(sink.target.url)
    folder = Path(unquote(parts.netloc + parts.path))
    if parts.scheme == "file" and not folder.is_dir():
        raise Invalid(f"{sink.target.url} does not exist; give the directory that the sink writes to")
    return sink


def _check_zone(name: str) -> None:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Invalid(f"time zone {name!r} is unknown; use a name such as Asia/Tokyo") from error


@contextmanager
def _output(options: ConsumeOptions, clock: Clock) -> Iterator[Output]:
    if options.into is Into.LINES:
        if options.pd_addrs or options.config:
            raise Invalid("--pd-addrs and --config are for a replay; add --into database, or leave them out")
        yield Printer(_write)
        return
    if not options.pd_addrs and not options.config:
        raise Invalid("a replay needs a database; add --pd-addrs with the address of its placement driver")
    loaded = settings.load(options.config) if options.config else Settings()
    addrs = options.pd_addrs or loaded.pd_addrs
    with Client.connect(addrs, tls=loaded.tls, settings=loaded.kv, clock=clock) as client:
        yield Replayer(Catalog(client, clock=clock), clock=clock)


def _write(lines: str) -> None:
    sys.stdout.write(lines)
    sys.stdout.flush()  # before the progress is saved


def _discard_stdout() -> None:
    """Redirect standard output to nowhere, so that flushing its buffer at exit does not fail."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
