"""A change's trace from its commit to the target of a job, and to the file of a changefeed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from penstock import tracing
from penstock.changefeeds.engines.local import LocalEngine
from penstock.changefeeds.runner import ChangefeedRunner, create_configured_changefeeds
from penstock.changefeeds.store import ChangefeedStore
from penstock.clock import physical_ms
from penstock.jobs.consumer import Consumer, DataRetriever
from penstock.settings import ChangefeedSettings, TracingSettings
from support.jobworld import JobWorld, job_world
from support.tracereceiver import ReceivedSpan, TraceReceiver


class Reading(Consumer):
    """Takes everything, and keeps nothing."""

    def consume(self, data: DataRetriever) -> None:
        while not data.next().no_more_data:
            pass


def one(trace: list[ReceivedSpan], name: str) -> ReceivedSpan:
    (found,) = [span for span in trace if span.name == name]
    return found


async def test_a_change_is_one_trace_from_its_commit_to_the_target_of_a_job(tmp_path: Path) -> None:
    with TraceReceiver() as receiver:
        async with job_world(tmp_path) as world:
            settings = TracingSettings(endpoint=receiver.endpoint, sample=1.0)
            with tracing.configure(settings, cluster_id=world.async_client.cluster_id, service="all"):
                table_id = await world.create(
                    "shop.items", [("id", "bigint primary key"), ("name", "varchar(9)")]
                )
                first_ts = await world.insert("shop.items", {"id": 1, "name": "first"})
                await world.register("shop.items/copy", consumer="copy")
                async with world.running(find={"copy": Reading}.__getitem__):
                    await world.caught_up("shop.items/copy", first_ts)
                    commit_ts = await world.insert(
                        "shop.items", {"id": 2, "name": "hidden"}, {"id": 3, "name": "hidden"}
                    )
                    await world.caught_up("shop.items/copy", commit_ts)
                trace = await world.do(receiver.wait_for, commit_ts, "commit", "capture", "flush", "job")
    commit, capture, flush, job = (one(trace, name) for name in ("commit", "capture", "flush", "job"))
    assert {span.trace_id for span in trace} == {commit.trace_id}
    assert {span.parent_id for span in (capture, flush, job)} == {commit.span_id}
    assert commit.start_ns <= commit.end_ns == physical_ms(commit_ts) * 10**6
    assert all(commit.end_ns == span.start_ns <= span.end_ns for span in (capture, flush, job))
    assert {span.attributes["penstock.rows"] for span in (capture, flush, job)} == {2}
    assert {span.attributes["penstock.table_id"] for span in (capture, flush, job)} == {table_id}
    assert job.attributes["penstock.job"] == "shop.items/copy"
    assert job.attributes["penstock.consumer"] == "copy"
    assert {span.attributes["penstock.table"] for span in (flush, job)} == {"shop.items"}
    # Rows may come before their schema.
    assert capture.attributes.get("penstock.table", "shop.items") == "shop.items"
    assert flush.events == job.events == ("began",)
    assert "hidden" not in repr(receiver.spans)
    assert [span.name for span in receiver.trace_of(first_ts) if span.name == "job"] == []  # of a snapshot


@asynccontextmanager
async def feeding(world: JobWorld, folder: Path) -> AsyncIterator[None]:
    """Run one changefeed of everything, as `penstock changefeed run` does, in this process."""
    uri = f"file://{folder}?protocol=canal-json&flush-interval=2s"
    settings = world.settings.model_copy(update={"changefeeds": {"all": ChangefeedSettings(sink_uri=uri)}})
    feeds = ChangefeedStore(world.async_client)
    await create_configured_changefeeds(feeds, settings, now_ts=await world.now_ts())
    runner = ChangefeedRunner(settings, feeds, lambda order: LocalEngine(order.options.target), owner="test")
    running = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_change_is_one_trace_from_its_commit_to_the_file_of_a_changefeed(tmp_path: Path) -> None:
    with TraceReceiver() as receiver:
        async with job_world(tmp_path) as world:
            settings = TracingSettings(endpoint=receiver.endpoint, sample=1.0)
            table_id = await world.create("shop.items", [("id", "bigint primary key")])
            with tracing.configure(settings, cluster_id=world.async_client.cluster_id, service="all"):
                async with feeding(world, tmp_path / "files"):
                    commit_ts = await world.insert("shop.items", {"id": 1}, {"id": 2}, {"id": 3})
                    trace = await world.do(receiver.wait_for, commit_ts, "commit", "capture", "changefeed")
    commit, file = one(trace, "commit"), one(trace, "changefeed")
    assert file.parent_id == commit.span_id
    assert file.attributes == {
        "penstock.changefeed": "all",
        "penstock.table": "shop.items",
        "penstock.table_id": table_id,
        "penstock.commit_ts": commit_ts,
        "penstock.rows": 3,
    }
    assert file.events == ("began",)
    assert list((tmp_path / "files").rglob("CDC*.json"))
