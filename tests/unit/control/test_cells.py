"""Cells of rows as JSON has them."""

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from penstock.control.display import json_value


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (None, None),
        (True, True),
        (2**63, 2**63),
        ("text", "text"),
        (1.5, 1.5),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (b"\x00\xff", "00ff"),
        (Decimal("1.20"), "1.20"),
        (date(2026, 1, 2), "2026-01-02"),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03:00:00+00:00"),
        (timedelta(seconds=-1, microseconds=5), -0.999995),
        ([1.0, math.nan], [1.0, "NaN"]),
        ({"a": [Decimal(1)]}, {"a": ["1"]}),
    ],
)
def test_every_cell_has_a_form_that_json_has(cell: Any, shown: Any) -> None:
    assert json_value(cell) == shown
    assert json.loads(json.dumps(json_value(cell), allow_nan=False)) == shown
