"""From ordered raw rows to the objects of one flush."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import pyarrow as pa

from penstock.clock import SYSTEM, Clock
from penstock.eventstore import paths
from penstock.eventstore.manifest import Kind, ObjectInfo
from penstock.eventstore.objects import ObjectWriter
from penstock.eventstore.rows import before, times
from penstock.eventstore.schemaversion import SchemaVersion
from penstock.eventstore.sides import decode_sides, side_schema
from penstock.eventstore.storage import Storage
from penstock.eventstore.transactions import cut
from penstock.tables.decoding.decoder import RowDecoder


class Schemas(Protocol):
    """What was a table's schema when.

    Every change of schema up to `resolved_ts` is known. Answers for timestamps up to it never change.
    """

    def resolved_ts(self) -> int:
        """How far the history is complete."""

    def versions(self, table_id: int, from_ts: int, to_ts: int) -> list[SchemaVersion]:
        """The versions in force for changes in (from_ts, to_ts], by time, from the one at its start on.

        Raises Unavailable when the table is not known.
        """


@dataclass(frozen=True, slots=True)
class Build:
    """Who makes a flush's objects, and where."""

    storage: Storage
    decoder: RowDecoder
    scratch: Path
    large_txn_bytes: int
    clock: Clock = SYSTEM

    def objects(
        self, versions: list[SchemaVersion], table_id: int, ordered: Iterable[pa.RecordBatch]
    ) -> list[ObjectInfo]:
        """Write the objects of ordered changes; they count once a manifest names them."""
        made: list[ObjectInfo] = []
        with ExitStack() as stack:
            open_pairs: dict[Kind, _Pair] = {}
            for piece in cut(ordered, large_bytes=self.large_txn_bytes):
                kind: Kind = "direct" if piece.direct else "appendable"
                for schema, rows in by_version(piece.rows, versions):
                    belongs = (schema.version, *(_transaction(rows) if piece.direct else ()))
                    pair = open_pairs.get(kind)
                    if pair is None or pair.belongs != belongs:
                        made += pair.finish() if pair else []
                        pair = stack.enter_context(_Pair(self, table_id, kind, schema, belongs))
                        open_pairs[kind] = pair
                    pair.write(rows)
            for pair in open_pairs.values():
                made += pair.finish()
        return made


class _Pair:
    """The data and tombstone objects of the same changes."""

    def __init__(
        self, build: Build, table_id: int, kind: Kind, schema: SchemaVersion, belongs: tuple[int, ...]
    ) -> None:
        self.belongs = belongs
        self._build = build
        self._schema = schema
        self._stack = ExitStack()
        sides: tuple[paths.Side, ...] = ("data", "tombstone")
        self._writers = {
            side: self._stack.enter_context(
                ObjectWriter(
                    build.storage,
                    paths.table_root(table_id),
                    side,
                    kind=kind,
                    schema_version=schema.version,
                    schema=side_schema(schema.table, side),
                    scratch=build.scratch,
                    clock=build.clock,
                )
            )
            for side in sides
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, rows: pa.RecordBatch) -> None:
        sides = decode_sides(rows, self._schema.table, self._build.decoder)
        for side, writer in self._writers.items():
            writer.write(sides.of(side))

    def finish(self) -> list[ObjectInfo]:
        made = [writer.finish() for writer in self._writers.values()]
        return [info for info in made if info is not None]


def by_version(
    rows: pa.RecordBatch, versions: list[SchemaVersion]
) -> Iterator[tuple[SchemaVersion, pa.RecordBatch]]:
    """Divide ordered rows by the schema they were committed under."""
    commit = times(rows)
    starts = [0, *(before(commit, each.since_ts) for each in versions[1:])]
    ends = [*starts[1:], rows.num_rows]
    for version, start, end in zip(versions, starts, ends, strict=True):
        if end > start:
            yield version, rows.slice(start, end - start)


def _transaction(rows: pa.RecordBatch) -> tuple[int, int]:
    return int(times(rows)[0]), int(times(rows, "start_ts")[0])
