"""Suspicions about jobs, with everything real."""

from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from penstock.jobs.job import JobId
from penstock.jobs.spec import JobSpec
from support.jobdoubles import Copy
from support.jobworld import JobWorld, job_world

ITEMS = "shop.items"
COPY = f"{ITEMS}/copy"


async def _same(world: JobWorld, copy: Copy) -> None:
    """Wait until the target is what the source is now."""
    wanted = sorted((row["id"], row["name"]) for row in (await world.rows(ITEMS)).to_pylist())
    await world.until(
        lambda: sorted((row["id"], row["name"]) for row in copy.rows.values()) == wanted,
        f"the target has other rows than {wanted}",
    )


@pytest.mark.parametrize("changes", [["a "], ["a ", None], ["a ", "a", "a  "], ["a ", "a", None, "a "]])
async def test_a_key_that_changes_in_its_trailing_blanks_alone_is_one_row(
    tmp_path: Path, changes: list[str | None]
) -> None:
    copy = Copy()
    async with job_world(tmp_path) as world:
        await world.create(ITEMS, [("id", "varchar(20) primary key"), ("name", "varchar(64)")])
        await world.insert(ITEMS, {"id": "a", "name": "first"}, {"id": "b", "name": "b"})
        await world.register(COPY, consumer="copy")
        async with world.running(find=lambda _name: copy.consumer()):
            await world.caught_up(COPY, 1)
        for number, key in enumerate(changes):  # nobody runs jobs: all of it is one range
            if key is None:
                await world.delete(ITEMS, "a")
            else:
                await world.upsert(ITEMS, {"id": key, "name": f"n{number}"})
        await world.readable(ITEMS)
        async with world.running(find=lambda _name: copy.consumer()):
            await _same(world, copy)


async def test_other_columns_mean_another_target_whoever_asks_for_them(tmp_path: Path) -> None:
    copy = Copy()
    async with job_world(tmp_path) as world:
        await world.create(ITEMS, [("id", "bigint primary key"), ("name", "varchar(64)"), ("size", "int")])
        await world.insert(ITEMS, {"id": 1, "name": "one", "size": 1})
        await world.register(COPY, consumer="copy", columns=["name"])
        async with world.running(find=lambda _name: copy.consumer()):
            await world.caught_up(COPY, 1)

            def update() -> None:
                with world.client.begin() as txn:
                    more = JobSpec.parse({"detail": {"consumer": {"columns": ["name", "size"]}}})
                    world.jobs.update_job_spec(txn, JobId.parse(COPY), more)

            await world.do(update)
            await world.until(lambda: copy.rows == {(1,): {"id": 1, "name": "one", "size": 1}})


def _count(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"penstock_jobs_{name}", labels) or 0.0


async def test_what_the_runner_does_is_measured(tmp_path: Path) -> None:
    counted: dict[str, dict[str, str]] = {
        "takeovers_total": {},
        "adopted_total": {},
        "submitted_total": {"rule": "first"},
        "endings_total": {"how": "completed"},
        "tick_seconds_count": {"scope": "full"},
        "queue_wait_seconds_count": {},
        "iteration_seconds_count": {},
        "raised_watermarks_total": {},
        "usage_rows_total": {"account": "sys"},
        "usage_bytes_total": {"account": "sys"},
        "usage_task_seconds_total": {"account": "sys"},
    }
    before = {name: _count(name, **labels) for name, labels in counted.items()}
    async with job_world(tmp_path) as world:
        await world.create(ITEMS, [("id", "bigint primary key"), ("name", "varchar(64)")])
        await world.insert(ITEMS, {"id": 1, "name": "one"})
        await world.register(COPY, consumer="copy")
        async with world.running(find=lambda _name: Copy().consumer()):
            await world.caught_up(COPY, 1)
            await world.until(
                lambda: all(_count(name, **counted[name]) > before[name] for name in counted),
                "something was not counted",
            )
            await world.until(lambda: _count("jobs", state="completed") == 1)
            lag = "penstock_jobs_watermark_lag_seconds"
            await world.until(lambda: REGISTRY.get_sample_value(lag, {"job": COPY}) is not None)
            assert _count("runner") == 1
        assert _count("runner") == 0
        assert _count("jobs", state="completed") == 0
