"""A shop as the API tells of it: what `pagedouble` answers. Fixed, so that pages look the same every time."""

from datetime import UTC, datetime
from typing import Any

from penstock.clock import compose_ts
from penstock.control.display import format_ms, format_ts
from penstock.control.overview.model import (
    ChangefeedRow,
    FlowStage,
    HeldBy,
    HolderKind,
    JobRow,
    Overview,
    PartRow,
    Problem,
    ProblemKind,
    RowsByEngine,
    SpoolLevel,
    StageRow,
    TableRefusal,
    TableRow,
    Totals,
)
from penstock.control.part_states import PartKind, PartState

__all__ = ["HOSTILE", "NOW_MS", "changes", "detail", "overview", "search_answer"]

NOW_MS = int(datetime(2026, 11, 16, 9, 40, tzinfo=UTC).timestamp() * 1000)
HOSTILE = '<img src=x onerror="document.title=`taken`">'
"""A name and a value that would run, were it taken for markup."""
_QUOTA_BYTES = 1 << 30
_MINUTE_MS = 60_000


def _ts(seconds_ago: float, logical: int = 0) -> int:
    return compose_ts(NOW_MS - int(seconds_ago * 1000), logical)


def overview(*, troubled: bool) -> Overview:
    """Return a deployment in which all is well, or one in which a lock and a remote hold everything up."""
    tables = _tables(troubled=troubled)
    feeds = _feeds(troubled=troubled)
    jobs = _jobs(troubled=troubled)
    problems = _problems() if troubled else []
    return Overview(
        now_ts=_ts(0),
        now_time=format_ms(NOW_MS),
        healthy=not troubled,
        engine="local" if troubled else "spark",
        engines=RowsByEngine(local=4_800) if troubled else RowsByEngine(spark=1_234_567),
        problems=problems,
        parts=_parts(troubled=troubled),
        stages=_stages(troubled=troubled),
        tables=tables,
        changefeeds=feeds,
        jobs=jobs,
        indexes=["shop.products/fulltext", "shop.products/vectors"],
        totals=Totals(tables=len(tables), changefeeds=len(feeds), jobs=len(jobs), problems=len(problems)),
    )


_LOCK = HeldBy(
    kind=HolderKind.LOCK,
    name="454418923520000001",
    detail="a transaction that began 41 s ago has not finished; its locks are on shop.orders",
)


def _stages(*, troubled: bool) -> list[StageRow]:
    lags = (41.2, 41.6, 44.0, 312.0, 2510.0) if troubled else (0.12, 0.41, 3.2, 1.4, 2.2)
    rates = (1843.0, 1838.0, 1840.0, 912.0, 1640.0)
    held: dict[FlowStage, HeldBy] = {}
    if troubled:
        feed = HeldBy(
            kind=HolderKind.CHANGEFEED,
            name="lake",
            detail="its spool is above the high mark: the remote is slow",
        )
        held = {FlowStage.COMMIT: _LOCK, FlowStage.CAPTURE: _LOCK, FlowStage.CHANGEFEEDS: feed}
    return [
        StageRow(stage=stage, lag_s=lag, rate=rate, held_by=held.get(stage))
        for stage, lag, rate in zip(FlowStage, lags, rates, strict=True)
    ]


def _parts(*, troubled: bool) -> list[PartRow]:
    since = format_ms(NOW_MS - 73 * _MINUTE_MS)
    kinds = (
        ("store", PartKind.STORE, "127.0.0.1:2379"),
        ("capture-1", PartKind.CAPTURE, "127.0.0.1:40111"),
        ("capture-2", PartKind.CAPTURE, "127.0.0.1:40112"),
        ("changefeeds", PartKind.CHANGEFEEDS, None),
        ("jobs", PartKind.JOBS, None),
        ("api", PartKind.API, "127.0.0.1:8300"),
    )
    rows = [
        PartRow(name=name, kind=kind, state=PartState.RUNNING, pid=4100 + place, since=since, addr=addr)
        for place, (name, kind, addr) in enumerate(kinds)
    ]
    if troubled:
        rows[2] = rows[2].model_copy(
            update={
                "state": PartState.WAITING,
                "restarts": 3,
                "since": format_ms(NOW_MS - 4000),
                "error": "capture.log_path is full (No space left on device); free some space, or move it",
            }
        )
    return rows


def _tables(*, troubled: bool) -> list[TableRow]:
    names = ["shop.customers", "shop.orders", "shop.products", f"shop.{HOSTILE}"]
    rows = []
    for place, name in enumerate(names):
        slow = troubled and name == "shop.orders"
        lag_s = 41.6 if slow else 0.4 + place / 100
        rows.append(
            TableRow(
                table=name,
                table_id=100 + place,
                readable_ts=_ts(lag_s),
                readable_time=format_ts(_ts(lag_s)),
                lag_s=lag_s,
                changed_ts=_ts(lag_s + 20 * place),
                captured=True,
                held_by=_LOCK if slow else None,
            )
        )
    rows.append(TableRow(table="staging.imports", table_id=200, captured=False))
    if troubled:
        reason = "column shape: type 200 is unknown; upgrade Penstock to read this table"
        refusal = TableRefusal(reason=reason, since_ts=_ts(600), since_time=format_ts(_ts(600)))
        rows.append(TableRow(table="staging.shapes", table_id=201, captured=False, refusal=refusal))
    return rows


def _feeds(*, troubled: bool) -> list[ChangefeedRow]:
    def spool(level: float) -> SpoolLevel:
        return SpoolLevel(
            bytes=int(level * _QUOTA_BYTES), quota_bytes=_QUOTA_BYTES, level=level, high=0.8, low=0.6
        )

    def feed(name: str, state: str, lag_s: float, level: float | None, error: str = "") -> ChangefeedRow:
        return ChangefeedRow(
            id=name,
            account="sys",
            state=state,
            checkpoint_ts=_ts(lag_s),
            checkpoint_time=format_ms(NOW_MS - int(lag_s * 1000)),
            lag_s=lag_s,
            error=error,
            spool=None if level is None else spool(level),
        )

    if not troubled:
        return [feed("files", "normal", 1.4, 0.07), feed("lake", "normal", 1.1, 0.22)]
    refused = (
        "s3://lake/shop refused a write (403); give it a key that may write, then"
        " `penstock changefeed resume files`"
    )
    without = "it goes on without table staging.shapes, because it cannot be captured: type 200 is unknown"
    lake = feed("lake", "warning", 312.0, 0.86).model_copy(update={"warning": without})
    return [lake, feed("files", "failed", 3720.0, None, refused)]


def _jobs(*, troubled: bool) -> list[JobRow]:
    def job(name: str, consumer: str, state: str, lag_s: float, **more: Any) -> JobRow:
        return JobRow(
            job=name,
            account="sys",
            consumer=consumer,
            trigger="greedy",
            state=state,
            watermark=_ts(lag_s),
            watermark_time=format_ts(_ts(lag_s)),
            lag_s=lag_s,
            **more,
        )

    rows = [
        job("shop.products/fulltext", "fulltext", "completed", 0.9),
        job("shop.products/vectors", "vector", "running", 2.2, lacks="running"),
        job("shop.orders/lake", "delta", "paused", 47.5, lacks="paused"),
    ]
    if troubled:
        broken = (
            "the Delta table at s3://lake/orders was changed by somebody else;"
            " `penstock job repair shop.orders/lake`"
        )
        rows[2] = job(
            "shop.orders/lake", "delta", "error", 2510.0, lacks="error", error_code=21, error=broken
        )
    return rows


def _problems() -> list[Problem]:
    return [
        Problem(
            part="capture-2",
            what=ProblemKind.PART_NOT_RUNNING,
            message="capture-2 has ended 3 times: capture.log_path is full (No space left on device).",
            remedy="free some space, or set capture.log_path to a larger disk and start `penstock up` again",
        ),
        Problem(
            part="files",
            what=ProblemKind.CHANGEFEED_FAILED,
            message="The changefeed has given up: s3://lake/shop refused a write (403).",
            remedy="give it a key that may write, then `penstock changefeed resume files`",
        ),
        Problem(
            part="shop.orders/lake",
            what=ProblemKind.JOB_ERROR,
            message="Its Delta table was changed by somebody else.",
            remedy="`penstock job repair shop.orders/lake`",
        ),
    ]


def detail(row: TableRow) -> dict[str, Any]:
    """Return all facts of a table: three schema versions, and the objects of two hours of changes."""
    columns = [
        {"name": "id", "type": "bigint", "nullable": False, "primary_key": True},
        {"name": "name", "type": "varchar(64)", "nullable": True, "primary_key": False},
        {"name": "price", "type": "decimal(10,2)", "nullable": False, "primary_key": False},
        {"name": HOSTILE, "type": "json", "nullable": True, "primary_key": False},
    ]
    versions = [(1, 7000, 2), (2, 4800, 3), (3, 900, 4)]
    objects = _objects()
    return {
        **row.model_dump(exclude={"held_by"}),
        "account": "sys",
        "oldest_ts": _ts(7200) if row.captured else None,
        "flushed_ts": _ts(3) if row.captured else None,
        "columns": columns,
        "schemas": [
            {
                "version": version,
                "since_ts": _ts(ago),
                "since_time": format_ts(_ts(ago)),
                "table": row.table,
                "columns": columns[:many],
            }
            for version, ago, many in versions
        ],
        "kinds": _kinds(objects) if row.captured else [],
        "objects": objects if row.captured else [],
        "objects_left_off": 0,
    }


def _objects() -> list[dict[str, Any]]:
    def made(kind: str, side: str, began: int, ended: int, rows: int) -> dict[str, Any]:
        return {
            "kind": kind,
            "side": side,
            "from_ts": _ts(began),
            "to_ts": _ts(ended),
            "rows": rows,
            "bytes": rows * 61,
            "replaced_ts": None,
        }

    merged = [made("merged", "data", 7000, 3600, 182_400), made("merged", "data", 3600, 1500, 96_000)]
    direct = [made("direct", "data", 5200, 5199, 50_000), made("direct", "tombstone", 2900, 2899, 12_000)]
    appended = [
        made("appendable", side, began, began - 140, 900 + 13 * began % 700)
        for began in range(1500, 60, -150)
        for side in ("data", "tombstone")
        if side == "data" or began % 300 == 0
    ]
    return merged + direct + appended


def _kinds(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for stored in objects:
        groups.setdefault((stored["side"], stored["kind"]), []).append(stored)
    return [
        {
            "side": side,
            "kind": kind,
            "objects": len(group),
            "rows": sum(stored["rows"] for stored in group),
            "bytes": sum(stored["bytes"] for stored in group),
            "from_ts": min(stored["from_ts"] for stored in group),
            "to_ts": max(stored["to_ts"] for stored in group),
        }
        for (side, kind), group in sorted(groups.items())
    ]


def changes() -> list[dict[str, Any]]:
    """Return changes of a table, one per second, with numbers that browsers round and a hostile value."""
    rows = []
    for place in range(130):
        op = ("insert", "insert", "update", "delete")[place % 4]
        rows.append(
            {
                "_op": op,
                "_commit_ts": _ts(600 - place, place),
                "id": 9_007_199_254_740_993 + place,
                "name": HOSTILE if place == 1 else f"Kettle {place}",
                "price": f"{12 + place}.50",
                "note": None if place % 3 else {"stock": place},
            }
        )
    return rows


def search_answer(job: str, words: str, k: int) -> dict[str, Any]:
    """Return what an index finds: rows that have the words in their names."""
    names = ("Copper kettle", "Kettle with a long spout", f"{HOSTILE} kettle", "Tea pot")
    rows = [
        {"id": 1 + place, "name": name, "description": f"{name}: made by hand.", "_score": 9.5 - place}
        for place, name in enumerate(names)
        if words.lower() in name.lower()
    ]
    return {
        "job": job,
        "watermark": _ts(0.9),
        "watermark_time": format_ts(_ts(0.9)),
        "lag_s": 0.9,
        "complete": True,
        "rows": rows[:k],
    }
