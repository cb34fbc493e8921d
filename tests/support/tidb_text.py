"""Values as a record of TiDB has them: text by MySQL's type, and rows held against a table of a record.

differences = compare_rows(point.tables["d1.t"], arrow_table)   # none: equal
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from support.tidb_history import PointTable

__all__ = ["TextRow", "compare_rows", "compare_text", "expected_rows", "text_rows", "to_text"]

_SHOWN_MAX = 3
_KIND = re.compile(r"(\w+)(?:\((.*)\))?", re.DOTALL)

_MOMENTS = ("date", "datetime", "timestamp")

Text = str | None
TextRow = tuple[Text, ...]


def to_text(type_text: str, value: Any) -> Text:
    """Return a value of a reader (an Arrow scalar's Python value, or text) as the record writes it."""
    return _texts(type_text, [value])[0]


def expected_rows(table: PointTable, columns: Sequence[str], *, all_dates: bool = False) -> list[TextRow]:
    """Return TiDB's rows with the given columns, in the form that `to_text` gives.

    Dates that no calendar has are NULL, as in Arrow, Spark and jobs; with `all_dates` they are themselves.
    """
    places = [table.columns.index(name) for name in columns]
    kinds = [_parse(table.types[place]) for place in places]
    if all_dates:
        kinds = [("", []) if kind[0] in _MOMENTS else kind for kind in kinds]
    return [
        tuple(_normal(kind, row[place]) for kind, place in zip(kinds, places, strict=True))
        for row in table.rows
    ]


def compare_rows(table: PointTable, found: pa.Table) -> list[str]:
    """Return how rows read as Arrow differ from TiDB's; an empty list when they are equal.

    Columns that TiDB computes on read are in neither the key-value store nor TiCDC's output.
    """
    names = list(table.stored_columns)
    if found.column_names != names:
        return [f"{table.name}: columns are {found.column_names}, TiDB has {names}"]
    return compare_text(table, names, text_rows(table, found))


def text_rows(table: PointTable, found: pa.Table) -> list[TextRow]:
    """Return rows read as Arrow as texts, with the types that TiDB gives the columns."""
    kinds = [table.types[table.columns.index(name)] for name in found.column_names]
    columns = [_texts(kind, found.column(place).to_pylist()) for place, kind in enumerate(kinds)]
    return list(zip(*columns, strict=True))


def _texts(type_text: str, values: Sequence[Any]) -> list[Text]:
    name, sizes = _parse(type_text)
    write = _WRITERS.get(name, _plain)
    return [None if value is None else write(value, sizes) for value in values]


def compare_text(
    table: PointTable, columns: Sequence[str], found: Iterable[TextRow], *, all_dates: bool = False
) -> list[str]:
    """Return how rows of texts differ from TiDB's, in any order; an empty list when they are equal."""
    wanted, got = _expected(table, tuple(columns), all_dates), Counter(found)
    if got == wanted:
        return []
    missing, extra = list((wanted - got).elements()), list((got - wanted).elements())
    said = [f"{table.name}: {len(missing)} rows of TiDB are missing, {len(extra)} are not TiDB's"]
    for left, right in list(zip(_in_order(missing), _in_order(extra), strict=False))[:_SHOWN_MAX]:
        cells = zip(columns, left, right, strict=True)
        said.append(f"  {[(name, a, b) for name, a, b in cells if a != b]} of {left[0]}"[:600])
    said += [f"  missing {row}"[:600] for row in _in_order(missing)[len(extra) :][:_SHOWN_MAX]]
    said += [f"  extra {row}"[:600] for row in _in_order(extra)[len(missing) :][:_SHOWN_MAX]]
    return said


@cache
def _expected(table: PointTable, columns: tuple[str, ...], all_dates: bool) -> Counter[TextRow]:  # noqa: FBT001
    return Counter(expected_rows(table, columns, all_dates=all_dates))


def _in_order(rows: Iterable[TextRow]) -> list[TextRow]:
    return sorted(rows, key=repr)


def _parse(type_text: str) -> tuple[str, list[int]]:
    found = _KIND.match(type_text)
    assert found is not None, f"{type_text} is no type"
    name = found[1].lower()
    if name in {"enum", "set"} or not found[2]:
        return name, []
    return name, [int(size) for size in found[2].split(",")]


def _normal(kind: tuple[str, list[int]], text: Text) -> Text:
    """Return the one form of a text of TiDB."""
    if text is None or kind[0] not in _SEVERAL_FORMS:
        return text
    return _SEVERAL_FORMS[kind[0]](text, kind[1])


def _plain(value: Any, _: list[int]) -> str:
    return str(value)


def _float32(value: Any, _: list[int]) -> str:
    return repr(float(np.float32(value)))


def _float64(value: Any, _: list[int]) -> str:
    return repr(float(value))


def _document(value: Any, _: list[int]) -> str:
    """TiDB before 2025 (pingcap/tidb#58894) writes the doubles in JSON differently, later versions as MySQL.

    1 is 1.0 and 1e+100 is 1e100 now, and from 1e15 to 1e21 there is an exponent. So the texts of a record do
    not tell a double from an integer of the same value.
    """
    return json.dumps(json.loads(value, parse_float=_number, parse_int=_whole), ensure_ascii=False)


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number


def _whole(text: str) -> int:
    """Return the exact value if the text may be that of a double: its shortest digits, then zeros."""
    number = int(text)
    digits = repr(float(number)).partition("e")[0].replace(".", "")
    return int(float(number)) if digits.rstrip("0") == text.rstrip("0") else number


def _real_moment(value: Any, _: list[int]) -> Text:
    """Arrow has no value for a date that is none: 0000-00-00, 2024-02-31. Readers get NULL."""
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return None
    return str(value)


def _decimal(value: Any, sizes: list[int]) -> str:
    number = Decimal(value)
    scale = sizes[1] if len(sizes) > 1 else 0
    shown = f"{number:.{scale}f}"
    return shown if Decimal(shown) == number else str(number)


def _hex(value: Any, _: list[int]) -> str:
    return value if isinstance(value, str) else "0x" + bytes(value).hex()


def _bits(value: Any, sizes: list[int]) -> str:
    return "0x" + int(value).to_bytes((sizes[0] + 7) // 8, "big").hex()


def _date(value: Any, _: list[int]) -> str:
    return value.isoformat() if isinstance(value, date) else str(value)


def _moment(value: Any, sizes: list[int]) -> str:
    if not isinstance(value, datetime):
        # A reader that has text for a date that no calendar has does not know the digits of the column.
        seconds, _, fraction = str(value).partition(".")
        return seconds + _fraction(int(fraction.ljust(6, "0")), sizes)
    seconds = value.replace(tzinfo=None).isoformat(sep=" ", timespec="seconds")
    return seconds + _fraction(value.microsecond, sizes)


def _span(value: Any, sizes: list[int]) -> str:
    if isinstance(value, str):
        return value
    # Formats without spans of time, such as Parquet, have microseconds.
    micros = value if isinstance(value, int) else value // timedelta(microseconds=1)
    seconds, part = divmod(abs(micros), 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{'-' * (micros < 0)}{hours:02}:{minutes:02}:{seconds:02}{_fraction(part, sizes)}"


def _fraction(micros: int, sizes: list[int]) -> str:
    """Digits beyond those of the column are shown, so that they differ."""
    digits = sizes[0] if sizes else 0
    shown = f"{micros:06}"
    kept = shown[:digits] if not shown[digits:].strip("0") else shown
    return f".{kept}" if kept else ""


def _vector(value: Any, sizes: list[int]) -> str:
    """TiDB writes the shortest digits of each 4-byte number, and never an exponent."""
    numbers = json.loads(value, parse_int=float) if isinstance(value, str) else value  # -0 is no integer
    return "[{}]".format(",".join(_float32(number, sizes) for number in numbers))


_Writer = Callable[[Any, list[int]], Text]
_SEVERAL_FORMS: dict[str, _Writer] = {
    "float": _float32,
    "double": _float64,
    "json": _document,
    "vector": _vector,
    **dict.fromkeys(_MOMENTS, _real_moment),
}
_WRITERS: dict[str, _Writer] = {
    "float": _float32,
    "double": _float64,
    "json": _document,
    "decimal": _decimal,
    **dict.fromkeys(
        ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"),
        _hex,
    ),
    "bit": _bits,
    "date": _date,
    **dict.fromkeys(("datetime", "timestamp"), _moment),
    "time": _span,
    "vector": _vector,
}
