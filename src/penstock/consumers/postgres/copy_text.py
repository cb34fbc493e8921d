"""Arrow rows as the text format of COPY, a column at a time. Pure."""

import re
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.text_lines import Lines, Substitution, as_binary, content, hex_cells
from penstock.consumers.schema_evolution import TargetColumn
from penstock.errors import Invalid
from penstock.tables.columns import FieldType, Tp
from penstock.tables.text_values import decimals, fixed_floats, spans, vectors

_TEXT_ROWS = 32 * 1024
_TEXT_BYTES = 16 << 20
_NOTHING = pa.scalar("", pa.string())
_NO_BYTES = pa.scalar(b"", pa.binary())
_ESCAPED = Substitution({b"\\": b"\\\\", b"\t": b"\\t", b"\n": b"\\n", b"\r": b"\\r"})
_REPLACED = Substitution({b"\0": "\ufffd".encode()})
_HEX = pa.scalar(b"\\\\x", pa.binary())
_MICROSECONDS = FieldType(Tp.DURATION, decimal=6)
_ESCAPED_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


def copy_text(
    columns: Sequence[TargetColumn], rows: pa.Table | pa.RecordBatch, *, nul: str
) -> Iterator[bytes]:
    """Yield rows as texts of limited size; raise Invalid for a value that PostgreSQL does not accept.

    `nul` says what to do with the character U+0000, which its texts cannot have: `refuse` or `replace`.
    """
    for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
        step = max(1, min(_TEXT_ROWS, batch.num_rows * _TEXT_BYTES // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, step):
            yield _render_rows(columns, batch.slice(start, step), nul)


def _render_rows(columns: Sequence[TargetColumn], rows: pa.RecordBatch, nul: str) -> bytes:
    lines = Lines(rows.num_rows)
    for number, column in enumerate(columns):
        lines.text(b"\t" * bool(number))
        values = rows.column(column.name)
        if column.key and values.null_count:
            raise Invalid(
                f"key column {column.name} has a value that PostgreSQL does not have, such as a zero date;"
                " change those rows"
            )
        lines.cells(cells(column, values, nul=nul), null=b"\\N")
    lines.text(b"\n")
    return content(lines.build())[0].tobytes()


def cells(column: TargetColumn, values: pa.Array, *, nul: str) -> pa.Array:
    """Return the cells of a column, escaped; null where the values are."""
    base = column.type.partition("(")[0]
    if base in {"text", "jsonb"}:
        return _ESCAPED.apply(storable(column, values, nul=nul))
    if base == "bytea":
        return pc.binary_join_element_wise(_HEX, hex_cells(values), _NO_BYTES)
    return plain(base, column, values)


def storable(column: TargetColumn, values: pa.Array, *, nul: str) -> pa.Array:
    """Return texts as the target can have them."""
    if column.type == "jsonb":
        return _documents(column, values, nul)
    if not (content(values)[0] == 0).any():
        return values
    if nul == "refuse":
        raise _has_nul(column)
    return _REPLACED.apply(values).cast(pa.string())


def _documents(column: TargetColumn, values: pa.Array, nul: str) -> pa.Array:
    suspects = pc.match_substring(values, "\\u0000").fill_null(False)  # noqa: FBT003 - Arrow's own signature
    if not pc.any(suspects).as_py():
        return values
    before = values.filter(suspects).to_pylist()
    after = [_ESCAPED_NUL.sub(r"\1\\ufffd", text) for text in before]
    if before != after and nul == "refuse":
        raise _has_nul(column)
    return pc.replace_with_mask(values, suspects, pa.array(after, pa.string()))


def _has_nul(column: TargetColumn) -> Invalid:
    return Invalid(
        f"column {column.name} has the character U+0000, which PostgreSQL does not accept;"
        " change those rows, or give the option nul=replace"
    )


def plain(base: str, column: TargetColumn, values: pa.Array) -> pa.Array:
    """Return cells of types whose texts have nothing to escape."""
    if base == "numeric":
        return decimals(values)
    if base in {"real", "double precision"}:
        return fixed_floats(values)
    if base == "timestamp":
        return moments(values)
    if base == "timestamptz":
        return pc.binary_join_element_wise(moments(values), "+00", _NOTHING)
    if base == "interval":
        return spans(_MICROSECONDS, values)
    if base == "bit":
        return bits(int(column.type[len("bit(") : -1]), values)
    if base == "real[]":
        inner = pc.utf8_slice_codeunits(vectors(values), 1, -1)
        return pc.binary_join_element_wise("{", inner, "}", _NOTHING)
    return values.cast(pa.string())


def moments(values: pa.Array) -> pa.Array:
    """Return moments with microseconds, in UTC if they have a zone."""
    return values.cast(pa.timestamp("us")).cast(pa.string())


def bits(width: int, values: pa.Array) -> pa.Array:
    """Return numbers as binary digits."""
    known = values.fill_null(0)
    if pa.types.is_decimal(known.type):
        # A decimal has 16 bytes, of which the lower 8 are the number.
        words = np.frombuffer(known.buffers()[1], "<u8")[2 * known.offset :: 2][: len(known)]
    else:
        words = known.to_numpy().astype("<u8")
    # Big-endian bytes give the bits from the highest to the lowest; the last `width` of 64 count.
    digits = np.unpackbits(words.astype(">u8").view(np.uint8).reshape(-1, 8), axis=1)[:, 64 - width :]
    text_bytes = np.ascontiguousarray(digits + np.uint8(ord("0")))
    bounds = np.arange(len(known) + 1, dtype=np.int32) * width
    text = pa.Array.from_buffers(
        pa.string(), len(known), [None, pa.py_buffer(bounds), pa.py_buffer(text_bytes)]
    )
    return pc.if_else(values.is_valid(), text, pa.scalar(None, pa.string()))


def literal(column: TargetColumn, value: pa.Array) -> str | None:
    """Return one value as text that PostgreSQL reads as the column's type; None is NULL."""
    base = column.type.partition("(")[0]
    if base in {"text", "jsonb"}:
        cell = storable(column, value, nul="replace")
    elif base == "bytea":
        cell = pc.binary_join_element_wise(pa.scalar(b"\\x", pa.binary()), hex_cells(value), _NO_BYTES)
    else:
        cell = plain(base, column, value)
    text: bytes | None = as_binary(cell)[0].as_py()
    return None if text is None else text.decode()
