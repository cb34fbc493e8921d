"""The tables of a simulated database as a comparison reads them: plain dicts as Arrow."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.arrow import arrow_schema
from support.feedworld import FeedWorld

__all__ = ["WorldTables"]


class WorldTables:
    """Implements SourceTables."""

    def __init__(self, world: FeedWorld) -> None:
        self._world = world

    def tables(self, at_ts: int) -> Sequence[SchemaVersion]:
        """Return the tables at a timestamp."""
        return self._world.history.tables(at_ts)

    def rows(self, schema: SchemaVersion, at_ts: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table at a timestamp."""
        rows = self._world.rows_at(at_ts).get(schema.name, [])
        yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema(schema.table)).select(list(columns))

    def changed_keys(
        self, schema: SchemaVersion, after_ts: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns of the rows that changed after a timestamp."""
        before, now = (self._world.rows_at(ts).get(schema.name, []) for ts in (after_ts, self._world.ts))
        changed = [row for row in before if row not in now] + [row for row in now if row not in before]
        wanted = pa.schema([arrow_schema(schema.table).field(name) for name in columns])
        yield pa.RecordBatch.from_pylist([{name: row[name] for name in columns} for row in changed], wanted)
