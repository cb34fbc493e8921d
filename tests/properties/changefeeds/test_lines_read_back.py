"""Whatever rows there are, lines of them read back as these rows, and the same rows are the same bytes."""

import base64
import csv
import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changefeeds.codecs import csv as csvfiles
from penstock.changefeeds.codecs.decoded_changes import row_dicts
from penstock.changefeeds.codecs.decoder import FileOptions, decode_stream
from penstock.changefeeds.codecs.encoder import Encoder, encoder_of, header_of
from penstock.changefeeds.codecs.options import CsvOptions, EncoderOptions, check_readable
from penstock.changefeeds.codecs.parquet import parquet_file
from penstock.changefeeds.codecs.row_changes import RowChanges
from penstock.changefeeds.sinks.storage.options import SinkOptions, parse_sink_uri
from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.define import define_table
from support.campaign import examples
from support.slices import row_changes

TABLE = define_table(
    "items",
    [
        ("id", "bigint primary key"),
        ("small", "tinyint unsigned"),
        ("ratio", "double"),
        ("single", "float"),
        ("price", "decimal(30,12)"),
        ("name", "varchar(200)"),
        ("raw", "varbinary(200)"),
        ("day", "date"),
        ("at", "datetime(6)"),
        ("utc", "timestamp(3)"),
        ("span", "time(6)"),
        ("choice", "enum('a','b')"),
        ("some", "set('x','y')"),
    ],
)
SCHEMA = SchemaVersion(0, 1, TABLE, "shop")
EXAMPLES = settings(max_examples=examples(25), deadline=None)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
CELLS: dict[str, st.SearchStrategy[Any]] = {
    "small": st.integers(0, 255),
    "ratio": st.floats(allow_nan=False, allow_infinity=False),
    "single": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "price": st.decimals(-(10**17), 10**17, places=12),
    "name": TEXT | st.sampled_from(['"', "\\", ",", "\r\n", "\u2028", "<>&", "\\N", ""]),
    "raw": st.binary(max_size=20),
    "day": st.dates(date(1, 1, 1)),
    "at": st.datetimes(datetime(1000, 1, 1)),
    "utc": st.datetimes(datetime(1970, 1, 2), datetime(2038, 1, 1), timezones=st.just(UTC)).map(
        lambda each: each.replace(microsecond=each.microsecond // 1000 * 1000)
    ),
    "span": st.timedeltas(timedelta(hours=-838), timedelta(hours=838)),
    "choice": st.sampled_from(["a", "b"]),
    "some": st.sampled_from(["", "x", "y", "x,y"]),
}
rows = st.fixed_dictionaries({name: st.none() | cells for name, cells in CELLS.items()})
Change = tuple[int, dict[str, Any] | None, dict[str, Any] | None]


@st.composite
def histories(draw: st.DrawFn) -> list[Change]:
    made: list[Change] = []
    for number in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from("IUD"))
        old = {"id": number, **draw(rows)} if kind != "I" else None
        new = {"id": number, **draw(rows)} if kind != "D" else None
        made.append((1 << 60 | number, old, new))
    return made


def payload(encoder: Encoder, changes: RowChanges) -> bytes:
    """The same however the rows are cut."""
    whole = encoder.payload([encoder.encode(changes)])
    for cut in range(len(changes)):
        parts = [changes.slice(0, cut), changes.slice(cut, len(changes))]
        blocks = [encoder.encode(each) for each in parts if len(each)]
        assert encoder.payload(blocks) == whole
    block = encoder.encode(changes)
    assert encoder.payload([block.slice(number, number + 1) for number in range(len(changes))]) == whole
    assert sum(block.nbytes) > 0
    return whole


def span_text(span: timedelta) -> str:
    micros = abs(span) // timedelta(microseconds=1)
    seconds, micros = divmod(micros, 1_000_000)
    sign = "-" if span < timedelta(0) else ""
    return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"


def canal_text(name: str, cell: Any) -> Any:
    if cell is None:
        return None
    if name in {"ratio", "single"}:
        return float(cell)
    written = {
        "raw": lambda: cell.decode("latin-1"),
        "day": lambda: f"{cell.year:04}-{cell.month:02}-{cell.day:02}",
        "at": lambda: cell.isoformat(" ", "microseconds"),
        "utc": lambda: cell.replace(tzinfo=None).isoformat(" ", "milliseconds"),
        "span": lambda: span_text(cell),
        "choice": lambda: str(" ab".index(cell)),
        "some": lambda: str(["", "x", "y", "x,y"].index(cell)),
        "price": lambda: f"{cell:.12f}" if cell else f"{abs(cell):.12f}",
    }
    return written.get(name, lambda: str(cell))()


def csv_text(name: str, cell: Any) -> Any:
    if cell is None:
        return None
    if name in {"choice", "some"}:
        return cell
    return base64.b64encode(cell).decode() if name == "raw" else canal_text(name, cell)


def read_back(name: str, text: str | None) -> Any:
    if text is None or name not in {"ratio", "single"}:
        return text
    return float(Decimal(text)) if name == "ratio" else single(text)


def plain(found: Any, wanted: Any) -> Any:
    """A number as a reader has it that expects a float."""
    return float(found) if isinstance(wanted, float) else found


def single(text: str) -> float:
    return float(np.float32(text))


@EXAMPLES
@given(histories(), st.booleans())
def test_canal_json(history: list[Change], updated_only: bool) -> None:
    options = EncoderOptions(only_output_updated_columns=updated_only)
    text = payload(encoder_of(SCHEMA, options), row_changes(TABLE, history)).decode()
    for line, (_, old, new) in zip(text.split("\r\n")[:-1], history, strict=True):
        found = json.loads(line)
        data, before = new or old, old if new else None
        assert data is not None
        wanted = {name: canal_text(name, cell) for name, cell in data.items()}
        (cells,) = found["data"]
        assert {name: read_back(name, cell) for name, cell in cells.items()} == wanted
        assert (found["old"] is None) == (before is None)
        if before is not None:
            was = {name: canal_text(name, cell) for name, cell in before.items()}
            if updated_only:
                was = {
                    name: each
                    for name, each in was.items()
                    if each != wanted[name] or name in found["old"][0]
                }
            assert {name: read_back(name, cell) for name, cell in found["old"][0].items()} == was
            assert not updated_only or all(cells[name] != cell for name, cell in found["old"][0].items())


@EXAMPLES
@given(histories(), st.booleans())
def test_csv(history: list[Change], old_values: bool) -> None:
    options = EncoderOptions(
        protocol="csv", csv=CsvOptions(null="NULL", output_old_value=old_values), terminator="\r\n"
    )
    text = payload(encoder_of(SCHEMA, options), row_changes(TABLE, history)).decode()
    wanted: list[tuple[str, dict[str, Any]]] = []
    for _, old, new in history:
        if old and new and old_values:
            wanted += [("D", old), ("I", new)]
        else:
            wanted.append(("U" if old and new else "I" if new else "D", new or old or {}))
    found = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    assert [row[:3] for row in found] == [[op, "items", "shop"] for op, _ in wanted]
    for cells, (_, row) in zip(found, wanted, strict=True):
        texts = {name: None if cell is None else csv_text(name, cell) for name, cell in row.items()}
        values = dict(zip(("id", *CELLS), cells[4 if old_values else 3 :], strict=True))
        assert {
            name: read_back(name, None if texts[name] is None and cell == "NULL" else cell)
            for name, cell in values.items()
        } == texts


@EXAMPLES
@given(histories())
def test_debezium(history: list[Change]) -> None:
    text = payload(
        encoder_of(SCHEMA, EncoderOptions(protocol="debezium")), row_changes(TABLE, history)
    ).decode()
    for line, (ts, old, new) in zip(text.split("\r\n")[:-1], history, strict=True):
        event = json.loads(line)
        assert event["source"]["commit_ts"] == ts
        for name, row in (("before", old), ("after", new)):
            assert (event[name] is None) == (row is None)
            if row is not None:
                known = ("id", "small", "ratio", "name", "choice", "some")
                assert {each: plain(event[name][each], row[each]) for each in known} == {
                    each: row[each] for each in known
                }


@EXAMPLES
@given(histories())
def test_parquet(history: list[Change]) -> None:
    encoder = encoder_of(SCHEMA, EncoderOptions(protocol="parquet"))
    stream = payload(encoder, row_changes(TABLE, history))
    found = pq.read_table(io.BytesIO(parquet_file([stream], {}))).to_pylist()
    wanted = [
        (kind, row)
        for _, old, new in history
        for kind, row in (
            [("update_preimage", old), ("update_postimage", new)]
            if old and new
            else [("insert", new) if new else ("delete", old)]
        )
    ]
    shown = [(each["_change_type"], {name: each[name] for name in ("id", *CELLS)}) for each in found]
    assert shown == wanted


MARKS = [*",|\\rnNe1-$\0§", "||", "|@|", "|@", "|+|", ";1"]
NULLS = ["\\N", "NULL", "", "0", "true", "\\", "\\\\", "\r", "|"]


def sink_of(delimiter: str, quote: str, null: str, terminator: str, *flags: bool) -> SinkOptions | None:
    """The options of a changefeed; None when they are refused, in one line that says what to do."""
    names = ("include-commit-ts", "output-old-value", "output-field-header")
    given_ = {name: str(flag).lower() for name, flag in zip(names, flags, strict=True)}
    given_ |= {"delimiter": delimiter, "quote": quote, "null": null, "terminator": terminator}
    try:
        sink = parse_sink_uri("file:///x", parameters={"protocol": "csv", **given_})
        check_readable(sink.protocol, sink.terminator, sink.csv)
    except Invalid as error:
        told = str(error)
    else:
        return sink
    assert "\n" not in told
    assert ";" in told, "it does not say what to do"
    return None


def read_again(sink: SinkOptions, texts: list[str]) -> None:
    """Write texts of what the options say themselves, also as a column's name, and read them back."""
    null, name = (text.translate({0: None, ord("."): None}).rstrip() for text in (sink.csv.null, texts[-1]))
    name = next(each for each in (name, null, "c") if each and each.lower() not in {"id", "ratio", "raw"})
    columns = [("id", "bigint primary key"), ("ratio", "double"), (name, "varchar(99)"), ("raw", "blob")]
    table = define_table("items", columns)
    rows = [{"id": -at, "ratio": at * 1e7, name: text, "raw": b"\0"} for at, text in enumerate(texts)]
    rows.append({"id": 99_999, "ratio": None, name: None, "raw": None})
    history = [(1 << 60, row if at % 2 else None, row) for at, row in enumerate(rows)]
    options = EncoderOptions(protocol="csv", csv=sink.csv, terminator=sink.terminator)
    schema = SchemaVersion(0, 1, table, "shop")
    encoder = encoder_of(schema, options)
    text = header_of(schema, options) + encoder.payload([encoder.encode(row_changes(table, history))])
    found = csvfiles.decode(
        pa.BufferReader(text), table, sink.csv, terminator=sink.terminator, time_zone="UTC", block_bytes=999
    )
    assert [row for each in found for row in row_dicts(each.rows)] == rows


def said(sink: SinkOptions) -> list[str]:
    csv_ = sink.csv
    whole = [csv_.delimiter, csv_.quote, csv_.null, sink.terminator]
    return list(dict.fromkeys([*whole, *"".join(whole), *"\\rnNa0\r\n", ""]))


@pytest.mark.parametrize("quote", ["", '"', "|"])
def test_usual_csv_options_are_refused_or_what_is_written_reads_back(quote: str) -> None:
    accepted = 0
    for delimiter, null, terminator in product(MARKS, NULLS, ["\n", "$$", "r"]):
        sink = sink_of(delimiter, quote, null, terminator, False, False, True)
        if sink is not None:
            accepted += 1
            read_again(sink, ["".join(pair) for pair in product(said(sink), repeat=2)])
            read_again(sink, [sink.csv.null])
    assert accepted > 5


def test_a_delimiter_may_have_digits_and_signs_behind_its_first_character() -> None:
    assert sink_of("|+|", '"', "\\N", "\r\n", False, False, False)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.text(max_size=3),
    st.sampled_from(["", '"']) | st.text(max_size=1),
    st.sampled_from(["\\N"]) | st.text(max_size=3),
    st.sampled_from(["\n"]) | st.text(max_size=2),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.data(),
)
def test_any_csv_options_are_refused_or_what_is_written_reads_back(
    delimiter: str,
    quote: str,
    null: str,
    terminator: str,
    flags: tuple[bool, bool, bool],
    data: st.DataObject,
) -> None:
    sink = sink_of(delimiter, quote, null, terminator, *flags)
    if sink is not None:
        text = st.lists(st.sampled_from(said(sink)), max_size=4).map("".join)
        read_again(sink, data.draw(st.lists(text, min_size=1, max_size=4)))


@given(st.sampled_from(["canal-json", "debezium"]), st.text(" \t\r\n|$a", max_size=3), histories())
@settings(max_examples=examples(60), deadline=None)
def test_json_terminators_are_refused_or_lines_read_back(
    protocol: Any, terminator: str, history: list[Change]
) -> None:
    try:
        sink = parse_sink_uri("file:///x", parameters={"protocol": protocol, "terminator": terminator})
        check_readable(sink.protocol, sink.terminator, sink.csv)
    except Invalid:
        return
    encoder = encoder_of(SCHEMA, EncoderOptions(protocol=protocol, terminator=sink.terminator))
    stream = pa.BufferReader(encoder.payload([encoder.encode(row_changes(TABLE, history))]))
    files = FileOptions(protocol=protocol, terminator=sink.terminator)
    read = [row for each in decode_stream(stream, protocol, TABLE, files) for row in row_dicts(each.rows)]
    assert [row and row["name"] for row in read] == [(new or old or {})["name"] for _, old, new in history]
