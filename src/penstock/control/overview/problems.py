"""Finds what is wrong with a deployment, and says how to fix it. Pure."""

from collections.abc import Iterator

from penstock.changefeeds.model import ChangefeedState
from penstock.clock import physical_ms
from penstock.control.overview.explain import Explanation, describe_refusal
from penstock.control.overview.facts import Facts, FeedFact, JobFact, TableFact, behind_s
from penstock.control.overview.model import HolderKind, Problem, ProblemKind
from penstock.control.part_states import PartKind, PartState, PartStatus
from penstock.jobs.freshness import LagReason

__all__ = ["find_problems"]

TABLE_BEHIND_S = 30.0
FEED_BEHIND_S = 60.0
FEED_TAKEN_S = 15.0
"""A changefeed may be without a process for this long: until the lease of a lost process expires."""
NEW_TABLE_S = 10.0
"""A new table may be without a capture for this long."""
RESTARTS_MANY = 3
RESTARTS_MS = 600_000
"""A part with that many restarts is a problem until it has run for this long."""

_RUN = {
    PartKind.STORE: "penstock store",
    PartKind.CAPTURE: "penstock capture",
    PartKind.CHANGEFEEDS: "penstock changefeed run",
    PartKind.JOBS: "penstock job run",
    PartKind.API: "penstock api",
}
_START = "start `penstock up`, or `{} --config penstock.yaml`"


def find_problems(facts: Facts, explanation: Explanation) -> Iterator[Problem]:
    """Yield every problem, causes before their consequences."""
    if facts.cluster_error:
        yield Problem(
            part="store",
            what=ProblemKind.CLUSTER_SILENT,
            message=f"the cluster does not answer: {facts.cluster_error}",
            remedy=f"check pd_addrs, and that the cluster runs: {_START.format(_RUN[PartKind.STORE])}",
        )
    for part in facts.parts or ():
        yield from _of_part(part, facts)
    for key, free in facts.low_disks.items():
        yield Problem(
            part=key,
            what=ProblemKind.DISK_LOW,
            message=f"the disk of {key} has only {free >> 20} MiB left",
            remedy=f"make room, or move {key} to a larger disk",
        )
    yield from _of_captures(facts)
    for what, error in facts.unknown.items():
        yield Problem(
            part=what,
            what=ProblemKind.UNKNOWN,
            message=f"{what} could not be read: {error}",
            remedy="try again; `penstock doctor` says what does not answer",
        )
    for table in facts.tables:
        yield from _of_table(table, facts, explanation)
    for feed in facts.feeds:
        yield from _of_feed(feed, facts, explanation)
    yield from _of_runner(facts)
    known = {table.id for table in facts.tables}
    for job in facts.jobs:
        yield from _of_job(job, None if "schemas" in facts.unknown else known)
        yield from _of_target(job)


def _of_part(part: PartStatus, facts: Facts) -> Iterator[Problem]:
    why = f": {part.error}" if part.error else ""
    if part.state is PartState.STARTING:
        yield Problem(
            part=part.name,
            what=ProblemKind.PART_NOT_RUNNING,
            message=f"{part.name} is starting and is not ready yet{why}",
            remedy="wait; if it stays so, its log says why, and `penstock doctor` checks what it needs",
        )
    elif part.state is not PartState.RUNNING:
        again = ", and will be restarted" if part.state is PartState.WAITING else ""
        yield Problem(
            part=part.name,
            what=ProblemKind.PART_NOT_RUNNING,
            message=f"{part.name} does not run{again}{why}",
            remedy="fix the cause in the message; `penstock doctor` checks what it needs",
        )
    elif part.restarts >= RESTARTS_MANY and physical_ms(facts.now_ts) - part.since_ms < RESTARTS_MS:
        yield Problem(
            part=part.name,
            what=ProblemKind.PART_RESTARTS,
            message=f"{part.name} was restarted {part.restarts} times{why}",
            remedy="its log says why it ended; `penstock doctor` checks what it needs",
        )
    if part.name in facts.silent:
        yield Problem(
            part=part.name,
            what=ProblemKind.PART_SILENT,
            message=f"{part.name} runs, but does not serve its metrics",
            remedy="it may be overloaded or hang: read its log; `penstock up` restarts it when it ends",
        )
    if part.name in facts.without_spark:
        yield Problem(
            part=part.name,
            what=ProblemKind.SPARK_LOST,
            message=f"{part.name} has lost its Spark session and builds a new one",
            remedy="wait; if it stays so, its log says why: check Java's memory and the Spark master",
        )
    elif part.name in facts.without_executors:
        yield Problem(
            part=part.name,
            what=ProblemKind.SPARK_NO_EXECUTORS,
            message=f"Spark jobs of {part.name} wait for executors, and none runs",
            remedy="start workers of the Spark cluster, or free cores and memory; jobs go on by themselves",
        )


def _is_down(facts: Facts, kind: PartKind) -> bool:
    """Return whether a part of that kind does not run under `penstock up`: then that is the problem."""
    return any(part.kind is kind and part.state is not PartState.RUNNING for part in facts.parts or ())


def _of_captures(facts: Facts) -> Iterator[Problem]:
    known = {part.addr for part in facts.parts or () if part.kind is PartKind.CAPTURE}
    for capture in facts.captures:
        # A restarted capture leaves its old lease behind until that expires; the state of its part counts.
        if capture.error and (facts.parts is None or capture.addr in known):
            yield Problem(
                part=capture.id,
                what=ProblemKind.PART_SILENT,
                message=f"capture {capture.id} does not answer: {capture.error}",
                remedy="check that it runs, what its log says, and that its capture.flight_token is ours",
            )
    wanted = sum(table.wanted for table in facts.tables)
    known_why = "captures" in facts.unknown or _is_down(facts, PartKind.CAPTURE)
    if wanted and not facts.captures and not known_why:
        tables = "table is" if wanted == 1 else "tables are"
        yield Problem(
            part="capture",
            what=ProblemKind.NO_CAPTURE,
            message=f"no capture runs: {wanted} {tables} not captured",
            remedy=_START.format(_RUN[PartKind.CAPTURE]),
        )


def _of_table(table: TableFact, facts: Facts, explanation: Explanation) -> Iterator[Problem]:
    if table.refusal is not None:
        yield Problem(
            part=table.name,
            what=ProblemKind.TABLE_UNCAPTURABLE,
            message=f"{table.name}: {describe_refusal(table)}",
            remedy="remove the cause in the message, and the capture takes the table again by itself; or"
            " leave it out of capture.tables",
        )
        return
    if not table.captured:
        reported = not facts.captures or any(capture.error for capture in facts.captures)
        new = behind_s(facts.now_ts, table.schema.since_ts) < NEW_TABLE_S
        if table.wanted and not reported and not new:
            yield Problem(
                part=table.name,
                what=ProblemKind.TABLE_NOT_CAPTURED,
                message=f"no capture has {table.name}",
                remedy="add it to capture.tables of a capture; if it is in there, the capture's log says why",
            )
        return
    lag_s = behind_s(facts.now_ts, table.readable_ts) if table.readable_ts else 0.0
    if lag_s <= TABLE_BEHIND_S:
        return
    holder = explanation.explain_table(table)
    assert holder is not None, "a slow table is explained"
    if holder.kind is HolderKind.LOCK:
        remedy = "commit or roll back that transaction, or end its client; its locks are resolved then"
    else:
        remedy = "check the load and the log of the capture; add captures to share the tables"
    yield Problem(
        part=table.name,
        what=ProblemKind.TABLE_BEHIND,
        message=f"{table.name} can be read up to {lag_s:.0f} s ago: {holder.detail}",
        remedy=remedy,
    )


def _of_feed(fact: FeedFact, facts: Facts, explanation: Explanation) -> Iterator[Problem]:
    feed, name = fact.feed, fact.name
    lag_s = behind_s(facts.now_ts, feed.status.checkpoint_ts)
    if feed.state is ChangefeedState.FAILED:
        yield Problem(
            part=name,
            what=ProblemKind.CHANGEFEED_FAILED,
            message=f"changefeed {name} failed: {feed.status.error}",
            remedy=f"fix the cause in the message, then run `penstock changefeed resume {name}`",
        )
    elif feed.state is ChangefeedState.WARNING:
        yield Problem(
            part=name,
            what=ProblemKind.CHANGEFEED_WARNING,
            message=f"changefeed {name} failed and is retried: {feed.status.error}"
            if feed.status.error
            else f"changefeed {name}: {feed.status.warning}",
            remedy="fix the cause in the message; it then continues by itself"
            if feed.status.error or not feed.status.left_out
            else "follow the message; the other tables go on meanwhile",
        )
    elif feed.runnable and not fact.run_by:
        # A process soon takes over a changefeed that is new, or whose process was lost.
        if lag_s > FEED_TAKEN_S and not _is_down(facts, PartKind.CHANGEFEEDS):
            yield Problem(
                part=name,
                what=ProblemKind.CHANGEFEED_NOT_RUN,
                message=f"no process runs changefeed {name}",
                remedy=_START.format(_RUN[PartKind.CHANGEFEEDS]),
            )
    elif feed.runnable and lag_s > FEED_BEHIND_S:
        holder = explanation.explain_feed(fact)
        assert holder is not None, "a slow changefeed is explained"
        if holder.kind is HolderKind.CHANGEFEED:  # else the holder is its own problem
            yield Problem(
                part=name,
                what=ProblemKind.CHANGEFEED_BEHIND,
                message=f"changefeed {name} is {lag_s:.0f} s behind: {holder.detail}",
                remedy="wait until it has caught up; if it does not, give it more workers or a faster remote",
            )


def _of_runner(facts: Facts) -> Iterator[Problem]:
    waiting = sum(fact.freshness.reason is LagReason.NO_RUNNER for fact in facts.jobs)
    if waiting and not _is_down(facts, PartKind.JOBS):
        yield Problem(
            part="jobs",
            what=ProblemKind.NO_RUNNER,
            message=f"no process runs jobs: {waiting} {'job waits' if waiting == 1 else 'jobs wait'}",
            remedy=_START.format(_RUN[PartKind.JOBS]),
        )
    if facts.abandoned:
        hang = "consumer of a job was" if facts.abandoned == 1 else "consumers of jobs were"
        yield Problem(
            part="jobs",
            what=ProblemKind.CONSUMERS_HANG,
            message=f"{facts.abandoned} {hang} abandoned and did not return; with more than"
            f" {facts.abandoned_max} the process that runs jobs ends (jobs.abandoned_max)",
            remedy="check the targets of jobs with error code 4; to end them, restart what runs jobs",
        )


def _of_job(fact: JobFact, known: set[int] | None) -> Iterator[Problem]:
    job, reason = fact.job, fact.freshness.reason
    if reason is LagReason.ERROR:
        yield Problem(
            part=str(job.id),
            what=ProblemKind.JOB_ERROR,
            message=f"job {job.id} was stopped by error {job.status.error_code}: {job.status.error_msg}",
            remedy=f"fix the cause in the message, then run `penstock job resume {job.id}`; or fill its"
            f" target again with `penstock job repair {job.id} --rebuild`",
        )
    elif reason is LagReason.RETRYING:
        yield Problem(
            part=str(job.id),
            what=ProblemKind.JOB_RETRYING,
            message=f"job {job.id} has failed {job.status.failures} times and is retried:"
            f" {job.status.error_msg}",
            remedy="fix the cause in the message; it then continues by itself",
        )
    elif reason is LagReason.NOT_CAPTURED and known is not None and job.key.table_id not in known:
        yield Problem(
            part=str(job.id),
            what=ProblemKind.JOB_NOT_CAPTURED,
            message=f"the table of job {job.id} is not captured, or no longer exists",
            remedy=f"add it to capture.tables, or drop the job with `penstock job unregister {job.id}`",
        )


def _of_target(fact: JobFact) -> Iterator[Problem]:
    job, last = fact.job, fact.verified
    if last is None or not last.problem:
        return
    differs = last.same is False
    yield Problem(
        part=str(job.id),
        what=ProblemKind.TARGET_DIFFERS if differs else ProblemKind.TARGET_NOT_VERIFIED,
        message=f"job {job.id}: {last.problem}",
        remedy=f"repair the target with `penstock job repair {job.id}`"
        if differs
        else f"fix the cause in the message, then run `penstock job verify {job.id}`",
    )
