"""Streams of any cuts merge into the order of commits, and text of any cuts into whole lines."""

import io
import itertools
from collections.abc import Iterator

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.changefeeds.codecs.decoded_changes import DecodedChanges, no_old
from penstock.changefeeds.codecs.text_cells import read_blocks
from penstock.changefeeds.directory.merge import FileRun, MergedBatch, merge_streams
from penstock.changefeeds.directory.progress import FilePosition

Change = tuple[int, str]
SCHEMA = pa.schema([("id", pa.int64())])


def rows(changes: list[Change], ids: list[int]) -> DecodedChanges:
    batch = pa.RecordBatch.from_arrays([pa.array(ids, pa.int64())], schema=SCHEMA)
    stamps = pa.array([ts for ts, _ in changes], pa.uint64())
    return DecodedChanges(pa.array([op for _, op in changes], pa.string()), stamps, batch, no_old(batch))


def pieces(name: str, changes: list[Change], cuts: list[int], first_id: int) -> Iterator[FileRun]:
    bounds = sorted({0, len(changes), *(cut % (len(changes) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(bounds):
        part = rows(changes[start:end], list(range(first_id + start, first_id + end)))
        yield FileRun(part, name, FilePosition(0, end))
        if end % 2:
            yield FileRun(rows([], []), name, FilePosition(0, end))
    yield FileRun(None, name, FilePosition(1, 0))


streams = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(1, 6), st.sampled_from("IUD")), max_size=12),
        st.lists(st.integers(0, 12), max_size=4),
    ),
    min_size=1,
    max_size=4,
)


@given(streams)
def test_merged_changes_are_in_the_order_of_commits_with_deletes_first(
    given_streams: list[tuple[list[Change], list[int]]],
) -> None:
    ordered = [
        (sorted(changes, key=lambda each: (each[0], each[1] != "D")), cuts) for changes, cuts in given_streams
    ]
    found: list[tuple[int, str, int]] = []
    marks: dict[str, FilePosition] = {}
    emitted: dict[str, int] = {str(place): 0 for place in range(len(ordered))}

    def take(delivered: MergedBatch) -> None:
        if delivered.changes is not None:
            each = delivered.changes
            new = list(
                zip(
                    each.commit_ts.to_pylist(),
                    each.ops.to_pylist(),
                    each.rows.column(0).to_pylist(),
                    strict=True,
                )
            )
            found.extend(new)
            for _, _, number in new:
                emitted[str(number // 1000)] += 1
        for name, mark in delivered.marks:
            assert mark.number or mark.rows <= emitted[name], "a mark came before its changes"
            marks[name] = mark

    for delivered in merge_streams(
        [pieces(str(place), changes, cuts, place * 1000) for place, (changes, cuts) in enumerate(ordered)]
    ):
        take(delivered)

    whole = [
        (ts, op, place * 1000 + number)
        for place, (changes, _) in enumerate(ordered)
        for number, (ts, op) in enumerate(changes)
    ]
    assert found == sorted(whole, key=lambda each: (each[0], each[1] != "D"))
    assert marks == {str(place): FilePosition(1, 0) for place in range(len(ordered))}


@given(
    st.lists(st.tuples(st.booleans(), st.text('ab\n"', max_size=6)), max_size=8),
    st.integers(1, 9),
    st.booleans(),
)
def test_blocks_end_where_lines_end(cells: list[tuple[bool, str]], size: int, ends: bool) -> None:
    lines = []
    for is_quoted, text in cells:
        bare = "".join(each for each in text if each not in '\n"')
        lines.append('"' + text.replace('"', '""') + '"\n' if is_quoted else f"{bare}\n")
    data = "".join(lines).encode() + (b"" if ends else b"last")
    found = list(read_blocks(io.BytesIO(data), b"\n", size, quote=b'"'))
    assert b"".join(found) == data
    at, bounds = 0, {0}
    for line in [*lines, "" if ends else "last"]:
        at += len(line)
        bounds.add(at)
    at = 0
    for block in found:
        at += len(block)
        assert at in bounds
