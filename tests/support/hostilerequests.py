"""What hostile callers send: filters of searches that must not run, and tickets that are hard to parse."""

import json
from typing import Any

__all__ = ["GOOD_TICKET", "MALFORMED_TICKETS", "hostile_filters"]


def hostile_filters(column: str) -> tuple[str, ...]:
    """Return filters on an index that has the columns `id` and this one, a text."""
    return tuple(text.replace("TEXT", column) for text in _FILTERS)


_FILTERS = (
    "TEXT = repeat('x', 2000000000)",
    "length(repeat(TEXT, 2000000000)) > 1",
    "regexp_like(TEXT, '(a+)+(a+)+(a+)+$')",
    "(" * 5000 + "id = 1" + ")" * 5000,
    "not " * 200 + "id = 1",
    "id IN (SELECT id FROM books)",
    "id IN (" + ", ".join(["repeat('x', 9)"] * 200) + ")",
    "`*` = 1",
    "* = 1",
    "іd = 1",  # noqa: RUF001 - a Cyrillic letter
    "_penstock IS NULL",
    "id BETWEEN SYMMETRIC 2 AND 1",  # a part that is not listed is refused, not passed over
)

_DEEP = b"[" * 100_000
GOOD_TICKET: dict[str, Any] = {"table_id": 1, "from_ts": 0, "to_ts": 1}
_WRONG: tuple[dict[str, Any], ...] = (
    {"table_id": float("inf")},
    {"table_id": float("nan")},
    {"table_id": 1.5},
    {"table_id": True},
    {"table_id": -1},
    {"table_id": 1 << 70},
    {"table_id": "1"},
    {"from_ts": None},
    {"to_ts": 1 << 64},
    {"to_ts": []},
    {"columns": "name"},
    {"columns": [1]},
    {"columns": [["name"]]},
    {"columns": {"name": 1}},
    {"handle_from": 5},
    {"handle_from": "not base64!"},
    {"side": ["data"]},
    {"side": "nothing"},
    {"unknown": 1},
)
MALFORMED_TICKETS = [
    b"",
    b"null",
    b"7",
    b"[]",
    b'"text"',
    b"\xff\xfe\x00",
    b"{",
    _DEEP,
    _DEEP + b"]" * 100_000,
    b'{"table_id": ' + _DEEP,
    b'{"a":' * 100_000,
    b" " * (2 << 20),
    *(json.dumps({**GOOD_TICKET, **wrong}).encode() for wrong in _WRONG),
    b'{"table_id": ' + b"9" * 10_000 + b', "from_ts": 0, "to_ts": 1}',
]
