"""Indexes as people run them: a captured table, the runner, two indexes at once, and searches meanwhile."""

from pathlib import Path

import pytest

from penstock.consumers.search_index.search import search
from penstock.errors import Unavailable
from penstock.jobs.job import PERMANENT
from support.jobworld import job_world

WORDS, LIKE, BROKEN = "shop.items/words", "shop.items/like", "shop.items/broken"


async def test_indexes_follow_their_source_and_say_how_fresh_they_are(tmp_path: Path) -> None:
    words = {"uri": str(tmp_path / "words"), "text_columns": "name"}
    like = {"uri": str(tmp_path / "like"), "text_columns": "name", "dimension": "64"}
    broken = {"uri": str(tmp_path / "broken"), "vector_column": "name", "dimension": "3"}
    async with job_world(tmp_path) as world:
        await world.create("shop.items", [("id", "int primary key"), ("name", "varchar(64)")])
        await world.insert("shop.items", *({"id": number, "name": f"thing {number}"} for number in range(50)))
        await world.register(WORDS, consumer="fulltext", options=words)
        await world.register(LIKE, consumer="vector", options=like)
        await world.register(BROKEN, consumer="vector", options=broken)
        with pytest.raises(Unavailable):
            await world.do(search, await world.job(WORDS), "thing")
        async with world.running():
            await world.upsert("shop.items", {"id": 3, "name": "green shoes"}, {"id": 99, "name": "green"})
            ts = await world.delete("shop.items", 7)
            for name in (WORDS, LIKE):
                job = await world.caught_up(name, ts)
                found = await world.do(search, job, "green shoes", k=2)
                assert found.rows.column("id").to_pylist() == [3, 99]
                assert found.watermark >= ts
                assert found.complete
            nothing = await world.do(search, await world.job(WORDS), "7")
            assert nothing.rows.num_rows == 0
            stopped = await world.wait_until_stopped(BROKEN)
            assert stopped.status.error_code >= PERMANENT
            assert "column name has a text that is no list of numbers" in stopped.status.error_msg
            assert "thing" not in stopped.status.error_msg
