"""Chunks of any history: applied in order they make the table; reading on from the end of one goes on."""

import json
import shutil
import tempfile
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.changefeeds.engines.encode import EncodedChunk
from penstock.follow.slices import Position
from support.campaign import examples
from support.itemtables import item, item_table
from support.slices import encode_slice, slice_of
from support.tableworld import TableWorld

EXAMPLES = settings(max_examples=examples(12), deadline=None)
WORLDS = count()
KINDS = ("integer", "composite", "not clustered")

Commit = tuple[dict[int, str], set[int], bool]  # names by id, ids to delete, whether to flush then

commits = st.lists(
    st.tuples(
        st.dictionaries(st.integers(1, 9), st.sampled_from(["in", "out", 'in "<\n']), max_size=6),
        st.sets(st.integers(1, 9), max_size=3),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


def write(world: TableWorld, kind: str, history: list[Commit], rowids: st.DataObject) -> None:
    numbers = count(100)
    for names, deletes, flush in history:
        live = {int(row["id"]): key for key, row in world.versions.at(world.ts).items()}
        gone = [live[number] for number in deletes if number in live and number not in names]
        used = dict.fromkeys(world.place(live[number])[1] for number in names if number in live)
        rows = []
        for number, name in names.items():
            rowid = next(numbers)
            if kind == "not clustered" and used:  # rows exchange their keys now and then
                rowid = rowids.draw(st.sampled_from(sorted(used)))
                del used[rowid]
            row = item(kind, number, name, rowid=rowid)
            if kind == "composite":  # whose handle does not know of trailing blanks
                row["part"] += " " * rowids.draw(st.integers(0, 1))
            rows.append(row)
        if rows or gone:
            commit(world, rows, gone)
        (world.flush if flush else world.resolve)()


def commit(world: TableWorld, rows: list[dict[str, Any]], gone: list[Any]) -> None:
    """A commit; rows that get the handle of others lose their own first."""
    before = {world.key(row) for row in rows} & set(world.versions.live())
    moving = [
        key for key in before if any(world.key(r) == key and world.place(key)[1] != _rowid(r) for r in rows)
    ]
    if moving:
        world.commit(delete=[*gone, *moving])
        gone = []
    world.commit(*rows, delete=gone)


def _rowid(row: dict[str, Any]) -> Any:
    return row.get("_tidb_rowid")


Rows = dict[tuple[int, str], str | None]


def apply(rows: Rows, chunks: list[EncodedChunk]) -> None:
    """A consumer that knows rows by their key, and is strict."""
    for chunk in chunks:
        for line in chunk.payload.splitlines():
            change = json.loads(line)
            (cells,) = change["data"]
            number = int(cells["id"]), cells.get("part", "")
            assert (number in rows) == (change["type"] != "INSERT")
            if change["type"] == "DELETE":
                assert rows.pop(number) == cells["name"]
            else:
                assert change["type"] == "INSERT" or rows[number] == change["old"][0]["name"]
                rows[number] = cells["name"]


@EXAMPLES
@given(
    st.sampled_from(KINDS),
    commits,
    st.integers(1, 1500),
    st.sampled_from([1, 1 << 20]),
    st.booleans(),
    st.data(),
)
def test_chunks_of_any_history(
    kind: str,
    history: list[Commit],
    chunk_bytes: int,
    commit_bytes_max: int,
    filtered: bool,
    data: st.DataObject,
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="penstock-chunks-"))
    options = EncoderOptions(
        terminator="\n",
        chunk_bytes=chunk_bytes,
        commit_bytes_max=commit_bytes_max,
        where="name like 'in%'" if filtered else "",
    )
    try:
        with TableWorld(folder, item_table(kind), url=f"memory:///chunks-{next(WORLDS)}") as world:
            start = world.tick()
            world.resolve()
            write(world, kind, history, data)
            check(world, start, options)
    finally:
        shutil.rmtree(folder)


def check(world: TableWorld, start: int, options: EncoderOptions) -> None:
    end = world.ts
    shown = {
        (int(row["id"]), row.get("part", "")): row["name"]
        for row in world.versions.at(end).values()
        if not options.where or row["name"].startswith("in")
    }
    if end > start:
        tail = slice_of(world, start, end)
        chunks = encode_slice(tail, options)
        rows: Rows = {}
        apply(rows, chunks)
        assert rows == shown
        go_on(tail, chunks, options, Position(start))
        world.flush()
        assert encode_slice(tail, options) == chunks
        again = encode_slice(slice_of(world, start, end), options)  # other parts, the same bytes
        assert b"".join(each.payload for each in again) == b"".join(each.payload for each in chunks)
    snapshot = slice_of(world, 0, end)
    chunks = encode_slice(snapshot, options)
    rows = {}
    apply(rows, chunks)
    assert rows == shown
    go_on(snapshot, chunks, options, Position(end, b""))


def go_on(piece: Any, chunks: list[EncodedChunk], options: EncoderOptions, start: Position) -> None:
    starts, ends = [chunk.start for chunk in chunks], [start, *(chunk.end for chunk in chunks)]
    if not options.where:
        assert starts == ends[:-1]
        assert not chunks or chunks[-1].end == piece.end
    else:  # a part of which the filter leaves nothing has no chunk: there is a gap without rows in its place
        assert all(end <= begin for begin, end in zip(starts, ends, strict=False))
        assert ends[-1] <= piece.end
    for number, end in enumerate(ends[1:], 1):
        if end < piece.end:
            assert encode_slice(piece, options, start=end) == chunks[number:]
    whole = encode_slice(piece, replace(options, chunk_bytes=1 << 30))
    assert b"".join(each.payload for each in whole) == b"".join(each.payload for each in chunks)
