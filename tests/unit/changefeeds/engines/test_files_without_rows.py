"""A file that others are behind is written also when there is no row in it."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.changefeeds.engines.engine import DirectFile, DirectResult, EncodeWork, FileWork
from penstock.changefeeds.engines.files import make_file
from penstock.changefeeds.sinks.storage.options import parse_sink_uri
from penstock.changefeeds.sinks.storage.remote_files import is_blank
from penstock.object_storage import StorageRef
from support.ddlevents import table_schema
from support.sinkparts import slice_of

FORMATS = [
    ("canal-json", "none", ".json"),
    ("canal-json", "gzip", ".json.gz"),
    ("debezium", "zstd", ".json.zst"),
    ("csv", "none", ".csv"),
    ("parquet", "zstd", ".parquet"),
]


@pytest.mark.parametrize(("protocol", "compression", "extension"), FORMATS)
def test_a_file_without_rows_can_be_read_and_has_none(
    protocol: str, compression: str, extension: str, tmp_path: Path
) -> None:
    target = StorageRef(f"file://{tmp_path}")
    options = parse_sink_uri(f"file://{tmp_path}?protocol={protocol}")
    schema = table_schema(1)
    encoder = replace(options.encoder(schema), compression=compression)
    work = EncodeWork(slice_of(1, 5, schema=schema), encoder)
    file = FileWork(
        dispatcher_id="1",
        chunks=(),
        data_path=f"CDC2{extension}",
        index_path="CDC.index",
        parquet=protocol == "parquet",
        blank=True,
    )
    assert make_file(DirectFile(replace(file, blank=False), (work,)), target) == DirectResult()
    assert not target.open().exists(file.data_path)
    made = make_file(DirectFile(file, (work,)), target)
    assert (made.failure, made.rows) == (None, 0)
    with target.open().open(file.data_path) as stream:
        assert is_blank(extension, stream)
    assert target.open().read(file.index_path) == f"CDC2{extension}\n".encode()
    first = replace(file, data_path=f"CDC_1_000001{extension}")
    with pytest.raises(AssertionError, match="first file has rows"):
        make_file(DirectFile(first, (work,)), target)
