"""Parts of slices as chunks: order, positions, moving keys, filters, large commits."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.changefeeds.engines import encode, files
from penstock.changefeeds.engines.encode import EncodedChunk
from penstock.changefeeds.engines.engine import EncodeWork
from penstock.follow.slices import Phase, Position, TableSpan
from penstock.tables import keys
from support.itemtables import item, item_table
from support.slices import encode_slice, slice_of
from support.tableworld import TableWorld

OPTIONS = EncoderOptions(enable_tidb_extension=True, terminator="\n")
SMALL = replace(OPTIONS, chunk_bytes=1, commit_bytes_max=1)
WORLDS = count()


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Any]:
    opened: list[TableWorld] = []

    def make(kind: str = "integer", **settings: Any) -> TableWorld:
        folder = tmp_path / str(len(opened))
        url = f"memory:///parts-{next(WORLDS)}"
        opened.append(TableWorld(folder, item_table(kind), url=url, **settings))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def lines(chunks: list[EncodedChunk]) -> list[dict[str, Any]]:
    return [json.loads(line) for chunk in chunks for line in chunk.payload.splitlines()]


def steps(chunks: list[EncodedChunk]) -> list[tuple[str, int]]:
    return [(line["type"][0], int(line["data"][0]["id"])) for line in lines(chunks)]


def handle(number: int) -> bytes:
    return keys.encode_handle(number)


def test_encoding_tells_its_steps_and_ends_at_the_one_where_it_is_stopped(worlds: Any) -> None:
    world = worlds()
    start = world.ts
    for number in range(20):
        world.commit(item("integer", number, "a"))
    world.resolve()
    work = EncodeWork(slice_of(world, start, world.ts), SMALL)
    told: list[str] = []
    whole = list(files.encode_slice(work, lambda rows: None, told.append))
    assert (told[0], set(told)) == ("read rows", {"read rows", "encode rows"})
    assert len(told) > len(whole) > 10

    def stop(step: str) -> None:
        if len(told) == 5:
            raise TimeoutError(step)
        told.append(step)

    told.clear()
    with pytest.raises(TimeoutError):
        list(files.encode_slice(work, lambda rows: None, stop))


def test_changes_are_in_order_of_commits_and_handles(worlds: Any) -> None:
    world = worlds()
    start = world.ts
    for number in (5, 3, 9):
        world.commit(item("integer", number, "a"))
    world.commit(*(item("integer", number, "b") for number in (9, 1, 5)), delete=[(3,)])
    world.resolve()
    chunks = encode_slice(slice_of(world, start, world.ts), OPTIONS)
    wanted = [("I", 5), ("I", 3), ("I", 9), ("I", 1), ("D", 3), ("U", 5), ("U", 9)]
    assert steps(chunks) == wanted
    assert [(chunk.start, chunk.end, chunk.rows) for chunk in chunks] == [
        (Position(start), Position(world.ts), 7)
    ]
    world.flush()
    assert encode_slice(slice_of(world, start, world.ts), OPTIONS) == chunks


def test_chunks_end_where_the_next_one_starts(worlds: Any) -> None:
    world = worlds()
    start = world.ts
    first = world.commit(item("integer", 1, "a"))
    large = world.commit(*(item("integer", number, "b") for number in (4, 2, 3)))
    world.tick()
    world.resolve()
    piece = slice_of(world, start, world.ts)
    chunks = encode_slice(piece, SMALL)
    assert [(chunk.start, chunk.end) for chunk in chunks] == [
        (Position(start), Position(first)),
        (Position(first), Position(large, handle(2) + b"\0")),
        (Position(large, handle(2) + b"\0"), Position(large, handle(3) + b"\0")),
        (Position(large, handle(3) + b"\0"), Position(world.ts)),
    ]
    for number, chunk in enumerate(chunks[:-1], 1):
        assert encode_slice(piece, SMALL, start=chunk.end) == chunks[number:]


def test_a_transaction_that_fits_stays_in_one_chunk(worlds: Any) -> None:
    world = worlds()
    start = world.ts
    world.commit(*(item("integer", number, "b") for number in (1, 2, 3)))
    world.commit(item("integer", 4, "b"))
    world.resolve()
    chunks = encode_slice(slice_of(world, start, world.ts), replace(OPTIONS, chunk_bytes=1))
    assert [chunk.rows for chunk in chunks] == [3, 1]


def test_a_key_that_moves_between_rows_is_free_when_it_is_taken(worlds: Any) -> None:
    kind = "not clustered"
    world = worlds(kind)
    start = world.ts
    world.commit(item(kind, 5, "a", rowid=1), item(kind, 6, "a", rowid=2))
    world.commit(item(kind, 6, "b", rowid=3), delete=[(6,)])  # row 3 takes the key of row 2,
    world.commit(item(kind, 7, "c", rowid=1), item(kind, 6, "c", rowid=3))
    world.resolve()
    chunks = encode_slice(slice_of(world, start, world.ts), SMALL)
    assert steps(chunks) == [
        *(("I", 5), ("I", 6)),
        *(("D", 6), ("I", 6)),
        *(("D", 5), ("I", 7), ("U", 6)),
    ]
    assert [chunk.rows for chunk in chunks] == [1] * 7, "a commit that is too large is cut after any row"
    assert [(chunk.end.handle, chunk.end.phase) for chunk in chunks[4:6]] == [
        (handle(1) + b"\0", Phase.DELETES),
        (handle(1) + b"\0", Phase.REST),
    ]


@pytest.mark.parametrize("kind", ["not clustered", "unique"])
def test_a_position_inside_a_commit_of_an_earlier_release_loses_nothing(worlds: Any, kind: str) -> None:
    """It did not count deletes before the rest: what is at its handle and above comes, deletes first."""
    world = worlds(kind)
    world.commit(*(item(kind, number, "a") for number in range(1, 7)))
    start = world.ts
    ts = world.commit(*(item(kind, number, "b") for number in (1, 3, 5)), delete=[(2,), (4,), (6,)])
    world.resolve()
    chunks = encode_slice(slice_of(world, start, world.ts), OPTIONS, start=Position(ts, handle(3)))
    assert steps(chunks) == [("D", 4), ("D", 6), ("U", 3), ("U", 5)]


@pytest.mark.parametrize("protocol", ["csv", "canal-json", "debezium", "parquet"])
def test_a_key_that_changes_under_its_handle_is_never_cut_in_two(worlds: Any, protocol: Any) -> None:
    world = worlds("composite")
    world.commit(*(item("composite", number, "a") for number in range(5)))
    start = world.ts
    world.commit(*(item("composite", number, "b", part=f"p{number % 3} ") for number in range(5)))
    world.tick()
    world.resolve()
    options = replace(SMALL, protocol=protocol)
    piece = slice_of(world, start, world.ts)
    chunks = encode_slice(piece, options)
    assert [chunk.rows for chunk in chunks] == [2] * 5
    for number, chunk in enumerate(chunks[:-1], 1):
        assert encode_slice(piece, options, start=chunk.end) == chunks[number:]


def test_rows_that_do_not_satisfy_the_filter_do_not_exist(worlds: Any) -> None:
    world = worlds()
    start = world.ts
    world.commit(item("integer", 1, "in"), item("integer", 2, "out"), item("integer", 3, "in"))
    world.commit(item("integer", 1, "out"), item("integer", 2, "in"), item("integer", 3, "in too"))
    world.commit(delete=[(1,), (2,)])
    world.resolve()
    options = replace(OPTIONS, where="name like 'in%'", columns=("id",))
    read: list[int] = []
    piece = slice_of(world, start, world.ts)
    chunks = encode_slice(piece, options, on_read=read.append)
    assert steps(chunks) == [("I", 1), ("I", 3), ("D", 1), ("I", 2), ("U", 3), ("D", 2)]
    assert sum(read) == 8, "rows that the filter leaves out are read"
    assert list(lines(chunks)[0]["data"][0]) == ["id"]
    read.clear()
    assert encode_slice(piece, replace(OPTIONS, where="id > 100"), on_read=read.append) == []
    assert sum(read) == 8
    for cut in encode_slice(piece, replace(SMALL, where="name like 'in%'")):
        read.clear()
        encode_slice(replace(piece, end=cut.end), options, on_read=read.append)
        encode_slice(replace(piece, start=cut.end), options, on_read=read.append)
        assert sum(read) == 8, "each row is read for one slice"


def test_a_snapshot_is_inserts_in_order_of_handles(worlds: Any) -> None:
    world = worlds()
    world.commit(*(item("integer", number, "a") for number in (7, 5)))
    world.flush()
    world.commit(*(item("integer", number, "b") for number in (1, 9, 5)))
    world.flush()
    world.commit(item("integer", 6, "c"), delete=[(9,)])
    ts = world.resolve()
    piece = slice_of(world, 0, ts)
    assert steps(encode_slice(piece, OPTIONS)) == [("I", 1), ("I", 5), ("I", 6), ("I", 7)]
    assert {line["_tidb"]["commitTs"] for line in lines(encode_slice(piece, OPTIONS))} == {ts}
    chunks = encode_slice(piece, SMALL)
    assert [chunk.end for chunk in chunks] == [
        *(Position(ts, handle(number) + b"\0") for number in (1, 5, 6)),
        Position(ts),
    ]
    assert chunks[0].start == Position(ts, b"")
    assert encode_slice(piece, SMALL, start=chunks[1].end) == chunks[2:]


def test_a_slice_that_ends_inside_a_snapshot_ends_its_last_chunk_there(worlds: Any) -> None:
    world = worlds()
    world.commit(*(item("integer", number, "a") for number in range(6)))
    ts = world.flush()
    whole = slice_of(world, 0, ts)
    part = whole.parts[0].within(handle(2), handle(4))
    assert part is not None
    start, end = Position(ts, handle(2)), Position(ts, handle(4))
    chunks = encode_slice(replace(whole, parts=(part,), start=start, end=end), OPTIONS)
    assert [(chunk.start, chunk.end) for chunk in chunks] == [(start, end)]
    assert steps(chunks) == [("I", 2), ("I", 3)]


def test_parts_of_one_commit_end_at_their_handles(worlds: Any) -> None:
    world = worlds()
    start = world.ts
    ts = world.commit(*(item("integer", number, "a") for number in range(6)))
    world.resolve()
    whole = slice_of(world, start, ts)
    cuts = [b"", handle(2), handle(4), b""]
    parts = [whole.parts[0].within(low, high) for low, high in pairwise(cuts)]
    piece = replace(whole, parts=tuple(each for each in parts if each is not None))
    chunks = encode_slice(piece, OPTIONS)
    assert [(chunk.start, chunk.end) for chunk in chunks] == [
        (Position(start), Position(ts, handle(2))),
        (Position(ts, handle(2)), Position(ts, handle(4))),
        (Position(ts, handle(4)), Position(ts)),
    ]
    assert b"".join(chunk.payload for chunk in chunks) == encode_slice(whole, OPTIONS)[0].payload


def test_a_dispatcher_of_a_key_range_completes_commits_at_its_own_end(worlds: Any) -> None:
    world = worlds()
    start = world.ts
    first = world.commit(*(item("integer", number, "a") for number in range(6)))
    world.commit(*(item("integer", number, "b") for number in range(6)))
    world.resolve()
    whole = slice_of(world, start, world.ts)
    low, high = handle(2), handle(4)
    part = whole.parts[0].within(low, high)
    assert part is not None
    spec = TableSpan.of("feed", 1, low, high)
    chunks = encode_slice(replace(whole, dispatcher=spec, parts=(part,)), replace(OPTIONS, chunk_bytes=1))
    assert [(chunk.start, chunk.end) for chunk in chunks] == [
        (Position(start), Position(first)),
        (Position(first), Position(world.ts)),
    ]


@pytest.mark.parametrize("kind", ["integer", "composite", "not clustered", "no key", "unique"])
def test_a_commit_too_large_to_hold_is_read_by_ranges(
    worlds: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds(kind)
    start = world.ts
    names = [f"name {number}" for number in range(40)]
    world.commit(*(item(kind, number + 1, name) for number, name in enumerate(names)))
    world.commit(*(item(kind, number + 1, name + "!") for number, name in enumerate(names) if number % 3))
    world.commit(item(kind, 1, "end"))
    world.resolve()
    piece = slice_of(world, start, world.ts, batch_rows=4)
    snapshot = slice_of(world, 0, world.ts, batch_rows=4)
    wanted = [encode_slice(each, SMALL) for each in (piece, snapshot)]
    rows = sum(chunk.rows for chunks in wanted for chunk in chunks)
    read: list[int] = []
    monkeypatch.setattr(encode, "_SAMPLE_EVERY", 1)
    pieces = count()
    real = encode.PartRows._divide
    monkeypatch.setattr(encode.PartRows, "_divide", lambda *args: (next(pieces), real(*args))[1])
    for nbytes in (0, 400, 2000):
        monkeypatch.setattr(encode.PartRows.__init__, "__defaults__", (nbytes,))
        assert [encode_slice(each, SMALL) for each in (piece, snapshot)] == wanted
        read.clear()
        for each in (piece, snapshot):
            encode_slice(each, replace(SMALL, where="name = 'end'"), on_read=read.append)
        assert sum(read) == rows, "however often a commit is read"
    assert next(pieces), "nothing was divided"


def test_compressed_chunks_are_one_file(worlds: Any) -> None:
    world = worlds()
    start = world.ts
    for number in range(5):
        world.commit(item("integer", number, "a" * 50))
    world.resolve()
    piece = slice_of(world, start, world.ts)
    plain = b"".join(chunk.payload for chunk in encode_slice(piece, SMALL))
    zipped = encode_slice(piece, replace(SMALL, compression="gzip"))
    assert len(zipped) == 5
    assert gzip.decompress(b"".join(chunk.payload for chunk in zipped)) == plain
    assert zipped == encode_slice(piece, replace(SMALL, compression="gzip"))
    packed = encode_slice(piece, replace(SMALL, compression="zstd"))
    stream = pa.CompressedInputStream(pa.BufferReader(b"".join(chunk.payload for chunk in packed)), "zstd")
    assert stream.read() == plain


def test_a_delete_of_a_row_that_was_never_captured_has_its_key(worlds: Any) -> None:
    world = worlds()
    start = world.ts
    world.commit(item("integer", 7, "a"), deliver=False)
    world._pending[1].clear()  # captured from here on only
    world.commit(delete=[(7,)], deliver=False)
    change = world._pending[1].pop()
    world._pending[1].append((*change[:4], None))  # and the old row is not known
    world.deliver()
    world.resolve()
    (line,) = lines(encode_slice(slice_of(world, start, world.ts), replace(OPTIONS, where="name = 'a'")))
    assert (line["type"], line["data"]) == ("DELETE", [{"id": "7"}])
