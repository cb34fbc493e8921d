"""Changes as lines of JSON, in the order of their commits. Pure.

    {"op":"upsert","commit_ts":"463…","row":{"id":"1","name":"Ada"}}
    {"op":"delete","commit_ts":"463…","key":{"id":"1"}}

| column | JSON |
|---|---|
| TINYINT to INT, YEAR, FLOAT, DOUBLE | number |
| INT UNSIGNED, BIGINT, BIT, DECIMAL | string of digits, since not every reader has more than a double |
| texts, ENUM, SET | string |
| bytes, `_handle` | string in base 64 |
| DATE, DATETIME | "2026-02-28", "2026-02-28 01:02:03.000004" |
| TIMESTAMP, TIME | "2026-02-28 01:02:03.000004Z", "-01:00:00.000000" |
| JSON, VECTOR | as it is |
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.text_lines import JSON, Lines, base64_cells, json_string, numbers
from penstock.eventstore.sides import COMMIT_TS
from penstock.tables.fieldtypes import FieldType, Tp
from penstock.tables.text_values import decimals, fixed_floats, spans, vectors

_MICROSECONDS = FieldType(Tp.DURATION, decimal=6)
_NOTHING = pa.scalar("", pa.string())


class JsonLines:
    """Lines of one table's changes; `documents` are the columns whose texts are JSON already."""

    content_type = "application/x-ndjson"

    def __init__(self, documents: Sequence[str]) -> None:
        self._documents = frozenset(documents)

    def encode(self, inserts: pa.RecordBatch, deletes: pa.RecordBatch) -> pa.Array:
        """A line for each change, with its end, as binary; of one commit the deletes come first."""
        gone, there = self._lines(deletes, b"delete", b"key"), self._lines(inserts, b"upsert", b"row")
        times = np.concatenate([deletes.column(COMMIT_TS).to_numpy(), inserts.column(COMMIT_TS).to_numpy()])
        order = np.argsort(times, kind="stable")
        return pa.concat_arrays([gone, there]).take(pa.array(order))

    def _lines(self, rows: pa.RecordBatch, act: bytes, member: bytes) -> pa.Array:
        lines = Lines(rows.num_rows)
        lines.text(b'{"op":"%s","commit_ts":"' % act)
        lines.cells(numbers(rows.column(COMMIT_TS).to_numpy()))
        lines.text(b'","%s":{' % member)
        names = [name for name in rows.schema.names if name != COMMIT_TS]
        for number, name in enumerate(names):
            lines.text(b"%s%s:" % (b"," * bool(number), json_string(name)))
            values, bare = self._cells(name, rows.column(name))
            lines.cells(values, quote=b"" if bare else b'"', null=b"null")
        lines.text(b"}}\n")
        return lines.build()

    def _cells(self, name: str, values: pa.Array) -> tuple[pa.Array, bool]:
        """What stands for values, and whether that needs no quotes."""
        kind = values.type
        if name in self._documents:
            return values, True
        if pa.types.is_string(kind):
            return JSON.apply(values), False
        if pa.types.is_binary(kind):
            return base64_cells(values), False
        if pa.types.is_floating(kind):
            return fixed_floats(values), True
        if pa.types.is_list(kind):
            return vectors(values), True
        if pa.types.is_decimal(kind):
            return decimals(values), False
        if pa.types.is_timestamp(kind):
            return _moments(values), False
        if pa.types.is_duration(kind):
            return spans(_MICROSECONDS, values), False
        return values.cast(pa.string()), pa.types.is_integer(kind) and kind.bit_width <= 32


def _moments(values: pa.Array) -> pa.Array:
    found = values.cast(pa.timestamp("us")).cast(pa.string())
    return found if values.type.tz is None else pc.binary_join_element_wise(found, "Z", _NOTHING)
