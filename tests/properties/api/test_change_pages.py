"""Pages of changes: one after the other they are all changes, once, whatever their limits are."""

import json
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.api.routes.tables import PageBounds, arrow_stream, json_page

SCHEMA = pa.schema([("_op", pa.string()), ("_commit_ts", pa.int64()), ("id", pa.int64())])


def batches(commits: list[int], sizes: list[int], from_ts: int) -> list[pa.RecordBatch]:
    """Changes after a timestamp, in batches; the sizes go round, as batches may end anywhere."""
    rows = [
        {"_op": "insert", "_commit_ts": ts, "id": number}
        for number, ts in enumerate(sorted(commits))
        if ts > from_ts
    ]
    found = []
    at = turn = 0
    while at < len(rows):
        size = sizes[turn % len(sizes)]
        found.append(pa.RecordBatch.from_pylist(rows[at : at + size], SCHEMA))
        at, turn = at + size, turn + 1
    return found


def page(bounds: PageBounds, given_batches: list[pa.RecordBatch]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(b"".join(json_page(bounds, given_batches)))
    return found


@settings(deadline=None)
@given(
    commits=st.lists(st.integers(1, 8), max_size=40),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    limit=st.integers(1, 10),
)
def test_pages_give_every_change_once_and_in_order(commits: list[int], sizes: list[int], limit: int) -> None:
    seen: list[int] = []
    from_ts, skip, more = 0, 0, True
    while more:
        bounds = PageBounds(table="a.b", from_ts=from_ts, to_ts=9, end_ts=9, limit=limit, skip=skip)
        found = page(bounds, batches(commits, sizes, from_ts))
        assert len(found["rows"]) <= limit
        seen += [row["id"] for row in found["rows"]]
        more = found["more"]
        assert (found["next_from_ts"] is None) == (not more)
        if more:
            assert found["rows"], "each page goes on"
            assert found["next_from_ts"] >= from_ts
            from_ts, skip = found["next_from_ts"], found["next_skip"]
    assert seen == list(range(len(commits)))


def test_a_range_of_which_only_a_part_was_read_goes_on_there() -> None:
    bounds = PageBounds(table="a.b", from_ts=0, to_ts=9, end_ts=5, limit=10)
    found = page(bounds, batches([1, 5], [1], 0))
    assert (found["more"], found["next_from_ts"], found["next_skip"]) == (True, 5, 0)


def test_an_empty_range_is_an_empty_page() -> None:
    bounds = PageBounds(table="a.b", from_ts=3, to_ts=3, end_ts=3, limit=10)
    assert page(bounds, []) == {
        "table": "a.b",
        "from_ts": 3,
        "to_ts": 3,
        "rows": [],
        "more": False,
        "next_from_ts": None,
        "next_skip": 0,
    }


def test_a_stream_is_one_that_arrow_reads() -> None:
    made = b"".join(arrow_stream(SCHEMA, batches([1, 2, 3], [2], 0)))
    assert pa.ipc.open_stream(made).read_all().column("id").to_pylist() == [0, 1, 2]
    assert pa.ipc.open_stream(b"".join(arrow_stream(SCHEMA, []))).read_all().num_rows == 0
