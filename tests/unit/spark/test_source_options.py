import pickle
from pathlib import Path

import pytest
from pydantic import SecretStr

from penstock.clock import LOGICAL_MAX, compose_ts
from penstock.errors import Invalid
from penstock.settings import CaptureSettings, Settings
from penstock.settings import parse as parse_settings
from penstock.spark.options import PARTITION_BYTES, SourceOptions, absolute_url, check_defaults, parse_options

NINE = 1_769_850_000_000  # 2026-01-31T09:00:00Z


def parse(**given: str) -> SourceOptions:
    return parse_options({"table": "shop.orders", **given}, settings=Settings())


def refused(**given: str) -> str:
    with pytest.raises(Invalid) as caught:
        parse(**given)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_table_alone_asks_for_its_newest_snapshot_from_the_event_store():
    options = parse()
    assert (options.table, options.origin, options.as_of_ts) == ("shop.orders", "eventstore", None)
    assert options.columns is None
    assert options.partition_bytes == PARTITION_BYTES
    assert not options.read_change_feed


def test_names_of_options_have_no_case():
    assert parse_options({"TABLE": "a.b", "VersionAsOf": "7"}, settings=Settings()).as_of_ts == 7


def test_load_with_a_name_is_the_same_as_the_option_table():
    assert parse_options({"path": "a.b"}, settings=Settings()).table == "a.b"


def test_without_a_table_the_option_is_named():
    with pytest.raises(Invalid, match="no table is named; give option table"):
        parse_options({}, settings=Settings())


@pytest.mark.parametrize("name", ["orders", ".orders", "shop."])
def test_a_table_needs_its_database(name: str):
    assert "is not database.table" in refused(table=name)


def test_an_unknown_option_is_refused_with_the_one_that_was_meant():
    message = refused(startngVersion="1")
    assert "unknown option 'startngversion'; did you mean startingVersion?" in message
    assert "readChangeFeed" in message


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-01-31", NINE - 9 * 3_600_000),
        ("2026-01-31 09:00:00", NINE),
        ("2026-01-31T09:00:00.250", NINE + 250),
        ("2026-01-31T11:00:00+02:00", NINE),
        ("2026-01-31T09:00:00Z", NINE),
    ],
)
def test_a_timestamp_takes_everything_committed_in_its_millisecond(text: str, ms: int):
    assert parse(timestampAsOf=text).as_of_ts == compose_ts(ms, LOGICAL_MAX)


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "", "1969-12-31", "1769850000"])
def test_a_wrong_timestamp_is_refused_with_how_to_write_it(text: str):
    message = refused(timestampAsOf=text)
    assert f"option timestampAsOf = {text!r}" in message
    assert "2026-01-31 09:30:00" in message


@pytest.mark.parametrize("text", ["newest", "-1", "1.5", str(1 << 64)])
def test_a_wrong_version_is_refused_with_the_option_for_dates(text: str):
    message = refused(versionAsOf=text)
    assert f"option versionAsOf = {text!r} is not a commit timestamp" in message
    assert "timestampAsOf" in message


def test_both_ends_of_a_range_of_changes_count_as_inside():
    options = parse(readChangeFeed="true", startingVersion="100", endingVersion="200")
    assert (options.from_ts, options.to_ts) == (99, 200)
    options = parse(
        readChangeFeed="true", startingTimestamp="2026-01-31 09:00", endingTimestamp="2026-01-31 09:00"
    )
    assert (options.from_ts, options.to_ts) == (compose_ts(NINE) - 1, compose_ts(NINE, LOGICAL_MAX))


def test_a_range_from_the_beginning_starts_from_nothing():
    assert parse(readChangeFeed="true", startingVersion="0").from_ts == 0
    assert parse(readChangeFeed="true").from_ts is None


def test_a_range_that_ends_before_it_starts_is_refused():
    assert "end at 1, before they start at 2" in refused(
        readChangeFeed="true", startingVersion="2", endingVersion="1"
    )


@pytest.mark.parametrize(
    "given",
    [
        {"versionAsOf": "1", "timestampAsOf": "2026-01-31"},
        {"readChangeFeed": "true", "startingVersion": "1", "startingTimestamp": "2026-01-31"},
        {"readChangeFeed": "true", "endingVersion": "1", "endingTimestamp": "2026-01-31"},
        {"readChangeFeed": "true", "from": "kv"},
        {"path": "shop.items"},
    ],
)
def test_options_that_contradict_each_other_are_refused(given: dict[str, str]):
    assert "exclude each other" in refused(**given)


def test_options_of_changes_need_the_change_feed_and_those_of_snapshots_must_not_have_it():
    assert "startingVersion is for changes" in refused(startingVersion="1")
    assert "versionAsOf is for snapshots" in refused(versionAsOf="1", readChangeFeed="true")
    assert "use true or false" in refused(readChangeFeed="yes")


def test_columns_are_a_list_with_commas_or_json():
    assert parse(columns="id, name").columns == ("id", "name")
    assert parse(columns='["id", "a,b"]').columns == ("id", "a,b")


@pytest.mark.parametrize("text", ["", "id,", "[1]", "[", "[]", "id,id"])
def test_what_is_no_list_of_columns_is_refused(text: str):
    assert "option columns" in refused(columns=text)


def test_a_range_is_of_handles_or_of_keys():
    assert (parse(rangeFrom="-5", rangeTo="9").range_from, parse(rangeTo="9").range_to) == (-5, 9)
    assert parse(rangeFrom="0x61FF", rangeTo="0x62").range_from == b"a\xff"


def test_a_wrong_range_is_refused_without_showing_a_key():
    assert "of two kinds" in refused(rangeFrom="1", rangeTo="0x61")
    assert "rangeTo is before rangeFrom" in refused(rangeFrom="0x62", rangeTo="0x61")
    assert "alice" not in refused(rangeFrom="alice@example.org")


def test_sizes_may_have_units_but_rows_may_not():
    options = parse(partitionBytes="64MiB", maxRowsPerTrigger="1000", maxBytesPerTrigger="2 gib")
    assert options.partition_bytes == 64 << 20
    assert (options.max_rows_per_trigger, options.max_bytes_per_trigger) == (1000, 2 << 30)
    assert "whole number above 0" in refused(maxRowsPerTrigger="1MiB")
    assert "whole number above 0" in refused(partitionBytes="0")


def test_connection_options_are_laid_over_the_settings_and_over_the_sessions_defaults():
    base = Settings(
        capture=CaptureSettings(storage="s3://old/x", storage_options={"region": "a", "endpoint": "e"})
    )
    options = parse_options(
        {"table": "a.b", "storageOptions.region": "c", "pdAddrs": "pd1:2379, pd2:2379"},
        defaults={"storage": "s3://new/y", "pdAddrs": "other:1"},
        settings=base,
    )
    assert options.settings.capture.storage == "s3://new/y"
    assert options.settings.capture.storage_options == {"region": "c", "endpoint": "e"}
    assert options.settings.pd_addrs == ("pd1:2379", "pd2:2379")


def test_a_settings_file_is_named_by_the_option_or_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "penstock.yaml"
    path.write_text("pd_addrs: ['pd9:1']")
    assert parse_options({"table": "a.b", "config": str(path)}, settings=Settings()).settings.pd_addrs == (
        "pd9:1",
    )
    monkeypatch.setenv("PENSTOCK_CONFIG", str(path))
    assert parse_options({"table": "a.b"}).settings.pd_addrs == ("pd9:1",)


def test_a_token_in_a_file_travels_as_itself_because_executors_have_no_such_file(tmp_path: Path):
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    base = Settings(capture=CaptureSettings(flight_token_path=path))
    capture = parse_options({"table": "a.b"}, settings=base).settings.capture
    assert capture.flight_token == SecretStr("0123456789abcdef")
    assert capture.flight_token_path is None


def test_executors_get_no_token_of_the_api_and_no_sink():
    secret = "0123456789abcdef"
    base = parse_settings(
        {
            "api": {"accounts": {"root": {"token": secret, "admin": True}}},
            "changefeeds": {"all": {"sink_uri": f"s3://lake/x?access-key={secret}"}},
            "tracing": {"endpoint": "http://127.0.0.1:1/", "headers": {"Authorization": secret}},
        }
    )
    assert secret.encode() in pickle.dumps(base)
    assert secret.encode() not in pickle.dumps(parse_options({"table": "a.b"}, settings=base))


def test_a_wrong_token_is_refused_without_being_shown():
    assert "geheim" not in refused(flightToken="geheim")


def test_tls_of_flight_is_complete_or_absent():
    tls = parse(flightCaPath="ca.pem").flight_tls
    assert tls is not None
    assert tls.ca_path == Path("ca.pem")
    assert "need flightCaPath" in refused(flightCertPath="a")
    assert "together or not at all" in refused(flightCaPath="ca.pem", flightCertPath="a")


def test_a_folder_means_the_same_place_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert absolute_url("file://some folder/events") == f"file://{tmp_path}/some%20folder/events"
    assert absolute_url("s3://bucket/x") == "s3://bucket/x"


def test_storage_in_memory_is_refused_because_workers_are_other_processes():
    assert "memory:// belongs to one process" in refused(storage="memory://")


def test_addresses_are_host_and_port():
    assert "'pd1', which is not host:port" in refused(pdAddrs="pd1")


def test_defaults_of_a_session_are_about_the_connection_only():
    check_defaults({"storage": "s3://x", "storageOptions.region": "r"})
    with pytest.raises(Invalid, match=r"spark\.penstock\.versionAsOf is not a default"):
        check_defaults({"versionAsOf": "1"})


def test_nothing_secret_is_in_the_text_of_options():
    options = parse(**{"flightToken": "0123456789abcdef", "storageOptions.secret_access_key": "hidden-value"})
    assert "0123456789abcdef" not in repr(options)
    assert "hidden-value" not in repr(options)
