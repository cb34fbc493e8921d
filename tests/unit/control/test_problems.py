"""What is wrong, with its remedy: and nothing else is."""

from pathlib import Path

import pytest

from penstock.changefeeds.model import ChangefeedState, LeftOutTable, describe_left_out
from penstock.control.overview.facts import CaptureFact, Facts
from penstock.control.overview.gather import find_low_disks
from penstock.control.overview.locks import HoldingLock
from penstock.control.overview.model import RowsByEngine
from penstock.control.overview.overview import build_overview
from penstock.control.part_states import PartKind, PartState
from penstock.eventstore.read.partition import Refusal
from penstock.jobs.job import JobState
from penstock.settings import Settings
from penstock.verify.compare import Counts
from penstock.verify.results import LastVerification
from support.overviews import NOW_MS, ago, facts, feed, job, part, table

SECRET_ADDR = "10.1.2.3:4567"
SLOW = table("shop.orders", 31.0)
LEFT_OUT = LeftOutTable(table_id=7, name="shop.orders", reason="type 200 is unknown", since_ts=ago(100))
WITHOUT = describe_left_out([LEFT_OUT])
REFUSED = table(lag_s=None, refusal=Refusal(7, "type 200 is unknown; upgrade Penstock", ago(100)))
WELL = facts(
    tables=(table(), table("shop.new", None, id=9, made_s=5), table("other.t", None, id=10, wanted=False)),
    feeds=(feed(lag_s=59), feed("new", 1, run_by=""), feed("off", 900, state=ChangefeedState.STOPPED)),
    jobs=(
        job(),
        job("shop.orders/same", verified=LastVerification(ended_ms=1, same=True)),
        job("shop.orders/off", 900, paused=True),
        job("shop.orders/first", None),
    ),
    parts=(part(), part("jobs", PartKind.JOBS, restarts=2, since_ms=NOW_MS)),
)


def test_a_deployment_that_is_well_has_no_problems() -> None:
    found = build_overview(WELL)
    assert (found.healthy, found.problems) == (True, [])
    assert build_overview(facts()).healthy


@pytest.mark.parametrize(
    ("found", "what", "part_", "words", "remedy"),
    [
        (facts(cluster_error="no answer"), "cluster_silent", "store", "no answer", "pd_addrs"),
        (
            facts(parts=(part(state=PartState.WAITING, error="port taken"),)),
            "part_not_running", "capture-1", "will be restarted: port taken", "penstock doctor",
        ),
        (facts(parts=(part(state=PartState.STOPPED),)), "part_not_running", "capture-1", "does not run", ""),
        (facts(parts=(part(state=PartState.STARTING),)), "part_not_running", "capture-1", "ready", "wait"),
        (
            facts(parts=(part(restarts=3, since_ms=NOW_MS - 1000, error="killed"),)),
            "part_restarts", "capture-1", "restarted 3 times: killed", "log",
        ),
        (facts(parts=(part(),), silent=frozenset({"capture-1"})), "part_silent", "capture-1", "metrics", ""),
        (
            facts(parts=(part(),), without_spark=frozenset({"capture-1"})),
            "spark_lost", "capture-1", "lost its Spark session", "Java's memory",
        ),
        (
            facts(parts=(part(),), without_executors=frozenset({"capture-1"})),
            "spark_no_executors", "capture-1", "wait for executors", "start workers",
        ),
        (facts(captures=(CaptureFact("c", "addr", "refused"),)), "part_silent", "c", "refused", "token"),
        (
            facts(abandoned=2, abandoned_max=32),
            "consumers_hang", "jobs", "2 consumers of jobs were abandoned", "error code 4",
        ),
        (facts(low_disks={"capture.data": 5 << 20}), "disk_low", "capture.data", "only 5 MiB", "make room"),
        (facts(unknown={"jobs": "too slow"}), "unknown", "jobs", "too slow", "again"),
        (facts(tables=(table(lag_s=None),), captures=()), "no_capture", "capture", "1 table", "capture --"),
        (facts(tables=(table(lag_s=None),)), "table_not_captured", "shop.orders", "no capture", ".tables"),
        (
            facts(tables=(REFUSED,), jobs=(job(lag_s=500, of=REFUSED),), feeds=(feed(),)),
            "table_uncapturable", "shop.orders",
            "cannot be captured since 2023-11-14T22:13:20.000+00:00: type 200 is unknown", "capture.tables",
        ),
        (facts(tables=(SLOW,)), "table_behind", "shop.orders", "31 s ago: no lock", "add captures"),
        (
            facts(tables=(SLOW,), locks={7: HoldingLock(ago(31), 7, "0x74")}),
            "table_behind", "shop.orders", "primary key is in shop.orders", "commit or roll back",
        ),
        (
            facts(feeds=(feed(state=ChangefeedState.FAILED, error="denied"),)),
            "changefeed_failed", "files", "denied", "penstock changefeed resume files",
        ),
        (
            facts(feeds=(feed(state=ChangefeedState.WARNING, error="busy"),)),
            "changefeed_warning", "files", "busy", "by itself",
        ),
        (
            facts(feeds=(feed(state=ChangefeedState.WARNING, warning="it waits for table shop.x"),)),
            "changefeed_warning", "files", "changefeed files: it waits for table shop.x", "by itself",
        ),
        (
            facts(feeds=(feed(state=ChangefeedState.WARNING, warning=WITHOUT, left_out=(LEFT_OUT,)),)),
            "changefeed_warning", "files", "changefeed files: it goes on without", "other tables go on",
        ),
        (facts(feeds=(feed(lag_s=16, run_by=""),)), "changefeed_not_run", "files", "no process", "feed run"),
        (facts(feeds=(feed(lag_s=61),)), "changefeed_behind", "files", "61 s behind", "faster remote"),
        (
            facts(jobs=(job(lag_s=500, of=table(changed_s=9), attended=False),)),
            "no_runner", "jobs", "1 job waits", "penstock job run",
        ),
        (
            facts(jobs=(job(lag_s=500, of=table(changed_s=9), state=JobState.ERROR, error_code=10_001),)),
            "job_error", "shop.orders/copy", "error 10001", "penstock job resume shop.orders/copy",
        ),
        (
            facts(jobs=(job(lag_s=500, of=table(changed_s=9), failures=2, error_code=1, error="busy"),)),
            "job_retrying", "shop.orders/copy", "2 times and is retried: busy", "by itself",
        ),
        (
            facts(jobs=(job(of=None),)),
            "job_not_captured", "shop.orders/copy", "not captured", "job unregister shop.orders/copy",
        ),
        (
            facts(jobs=(job(verified=LastVerification(ended_ms=1, same=False, counts=Counts(missing=4))),)),
            "target_differs", "shop.orders/copy", "4 rows missing", "penstock job repair shop.orders/copy",
        ),
        (
            facts(jobs=(job(verified=LastVerification(ended_ms=1, error="no such bucket")),)),
            "target_not_verified", "shop.orders/copy", "no such bucket", "job verify shop.orders/copy",
        ),
    ],
)  # fmt: skip
def test_a_problem_says_what_where_and_how_to_mend_it(
    found: Facts, what: str, part_: str, words: str, remedy: str
) -> None:
    (problem,) = build_overview(found).problems
    assert (problem.what, problem.part) == (what, part_)
    assert words in problem.message
    assert remedy in problem.remedy
    assert not build_overview(found).healthy


def test_folders_are_told_of_when_they_run_out_of_room(tmp_path: Path) -> None:
    settings = Settings(
        store={"data": tmp_path}, capture={"data": tmp_path / "gone", "storage": f"file://{tmp_path}"}
    )
    assert find_low_disks(settings) == {}
    assert set(find_low_disks(settings, free_bytes_min=1 << 62)) == {"store.data", "capture.storage"}


def test_a_job_shows_when_it_was_verified() -> None:
    last = LastVerification(ended_ms=NOW_MS, at_ts=ago(5), same=False, counts=Counts(extra=2))
    (row,) = build_overview(facts(jobs=(job(verified=last),))).jobs
    assert row.verified is not None
    assert (row.verified.same, row.verified.differences, row.verified.at_ts) == (False, 2, ago(5))


def test_what_follows_from_a_problem_is_not_told_beside_it() -> None:
    tables = tuple(table(f"shop.t{each}", None, id=each) for each in range(50))
    jobs = tuple(job(f"shop.t{each}/copy", of=None, table_id=each) for each in range(50))
    found = build_overview(facts(tables=tables, jobs=jobs, captures=()))
    assert [each.what for each in found.problems] == ["no_capture"]

    locked = facts(tables=(SLOW,), feeds=(feed(lag_s=61),), locks={7: HoldingLock(ago(62), 7, "0x74")})
    assert [each.what for each in build_overview(locked).problems] == ["table_behind", "changefeed_behind"]
    waiting = facts(tables=(table(lag_s=62),), feeds=(feed(lag_s=62),))
    assert [each.what for each in build_overview(waiting).problems] == ["table_behind"]


def test_a_part_that_starts_spark_says_so_and_is_well() -> None:
    parts = (part(), part("changefeeds", PartKind.CHANGEFEEDS))
    found = build_overview(facts(parts=parts, starting_spark=frozenset({"changefeeds"})))
    assert [each.state for each in found.parts] == ["running", "starting Spark"]
    assert (found.healthy, found.problems) == (True, [])
    both = facts(
        parts=parts, starting_spark=frozenset({"changefeeds"}), without_spark=frozenset({"changefeeds"})
    )
    assert [each.state for each in build_overview(both).parts] == ["running", "degraded"]
    (_, waiting) = build_overview(facts(parts=parts, without_executors=frozenset({"changefeeds"}))).parts
    assert (waiting.state, waiting.error) == ("degraded", "its Spark jobs wait for executors")


@pytest.mark.parametrize("state", [PartState.STARTING, PartState.WAITING, PartState.STOPPED])
def test_a_part_that_is_down_is_the_problem_and_not_what_it_would_do(state: PartState) -> None:
    down = tuple(part(kind.value, kind, state=state) for kind in PartKind)
    changed = table(changed_s=9)
    found = facts(
        tables=(table(lag_s=None),),
        captures=(),
        feeds=(feed(lag_s=900, run_by=""),),
        jobs=(job(lag_s=500, of=changed, attended=False),),
        parts=down,
    )
    assert {each.what for each in build_overview(found).problems} == {"part_not_running"}


def test_what_could_not_be_found_out_is_not_taken_for_something_that_is_wrong() -> None:
    found = facts(
        jobs=(job(of=None),), captures=(), runner="", unknown={"schemas": "slow", "captures": "slow"}
    )
    assert {each.what for each in build_overview(found).problems} == {"unknown"}


def test_a_lease_that_a_restarted_capture_left_is_no_problem_of_its_own() -> None:
    found = facts(parts=(part(addr="127.0.0.1:9"),), captures=(CaptureFact("a", "127.0.0.1:8", "gone"),))
    assert build_overview(found).healthy
    assert [each.name for each in build_overview(found).parts] == ["capture-1"]


def test_an_account_sees_its_own_and_of_parts_only_how_they_do() -> None:
    found = facts(
        tables=(table(account="ada"), table("bob.secret", 99, id=8, account="bob")),
        feeds=(
            feed(account="ada"),
            feed("bobs", 900, account="bob", state=ChangefeedState.FAILED, error="bob"),
        ),
        jobs=(
            job("shop.orders/find", account="ada", consumer="fulltext"),
            job("bob.secret/find", account="bob", consumer="vector", table_id=8, error_code=1),
        ),
        parts=(part(state=PartState.WAITING, addr=SECRET_ADDR, error=f"bob {SECRET_ADDR}", pid=4242),),
        captures=(CaptureFact("capture-1", SECRET_ADDR, f"bob {SECRET_ADDR}"),),
        unknown={"schemas": f"bob {SECRET_ADDR}"},
        low_disks={"capture.data": 1},
        runner=f"bob-{SECRET_ADDR}",
        engines=RowsByEngine(spark=4_242),
    )
    seen = build_overview(found, account="ada")
    assert [each.table for each in seen.tables] == ["shop.orders"]
    assert [each.id for each in seen.changefeeds] == ["files"]
    assert [each.job for each in seen.jobs] == seen.indexes == ["shop.orders/find"]
    assert [each.what for each in seen.problems] == ["part_not_running", "unknown"]
    assert (seen.parts[0].state, seen.parts[0].pid, seen.parts[0].addr) == ("waiting", None, None)
    for hidden in ("bob", SECRET_ADDR, "4242"):
        assert hidden not in seen.model_dump_json()
    everything = build_overview(found)
    assert everything.indexes == ["shop.orders/find", "bob.secret/find"]
    assert everything.totals.tables == 2
    assert build_overview(replace_parts(found), account="ada").parts[-1].name == "jobs (hidden)"


def replace_parts(found: Facts) -> Facts:
    """The same without `penstock up`."""
    return facts(tables=found.tables, captures=found.captures, runner=found.runner)


def test_without_up_the_parts_are_those_that_have_leases() -> None:
    found = build_overview(
        facts(feeds=(feed(), feed("more"), feed("other", run_by="host-9"), feed("none", run_by="")))
    )
    assert [(each.name, each.kind) for each in found.parts] == [
        ("store", "store"),
        ("capture-1", "capture"),
        ("changefeeds host-1", "changefeeds"),
        ("changefeeds host-9", "changefeeds"),
        ("jobs host-2", "jobs"),
    ]


def test_lists_show_the_worst_first_and_how_many_there_are() -> None:
    found = build_overview(
        facts(
            tables=tuple(table(f"shop.t{each:03}", each / 100, id=each) for each in range(300)),
            feeds=tuple(feed(f"f{each:03}", each / 100) for each in range(300)),
            jobs=(
                *(job(f"shop.orders/j{each:03}", each, of=table(changed_s=0)) for each in range(1, 300)),
                job("shop.orders/bad", 1, error_code=10_000, state=JobState.ERROR),
                job("shop.orders/off", 999, paused=True, of=table(changed_s=0)),
            ),
        ),
        limit=3,
    )
    assert [each.table for each in found.tables] == ["shop.t299", "shop.t298", "shop.t297"]
    assert [each.id for each in found.changefeeds] == ["f299", "f298", "f297"]
    assert [each.job for each in found.jobs] == ["shop.orders/bad", "shop.orders/j299", "shop.orders/j298"]
    assert (found.totals.tables, found.totals.changefeeds, found.totals.jobs) == (300, 300, 301)


def test_a_table_that_cannot_be_captured_says_why_in_its_row_and_in_those_of_its_jobs() -> None:
    found = build_overview(facts(tables=(REFUSED,), jobs=(job(lag_s=500, of=REFUSED),)))
    (row,), (copy,) = found.tables, found.jobs
    assert row.refusal is not None
    assert (row.captured, row.refusal.since_ts, row.refusal.reason) == (
        False, ago(100), "type 200 is unknown; upgrade Penstock",
    )  # fmt: skip
    assert row.held_by is not None
    assert "type 200 is unknown" in row.held_by.detail
    assert (copy.lacks, copy.lacks_because) == ("cannot be captured", row.refusal.reason)
    assert copy.held_by is not None
    assert (copy.held_by.kind, copy.held_by.name) == ("table", "shop.orders")


def test_a_changefeed_without_a_table_is_explained_by_its_warning_and_not_as_a_failure() -> None:
    found = build_overview(
        facts(feeds=(feed(lag_s=900, state=ChangefeedState.WARNING, warning=WITHOUT, left_out=(LEFT_OUT,)),))
    )
    (row,) = found.changefeeds
    assert (row.state, row.error, row.warning) == ("warning", "", WITHOUT)
    assert row.held_by is not None
    assert row.held_by.detail == WITHOUT
    assert "type 200 is unknown" in row.warning
    assert "!shop.orders" in row.warning
