"""A table with a column of each type, and a row of it."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from penstock.tables.define import define_table

EVERY_TYPE = replace(
    define_table(
        "items",
        [
            ("id", "bigint primary key"),
            ("tiny", "tinyint"),
            ("big", "bigint unsigned"),
            ("single", "float"),
            ("real_", "double"),
            ("price", "decimal(12,2)"),
            ("wide", "decimal(60,10)"),
            ("day", "date"),
            ("at", "datetime(6)"),
            ("utc", "timestamp(3)"),
            ("span", "time"),
            ("year_", "year"),
            ("bits", "bit(8)"),
            ("text_", "varchar(20)"),
            ("raw", "varbinary(20)"),
            ("doc", "json"),
            ("choice", "enum('a','b')"),
        ],
    ),
    id=1,
)
EVERY_ROW: dict[str, Any] = {
    "id": -5,
    "tiny": -1,
    "big": (1 << 64) - 1,
    "single": 0.5,
    "real_": 0.25,
    "price": Decimal("12.50"),
    "wide": Decimal("1.5"),
    "day": date(2026, 2, 28),
    "at": datetime(2026, 2, 28, 1, 2, 3, 4),
    "utc": datetime(2026, 2, 28, 1, 2, 3, tzinfo=UTC),
    "span": timedelta(hours=-1),
    "year_": 2026,
    "bits": 5,
    "text_": "ü",
    "raw": b"\x00\xff",
    "doc": {"a": 1},
    "choice": "b",
}
"""As it is written."""

EVERY_CELL = {**EVERY_ROW, "big": Decimal((1 << 64) - 1), "wide": "1.5000000000", "doc": '{"a": 1}'}
"""As Arrow and Spark have it: decimals beyond 38 digits, and documents, are text."""
