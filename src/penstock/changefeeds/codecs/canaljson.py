"""canal-json files: a line of JSON for each change, its values as text."""

import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.changefeeds.codecs.decoded_changes import DecodedChanges, as_struct
from penstock.changefeeds.codecs.lines import BLOCK_BYTES, Readable, blocks, parse_json
from penstock.changefeeds.codecs.text_cells import TextForm, from_text, latin1
from penstock.errors import Corrupt
from penstock.tables.arrow import arrow_schema
from penstock.tables.schema import TableInfo

_OPS = pa.array(["INSERT", "UPDATE", "DELETE"])
_LETTERS = pa.array(["I", "U", "D"])


def decode(
    stream: Readable, table: TableInfo, *, terminator: str, time_zone: str, block_bytes: int = BLOCK_BYTES
) -> Iterator[DecodedChanges]:
    """The changes of a file, in bounded memory; raise Corrupt when a line is not of that form.

    Lines that are no changes of rows (DDLs, watermarks) are passed over.
    """
    form = TextForm(latin1, numbered_elements=True, time_zone=time_zone)
    line_end = "\n" if "\n" in terminator else terminator
    for block in blocks(stream, line_end.encode(), block_bytes):
        yield _changes(block, table, form)


def _changes(block: bytes, table: TableInfo, form: TextForm) -> DecodedChanges:
    lines = _parse(block, table)
    numbers = pc.index_in(lines["type"], _OPS)
    wanted = pc.indices_nonzero(pc.is_valid(numbers))
    lines, ops = lines.take(wanted), _LETTERS.take(numbers.take(wanted))
    new, old = _texts(lines["data"], needed=True), _texts(lines["old"], needed=False)
    updated = pc.and_(pc.equal(ops, "U"), pc.is_valid(old))
    was = _completed(old, new, updated, block, wanted)
    schema = arrow_schema(table)
    rows, before = (
        pa.RecordBatch.from_arrays(
            [from_text(column, text.field(place), form) for place, column in enumerate(table.stored_columns)],
            schema=schema,
        )
        for text in (new, was)
    )
    commit_ts = pc.struct_field(lines["_tidb"], "commitTs")
    return DecodedChanges(ops, commit_ts, rows, as_struct(before, updated))


def _parse(block: bytes, table: TableInfo) -> pa.RecordBatch:
    row = pa.struct([pa.field(column.name, pa.string()) for column in table.stored_columns])
    schema = pa.schema(
        [
            ("type", pa.string()),
            ("data", pa.list_(row)),
            ("old", pa.list_(row)),
            ("_tidb", pa.struct([("commitTs", pa.uint64())])),
        ]
    )
    return parse_json(block, schema)


def _texts(lists: pa.ListArray, *, needed: bool) -> pa.StructArray:
    """The one row in each list; null where there is no list."""
    lengths = pc.list_value_length(lists)
    expected = pc.equal(lengths, 1)
    if not pc.all(expected, skip_nulls=not needed, min_count=0).as_py():
        raise Corrupt("a line of canal-json holds no row, or several, where one belongs; keep the file")
    if lists.null_count:
        starts = pc.cast(pc.if_else(pc.is_valid(lists), lists.offsets[:-1], None), pa.int64())
        return lists.values.take(starts)
    return lists.flatten()


def _completed(
    old: pa.StructArray, new: pa.StructArray, updated: pa.Array, block: bytes, wanted: pa.Array
) -> pa.StructArray:
    """Rows before updates, completed by what did not change where only what changed was written.

    A column that is missing reads as null; only where that matters the line itself is asked.
    """
    olds = [pc.struct_field(old, [place]) for place in range(old.type.num_fields)]
    news = [pc.struct_field(new, [place]) for place in range(old.type.num_fields)]
    in_doubt = [
        pc.and_(updated, pc.and_(pc.is_null(before), pc.is_valid(after)))
        for before, after in zip(olds, news, strict=True)
    ]
    doubted = sorted({place for mask in in_doubt for place in pc.indices_nonzero(mask).to_pylist()})
    if doubted:
        lines = [line for line in block.splitlines() if line.strip()]
        numbers = wanted.take(pa.array(doubted)).to_pylist()
        told = {place: _names(lines[number]) for place, number in zip(doubted, numbers, strict=True)}
        for place, field in enumerate(old.type):
            missing = [row for row in doubted if field.name not in told[row]]
            mask = pc.is_in(pa.array(range(len(old))), pa.array(missing, pa.int64()))
            olds[place] = pc.if_else(mask, news[place], olds[place])
    return pa.StructArray.from_arrays(olds, fields=list(old.type))


def _names(line: bytes) -> set[str]:
    return set(json.loads(line)["old"][0])
