import io
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.changefeeds.codecs.encoder import encoder_of
from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.changefeeds.codecs.parquet import parquet_file
from penstock.clock import compose_ts
from penstock.errors import Corrupt, Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.define import define_table
from support.everytype import EVERY_CELL, EVERY_TYPE
from support.slices import row_changes

TS = compose_ts(1_700_000_000_123, 7)
OPTIONS = EncoderOptions(protocol="parquet")
CHANGES = [
    (TS, None, EVERY_CELL),
    (TS + 1, EVERY_CELL, {**EVERY_CELL, "text_": None}),
    (TS + 2, {**EVERY_CELL, "text_": None}, None),
    (TS + 3, EVERY_CELL, {**EVERY_CELL, "tiny": 5}),
]


def payloads(*cuts: int) -> list[bytes]:
    encoder = encoder_of(SchemaVersion(0, 1, EVERY_TYPE, "shop"), OPTIONS)
    block = encoder.encode(row_changes(EVERY_TYPE, CHANGES))
    ends = [0, *cuts, len(CHANGES)]
    return [encoder.payload([block.slice(*each)]) for each in pairwise(ends)]


def read(data: bytes) -> pa.Table:
    return pq.read_table(io.BytesIO(data))


def test_a_file_has_the_rows_with_what_happened_to_them() -> None:
    rows = read(parquet_file(payloads(), {})).to_pylist()
    assert [(row["_change_type"], row["_commit_version"], row["text_"], row["tiny"]) for row in rows] == [
        ("insert", TS, "ü", -1),
        ("update_preimage", TS + 1, "ü", -1),
        ("update_postimage", TS + 1, None, -1),
        ("delete", TS + 2, None, -1),
        ("update_preimage", TS + 3, "ü", -1),
        ("update_postimage", TS + 3, "ü", 5),
    ]
    assert {name: rows[0][name] for name in EVERY_CELL} == EVERY_CELL
    assert rows[0]["_commit_timestamp"].timestamp() == 1_700_000_000.123


def test_chunks_are_one_file_wherever_they_were_cut() -> None:
    whole = read(parquet_file(payloads(), {}))
    for cuts in ((1,), (2,), (3,), (1, 2, 3)):
        assert read(parquet_file(payloads(*cuts), {})).equals(whole)
        assert parquet_file(payloads(*cuts), {}) == parquet_file(payloads(*cuts), {})


def test_the_file_is_compressed_as_asked() -> None:
    found = pq.ParquetFile(io.BytesIO(parquet_file(payloads(), {"compression": "snappy"})))
    assert found.metadata.row_group(0).column(0).compression == "SNAPPY"


def test_what_is_no_stream_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="no Arrow stream"):
        parquet_file([b"nonsense"], {})


def test_a_column_with_a_name_of_ours_is_refused() -> None:
    table = define_table("t", [("id", "bigint primary key"), ("_Change_Type", "int")])
    schema = SchemaVersion(0, 1, table, "shop")
    with pytest.raises(Invalid, match="leave the column out"):
        encoder_of(schema, OPTIONS)
    assert encoder_of(schema, EncoderOptions(protocol="parquet", columns=("id",)))
