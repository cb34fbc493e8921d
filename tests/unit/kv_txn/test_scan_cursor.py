"""Where a scan goes next."""

import pytest

from penstock.kv.region_table import KeyLocation, RegionVerId
from penstock.kv.scanning import Cursor


def region(start: bytes, end: bytes) -> KeyLocation:
    return KeyLocation(RegionVerId(1, 1, 1), start, end)


def walk(cursor: Cursor, regions: list[KeyLocation], rows: list[bytes]) -> list[tuple[bytes, bytes, int]]:
    """Scan rows held by regions; return the requests as (start, end, limit)."""
    requests = []
    while not cursor.done:
        assert len(requests) < 100
        if cursor.reverse:
            at = next(r for r in regions if r.start < (cursor.position or b"\xff") <= (r.end or b"\xff"))
            start, end = cursor.bounds(at)
            found = [row for row in reversed(rows) if end <= row and (not start or row < start)]
        else:
            at = next(
                r for r in regions if r.start <= cursor.position and (not r.end or cursor.position < r.end)
            )
            start, end = cursor.bounds(at)
            found = [row for row in rows if start <= row and (not end or row < end)]
        asked = cursor.limit
        requests.append((start, end, asked))
        page = found[:asked]
        cursor.advance(at, asked, page[-1] if page else None, answered=len(page))
        cursor.count_rows(len(page))
    return requests


REGIONS = [region(b"", b"d"), region(b"d", b"h"), region(b"h", b"")]


def test_a_forward_scan_visits_each_region_within_its_bounds() -> None:
    cursor = Cursor(b"b", b"i", reverse=False, page_rows_max=10)
    assert walk(cursor, REGIONS, [b"c", b"e", b"i"]) == [(b"b", b"d", 10), (b"d", b"h", 10), (b"h", b"i", 10)]


def test_a_reverse_scan_visits_them_from_the_end() -> None:
    cursor = Cursor(b"b", b"", reverse=True, page_rows_max=10)
    assert walk(cursor, REGIONS, [b"c", b"e", b"i"]) == [(b"", b"h", 10), (b"h", b"d", 10), (b"d", b"b", 10)]


def test_a_full_page_goes_on_behind_its_last_row() -> None:
    forward = Cursor(b"", b"d", reverse=False, page_rows_max=2)
    assert walk(forward, REGIONS, [b"a", b"b", b"c"]) == [(b"", b"d", 2), (b"b\0", b"d", 2)]
    reverse = Cursor(b"", b"d", reverse=True, page_rows_max=2)
    assert walk(reverse, REGIONS, [b"a", b"b", b"c"]) == [(b"d", b"", 2), (b"b", b"", 2)]


def test_pages_grow_from_a_small_first_one() -> None:
    cursor = Cursor(b"", b"", reverse=False, page_rows_max=4096)
    rows = [b"%06d" % n for n in range(12_000)]
    limits = [limit for _, _, limit in walk(cursor, [region(b"", b"")], rows)]
    assert limits == [256, 1024, 4096, 4096, 4096]


def test_a_limit_is_not_exceeded_by_a_request() -> None:
    cursor = Cursor(b"", b"", reverse=False, page_rows_max=2, rows_left=3)
    requests = walk(cursor, [region(b"", b"")], [b"a", b"b", b"c", b"d"])
    assert [limit for _, _, limit in requests] == [2, 1]


@pytest.mark.parametrize(
    ("lower", "upper", "limit"), [(b"b", b"b", None), (b"c", b"b", None), (b"a", b"b", 0)]
)
def test_an_empty_range_asks_for_nothing(lower: bytes, upper: bytes, limit: int | None) -> None:
    for reverse in (False, True):
        assert Cursor(lower, upper, reverse=reverse, page_rows_max=2, rows_left=limit).done
