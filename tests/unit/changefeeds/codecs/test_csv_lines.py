"""Lines as TiCDC writes them, byte for byte."""

import gzip

import pyarrow as pa
import pytest

from penstock.changefeeds.codecs.decoder import FileOptions, decode_stream
from penstock.changefeeds.codecs.encoder import encoder_of, header_of
from penstock.changefeeds.codecs.options import CsvOptions, EncoderOptions, file_extension
from penstock.clock import compose_ts
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.define import define_table
from penstock.tables.schema import TableInfo
from support.everytype import EVERY_CELL, EVERY_TYPE
from support.slices import Row, row_changes

TS = compose_ts(1_700_000_000_123, 7)
ITEMS = define_table("items", [("id", "bigint primary key"), ("name", "varchar(20)"), ("n", "double")])
ONE, TWO = {"id": 1, "name": 'say "a,b"', "n": 2.5}, {"id": 1, "name": None, "n": 1e6}


def payload(table: TableInfo, *changes: tuple[int, Row | None, Row | None], **csv: object) -> str:
    options = EncoderOptions(protocol="csv", csv=CsvOptions(**csv))
    encoder = encoder_of(SchemaVersion(0, 1, table, "shop"), options)
    return encoder.payload([encoder.encode(row_changes(table, changes))]).decode()


def test_each_change_is_a_line() -> None:
    assert payload(ITEMS, (TS, None, ONE), (TS, ONE, TWO), (TS, TWO, None)) == (
        '"I","items","shop",1,"say ""a,b""",2.5\r\n'
        '"U","items","shop",1,\\N,1e+06\r\n'
        '"D","items","shop",1,\\N,1e+06\r\n'
    )


def test_an_update_with_its_old_value_is_two_lines() -> None:
    found = payload(
        ITEMS, (TS, None, ONE), (TS, ONE, TWO), (TS, TWO, None), output_old_value=True, include_commit_ts=True
    )
    assert found == (
        f'"I","items","shop",{TS},false,1,"say ""a,b""",2.5\r\n'
        f'"D","items","shop",{TS},true,1,"say ""a,b""",2.5\r\n'
        f'"I","items","shop",{TS},true,1,\\N,1e+06\r\n'
        f'"D","items","shop",{TS},false,1,\\N,1e+06\r\n'
    )


@pytest.mark.parametrize(
    ("delimiter", "text", "line"),
    [
        (",", "a,b\\c\r\n", "I,items,shop,1,a\\,b\\\\c\\r\\n,\\N\r\n"),
        ("|+", "a|+b|c+", "I|+items|+shop|+1|+a\\|\\+b|c+|+\\N\r\n"),
    ],
)
def test_without_quotes_what_would_end_a_cell_is_escaped(delimiter: str, text: str, line: str) -> None:
    assert payload(ITEMS, (TS, None, {"id": 1, "name": text}), quote="", delimiter=delimiter) == line


def test_the_year_zero_has_four_digits() -> None:
    """TiCDC's consumer hands years to MySQL as texts: '0' would be the year 2000."""
    table = define_table("items", [("id", "bigint primary key"), ("y", "year")])
    rows = [{"id": 1, "y": 0}, {"id": 2, "y": 2155}, {"id": 3, "y": None}]
    text = payload(table, *((TS, None, row) for row in rows))
    assert text == "".join(f'"I","items","shop",{cells}\r\n' for cells in ("1,0000", "2,2155", "3,\\N"))
    options = FileOptions(protocol="csv")
    (found,) = decode_stream(pa.BufferReader(text.encode()), "csv", table, options)
    assert found.rows.to_pylist() == rows


def test_every_type_has_its_text() -> None:
    rest = (
        '0.5,0.25,"12.50","1.5000000000","2026-02-28","2026-02-28 01:02:03.000004","2026-02-28 01:02:03.000",'
        '"-01:00:00",2026,5,"ü",{raw},"{{""a"": 1}}","b"\r\n'
    )
    head = '"I","items","shop",-5,-1,18446744073709551615,'
    assert payload(EVERY_TYPE, (TS, None, EVERY_CELL)) == head + rest.format(raw='"AP8="')
    found = payload(EVERY_TYPE, (TS, None, EVERY_CELL), binary_encoding_method="hex")
    assert found == head + rest.format(raw='"00ff"')


def test_sets_have_names_and_vectors_their_text() -> None:
    table = define_table("t", [("s", "set('x','y')"), ("v", "vector(2)")])
    found = payload(table, (TS, None, {"s": "x,y", "v": [1.0, 0.5]}), null="NULL")
    assert found == '"I","t","shop","x,y","[1,0.5]"\r\n'
    assert payload(table, (TS, None, {}), null="NULL") == '"I","t","shop",NULL,NULL\r\n'


def test_a_file_may_begin_with_the_names_of_its_fields() -> None:
    schema = SchemaVersion(0, 1, ITEMS, "shop")
    assert header_of(schema, EncoderOptions(protocol="csv")) == b""
    full = CsvOptions(output_field_header=True, include_commit_ts=True, output_old_value=True)
    wanted = (
        b"ticdc-meta$operation,ticdc-meta$table,ticdc-meta$schema,ticdc-meta$commit-ts,ticdc-meta$is-update,"
        b"id,n\r\n"
    )
    options = EncoderOptions(protocol="csv", csv=full, columns=("n",))
    assert header_of(schema, options) == wanted
    compressed = EncoderOptions(protocol="csv", csv=full, columns=("n",), compression="gzip")
    assert gzip.decompress(header_of(schema, compressed)) == wanted
    assert header_of(schema, EncoderOptions()) == b""


def test_files_are_named_by_what_is_in_them() -> None:
    assert file_extension("canal-json", "none") == ".json"
    assert file_extension("csv", "gzip") == ".csv.gz"
    assert file_extension("debezium", "zstd") == ".json.zst"
    assert file_extension("parquet", "zstd") == ".parquet"
