"""Lines as TiCDC writes them, written here by hand, and what they mean."""

import gzip
import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.changefeeds.codecs import canal_json
from penstock.changefeeds.codecs import csv as csvfiles
from penstock.changefeeds.codecs.decoded_changes import DecodedChanges, row_dicts
from penstock.changefeeds.codecs.options import CsvOptions
from penstock.changefeeds.sinks.storage.schema_file import SchemaFile
from penstock.errors import Corrupt, Invalid
from penstock.tables.schema import TableInfo
from support.ticdcfiles import canal_line, column

COLUMNS = [
    column("id", "BIGINT UNSIGNED", pk=True),
    column("tiny", "TINYINT"),
    column("price", "DECIMAL", ColumnPrecision="10", ColumnScale="2"),
    column("wide", "DECIMAL", ColumnPrecision="60", ColumnScale="1"),
    column("ratio", "FLOAT"),
    column("day", "DATE"),
    column("at", "DATETIME", ColumnScale="6"),
    column("utc", "TIMESTAMP"),
    column("span", "TIME"),
    column("year_", "YEAR"),
    column("bits", "BIT", ColumnPrecision="8"),
    column("text_", "TEXT"),
    column("raw", "VARBINARY", ColumnPrecision="9"),
    column("doc", "JSON"),
    column("choice", "ENUM", ColumnElems=["small", "large"]),
    column("some", "SET", ColumnElems=["a", "b", "c"]),
    column("vector_", "VECTOR"),
]
CANAL = {
    "id": "18446744073709551615",
    "tiny": "-1",
    "price": "12.50",
    "wide": "123456789012345678901234567890123456789012345678901234567.5",
    "ratio": "0.5",
    "day": "2026-02-28",
    "at": "2026-02-28 01:02:03.000004",
    "utc": "2026-02-28 09:00:00",
    "span": "-838:59:59",
    "year_": "2026",
    "bits": "5",
    "text_": 'a,"b"\nü€',
    "raw": "\x00\xff",
    "doc": '{"a": 1}',
    "choice": "2",
    "some": "5",
    "vector_": "[1,2.5]",
}
CSV = (
    '"I","orders","shop",18446744073709551615,-1,"12.50",'
    '"123456789012345678901234567890123456789012345678901234567.5",0.5,'
    '"2026-02-28","2026-02-28 01:02:03.000004","2026-02-28 09:00:00","-838:59:59",2026,5,'
    '"a,""b""\nü€","AP8=","{""a"": 1}","large","a,c","[1,2.5]"\r\n'
)
VALUES = {
    "id": Decimal(18446744073709551615),
    "tiny": -1,
    "price": Decimal("12.50"),
    "wide": "123456789012345678901234567890123456789012345678901234567.5",
    "ratio": 0.5,
    "day": date(2026, 2, 28),
    "at": datetime(2026, 2, 28, 1, 2, 3, 4),
    "utc": datetime(2026, 2, 28, 9, tzinfo=UTC),
    "span": -timedelta(hours=838, minutes=59, seconds=59),
    "year_": 2026,
    "bits": 5,
    "text_": 'a,"b"\nü€',
    "raw": b"\x00\xff",
    "doc": '{"a": 1}',
    "choice": "large",
    "some": "a,c",
    "vector_": [1.0, 2.5],
}


def table(*columns: dict[str, Any]) -> TableInfo:
    tree = {
        "Table": "orders",
        "Schema": "shop",
        "Version": 1,
        "TableVersion": 1,
        "Query": "",
        "Type": 0,
        "TableColumns": list(columns),
        "TableColumnsTotal": len(columns),
    }
    return SchemaFile.from_json(json.dumps(tree).encode()).table_info()


def canal(
    data: bytes, *columns: dict[str, Any], terminator: str = "\r\n", zone: str = "UTC"
) -> list[DecodedChanges]:
    return list(canal_json.decode(io.BytesIO(data), table(*columns), terminator=terminator, time_zone=zone))


def csv(
    data: bytes, *columns: dict[str, Any], terminator: str = "\r\n", **dialect: Any
) -> list[DecodedChanges]:
    found = csvfiles.decode(
        pa.BufferReader(data), table(*columns), CsvOptions(**dialect), terminator=terminator, time_zone="UTC"
    )
    return list(found)


def changes(found: list[DecodedChanges]) -> list[tuple[Any, ...]]:
    return [
        (op, ts, row, old)
        for each in found
        for op, ts, row, old in zip(
            each.ops.to_pylist(),
            each.commit_ts.to_pylist(),
            row_dicts(each.rows),
            row_dicts(each.old),
            strict=True,
        )
    ]


ID, NOTE = column("id", "BIGINT", pk=True), column("note", "VARCHAR", ColumnPrecision="20")


def test_canal_json_values_of_every_type_have_their_meaning() -> None:
    empty = dict.fromkeys(CANAL) | {"id": "1"}
    data = canal_line("INSERT", CANAL, commit_ts=7) + canal_line("DELETE", empty, commit_ts=8)
    found = changes(canal(data, *COLUMNS))
    assert found[0] == ("I", 7, VALUES, None)
    assert found[1] == ("D", 8, dict.fromkeys(VALUES) | {"id": Decimal(1)}, None)


def test_csv_values_of_every_type_have_their_meaning() -> None:
    empty = '"D","orders","shop",1' + ",\\N" * (len(COLUMNS) - 1) + "\r\n"
    found = changes(csv((CSV + empty).encode(), *COLUMNS))
    assert found[0] == ("I", None, VALUES, None)
    assert found[1] == ("D", None, dict.fromkeys(VALUES) | {"id": Decimal(1)}, None)


def test_timestamps_are_in_the_time_zone_that_is_told() -> None:
    data = canal_line("INSERT", {"id": "1", "utc": "2026-02-28 09:00:00"})
    ((_, _, row, _),) = changes(canal(data, ID, column("utc", "TIMESTAMP"), zone="Asia/Tokyo"))
    assert row["utc"] == datetime(2026, 2, 28, tzinfo=UTC)


@pytest.mark.parametrize("day", ["0000-00-00", "2026-00-10", "2026-10-00", "2026-02-29", "2026-04-31"])
def test_dates_that_no_calendar_has_are_kept(day: str) -> None:
    data = canal_line("INSERT", {"id": "1", "day": day, "at": f"{day} 00:00:00"})
    ((_, _, row, _),) = changes(canal(data, ID, column("day", "DATE"), column("at", "DATETIME")))
    assert row == {"id": 1, "day": day, "at": f"{day} 00:00:00"}


def test_an_update_tells_the_row_before_it() -> None:
    data = canal_line("UPDATE", {"id": "1", "note": "new"}, old={"id": "1", "note": None}, commit_ts=5)
    assert changes(canal(data, ID, NOTE)) == [("U", 5, {"id": 1, "note": "new"}, {"id": 1, "note": None})]


def test_what_an_update_leaves_out_of_the_row_before_did_not_change() -> None:
    other = column("other", "INT")
    data = canal_line("INSERT", {"id": "3", "note": "x", "other": "9"}) + canal_line(
        "UPDATE", {"id": "1", "note": "new", "other": "7"}, old={"note": None}, commit_ts=5
    )
    assert changes(canal(data, ID, NOTE, other))[1] == (
        "U",
        5,
        {"id": 1, "note": "new", "other": 7},
        {"id": 1, "note": None, "other": 7},
    )


def test_canal_json_lines_that_are_no_changes_are_passed_over() -> None:
    watermark = (
        b'{"id":0,"isDdl":false,"type":"TIDB_WATERMARK","old":null,"data":null,"_tidb":{"watermarkTs":9}}\n'
    )
    ddl = b'{"id":0,"isDdl":true,"type":"CREATE","sql":"CREATE TABLE t","old":null,"data":null}\n'
    data = watermark + canal_line("INSERT", {"id": "1", "note": "a"}) + ddl + b"\n"
    assert changes(canal(data, ID, NOTE)) == [("I", None, {"id": 1, "note": "a"}, None)]
    assert changes(canal(watermark + ddl, ID, NOTE)) == []


def test_canal_json_larger_than_a_block_is_read_in_blocks() -> None:
    data = b"".join(canal_line("INSERT", {"id": str(key), "note": "x" * key}) for key in range(200))
    stream = io.BytesIO(data)
    small = type("Small", (), {"read": lambda self, _: stream.read(97)})()
    found = list(canal_json.decode(small, table(ID, NOTE), terminator="\r\n", time_zone="UTC"))
    assert len(found) > 50
    assert [row["id"] for _, _, row, _ in changes(found)] == list(range(200))


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"INSERT","data":[]}',
        b'{"type":"INSERT","data":[{"id":"1"},{"id":"2"}]}',
        b'{"type":"INSERT","data":null}',
        b'{"type":"INSERT","data":[{"id":1}]}',
        b'{"type":"INSERT","data":[{"id":"one"}]}',
        b'{"type":"INSERT","data":[{"id":"1"}]',
    ],
)
def test_damaged_canal_json_is_refused(line: bytes) -> None:
    with pytest.raises(Corrupt):
        canal(line + b"\n", ID, NOTE)


def test_csv_tells_by_itself_which_cells_it_has() -> None:
    for cells, ts in [("", None), ("42,", 42), ("false,", None), ("42,false,", 42)]:
        data = f'"U","orders","shop",{cells}1,"a"\r\n'.encode()
        assert changes(csv(data, ID, NOTE)) == [("U", ts, {"id": 1, "note": "a"}, None)]


def test_csv_columns_are_found_by_their_header() -> None:
    head = "ticdc-meta$operation,ticdc-meta$table,ticdc-meta$schema,ticdc-meta$commit-ts,note,extra,id\r\n"
    data = head + '"I","orders","shop",42,"a",0,1\r\n'
    assert changes(csv(data.encode(), ID, NOTE)) == [("I", 42, {"id": 1, "note": "a"}, None)]
    with pytest.raises(Invalid, match="header has no column other"):
        csv(data.encode(), ID, NOTE, column("other", "INT"))
    assert changes(csv(head.encode(), ID, NOTE)) == []


def test_an_update_as_a_delete_and_an_insert_is_one_change_again() -> None:
    data = (
        '"I","orders","shop",5,false,3,"c"\r\n'
        '"D","orders","shop",6,true,1,"old"\r\n"I","orders","shop",6,true,1,"new"\r\n'
        '"D","orders","shop",7,false,3,"c"\r\n'
    )
    assert changes(csv(data.encode(), ID, NOTE)) == [
        ("I", 5, {"id": 3, "note": "c"}, None),
        ("U", 6, {"id": 1, "note": "new"}, {"id": 1, "note": "old"}),
        ("D", 7, {"id": 3, "note": "c"}, None),
    ]
    for half in ('"D","orders","shop",6,true,1,"old"\r\n', '"I","orders","shop",6,true,1,"new"\r\n'):
        with pytest.raises(Corrupt, match="half of an update"):
            csv((half + '"D","orders","shop",7,false,3,"c"\r\n').encode(), ID, NOTE)
    with pytest.raises(Corrupt, match="half of an update"):
        csv(b'"D","orders","shop",6,true,1,"old"\r\n', ID, NOTE)


NASTY = 'a|b||c\n\r\\N\\"é'


@pytest.mark.parametrize(
    ("dialect", "terminator", "cell"),
    [
        ({"delimiter": "|", "quote": "'"}, "\n", "'" + NASTY + "'"),
        ({"delimiter": "||"}, "\r\n", '"' + NASTY.replace('"', '""') + '"'),
        ({"delimiter": "||", "quote": ""}, "\n", 'a|b\\|\\|c\\n\\r\\\\N\\\\"é'),
        ({"delimiter": "|", "quote": "", "null": "nil"}, "$\n", 'a\\|b\\|\\|c\\n\\r\\\\N\\\\"é'),
    ],
)
def test_every_csv_dialect_is_read(dialect: dict[str, str], terminator: str, cell: str) -> None:
    quote, delimiter = dialect.get("quote", '"'), dialect["delimiter"]
    null = dialect.get("null", "\\N")
    head = [f"{quote}{text}{quote}" for text in ("I", "orders", "shop")]
    lines = delimiter.join([*head, "1", cell]) + terminator + delimiter.join([*head, "2", null]) + terminator
    assert changes(csv(lines.encode(), ID, NOTE, terminator=terminator, **dialect)) == [
        ("I", None, {"id": 1, "note": NASTY}, None),
        ("I", None, {"id": 2, "note": None}, None),
    ]


@pytest.mark.parametrize("quote", ["", '"'])
def test_odd_csv_dialects_are_read_from_pieces_of_any_size(quote: str) -> None:
    head = "||".join(f"{quote}{text}{quote}" for text in ("I", "orders", "shop"))
    note = '"x||y""z\né"' if quote else "x\\|\\|y\\\\n\\né"
    data = "".join(f"{head}||{key}||{note}\r\n" for key in range(3)).encode()
    for size in range(1, 40):
        stream = io.BytesIO(data)
        piece = type("Piece", (), {"read": lambda self, _, stream=stream, size=size: stream.read(size)})()
        found = csvfiles.decode(
            piece,
            table(ID, NOTE),
            CsvOptions(delimiter="||", quote=quote),
            terminator="\r\n",
            time_zone="UTC",
        )
        wanted = 'x||y"z\né' if quote else "x||y\\n\né"
        assert [row for _, _, row, _ in changes(list(found))] == [
            {"id": key, "note": wanted} for key in range(3)
        ]


def test_csv_of_other_columns_is_refused() -> None:
    with pytest.raises(Invalid, match="3 columns"):
        csv(b'"I","orders","shop",1\r\n', ID, NOTE, column("other", "INT"))


@pytest.mark.parametrize(
    "line",
    [
        b'"X","orders","shop",1,"a"\r\n',
        b'"I","orders","shop",1,"a"\r\n"I","orders","shop",2\r\n',
        b'"I","orders","shop",one,"a"\r\n',
        b'"I","orders","shop",none,false,1,"a"\r\n',
    ],
)
def test_damaged_csv_is_refused(line: bytes) -> None:
    with pytest.raises(Corrupt):
        csv(line, ID, NOTE)
    with pytest.raises((Corrupt, Invalid)):
        csv(line.replace(b",", b"||").replace(b'"', b""), ID, NOTE, delimiter="||", quote="")


def test_binary_columns_of_csv_may_be_hexadecimal() -> None:
    raw = column("raw", "BLOB")
    data = b'"I","orders","shop",1,"00ff"\r\n'
    assert changes(csv(data, ID, raw, binary_encoding_method="hex"))[0][2] == {"id": 1, "raw": b"\x00\xff"}
    with pytest.raises(Corrupt, match="column raw"):
        csv(b'"I","orders","shop",1,"=0ff"\r\n', ID, raw)


def test_concatenated_gzip_members_are_one_file() -> None:
    members = gzip.compress(b"first ") + gzip.compress(b"second")
    assert pa.CompressedInputStream(pa.BufferReader(members), "gzip").read() == b"first second"
