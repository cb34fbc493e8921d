"""`penstock consume`: a directory of changes, printed or replayed.

Deliveries as lines of JSON, for people and for other programs.
"""

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

from penstock import clock as clocks
from penstock import settings
from penstock.changefeeds.codecs.decoded_changes import DecodedChanges
from penstock.changefeeds.codecs.decoder import FileOptions
from penstock.changefeeds.directory.listing import Survey
from penstock.changefeeds.directory.progress import DirectoryProgress, StateFile
from penstock.changefeeds.directory.reader import Ddl, Delivery, DirectoryReader, TableChanges
from penstock.changefeeds.directory.replay import Replayer
from penstock.changefeeds.sink_uri import split_uri
from penstock.changefeeds.sinks.storage.options import SinkOptions, parse_sink_uri
from penstock.clock import Clock
from penstock.errors import Invalid, Unavailable
from penstock.kv import Client
from penstock.settings import Settings
from penstock.tables import Catalog
from penstock.tables.columns import PACKED_TIMES, FieldType, Tp
from penstock.tables.schema import TableInfo
from penstock.tables.statements import type_text
from penstock.tables.text_values import texts

__all__ = ["ConsumeOptions", "Into", "consume"]


_OPS = {"I": "insert", "U": "update", "D": "delete"}
_AS_TEXT = PACKED_TIMES | {Tp.DURATION, Tp.NEW_DECIMAL}


class Printer:
    """Gives `write` a line for each change, DDL and schema, in the order of delivery.

    Integers and floats are numbers, vectors lists, binary values base64; all else is text, timestamps in UTC.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def take(self, delivery: Delivery) -> None:
        """Write a delivery's lines."""
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
    there = changes.old.is_valid().to_pylist()
    rows = _rows(table, changes.old.flatten())
    return [row if valid else None for row, valid in zip(rows, there, strict=True)]


def _rows(table: TableInfo, columns: list[pa.Array]) -> list[dict[str, Any]]:
    names = [column.name for column in table.stored_columns]
    values = [_values(column.type, held) for column, held in zip(table.stored_columns, columns, strict=True)]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def _values(kind: FieldType, column: pa.Array) -> list[Any]:
    if kind.tp in _AS_TEXT:
        return list(texts(kind, column).to_pylist())
    found = column.to_pylist()
    if pa.types.is_binary(column.type):
        return [None if value is None else base64.b64encode(value).decode() for value in found]
    if pa.types.is_decimal(column.type):  # integers that are too large for 64 bits with a sign
        return [None if value is None else int(value) for value in found]
    return list(found)


_log = logging.getLogger(__name__)

_SAVE_S = 5.0


class Into(StrEnum):
    """Where changes go."""

    LINES = "lines"
    DATABASE = "database"

    @classmethod
    def named(cls, name: str) -> "Into":
        """That of this name; Invalid when there is none."""
        if name not in list(cls):
            raise Invalid(f"--into {name} is not understood; use {' or '.join(cls)}")
        return cls(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """What the command line says."""

    uri: str
    into: Into = Into.LINES
    pd_addrs: tuple[str, ...] = ()
    config: Path | None = None
    follow: bool = False
    interval_s: float = 5.0
    state: Path | None = None
    time_zone: str = "UTC"


class Output(Protocol):
    """Takes deliveries. One that comes again must change nothing, or be allowed to show twice."""

    def take(self, delivery: Delivery) -> None:
        """Work off a delivery before returning."""


async def consume(options: ConsumeOptions, *, clock: Clock = clocks.SYSTEM) -> None:
    """Consume one round, or with `follow` rounds until SIGTERM or SIGINT; raise what made it stop."""
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
            _discard_stdout()  # whoever read the lines has seen enough


async def _round(consumption: "_Consumption", stopping: asyncio.Event, *, patient: bool) -> None:
    try:
        await asyncio.to_thread(consumption.round, stopping.is_set)
    except Unavailable as error:
        if not patient:
            raise
        _log.warning("a round is repeated", extra={"reason": str(error)})


async def _wait(stopping: asyncio.Event, clock: Clock, seconds: float) -> None:
    waits = [asyncio.create_task(stopping.wait()), asyncio.create_task(clock.sleep(seconds))]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for each in waits:
        each.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


class _Consumption:
    """A directory, where it goes, and how far it has come."""

    def __init__(self, options: ConsumeOptions, output: Output, clock: Clock) -> None:
        sink = _sink(options.uri)
        _check_zone(options.time_zone)
        given = split_uri(options.uri).parameters.get("protocol")
        files = FileOptions(
            protocol=sink.protocol if given else None,
            terminator=sink.terminator,
            csv=sink.csv,
            time_zone=options.time_zone,
        )
        survey = Survey(sink.date_separator, sink.use_table_id_as_path)
        self._state = StateFile(options.state, sink.target) if options.state else None
        progress = self._state.load() if self._state else DirectoryProgress()
        self._reader = DirectoryReader(sink.target.open(), files, survey, progress)
        self._output = output
        self._clock = clock
        self._saved_at = clock.monotonic()
        self._save()  # a file that cannot be written is better found before anything is delivered

    def round(self, stopped: Callable[[], bool]) -> None:
        """One round, or what can be done of it until `stopped`."""
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
            "a round is done", extra={"changes": changes, "checkpoint_ts": self._reader.progress.resolved_ts}
        )

    def _save(self, *, every_s: float = 0.0) -> None:
        if self._state is not None and self._clock.monotonic() - self._saved_at >= every_s:
            self._state.save(self._reader.progress)
            self._saved_at = self._clock.monotonic()


def _sink(uri: str) -> SinkOptions:
    """The URI as a sink has it, but files may tell the protocol themselves."""
    sink = parse_sink_uri(uri, parameters={"protocol": "canal-json"})
    parts = urlsplit(sink.target.url)
    folder = Path(unquote(parts.netloc + parts.path))
    if parts.scheme == "file" and not folder.is_dir():
        raise Invalid(f"{sink.target.url} is not there; give the directory that the sink writes to")
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
    chosen = settings.load(options.config) if options.config else Settings()
    addrs = options.pd_addrs or chosen.pd_addrs
    with Client.connect(addrs, tls=chosen.tls, settings=chosen.kv, clock=clock) as client:
        yield Replayer(Catalog(client, clock=clock), clock=clock)


def _write(lines: str) -> None:
    sys.stdout.write(lines)
    sys.stdout.flush()  # before the state says that they were delivered


def _discard_stdout() -> None:
    """What is left in the buffer must not fail at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
