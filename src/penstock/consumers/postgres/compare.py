"""Rows of source and target in the same form, so that they can be compared.

Keys have the values of the source, except for the character U+0000, which the target cannot have. Other
values are texts of one form: moments with microseconds in UTC, spans in microseconds, floating-point numbers,
bytes and vectors in hexadecimal digits, documents with sorted keys and numbers without needless digits.
"""

import binascii
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from decimal import Context, Decimal
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyarrow import csv

from penstock.columnar.text_lines import as_binary, content, hex_cells, of_content
from penstock.consumers.postgres.copy_text import cells, moments, storable
from penstock.consumers.schema_evolution import TargetColumn
from penstock.errors import Invalid

_BLOCK_BYTES = 4 << 20
_ROW_BYTES_MAX = 512 << 20
"""Of a row as text. Rows of the source are smaller; what another server sends may have any length."""
_EXACT = Context(prec=2000)
_FORMS = {
    "timestamp": "to_char({}, 'YYYY-MM-DD HH24:MI:SS.US')",
    "timestamptz": "to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')",
    "interval": "(extract(epoch FROM {}) * 1000000)::bigint",
    "date": "to_char({}, 'YYYY-MM-DD')",
    "bytea": "encode({}, 'hex')",
    "real": "encode(float4send({}), 'hex')",
    "double precision": "encode(float8send({}), 'hex')",
    "real[]": (
        "CASE WHEN {0} IS NOT NULL THEN array_to_string(ARRAY(SELECT encode(float4send(x), 'hex')"
        " FROM unnest({0}) WITH ORDINALITY AS u (x, n) ORDER BY n), '') END"
    ),
}


def render_source(columns: Sequence[TargetColumn], rows: pa.RecordBatch, *, nul: str) -> pa.RecordBatch:
    """Return what the target should have of rows of the source; raise Invalid when it has other columns."""
    compared = _compared_columns(columns)
    if {column.name for column in compared} != set(rows.schema.names):
        raise Invalid("the target has other columns than its job selects now; rebuild it")
    found = [(_key if column.key else _form)(column, rows.column(column.name), nul) for column in compared]
    return pa.RecordBatch.from_arrays(found, [column.name for column in compared])


def read_target(
    cursor: psycopg.Cursor[Any], schema: str, table: str, columns: Sequence[TargetColumn]
) -> Iterator[pa.RecordBatch]:
    """Yield what the target has, some rows at a time."""
    compared = _compared_columns(columns)
    forms = (
        sql.SQL(_FORMS.get(column.type, "{}")).format(sql.Identifier(column.name)) for column in compared
    )
    query = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT csv)").format(
        sql.SQL(", ").join(forms), sql.Identifier(schema, table)
    )
    with cursor.copy(query) as copy:
        for block in _blocks(copy):
            yield _parse_block(compared, block)


def _compared_columns(columns: Sequence[TargetColumn]) -> list[TargetColumn]:
    return sorted((column for column in columns if not column.gone), key=lambda column: not column.key)


def _blocks(copy: Iterable[Any]) -> Iterator[bytes]:
    """Yield whole rows up to some size; one row may be larger."""
    rows, nbytes = list[bytes](), 0
    for row in copy:
        if len(row) > _ROW_BYTES_MAX:
            raise Invalid(f"the target has a row of more than {_ROW_BYTES_MAX >> 20} MiB; rebuild it")
        rows.append(bytes(row))
        nbytes += len(rows[-1])
        if nbytes >= _BLOCK_BYTES:
            yield b"".join(rows)
            rows, nbytes = [], 0
    if rows:
        yield b"".join(rows)


def _parse_block(columns: Sequence[TargetColumn], block: bytes) -> pa.RecordBatch:
    names = [str(number) for number in range(len(columns))]
    table = csv.read_csv(
        io.BytesIO(block),
        csv.ReadOptions(column_names=names, block_size=len(block) + 1, use_threads=False),
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    ).combine_chunks()
    (batch,) = table.to_batches()
    found = [_value(column, texts) for column, texts in zip(columns, batch.columns, strict=True)]
    return pa.RecordBatch.from_arrays(found, [column.name for column in columns])


def _value(column: TargetColumn, texts: pa.Array) -> pa.Array:
    """Return the value of a target's text: for a key, in a type that can be cast to the source's."""
    if column.type == "jsonb":
        return _documents(texts)
    if not column.key:
        return texts
    if column.type == "bytea":
        return _decode_hex(texts)
    if column.type in {"real", "double precision"}:
        return _floats(texts, 4 if column.type == "real" else 8)
    if column.type == "timestamptz":
        return texts.cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))
    if column.type == "interval":
        return texts.cast(pa.int64()).cast(pa.duration("us"))
    if column.type.startswith("bit"):
        return pa.array([str(int(digits, 2)) for digits in texts.to_pylist()], pa.string())
    return texts


def _decode_hex(texts: pa.Array) -> pa.Array:
    digits, bounds = content(texts)
    return of_content(np.frombuffer(binascii.unhexlify(digits.data), np.uint8), bounds // 2, texts)


def _floats(texts: pa.Array, width: int) -> pa.Array:
    digits, _ = content(texts)
    return pa.array(np.frombuffer(binascii.unhexlify(digits.data), f">f{width}").astype(f"=f{width}"))


def _key(column: TargetColumn, values: pa.Array, nul: str) -> pa.Array:
    return storable(column, values, nul=nul) if column.type == "text" else values


def _form(column: TargetColumn, values: pa.Array, nul: str) -> pa.Array:
    if column.type == "jsonb":
        return _documents(storable(column, values, nul=nul))
    if column.type == "text":
        return storable(column, values, nul=nul)
    if column.type == "bytea":
        return hex_cells(values).cast(pa.string())
    if column.type in {"timestamp", "timestamptz"}:
        return moments(values)
    if column.type == "interval":
        return values.cast(pa.int64()).cast(pa.string())
    if column.type in {"real", "double precision"}:
        return _float_digits(values)
    if column.type == "real[]":
        return _vector_digits(values)
    return as_binary(cells(column, values, nul=nul)).cast(pa.string())


def _documents(values: pa.Array) -> pa.Array:
    return pa.array([None if text is None else _document(text) for text in values.to_pylist()], pa.string())


def _document(text: str) -> str:
    return json.dumps(json.loads(text, parse_int=_number, parse_float=_number), sort_keys=True)


def _number(text: str) -> dict[str, str]:
    """Return a number without needless digits, in a form that no text has: no document has such a key.

    A zero has no sign, because PostgreSQL keeps none.
    """
    if text.isdecimal():
        return {"\0": text}
    number = Decimal(text).normalize(_EXACT)
    return {"\0": format(number, "f") if number else "0"}


def _float_digits(values: pa.Array) -> pa.Array:
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
    width = numbers.dtype.itemsize
    big_endian = np.ascontiguousarray(numbers.astype(f">f{width}"))
    raw = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(width), len(values), [None, pa.py_buffer(big_endian)]
    )
    digits = hex_cells(raw.cast(pa.binary())).cast(pa.string())
    return pc.if_else(values.is_valid(), digits, pa.scalar(None, pa.string()))


def _vector_digits(values: pa.Array) -> pa.Array:
    flat = _float_digits(values.flatten())
    sizes = pc.list_value_length(values).fill_null(0).to_numpy()
    bounds = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(bounds), flat, mask=values.is_null())
    return pc.binary_join(lists, "")
