"""DDLs that the cluster has forgotten while a changefeed was away."""

import pytest

from penstock.changefeeds.model import ChangefeedState
from penstock.errors import StaleRead
from support.ddlevents import alter_table, create_table, table_schema
from support.sinkdoubles import ScriptedSource
from support.sinkrecorder import RemoteDouble

A, B = table_schema(1), table_schema(2)


@pytest.mark.parametrize("place", ["remote", "elsewhere"])
@pytest.mark.parametrize("seen_as", ["created", "gone"])
async def test_a_table_whose_ddls_are_collected_is_not_taken_for_one_that_went_away(
    world, seen_as: str, place: str
) -> None:
    w = world(A, B)
    w.source.put(1, 20)
    w.source.put(2, 20)
    w.source.advance(50)
    w.start()
    await w.reached(50)
    await w.pause()
    kept = dict(w.progress.kept)
    later = ScriptedSource([A])  # of table 2 only its newest description is left, or not even that
    if seen_as == "created":
        later.ddl(create_table(70, B))
    later.put(2, 60)
    later.advance(90)
    w.source = later
    if place != w.remote.location:
        w.remote = RemoteDouble(place)
    w.start()
    with pytest.raises(StaleRead, match="history of table 2 at 50 is gone"):
        await w.reached(90)
    assert w.feed.state is ChangefeedState.FAILED
    assert w.progress.kept == kept
    assert w.progress.checkpoints[-1] == 50
    assert w.progress.place == "remote"


async def test_a_table_whose_ddl_was_told_at_the_former_place_is_not_taken_for_a_new_one_at_another(
    world,
) -> None:
    w = world(A, B)
    w.source.lagging[2] = 15  # it holds the checkpoint
    w.source.put(1, 20)
    w.source.ddl(alter_table(30, A))
    w.source.advance(40)
    w.start()
    await w.until(lambda: w.progress.done_ddl_ts == 30)
    await w.kill()
    later = ScriptedSource([B])
    later.ddl(create_table(30, A))  # what the cluster has left of it
    later.put(1, 20)
    later.advance(60)
    w.source, w.remote = later, RemoteDouble("elsewhere")
    w.start()
    with pytest.raises(StaleRead, match="history of table 1 at 15 is gone"):
        await w.reached(60)
