"""A table whose column `v` is rewritten as TiDB does it: under a new id, which takes its place later.

The states are TiDB's. Writers write both columns from `write only` on. The backfill writes the new one into
rows that do not have it. One description then shows the new column under the name.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from penstock.eventstore.capture.capture import store_rows_at
from penstock.kv.scanning import Page
from penstock.tables import records
from penstock.tables.codec import rows as row_format
from penstock.tables.columns import ColumnInfo, SchemaState
from penstock.tables.define import define_table
from penstock.tables.keys import record_key
from penstock.tables.schema import TableInfo
from penstock.testing.versions import Key, Row
from support.tableworld import TableWorld

DEFINITIONS = ("int", "varchar(20)", "bigint", "decimal(20,2)", "varchar(30)", "double", "int not null")
"""The types that `v` has, one after the other. No column but the first may keep its id."""

_CASTS = (int, str, int, lambda number: Decimal(number).quantize(Decimal("0.01")), str, float, int)


def items(*others: tuple[str, str], first: int = 0) -> TableInfo:
    """Return a table with a number as its key, the column `v`, and others."""
    return replace(
        define_table("items", [("id", "bigint primary key"), ("v", DEFINITIONS[first]), *others]), id=1
    )


@dataclass(frozen=True)
class _Snapshot:
    """The rows of a cluster at one timestamp, a few at a time."""

    rows: Page

    async def scan_pages(self, lower: bytes, upper: bytes) -> AsyncIterator[Page]:
        assert all(lower <= key < upper for key, _ in self.rows)
        for start in range(0, len(self.rows), 2):
            yield self.rows[start : start + 2]


class RewritingWorld(TableWorld):
    """A world of one table; values of `v` are numbers, in the form of its type at the time."""

    def __init__(
        self, folder: Path, *others: tuple[str, str], delivers_backfill: bool = True, **rest: Any
    ) -> None:
        self.holds_rewrites = not delivers_backfill
        self._at = 0  # of DEFINITIONS
        self._stored: dict[int, Page] = {}  # the rows of the cluster at each rewrite
        super().__init__(folder, items(*others), **rest)

    def value(self, number: int) -> Any:
        """Return a number as `v` has it now."""
        return self._cast(number, self._at)

    def _cast(self, number: int, at: int) -> Any:
        return _CASTS[at % len(DEFINITIONS)](number)

    @property
    def hidden(self) -> ColumnInfo | None:
        """The column with the new type, until it is public."""
        return next((column for column in self.versions.table.columns if column.replaces_another), None)

    def begin_rewrite(self) -> int:
        """Begin to give `v` its next type; the new column can only be deleted so far."""
        table = self.versions.table
        definition = DEFINITIONS[(self._at + 1) % len(DEFINITIONS)]
        kind = define_table("t", [("id", "bigint primary key"), ("v", definition)]).column("v").type
        old = table.column("v")
        made = replace(
            old,
            id=table.max_column_id + 1,
            name="_Col$_v_0",
            offset=len(table.columns),
            type=kind,
            state=SchemaState.DELETE_ONLY,
            extra={**old.extra, "change_state_info": {"relative_col_offset": old.offset}},
        )
        return self.alter(
            replace(table, columns=(*table.columns, made), max_column_id=table.max_column_id + 1)
        )

    def advance_rewrite(self) -> int:
        """Go on to the next state, up to the one in which rows are rewritten."""
        hidden = self.hidden
        assert hidden is not None
        state = SchemaState(min(hidden.state + 1, SchemaState.WRITE_REORG))
        return self.alter(self._with(replace(hidden, state=state)))

    def backfill(self, keys: Iterable[Key] | None = None) -> int:
        """Write the new column into rows that do not have it (None: all), in one transaction."""
        assert self.hidden is not None
        assert self.hidden.state is SchemaState.WRITE_REORG
        ts = self.tick()
        for key in list(self.table.places if keys is None else keys):
            place, row = self.table.places[key], self.versions.last(key)
            assert row is not None
            if self.hidden.id not in row_format.decode(place.value).cells:
                value = self.encode(self.versions.table, row, ts - 1)
                if not self.holds_rewrites:  # TiKV does not send these updates
                    self._happen((ts, ts - 1), place, value, place.value)
                self.table.places[key] = place._replace(value=value)
        self.deliver()
        return ts

    def switch(self) -> int:
        """Show the new column in place of the old one; every row has its value."""
        hidden, table = self.hidden, self.versions.table
        assert hidden is not None
        old = table.column("v")
        extra = {**hidden.extra, "change_state_info": None}
        public = replace(hidden, name="v", offset=old.offset, state=SchemaState.PUBLIC, extra=extra)
        columns = [public if column.id == old.id else column for column in table.columns]
        ts = self.alter(
            replace(table, columns=tuple(column for column in columns if not column.replaces_another))
        )
        self._at += 1
        self._stored[ts] = sorted(
            (record_key(place.physical_id, place.handle), place.value) for place in self.table.places.values()
        )
        for key in self.table.places:
            row = self.versions.last(key)
            assert row is not None
            number = int(row["v"])
            self.versions.write(ts, key, {**row, "v": self.value(number)}, silent=True)
        return ts

    def resolve(self) -> int:
        """Resolve everything, and read the table again where a column was rewritten, as a capture does."""
        super().resolve()
        while self.reread():
            pass
        return self.ts

    def reread(self, rows_max: int | None = None) -> bool:
        """Store the rows of the first rewrite that is pending; only some of them, as before a crash."""
        ts = self.store.find_rewrite(1) if self.holds_rewrites else 0
        if not ts:
            return False
        rows = self.store.rows(1)
        asyncio.run(store_rows_at(_Snapshot(self._stored[ts][:rows_max]), rows, ts))  # type: ignore[arg-type]
        if rows_max is None:
            rows.finish_rewrite(ts)
        return True

    def rewrite(self) -> int:
        """Give `v` its next type, all states at once; return when the new column took its place."""
        self.begin_rewrite()
        self.advance_rewrite()
        self.advance_rewrite()
        self.backfill()
        return self.switch()

    def encode(self, info: TableInfo, row: Row, start_ts: int) -> bytes:
        """Return the bytes of a row, with the new column when writers write it."""
        hidden = next((column for column in info.columns if column.replaces_another), None)
        if hidden is None or hidden.state is SchemaState.DELETE_ONLY:
            return super().encode(info, row, start_ts)
        record = records.to_record(info, row, start_ts=start_ts)
        cells = row_format.decode(records.value_of(info, record)).cells
        datum = records.check_datum(hidden, self._cast(int(row["v"]), self._at + 1))
        return row_format.encode({**cells, hidden.id: row_format.cell_of(datum)})

    def _with(self, hidden: ColumnInfo) -> TableInfo:
        table = self.versions.table
        columns: Sequence[ColumnInfo] = [
            hidden if column.id == hidden.id else column for column in table.columns
        ]
        return replace(table, columns=tuple(columns))
