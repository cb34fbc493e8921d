"""Lines as TiCDC writes them, byte for byte."""

from dataclasses import replace

import numpy as np
import pytest

from penstock.changefeeds.codecs.encoder import encoder_of
from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.clock import compose_ts
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.columns import ColumnFlag
from penstock.tables.define import define_table
from penstock.tables.schema import TableInfo
from support.everytype import EVERY_CELL, EVERY_TYPE
from support.slices import Row, row_changes

TS = compose_ts(1_700_000_000_123, 7)
ITEMS = define_table("it<em>s", [("id", "bigint primary key"), ("name", "varchar(20)"), ("n", "int")])
HEAD = '{"id":0,"database":"shop","table":"it\\u003cem\\u003es","pkNames":["id"],"isDdl":false,"type":'
TIMES = ',"es":1700000000123,"ts":99,"sql":"","sqlType":{"id":-5,"name":12,"n":4},'
TYPES = '"mysqlType":{"id":"bigint","name":"varchar","n":"int"},'


def lines(
    table: TableInfo, *changes: tuple[int, Row | None, Row | None], known: bool = True, **options: object
) -> list[str]:
    chosen = EncoderOptions(encoded_at_ms=99, **options)
    encoder = encoder_of(SchemaVersion(0, 1, table, "shop"), chosen)
    made = row_changes(table, changes)
    if not known:
        made = replace(made, known=np.arange(len(made)) > 0)
    text = encoder.payload([encoder.encode(made)]).decode()
    assert text.endswith(chosen.terminator)
    return text.split(chosen.terminator)[:-1]


def test_an_insert_has_all_columns_as_strings() -> None:
    (line,) = lines(ITEMS, (TS, None, {"id": 1, "name": 'a"&', "n": None}))
    assert (
        line
        == HEAD + '"INSERT"' + TIMES + TYPES + '"old":null,"data":[{"id":"1","name":"a\\"\\u0026","n":null}]}'
    )


def test_an_update_has_the_row_before_and_a_delete_the_row_that_was() -> None:
    one, two = {"id": 1, "name": None, "n": 5}, {"id": 1, "name": "", "n": 5}
    update, delete = lines(ITEMS, (TS, one, two), (TS, two, None))
    assert update == (
        HEAD + '"UPDATE"' + TIMES + TYPES + '"old":[{"id":"1","name":null,"n":"5"}],'
        '"data":[{"id":"1","name":"","n":"5"}]}'
    )
    assert delete == HEAD + '"DELETE"' + TIMES + TYPES + '"old":null,"data":[{"id":"1","name":"","n":"5"}]}'


def test_only_updated_columns_are_those_whose_text_differs() -> None:
    one, two = {"id": 1, "name": None, "n": 5}, {"id": 1, "name": "x", "n": None}
    changes = ((TS, one, two), (TS, None, one), (TS, two, one), (TS, one, one))
    found = [line.split('"old":')[1] for line in lines(ITEMS, *changes, only_output_updated_columns=True)]
    assert found == [
        '[{"name":null,"n":"5"}],"data":[{"id":"1","name":"x","n":null}]}',
        'null,"data":[{"id":"1","name":null,"n":"5"}]}',
        '[{"name":"x","n":null}],"data":[{"id":"1","name":null,"n":"5"}]}',
        '[{}],"data":[{"id":"1","name":null,"n":"5"}]}',
    ]


def test_the_tidb_extension_adds_the_commit_ts() -> None:
    (line,) = lines(ITEMS, (TS, None, {"id": 1}), enable_tidb_extension=True, terminator="\n")
    assert line.endswith('"data":[{"id":"1","name":null,"n":null}],"_tidb":{"commitTs":' + f"{TS}}}}}")


def test_a_delete_of_a_row_never_seen_has_its_key_only() -> None:
    found = lines(ITEMS, (TS, {"id": 1}, None), (TS, {"id": 2, "n": 3}, None), known=False)
    assert found[0] == (
        HEAD + '"DELETE","es":1700000000123,"ts":99,"sql":"","sqlType":{"id":-5},"mysqlType":{"id":"bigint"},'
        '"old":null,"data":[{"id":"1"}]}'
    )
    assert found[1].endswith('"data":[{"id":"2","name":null,"n":"3"}]}')


def test_a_table_without_a_primary_key_has_no_key_names() -> None:
    table = define_table("t", [("a", "int")])
    (line,) = lines(table, (TS, None, {"a": 1}))
    assert '"pkNames":[],' in line
    (line,) = lines(table, (TS, {"a": None}, None), (TS, None, {"a": 1}), known=False)[:1]
    assert line.endswith('"sqlType":null,"mysqlType":{},"old":null,"data":[{}]}')


def test_columns_are_chosen_and_keys_always_come() -> None:
    (line,) = lines(ITEMS, (TS, None, {"id": 1, "n": 2}), columns=("N",))
    assert line.endswith(
        '"sqlType":{"id":-5,"n":4},"mysqlType":{"id":"bigint","n":"int"},"old":null,"data":[{"id":"1","n":"2"}]}'
    )


@pytest.mark.parametrize(
    ("definition", "small", "large", "types"),
    [
        ("tinyint unsigned", 127, 128, (-6, 5)),
        ("smallint unsigned", 32767, 32768, (5, 4)),
        ("mediumint unsigned", 8388607, 16777215, (4, 4)),
        ("int unsigned", 2147483647, 2147483648, (4, -5)),
        ("bigint unsigned", (1 << 63) - 1, 1 << 63, (-5, 3)),
    ],
)
def test_unsigned_values_that_do_not_fit_have_a_wider_java_type(
    definition: str, small: int, large: int, types: tuple[int, int]
) -> None:
    table = define_table("t", [("v", definition)])
    found = lines(table, *((TS, None, {"v": value}) for value in (small, large, None, 0)))
    name = definition.split(maxsplit=1)[0]
    assert [line.split('"sqlType":')[1] for line in found] == [
        f'{{"v":{kind}}},"mysqlType":{{"v":"{name} unsigned"}},"old":null,"data":[{{"v":{value}}}]}}'
        for kind, value in zip(
            (types[0], types[1], types[0], types[0]), (f'"{small}"', f'"{large}"', "null", '"0"'), strict=True
        )
    ]


def test_every_type_has_its_names_and_its_text() -> None:
    (line,) = lines(EVERY_TYPE, (TS, None, EVERY_CELL))
    assert line.split('"sqlType":')[1] == (
        '{"id":-5,"tiny":-6,"big":3,"single":7,"real_":8,"price":3,"wide":3,"day":91,"at":93,"utc":93,'
        '"span":92,"year_":12,"bits":-7,"text_":12,"raw":2004,"doc":12,"choice":4},"mysqlType":{"id":"bigint",'
        '"tiny":"tinyint","big":"bigint unsigned","single":"float","real_":"double","price":"decimal",'
        '"wide":"decimal","day":"date","at":"datetime","utc":"timestamp","span":"time","year_":"year",'
        '"bits":"bit","text_":"varchar","raw":"varbinary","doc":"json","choice":"enum"},"old":null,"data":[{'
        '"id":"-5","tiny":"-1","big":"18446744073709551615","single":"0.5","real_":"0.25","price":"12.50",'
        '"wide":"1.5000000000","day":"2026-02-28","at":"2026-02-28 01:02:03.000004",'
        '"utc":"2026-02-28 01:02:03.000","span":"-01:00:00","year_":"2026","bits":"5","text_":"ü",'
        '"raw":"\\u0000ÿ","doc":"{\\"a\\": 1}","choice":"2"}]}'
    )


def test_other_types_have_theirs() -> None:
    table = define_table(
        "t",
        [
            ("c", "char(3)"),
            ("b", "binary(2)"),
            ("tt", "tinytext"),
            ("lb", "longblob"),
            ("s", "set('x','y','z')"),
            ("v", "vector(2)"),
            ("z", "int unsigned"),
        ],
    )
    zerofill = table.columns[-1]
    flags = replace(zerofill.type, flag=zerofill.type.flag | ColumnFlag.ZEROFILL)
    table = table.with_columns([*table.columns[:-1], replace(zerofill, type=flags)])
    row = {"c": "a", "b": b"\xe9\x01", "tt": "t", "lb": b"<", "s": "x,z", "v": [1.0, 0.5], "z": 7}
    (line,) = lines(table, (TS, None, row))
    assert line.split('"sqlType":')[1] == (
        '{"c":1,"b":2004,"tt":2005,"lb":2004,"s":-7,"v":12,"z":4},"mysqlType":{"c":"char","b":"binary",'
        '"tt":"tinytext","lb":"longblob","s":"set","v":"vector","z":"int unsigned zerofill"},"old":null,'
        '"data":[{'
        '"c":"a","b":"é\\u0001","tt":"t","lb":"\\u003c","s":"5","v":"[1,0.5]","z":"7"}]}'
    )


def test_virtual_columns_are_left_out() -> None:
    column = replace(ITEMS.columns[2], generated_expr="`id` + 1", generated_stored=False)
    (line,) = lines(ITEMS.with_columns([*ITEMS.columns[:2], column]), (TS, None, {"id": 1, "name": "a"}))
    assert line.endswith(
        '"sqlType":{"id":-5,"name":12},"mysqlType":{"id":"bigint","name":"varchar"},"old":null,"data":[{"id":"1","name":"a"}]}'
    )
