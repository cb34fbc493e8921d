"""Sink options: TiCDC's names, defaults, ranges and clamps, and no secret anywhere."""

import logging
import pickle
import re
from dataclasses import replace

import pytest

from penstock.changefeeds.codecs.options import CsvOptions
from penstock.changefeeds.sink_uri import mask_uri
from penstock.changefeeds.sinks.storage.options import SinkOptions, parse_sink_uri, sink_options
from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.settings import ChangefeedSettings
from penstock.tables.define import define_table

SECRET = "hunter2hunter2"
BASE = "s3://bucket/prefix?protocol=canal-json"


def parse(more: str = "") -> SinkOptions:
    return parse_sink_uri(f"{BASE}&{more}" if more else BASE)


def schema(database: str = "db", table: str = "t") -> SchemaVersion:
    columns = [("id", "bigint primary key"), ("a", "int"), ("b", "int"), ("c1", "int"), ("c2", "int")]
    return SchemaVersion(5, 1, define_table(table, columns), database)


def test_the_defaults_are_those_of_ticdc() -> None:
    options = parse()
    assert options.target.url == "s3://bucket/prefix"
    assert options.worker_count == 16
    assert options.flush_interval_s == 5
    assert options.file_size == 67_108_864
    assert options.flush_concurrency == 1
    assert options.spool_disk_quota == 10 * 1024**3
    assert options.spool_base_dir is None
    assert (options.use_table_id_as_path, options.enable_partition_separator) == (False, True)
    assert (options.date_separator, options.file_index_digit) == ("day", 20)
    assert (options.output_column_id, options.file_expiration_days) == (False, 0)
    assert options.file_cleanup_cron_spec.text == "0 0 2 * * *"
    assert options.terminator == "\r\n"
    assert options.csv == CsvOptions()
    assert not options.enable_tidb_extension
    assert options.compression == "none"


@pytest.mark.parametrize(
    ("parameter", "field", "value"),
    [
        ("worker-count=512", "worker_count", 512),
        ("flush-interval=100ms", "flush_interval_s", 0.1),
        ("flush-interval=1m30s", "flush_interval_s", 90),
        ("flush-interval=2.5s", "flush_interval_s", 2.5),
        ("file-size=1048576", "file_size", 1 << 20),
        ("file-size=64MiB", "file_size", 64 << 20),
        ("file-size=2MB", "file_size", 2_000_000),
        ("flush-concurrency=512", "flush_concurrency", 512),
        ("spool-disk-quota=1GiB", "spool_disk_quota", 1 << 30),
        ("use-table-id-as-path=true", "use_table_id_as_path", True),
        ("date-separator=none", "date_separator", "none"),
        ("enable-partition-separator=false", "enable_partition_separator", False),
        ("enable-table-across-nodes=true", "enable_table_across_nodes", True),
        ("file-index-digit=6", "file_index_digit", 6),
        ("output-column-id=true", "output_column_id", True),
        ("file-expiration-days=7", "file_expiration_days", 7),
        ("enable-tidb-extension=true", "enable_tidb_extension", True),
        ("only-output-updated-columns=true", "only_output_updated_columns", True),
        ("terminator=%0A", "terminator", "\n"),
        ("terminator=\\n", "terminator", "\n"),
        ("terminator=", "terminator", "\r\n"),
        ("compression=zstd", "compression", "zstd"),
    ],
)
def test_a_parameter_of_the_uri_sets_its_option(parameter: str, field: str, value: object) -> None:
    assert getattr(parse(parameter), field) == value


@pytest.mark.parametrize(
    ("parameter", "field", "used"),
    [
        ("worker-count=513", "worker_count", 512),
        ("flush-interval=1ms", "flush_interval_s", 0.1),
        ("flush-interval=-5s", "flush_interval_s", 0.1),
        ("flush-interval=11m", "flush_interval_s", 600),
        ("file-size=1023", "file_size", 1024),
        ("file-size=1GiB", "file_size", 512 << 20),
        ("flush-concurrency=0", "flush_concurrency", 1),
        ("flush-concurrency=513", "flush_concurrency", 1),
        ("file-index-digit=5", "file_index_digit", 20),
        ("file-index-digit=21", "file_index_digit", 20),
    ],
)
def test_what_ticdc_clamps_is_clamped_with_a_warning(
    parameter: str, field: str, used: object, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert getattr(parse(parameter), field) == used
    [record] = caplog.records
    assert record.parameter == parameter.partition("=")[0]
    assert record.used == used


def test_a_value_at_the_edge_of_its_range_gives_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    parse("worker-count=1&flush-interval=10m&file-size=512MiB&file-index-digit=20")
    assert not caplog.records


def test_files_expire_only_in_folders_by_day(caplog: pytest.LogCaptureFixture) -> None:
    assert parse("file-expiration-days=3&date-separator=month").file_expiration_days == 0
    assert "date-separator=day" in caplog.text


def test_raw_change_events_are_accepted_and_have_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    parse("output-raw-change-event=true")
    assert "no effect" in caplog.text


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ("worker-count=0", "worker-count = 0 is refused; it must be greater than 0"),
        ("worker-count=-1", "greater than 0"),
        ("worker-count=many", "worker-count = 'many' is refused; write a whole number"),
        ("flush-interval=5", "flush-interval = '5' is not a duration; write a number with its unit"),
        ("file-size=big", "no size"),
        ("spool-disk-quota=0", "spool-disk-quota = 0 is refused; it must be greater than 0"),
        ("spool-base-dir=relative/dir", "absolute path"),
        ("use-table-id-as-path=perhaps", "true or false"),
        ("date-separator=hour", "use one of none, year, month, day"),
        ("file-expiration-days=-1", "0 to keep files for ever"),
        ("file-cleanup-cron-spec=0 2 * * *", "file-cleanup-cron-spec: .*has 5 fields; write six"),
        ("compression=lz4", "use one of none, gzip, zstd"),
        ("delimiter=", "1 to 3 characters"),
        ("delimiter=abcd", "1 to 3 characters"),
        ("delimiter=%0A", "without line ends"),
        ("quote=%22%22", "write one character"),
        ("quote=,", "share a character"),
        ("delimiter=|%22|", "share a character"),
        ("binary-encoding-method=base32", "use one of base64, hex"),
        ("output-handle-key=true", "not supported"),
        ("file-sizes=1", r"'file-sizes' is unknown; did you mean file-size"),
        ("wibble=1", r"'wibble' is unknown; see docs/configuration.md"),
        ("file-size=1KiB&file-size=2KiB", "given twice"),
        ("account-key=x", "means nothing for s3:// storage"),
    ],
)
def test_a_refused_parameter_says_what_to_write(parameters: str, says: str) -> None:
    with pytest.raises(Invalid, match=says) as caught:
        parse(parameters)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("uri", ["s3://bucket/p", "s3://bucket/p?protocol="])
def test_a_protocol_is_required(uri: str) -> None:
    with pytest.raises(Invalid, match="needs a protocol; add protocol=canal-json"):
        parse_sink_uri(uri)


@pytest.mark.parametrize(
    ("given", "protocol"),
    [
        ("canal-json", "canal-json"),
        ("csv", "csv"),
        ("parquet", "parquet"),
        ("debezium", "debezium"),
        ("debezium-json", "debezium"),
        ("CSV", "csv"),
    ],
)
def test_protocols_and_their_aliases(given: str, protocol: str) -> None:
    assert parse_sink_uri(f"file:///tmp/x?protocol={given}").protocol == protocol


def test_an_unknown_protocol_is_refused_with_those_there_are() -> None:
    with pytest.raises(Invalid, match="use one of canal-json, csv, parquet, debezium"):
        parse_sink_uri("file:///tmp/x?protocol=avro")


@pytest.mark.parametrize(
    ("uri", "url"),
    [
        ("s3://b/p/q/", "s3://b/p/q"),
        ("S3://b", "s3://b"),
        ("gcs://b/p", "gs://b/p"),
        ("gs://b/p", "gs://b/p"),
        ("azblob://c/p", "az://c/p"),
        ("azure://c/p", "az://c/p"),
        ("az://c/p", "az://c/p"),
        ("file:///var/x%20y", "file:///var/x%20y"),
        ("file://relative/x", "file://relative/x"),
        ("memory:///", "memory:///"),
    ],
)
def test_every_scheme_of_ticdc_leads_to_its_storage(uri: str, url: str) -> None:
    assert parse_sink_uri(f"{uri}?protocol=csv").target.url == url


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("kafka://b?protocol=csv", "scheme 'kafka' is unknown; use one of"),
        ("s3:///p?protocol=csv", "names no bucket"),
        ("file:///?protocol=csv", "names no directory"),
        (f"s3://key:{SECRET}@b/p?protocol=csv", "before an '@'"),
        (f"s3://b/p?protocol=csv&secret-access-key=x#{SECRET}", "percent-encode"),
        ("s3://b/p?protocol", "cannot be parsed"),
    ],
)
def test_a_uri_that_is_none_is_refused_without_showing_it(uri: str, says: str) -> None:
    with pytest.raises(Invalid, match=says) as caught:
        parse_sink_uri(uri)
    assert SECRET not in str(caught.value)


def test_parameters_of_s3_become_options_of_storage() -> None:
    options = parse(
        "endpoint=http://127.0.0.1:9000&region=eu-west-1&access-key=AK"
        f"&secret-access-key={SECRET}&session-token=T%2BT&force-path-style=true"
    )
    assert dict(options.target.options) == {
        "endpoint": "http://127.0.0.1:9000",
        "region": "eu-west-1",
        "access_key_id": "AK",
        "secret_access_key": SECRET,
        "session_token": "T+T",
        "virtual_hosted_style_request": "false",
        "allow_http": "true",
    }
    assert parse("force-path-style=false").target.options["virtual_hosted_style_request"] == "true"
    assert "allow_http" not in parse("endpoint=https://s3").target.options


def test_the_uri_wins_over_storage_options_and_parameters() -> None:
    options = parse_sink_uri(
        f"{BASE}&region=b&file-size=2KiB",
        storage_options={"region": "a", "skip_signature": "true"},
        parameters={"file-size": "4KiB", "worker-count": "3"},
    )
    assert dict(options.target.options) == {"region": "b", "skip_signature": "true"}
    assert (options.file_size, options.worker_count) == (2048, 3)


def test_credentials_among_the_parameters_are_refused() -> None:
    with pytest.raises(Invalid, match="storage_options"):
        parse_sink_uri(BASE, parameters={"secret-access-key": SECRET})


def test_nothing_that_may_be_shown_shows_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    uri = f"{BASE}&access-key={SECRET}&secret-access-key={SECRET}&session-token={SECRET}&file-size=1"
    options = parse_sink_uri(uri, storage_options={"sas_key": SECRET})
    assert options.masked_uri == (
        "s3://bucket/prefix?protocol=canal-json&access-key=***&secret-access-key=***&session-token=***&file-size=1"
    )
    assert SECRET not in repr(options) + str(options) + caplog.text
    feed = ChangefeedSettings(sink_uri=uri, sink={"a": SECRET}, storage_options={"b": SECRET})
    assert SECRET not in repr(feed) + str(feed)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        (f"s3://k:{SECRET}@b/p", "s3://***@b/p"),
        (f"az://c/p?account-key={SECRET}&sas-token={SECRET}", "az://c/p?account-key=***&sas-token=***"),
        (f"s3://b/p?x=1#{SECRET}", "s3://b/p?x=1#***"),
        (f"s3://[b/p?key={SECRET}", "***"),
        (f"s3://b/p?x-amz-Security-Token={SECRET}", "s3://b/p?x-amz-Security-Token=***"),
    ],
)
def test_a_uri_is_masked_even_if_it_cannot_be_used(uri: str, shown: str) -> None:
    assert mask_uri(uri) == shown


def test_options_travel_to_other_processes() -> None:
    options = parse("file-cleanup-cron-spec=0 30 4 * * *&delimiter=;")
    assert pickle.loads(pickle.dumps(options)) == options


def test_an_encoder_gets_chunks_of_a_sixteenth_of_a_file() -> None:
    assert parse("file-size=1MiB").encoder(schema()).chunk_bytes == 65_536
    assert parse("file-size=512MiB").encoder(schema()).chunk_bytes == 4 << 20
    assert replace(parse(), file_size=3).encoder(schema()).chunk_bytes == 1
    assert parse("file-size=1MiB").encoder(schema()).commit_bytes_max == 1 << 20


def test_an_encoder_gets_the_options_of_the_format() -> None:
    given = parse_sink_uri(
        "file:///x?protocol=csv&delimiter=|&null=NULL&include-commit-ts=1&compression=gzip"
    )
    encoder = given.encoder(schema())
    assert (encoder.protocol, encoder.compression) == ("csv", "gzip")
    assert encoder.csv == CsvOptions(delimiter="|", null="NULL", include_commit_ts=True)
    assert (encoder.columns, encoder.where) == (None, "")


@pytest.mark.parametrize(
    ("columns", "sent"),
    [
        (("a",), ("id", "a")),
        (("*", "!b"), ("id", "a", "c1", "c2")),
        (("!b",), ("id", "a", "c1", "c2")),
        (("c*", "!c2"), ("id", "c1")),
        (("c*", "!c*", "C2"), ("id", "c2")),
        (("!*",), ("id",)),
        (("nothing",), ("id",)),
    ],
)
def test_a_selector_sends_the_columns_it_names_and_keys(
    columns: tuple[str, ...], sent: tuple[str, ...]
) -> None:
    feed = ChangefeedSettings(sink_uri=BASE, column_selectors=[{"tables": ["db.*"], "columns": columns}])
    assert sink_options(feed).encoder(schema()).columns == sent


def test_the_first_selector_and_filter_that_fit_a_table_count() -> None:
    feed = ChangefeedSettings(
        sink_uri=BASE,
        column_selectors=[
            {"tables": ["db.*", "!db.t"], "columns": ["a"]},
            {"tables": ["*.*"], "columns": ["b"]},
        ],
        row_filters=[{"tables": ["db.t"], "where": "a > 1"}, {"tables": ["*.*"], "where": "a > 2"}],
    )
    options = sink_options(feed)
    assert options.encoder(schema()).columns == ("id", "b")
    assert options.encoder(schema(table="u")).columns == ("id", "a")
    assert options.encoder(schema()).where == "a > 1"
    assert options.encoder(schema("other")).where == "a > 2"


def test_a_pattern_that_selects_no_table_is_refused_at_once() -> None:
    feed = ChangefeedSettings(sink_uri=BASE, row_filters=[{"tables": ["orders"], "where": "a > 1"}])
    with pytest.raises(Invalid, match=re.escape("write database.table")):
        sink_options(feed)
