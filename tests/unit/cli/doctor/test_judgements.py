"""What the doctor makes of numbers: pure."""

import resource
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.cli.doctor.findings import CheckResult, from_error, is_healthy, ok, warn
from penstock.cli.doctor.machine import (
    judge_descriptors,
    judge_memory,
    judge_packages,
    judge_python,
    needed_bytes,
)
from penstock.cli.doctor.network import judge_clock, skew_ms
from penstock.cli.doctor.storage import judge_space
from penstock.cli.doctor.tls import find_literal_secrets, judge_mode, judge_validity
from penstock.cli.output import GIB, MIB, format_size
from penstock.errors import Invalid
from penstock.settings import Settings, SparkSettings, UpSettings

OK, WARN, BAD = CheckResult.OK, CheckResult.WARN, CheckResult.BAD
NOW = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("version", "verdict"), [((3, 11, 0), OK), ((3, 12, 1), OK), ((3, 10, 9), BAD), ((2, 7, 18), BAD)]
)
def test_python_has_to_be_new_enough(version: tuple[int, int, int], verdict: CheckResult) -> None:
    assert judge_python(version).verdict is verdict


@pytest.mark.parametrize(
    ("asked_ms", "skew"),
    [((1_000, 1_010, 1_020), 0), ((1_000, 900, 1_020), -100), ((1_000, 1_500, 1_020), 480)],
)
def test_a_clock_is_asked_between_two_looks_at_ours(asked_ms: tuple[int, int, int], skew: int) -> None:
    before, theirs, after = asked_ms
    assert skew_ms(theirs, before, after) == skew


@pytest.mark.parametrize(
    ("skew", "verdict"), [(0, OK), (-500, OK), (501, WARN), (-9_000, WARN), (10_001, BAD), (-3_600_000, BAD)]
)
def test_a_clock_may_differ_a_little(skew: int, verdict: CheckResult) -> None:
    assert judge_clock(skew).verdict is verdict


def test_a_clock_is_told_in_the_direction_in_which_it_is_wrong() -> None:
    assert "60.0 s behind the cluster's" in judge_clock(60_000).what
    assert "60.0 s ahead of the cluster's" in judge_clock(-60_000).what


@pytest.mark.parametrize(("free", "verdict"), [(20 * GIB, OK), (5 * GIB, WARN), (GIB - 1, BAD), (0, BAD)])
def test_a_disk_needs_room(free: int, verdict: CheckResult) -> None:
    assert judge_space("store.data", Path("/data"), free).verdict is verdict


@pytest.mark.parametrize(
    ("limit", "verdict"), [(65_536, OK), (resource.RLIM_INFINITY, OK), (1024, WARN), (100, BAD)]
)
def test_a_process_needs_open_files(limit: int, verdict: CheckResult) -> None:
    assert judge_descriptors(limit).verdict is verdict


@pytest.mark.parametrize(("total", "verdict"), [(8 * GIB, OK), (4 * GIB, WARN), (GIB, BAD), (None, WARN)])
def test_memory_is_held_against_what_the_parts_may_take(total: int | None, verdict: CheckResult) -> None:
    assert judge_memory(total, 6 * GIB).verdict is verdict


def test_parts_that_do_not_run_need_no_memory() -> None:
    everything = needed_bytes(Settings())
    alone = needed_bytes(Settings(up=UpSettings(changefeeds=False, jobs=False, api=False)))
    assert everything - alone > 2 * 2 * GIB
    assert needed_bytes(Settings(spark=SparkSettings(driver_memory="512m"))) == everything - 2 * 1536 * MIB


def test_a_package_that_cannot_be_imported_is_named() -> None:
    lines = ["numpy", "lance", "! ImportError", "pyspark"]
    found = judge_packages(lines, died=False)
    assert (found.verdict, "lance (ImportError)" in found.what) == (BAD, True)
    assert "pyspark (ends the process)" in judge_packages(lines, died=True).what
    assert judge_packages(["numpy", "lance"], died=False).verdict is OK


@pytest.mark.parametrize(
    ("begin_days", "end_days", "verdict"),
    [(-10, 100, OK), (-10, 3, WARN), (-10, -1, BAD), (1, 100, BAD)],
)
def test_a_certificate_is_valid_for_a_while(begin_days: int, end_days: int, verdict: CheckResult) -> None:
    period = (NOW + timedelta(days=begin_days), NOW + timedelta(days=end_days))
    assert judge_validity("tls.ca_path", Path("ca.pem"), [period], NOW).verdict is verdict


def test_of_several_certificates_the_one_that_ends_first_counts() -> None:
    long = (NOW - timedelta(days=1), NOW + timedelta(days=1000))
    short = (NOW - timedelta(days=10), NOW - timedelta(days=1))
    assert judge_validity("tls.ca_path", Path("ca.pem"), [long, short], NOW).verdict is BAD


@pytest.mark.parametrize(("mode", "verdict"), [(0o600, OK), (0o400, OK), (0o640, WARN), (0o644, BAD)])
def test_a_secret_is_its_owners_alone(mode: int, verdict: CheckResult) -> None:
    assert judge_mode("tls.key_path", Path("key.pem"), mode).verdict is verdict


def test_secrets_of_a_settings_file_are_found_unless_the_environment_has_them() -> None:
    tree = {
        "capture": {"flight_token": "abcdefghijklmnop", "storage_options": {"secret_access_key": "x"}},
        "api": {"accounts": {"shop": {"token": "${SHOP_TOKEN}"}, "ops": {"token_path": "/run/token"}}},
        "changefeeds": {
            "a": {"sink_uri": "s3://b/c?secret-access-key=x"},
            "b": {"sink_uri": "s3://b/c?protocol=csv", "storage_options": {"region": "eu"}},
        },
    }
    assert sorted(find_literal_secrets(tree)) == [
        "capture.flight_token",
        "capture.storage_options.secret_access_key",
        "changefeeds.a.sink_uri",
    ]


def test_an_error_is_told_as_what_and_remedy() -> None:
    found = from_error("java", Invalid("Java at /usr/bin/java is version 11; it is old; install Java 17"))
    assert (found.what, found.remedy) == ("Java at /usr/bin/java is version 11; it is old", "install Java 17")
    assert is_healthy([ok("a", "b"), warn("c", "d", "e")])
    assert not is_healthy([ok("a", "b"), found])


def test_sizes_are_told_in_units_that_fit() -> None:
    assert [format_size(each) for each in (0, 1023, 1536, 200 * MIB, 5 * GIB)] == [
        "0 bytes",
        "1,023 bytes",
        "1.5 KiB",
        "200 MiB",
        "5.0 GiB",
    ]
