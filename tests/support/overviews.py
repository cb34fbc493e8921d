"""Facts of deployments that never were, for tests of what is told of them."""

from typing import Any

from penstock.changefeeds.model import ChangefeedInfo, ChangefeedRecord, ChangefeedState, ChangefeedStatus
from penstock.clock import compose_ts
from penstock.control.overview.facts import CaptureFact, Facts, FeedFact, JobFact, TableFact
from penstock.control.overview.model import SpoolLevel
from penstock.control.part_states import PartKind, PartState, PartStatus
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.source import ReadableRange
from penstock.jobs.freshness import freshness_of
from penstock.jobs.job import Job, JobId, JobKey, JobState, JobStatus
from penstock.jobs.spec import JobSpec
from penstock.tables.schema import TableInfo

__all__ = ["NOW_TS", "ago", "facts", "feed", "job", "part", "spool", "table"]

NOW_MS = 1_700_000_100_000
NOW_TS = compose_ts(NOW_MS)


def ago(seconds: float) -> int:
    """Return a timestamp before now."""
    return compose_ts(NOW_MS - round(seconds * 1000))


def table(name: str = "shop.orders", lag_s: float | None = 0.5, **more: Any) -> TableFact:
    """Return a table; `lag_s` None: nobody has it. `flushed_s` and `changed_s` are seconds before now."""
    database, _, bare = name.partition(".")
    table_id = more.pop("id", 7)
    info = TableInfo(id=table_id, name=bare, columns=(), extra=more.pop("extra", {}))
    schema = SchemaVersion(ago(more.pop("made_s", 1000)), 0, info, database)
    given: dict[str, Any] = {"schema": schema, "account": "sys"}
    if lag_s is not None:
        readable_ts = ago(lag_s)
        given |= {
            "captures": ("capture-1",),
            "readable_ts": readable_ts,
            "changed_ts": min(readable_ts, ago(more.pop("changed_s", 100))),
            "flushed_ts": ago(more.pop("flushed_s", lag_s)),
        }
    return TableFact(**(given | more))


def feed(name: str = "files", lag_s: float = 0.5, **more: Any) -> FeedFact:
    """Return a changefeed that somebody runs, unless `run_by` says otherwise."""
    state = more.pop("state", ChangefeedState.NORMAL)
    info = ChangefeedInfo(
        id=name,
        settings={"tables": more.pop("tables", ["*.*"]), "sink_uri": "file:///nowhere"},
        start_ts=1,
        stopped=state is ChangefeedState.STOPPED,
        account=more.pop("account", "sys"),
    )
    status = ChangefeedStatus(
        checkpoint_ts=ago(lag_s),
        ddl_ts=1,
        state=ChangefeedState.NORMAL if state is ChangefeedState.STOPPED else state,
        error=more.pop("error", ""),
        warning=more.pop("warning", ""),
        left_out=more.pop("left_out", ()),
    )
    return FeedFact(ChangefeedRecord(info, status), more.pop("run_by", "host-1"), **more)


def spool(level: float) -> SpoolLevel:
    """Return a spool of 100 MiB."""
    quota = 100 << 20
    return SpoolLevel(bytes=int(level * quota), quota_bytes=quota, level=level, high=0.8, low=0.6)


def job(name: str = "shop.orders/copy", lag_s: float | None = 0.5, **more: Any) -> JobFact:
    """Return a job; `lag_s` None: it has never run. `of` is its table, None where nobody captures it."""
    job_id = JobId.parse(name)
    of: TableFact | None = more.pop("of", table())
    tree = {
        "trigger": {"job_type": "greedy", "paused": more.pop("paused", None)},
        "detail": {"consumer": {"consumer": more.pop("consumer", "delta")}},
    }
    made = Job(
        key=JobKey(0, more.pop("table_id", of.id if of is not None else 7), job_id.job, 1),
        id=job_id,
        account=more.pop("account", "sys"),
        spec=JobSpec.parse(tree),
        state=more.pop("state", JobState.COMPLETED),
        watermark=0 if lag_s is None else ago(lag_s),
        status=JobStatus(
            error_code=more.pop("error_code", 0),
            error_msg=more.pop("error", ""),
            failures=more.pop("failures", 0),
        ),
        create_at=NOW_MS - 100_000,
    )
    look = None if of is None else ReadableRange(of.readable_ts, of.changed_ts, of.oldest_ts, of.refusal)
    attended, verified = more.pop("attended", True), more.pop("verified", None)
    assert not more, f"nobody asked for {more}"
    freshness = freshness_of(made, look, now_ts=NOW_TS, span_s=1800, attended=attended)
    return JobFact(made, freshness, verified)


def part(name: str = "capture-1", kind: PartKind = PartKind.CAPTURE, **more: Any) -> PartStatus:
    """Return a part that has run for an hour."""
    given: dict[str, Any] = {
        "state": PartState.RUNNING,
        "pid": 11,
        "since_ms": NOW_MS - 3_600_000,
        "addr": "127.0.0.1:8815",
    }
    return PartStatus(**{"name": name, "kind": kind, **given, **more})


def facts(**given: Any) -> Facts:
    """Return a deployment in which a capture runs, and somebody runs jobs."""
    usual: dict[str, Any] = {
        "now_ts": NOW_TS,
        "captures": (CaptureFact("capture-1", "127.0.0.1:8815"),),
        "runner": "host-2",
    }
    return Facts(**(usual | given))
