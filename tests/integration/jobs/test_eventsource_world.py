"""Jobs beside a cluster, a capture and a source in this process."""

from pathlib import Path

from penstock.changes.limits import ReadLimit
from penstock.eventstore.history_holds import HistoryHolds
from penstock.follow.follower import JOBS_HOLDER
from penstock.jobs.consumer import Consumer, DataRetriever, DataType, read_net_changes
from support.jobworld import JobWorld, job_world

COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)")]


def copying(rows: dict) -> type[Consumer]:
    """A consumer that keeps the rows of a table in a dict."""

    class Copying(Consumer):
        def consume(self, data: DataRetriever) -> None:
            if data.data_type is DataType.SNAPSHOT:
                rows.clear()
            net = read_net_changes(data, self.job.scratch)
            for row in net.deletes.to_pylist():
                rows.pop(row["id"], None)
            for row in net.upserts.drop_columns(["_commit_ts"]).to_pylist():
                rows[row["id"]] = row

    return Copying


async def source_rows(world: JobWorld, name: str) -> dict:
    return {row["id"]: row for row in (await world.rows(name)).to_pylist()}


async def test_a_job_carries_a_table_from_its_first_rows_on(tmp_path: Path) -> None:
    rows: dict = {}
    async with job_world(tmp_path) as world:
        await world.create("shop.items", COLUMNS)
        ts = await world.insert("shop.items", *({"id": each, "name": "a"} for each in range(20)))
        await world.register("shop.items/copy", consumer="copy")
        async with world.running(find=lambda _: copying(rows)):
            await world.caught_up("shop.items/copy", ts)
            assert rows == await source_rows(world, "shop.items")
            await world.upsert("shop.items", {"id": 1, "name": "b"}, {"id": 30, "name": "c"})
            ts = await world.delete("shop.items", 2, 3)
            await world.until(lambda: 3 not in rows)
            assert rows == await source_rows(world, "shop.items")
            await world.do(world.db.add_column, "shop.items", "size", "int default 7")
            await world.until(lambda: all(row.keys() == {"id", "name"} for row in rows.values()))
            await world.insert("shop.items", {"id": 31, "name": "d", "size": 1})
            await world.until(lambda: 31 in rows)
            assert rows[31] == {"id": 31, "name": "d", "size": 1}
        job = await world.job("shop.items/copy")
        assert job.status.error_code == 0


async def test_a_change_of_a_key_that_no_calendar_has_costs_no_other_row(tmp_path: Path) -> None:
    """Such keys are all NULL for the consumer: the job gives it the whole table again."""
    rows: list[tuple[object, int]] = []
    kinds: list[DataType] = []

    class Matching(Consumer):
        def consume(self, data: DataRetriever) -> None:
            kinds.append(data.data_type)
            if data.data_type is DataType.SNAPSHOT:
                rows.clear()
            some = None
            while some is None or not some.no_more_data:
                some = data.next()
                gone = {row["day"] for row in some.deletes.to_pylist()}
                rows[:] = [row for row in rows if row[0] not in gone]
                rows.extend((row["day"], row["v"]) for row in some.inserts.to_pylist())

    async with job_world(tmp_path) as world:
        await world.create("shop.days", [("day", "date primary key"), ("v", "int")])
        days = ("0000-00-00", "2024-02-31", "2024-00-00", "2024-02-29")
        ts = await world.insert("shop.days", *({"day": day, "v": v} for v, day in enumerate(days)))
        await world.register("shop.days/copy", consumer="copy")
        async with world.running(find=lambda _: Matching):
            await world.caught_up("shop.days/copy", ts)
            ts = await world.delete("shop.days", "2024-00-00")
            await world.caught_up("shop.days/copy", ts)
        assert sorted(v for _, v in rows) == [0, 1, 3]
        assert kinds.count(DataType.SNAPSHOT) == 2


async def test_a_table_that_is_gone_is_told_with_the_remedy(tmp_path: Path) -> None:
    async with job_world(tmp_path) as world:
        truncated = await world.create("shop.a", COLUMNS)
        dropped = await world.create("shop.b", COLUMNS)
        ts = await world.readable("shop.b")
        assert world.source.why_gone(truncated) is None
        await world.readable("shop.a", ts)
        assert (await world.do(world.source.scan, truncated, 0, ts, ReadLimit())).rows == 0
        new_id = (await world.do(world.db.truncate_table, "shop.a")).id
        await world.do(world.db.drop_table, "shop.b")
        await world.until(lambda: world.source.why_gone(dropped) is not None)
        assert f"shop.a was truncated or replaced: it has the id {new_id}" in world.source.why_gone(truncated)
        assert "--rebuild" in world.source.why_gone(truncated)
        assert "shop.b was dropped; unregister" in world.source.why_gone(dropped)
        assert world.source.why_gone(new_id) is None
        looks = await world.source.read_progress([truncated, dropped])
        assert not looks


async def test_history_is_held_where_jobs_are(tmp_path: Path) -> None:
    async with job_world(tmp_path) as world:
        table_id = await world.create("shop.items", COLUMNS)
        ts = await world.readable("shop.items")
        await world.source.hold({table_id: ts})
        held = HistoryHolds(world.capture.store._storage)
        assert [each.ts for each in held.list_holds(table_id) if JOBS_HOLDER in each.path] == [ts]
        await world.source.hold({})
        assert list(held.list_holds(table_id)) == []


async def test_a_job_on_a_truncated_table_stops_with_its_reason_and_is_rebuilt_with_one_call(
    tmp_path: Path,
) -> None:
    rows: dict = {}
    async with job_world(tmp_path) as world:
        await world.create("shop.items", COLUMNS)
        await world.insert("shop.items", {"id": 1, "name": "a"})
        await world.register("shop.items/copy", consumer="copy")
        async with world.running(find=lambda _: copying(rows)):
            await world.until(lambda: 1 in rows)
            await world.do(world.db.truncate_table, "shop.items")
            await world.insert("shop.items", {"id": 2, "name": "b"})
            job = await world.wait_until_stopped("shop.items/copy")
            assert "truncated" in job.status.error_msg

            def rebuild() -> None:
                with world.client.begin() as txn:
                    world.jobs.rebuild_job(txn, job.id)

            await world.do(rebuild)
            await world.until(lambda: rows.keys() == {2})
