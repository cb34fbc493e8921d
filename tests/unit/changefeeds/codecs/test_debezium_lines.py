import json
from dataclasses import replace

import numpy as np

from penstock.changefeeds.codecs.encoder import encoder_of
from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.changefeeds.codecs.row_changes import RowChanges
from penstock.clock import compose_ts
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.define import define_table
from support.everytype import EVERY_CELL, EVERY_TYPE
from support.slices import row_changes

TS = compose_ts(1_700_000_000_123, 7)
ITEMS = define_table("items", [("id", "bigint primary key"), ("name", "varchar(20)")])
SOURCE = (
    '"source":{"version":"2.4.0.Final","connector":"penstock","name":"penstock","ts_ms":1700000000123,'
    '"snapshot":"false","db":"shop","table":"items","server_id":0,"gtid":null,"file":"","pos":0,"row":0,'
    f'"thread":0,"query":null,"commit_ts":{TS}}},'
)


def lines(changes: RowChanges, table=ITEMS) -> list[str]:
    encoder = encoder_of(
        SchemaVersion(0, 1, table, "shop"), EncoderOptions(protocol="debezium", encoded_at_ms=99)
    )
    return encoder.payload([encoder.encode(changes)]).decode().split("\r\n")[:-1]


def test_each_change_is_an_event() -> None:
    one, two = {"id": 1, "name": "<"}, {"id": 1, "name": None}
    assert lines(row_changes(ITEMS, [(TS, None, one), (TS, one, two), (TS, two, None)])) == [
        '{"before":null,"after":{"id":1,"name":"\\u003c"},'
        + SOURCE
        + '"op":"c","ts_ms":99,"transaction":null}',
        '{"before":{"id":1,"name":"\\u003c"},"after":{"id":1,"name":null},'
        + SOURCE
        + '"op":"u","ts_ms":99,"transaction":null}',
        '{"before":{"id":1,"name":null},"after":null,' + SOURCE + '"op":"d","ts_ms":99,"transaction":null}',
    ]


def test_a_snapshot_is_read() -> None:
    (line,) = lines(row_changes(ITEMS, [(TS, None, {"id": 1})], snapshot=True))
    event = json.loads(line)
    assert (event["op"], event["source"]["snapshot"]) == ("r", "true")


def test_a_delete_of_a_row_never_seen_has_its_key_only() -> None:
    changes = replace(row_changes(ITEMS, [(TS, {"id": 1}, None)]), known=np.zeros(1, np.bool_))
    (line,) = lines(changes)
    assert json.loads(line)["before"] == {"id": 1}


def test_every_type_is_as_the_connector_for_mysql_has_it() -> None:
    (line,) = lines(row_changes(EVERY_TYPE, [(TS, None, EVERY_CELL)]), EVERY_TYPE)
    assert json.loads(line)["after"] == {
        "id": -5,
        "tiny": -1,
        "big": (1 << 64) - 1,
        "single": 0.5,
        "real_": 0.25,
        "price": "12.50",
        "wide": "1.5000000000",
        "day": 20512,
        "at": 1772240523000004,
        "utc": "2026-02-28T01:02:03.000Z",
        "span": -3600000000,
        "year_": 2026,
        "bits": "BQ==",
        "text_": "ü",
        "raw": "AP8=",
        "doc": '{"a": 1}',
        "choice": "b",
    }


def test_bits_are_booleans_or_bytes_with_the_lowest_first() -> None:
    table = define_table("t", [("flag", "bit(1)"), ("wide", "bit(64)"), ("some", "bit(12)")])
    rows = [{"flag": 1, "wide": (1 << 63) + 1, "some": 0x102}, {"flag": 0}, {}]
    found = [
        json.loads(line)["after"] for line in lines(row_changes(table, [(TS, None, r) for r in rows]), table)
    ]
    assert found[0] == {"flag": True, "wide": "AQAAAAAAAIA=", "some": "AgE="}
    assert found[1] == {"flag": False, "wide": None, "some": None}
    assert found[2] == {"flag": None, "wide": None, "some": None}
