"""Dates that no calendar has, in Arrow and back."""

from datetime import date, datetime

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import Invalid
from penstock.tables import impossible_dates
from penstock.tables.arrow import arrow_type
from penstock.tables.codec.rows import cell_uint
from penstock.tables.columns import ColumnFlag, FieldType, Tp
from penstock.tables.decoding.convert import dates, timestamps
from penstock.tables.text_values import texts
from penstock.tables.values import from_cell, to_cell

DAYS = ["0000-00-00", "2024-00-00", "2024-00-17", "2024-12-00", "2023-02-29", "2024-02-31", "0000-01-01"]
DATE = FieldType(Tp.DATE)
DATETIME = FieldType(Tp.DATETIME, decimal=3)
TIMESTAMP = FieldType(Tp.TIMESTAMP, decimal=0)


def stored(kind: FieldType, values: list[str | None]) -> pa.Array:
    cells = [to_cell(kind, value) for value in values]
    packed = np.array([0 if cell is None else cell_uint(cell) for cell in cells], np.uint64)
    valid = np.array([cell is not None for cell in cells])
    return dates(packed, valid) if kind.tp is Tp.DATE else timestamps(packed, arrow_type(kind), valid)


@pytest.mark.parametrize(
    ("kind", "clock"), [(DATE, ""), (DATETIME, " 23:59:58.123"), (TIMESTAMP, " 00:00:00")]
)
def test_a_date_is_printed_as_it_was_written(kind: FieldType, clock: str):
    written = [*(day + clock for day in DAYS), None, f"2024-02-29{clock}", f"9999-12-31{clock}"]
    column = stored(kind, written)
    assert texts(kind, column).to_pylist() == written
    assert texts(kind, column.slice(3, 5)).to_pylist() == written[3:8]
    assert [from_cell(kind, to_cell(kind, text)) for text in written[: len(DAYS)]] == written[: len(DAYS)]


def test_two_dates_that_no_calendar_has_differ():
    assert len(set(stored(DATE, DAYS).cast(pa.int32()).to_pylist())) == len(DAYS)


def test_readers_that_know_calendar_dates_get_null():
    column = stored(DATE, ["2024-02-31", "2024-02-29", None])
    at = stored(DATETIME, [None, "2024-02-29 01:02:03", "2023-11-31 00:00:00"])
    old = pa.StructArray.from_arrays([column], names=["day"], mask=pa.array([False, False, True]))
    rows = pa.RecordBatch.from_arrays(
        [pa.array([1, 2, 3]), column, at, old], names=["id", "day", "at", "_old"]
    )
    shown, names = impossible_dates.hide(rows.slice(0))
    assert names == ["day", "at"]
    assert shown.to_pylist() == [
        {"id": 1, "day": None, "at": None, "_old": {"day": None}},
        {
            "id": 2,
            "day": date(2024, 2, 29),
            "at": datetime(2024, 2, 29, 1, 2, 3),
            "_old": {"day": date(2024, 2, 29)},
        },
        {"id": 3, "day": None, "at": None, "_old": None},
    ]
    same, none = impossible_dates.hide(shown)
    assert same is shown
    assert none == []
    tail, _ = impossible_dates.hide(rows.slice(1))
    assert tail.to_pylist() == shown.slice(1).to_pylist()


def test_texts_are_read_back():
    written = ["2024-02-31 10:00:00.5", "2024-02-29 00:00:00", None, "0000-00-00 00:00:00"]
    column = pa.array(written, pa.string())
    read = impossible_dates.parse(DATETIME, column, lambda real: real.cast(pa.timestamp("us")))
    assert read.equals(stored(DATETIME, written))
    assert impossible_dates.to_pylist(read) == [
        "2024-02-31 10:00:00.500000",
        datetime(2024, 2, 29),
        None,
        "0000-00-00 00:00:00",
    ]


@pytest.mark.parametrize("text", ["2024-13-01", "2024-02-32", "2024-02-31 24:00:00", "soon", "2024-02"])
def test_what_mysql_does_not_hold_is_refused(text: str):
    with pytest.raises(Invalid):
        to_cell(FieldType(Tp.DATETIME, ColumnFlag.NOT_NULL), text)
