"""Any transactions on tables with unique keys, applied one row at a time to a table that enforces them.

Rows exchange their values, take those of deleted rows and give theirs to new ones, also in a commit that is
cut over many chunks, or read in ranges because it is too large to hold.
"""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changefeeds.codecs.decoded_changes import OP_DELETE, OP_INSERT, row_dicts
from penstock.changefeeds.codecs.decoder import FileOptions, decode_stream
from penstock.changefeeds.codecs.options import CsvOptions, EncoderOptions, Protocol
from penstock.changefeeds.codecs.parquet import parquet_file
from penstock.changefeeds.engines import encode
from penstock.changefeeds.engines.encode import EncodedChunk
from penstock.follow.slices import Slice
from penstock.tables.define import Index, define_table
from penstock.tables.schema import ROWID_COLUMN, TableInfo
from support.campaign import examples
from support.slices import encode_slice, slice_of
from support.tableworld import TableWorld

EXAMPLES = settings(max_examples=examples(25), deadline=None)
WORLDS = count()
PAIR = Index("pair", ["code", "name"], unique=True)
_COLUMNS = [("code", "bigint"), ("name", "varchar(9)"), ("note", "varchar(9)")]
TABLES: dict[str, TableInfo] = {
    "clustered": define_table(
        "items",
        [("id", "bigint primary key"), *_COLUMNS],
        indexes=[Index("code", ["code"], unique=True)],
    ),
    "not clustered": define_table(
        "items",
        [("id", "bigint"), *_COLUMNS],
        primary_key=["id"],
        clustered=False,
        indexes=[Index("code", ["code"], unique=True)],
    ),
    "of two columns": define_table("items", [("id", "bigint primary key"), *_COLUMNS], indexes=[PAIR]),
}
KEYS = {"clustered": ("code",), "not clustered": ("code",), "of two columns": ("code", "name")}
"""The columns of the unique key of each kind of table, beside the primary key."""

Row = dict[str, Any]
CODES = st.one_of(st.none(), st.integers(1, 4))
Commit = list[tuple[int, Row | None]]
commits: st.SearchStrategy[list[tuple[Commit, bool]]] = st.lists(
    st.tuples(
        st.lists(
            st.tuples(
                st.integers(1, 6),
                st.one_of(
                    st.none(),
                    st.fixed_dictionaries(
                        {"code": CODES, "name": st.sampled_from("ab"), "note": st.sampled_from("xy")}
                    ),
                ),
            ),
            max_size=6,
            unique_by=lambda change: change[0],
        ),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@dataclass
class StrictTable:
    """A table as a database has it: keys are unique after every single row."""

    key: tuple[str, ...]

    def __post_init__(self) -> None:
        self.rows: dict[int, Row] = {}

    def apply(self, op: str, row: Row, old: Row | None) -> None:
        """Apply one change; fail as a database would."""
        number = row["id"]
        if op == OP_DELETE:
            assert self.rows.pop(number) == row
            return
        assert (number in self.rows) == (op != OP_INSERT), "a primary key is there twice, or not at all"
        assert old is None or old == self.rows[number]
        self.rows[number] = row
        taken = [self._value(each) for each in self.rows.values() if None not in self._value(each)]
        assert len(taken) == len(set(taken)), f"two rows have the same {self.key}"

    def allows(self, rows: dict[int, Row]) -> bool:
        """Return whether the table could have these rows."""
        values = [self._value(row) for row in rows.values()]
        return len({value for value in values if None not in value}) == sum(None not in v for v in values)

    def _value(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.key)


def write(world: TableWorld, kind: str, history: list[tuple[Commit, bool]], rowids: Iterator[int]) -> None:
    """Commit what the table's keys allow at the end of each transaction; leave out the rest of it."""
    rows: dict[int, Row] = {}
    handles: dict[int, int] = {}
    strict = StrictTable(KEYS[kind])
    for changes, flush in history:
        after = dict(rows)
        for number, values in changes:
            changed = {**after, number: {"id": number, **(values or {})}}
            if values is None:
                changed.pop(number)
            if strict.allows(changed) or _frees(changes, number, strict, changed):
                after = changed
        if not strict.allows(after):
            continue
        put = [row for number, row in after.items() if rows.get(number) != row]
        gone = [(number,) for number in rows if number not in after]
        if put or gone:
            for row in put:
                handles.setdefault(row["id"], next(rowids))
            with_rowid = [
                {**row, ROWID_COLUMN: handles[row["id"]]} if kind == "not clustered" else row for row in put
            ]
            world.commit(*with_rowid, delete=gone)
            for (number,) in gone:
                handles.pop(number)
        rows = after
        (world.flush if flush else world.resolve)()


def _frees(changes: Commit, number: int, strict: StrictTable, changed: dict[int, Row]) -> bool:
    """Return whether later changes of the transaction may make room for this one: an exchange."""
    later = dict(changed)
    for other, values in changes:
        if values is None:
            later.pop(other, None)
        else:
            later[other] = {"id": other, **values}
    return number in later and strict.allows(later)


def encode_files(piece: Slice, options: EncoderOptions, **more: Any) -> list[EncodedChunk]:
    """Return chunks with the payload as a file has it: Arrow streams have unused bytes under NULLs."""
    chunks = encode_slice(piece, options, **more)
    if options.protocol != "parquet":
        return chunks
    return [replace(chunk, payload=parquet_file([chunk.payload], {})) for chunk in chunks]


def decoded(
    chunks: list[EncodedChunk], options: EncoderOptions, table: TableInfo
) -> Iterator[tuple[str, Row, Row | None]]:
    """Yield the changes of each chunk as a file of its own."""
    files = FileOptions(protocol=options.protocol, csv=options.csv, terminator=options.terminator)
    for chunk in chunks:
        for part in decode_stream(pa.BufferReader(chunk.payload), options.protocol, table, files):
            old = row_dicts(part.old)
            for op, row, before in zip(part.ops.to_pylist(), row_dicts(part.rows), old, strict=True):
                assert row is not None
                yield op, row, before


@EXAMPLES
@given(
    st.sampled_from(sorted(TABLES)),
    commits,
    st.sampled_from(get_args(Protocol)),
    st.booleans(),
    st.integers(1, 900),
    st.sampled_from([0, 300, 1 << 20]),
)
def test_no_row_ever_meets_a_unique_value_of_another(
    kind: str,
    history: list[tuple[Commit, bool]],
    protocol: Protocol,
    with_old: bool,
    chunk_bytes: int,
    held_bytes: int,
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="penstock-unique-"))
    options = EncoderOptions(
        protocol=protocol,
        terminator="\n",
        enable_tidb_extension=True,
        csv=CsvOptions(include_commit_ts=True, output_old_value=with_old),
        chunk_bytes=chunk_bytes,
        commit_bytes_max=1,
    )
    table = replace(TABLES[kind], id=1)
    try:
        with (
            TableWorld(folder, table, url=f"memory:///unique-{next(WORLDS)}") as world,
            patch.object(encode, "_SAMPLE_EVERY", 1),
        ):
            start = world.tick()
            world.resolve()
            write(world, kind, history, count(100))
            if world.ts == start:
                return
            piece = slice_of(world, start, world.ts, batch_rows=1)
            chunks = encode_files(piece, options)
            with patch.object(encode.PartRows.__init__, "__defaults__", (held_bytes,)):
                assert encode_files(piece, options) == chunks, "how it is read does not matter"
            for number, chunk in enumerate(chunks[:-1], 1):
                assert encode_files(piece, options, start=chunk.end) == chunks[number:]
                cut = encode_files(replace(piece, end=chunk.end), options)
                assert [each.payload for each in cut] == [each.payload for each in chunks[:number]]
            strict = StrictTable(KEYS[kind])
            for op, row, old in decoded(chunks, options, table):
                strict.apply(op, row, old)
            wanted = {
                int(row["id"]): {name: row[name] for name in ("id", "code", "name", "note")}
                for row in world.versions.at(world.ts).values()
            }
            assert strict.rows == wanted
            world.flush()
            assert encode_files(piece, options) == chunks
    finally:
        shutil.rmtree(folder)
