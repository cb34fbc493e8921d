"""What the sink's encoders write, the consumer reads: every format, every type, compressed or not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.changefeeds.codecs.decoded_changes import row_dicts
from penstock.changefeeds.codecs.decoder import DataFiles, FileOptions
from penstock.changefeeds.codecs.encoder import encoder_of, header_of
from penstock.changefeeds.codecs.options import CsvOptions, EncoderOptions, file_extension
from penstock.changefeeds.codecs.parquet import parquet_file
from penstock.changefeeds.codecs.row_changes import RowChanges
from penstock.changefeeds.sinks.storage.schema_file import SchemaFile
from penstock.eventstore.schema_version import SchemaVersion
from penstock.object_storage import open_storage
from penstock.tables.arrow import arrow_schema
from support.everytype import EVERY_CELL, EVERY_TYPE

SCHEMA = SchemaVersion(100, 1, replace(EVERY_TYPE, name="orders"), "shop")
NULLS = dict.fromkeys(EVERY_CELL)
FIRST = dict(EVERY_CELL)
SECOND = {**EVERY_CELL, "text_": 'x,"y"\r\n\\N|', "raw": b"", "choice": "a", "tiny": None, "id": 7}
THIRD = {**NULLS, "id": 9}

CHANGES: list[tuple[str, int, dict[str, Any], dict[str, Any] | None]] = [
    ("I", 110, FIRST, None),
    ("U", 120, SECOND, {**FIRST, "id": 7}),
    ("U", 120, THIRD, {**SECOND, "id": 9}),
    ("D", 130, THIRD, None),
    ("U", 140, {**FIRST, "id": 9}, THIRD),
]


def row_changes() -> RowChanges:
    schema = arrow_schema(SCHEMA.table)
    return RowChanges(
        np.array(["IUD".index(op) for op, *_ in CHANGES], np.int8),
        np.array([ts for _, ts, *_ in CHANGES], np.int64),
        pa.array([b""] * len(CHANGES), pa.binary()),
        np.ones(len(CHANGES), np.bool_),
        pa.RecordBatch.from_pylist([row for _, _, row, _ in CHANGES], schema),
        pa.RecordBatch.from_pylist([old for *_, old in CHANGES if old is not None], schema),
    )


def encoded(options: EncoderOptions) -> bytes:
    encoder = encoder_of(SCHEMA, options)
    block = encoder.encode(row_changes())
    payloads = [encoder.payload([block.slice(0, 2)]), encoder.payload([block.slice(2, len(CHANGES))])]
    if options.protocol == "parquet":
        return parquet_file(payloads, {})
    return header_of(SCHEMA, options) + b"".join(payloads)


@pytest.mark.parametrize(
    "options",
    [
        EncoderOptions(protocol="canal-json"),
        EncoderOptions(protocol="canal-json", enable_tidb_extension=True, compression="gzip"),
        EncoderOptions(protocol="canal-json", only_output_updated_columns=True, terminator="\n"),
        EncoderOptions(protocol="csv"),
        EncoderOptions(protocol="csv", compression="zstd", csv=CsvOptions(output_field_header=True)),
        EncoderOptions(
            protocol="csv", csv=CsvOptions(include_commit_ts=True, output_old_value=True, delimiter="|")
        ),
        EncoderOptions(
            protocol="csv",
            terminator="\n",
            csv=CsvOptions(delimiter="|@|", quote="", output_old_value=True, binary_encoding_method="hex"),
        ),
        EncoderOptions(protocol="parquet"),
        EncoderOptions(protocol="debezium", compression="gzip"),
    ],
    ids=lambda options: f"{options.protocol}-{options.compression}-{options.csv.delimiter}",
)
@pytest.mark.parametrize("told", [True, False], ids=["protocol told", "protocol found out"])
def test_what_was_encoded_is_decoded(tmp_path: Path, options: EncoderOptions, told: bool) -> None:
    storage = open_storage(f"file://{tmp_path}")
    path = f"CDC000001{file_extension(options.protocol, options.compression)}"
    storage.write(path, encoded(options))
    table = SchemaFile.of(SCHEMA, 100).table_info()
    found = DataFiles(
        storage,
        FileOptions(
            protocol=options.protocol if told else None, terminator=options.terminator, csv=options.csv
        ),
    ).changes(path, table)
    has_ts = options.protocol in {"parquet", "debezium"} or (
        options.csv.include_commit_ts if options.protocol == "csv" else options.enable_tidb_extension
    )
    has_old = options.protocol != "csv" or options.csv.output_old_value
    wanted = [(op, ts if has_ts else None, row, old if has_old else None) for op, ts, row, old in CHANGES]
    got = [
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
    assert got == wanted
