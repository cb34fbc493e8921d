"""Our own consumer finds nothing in files without rows, which earlier releases left behind."""

import pytest

from penstock.changefeeds.codecs.decoder import DataFiles, FileOptions
from penstock.changefeeds.codecs.options import CsvOptions
from penstock.changefeeds.sinks.storage.schema_file import SchemaFile
from penstock.eventstore.schema_version import SchemaVersion
from penstock.object_storage import open_storage
from support.blankfiles import blank_file
from support.everytype import EVERY_TYPE


@pytest.mark.parametrize(
    "extension", [".json", ".json.gz", ".json.zst", ".csv", ".csv.gz", ".csv.zst", ".parquet"]
)
def test_the_consumer_finds_nothing_in_a_file_without_rows(extension: str) -> None:
    table = EVERY_TYPE
    schema = SchemaFile.of(SchemaVersion(5, 1, table, "db"), 5)
    storage = open_storage("memory:///")
    storage.write(f"a/CDC000001{extension}", blank_file(extension, schema))
    for options in (
        FileOptions(protocol="canal-json"),
        FileOptions(protocol="debezium", csv=CsvOptions(output_field_header=True)),
    ):
        files = DataFiles(storage, options)
        found = list(files.changes(f"a/CDC000001{extension}", schema.table_info()))
        assert sum(len(each.rows) for each in found) == 0
