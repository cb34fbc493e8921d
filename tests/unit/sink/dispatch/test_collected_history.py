"""DDLs that the cluster has forgotten while a changefeed was away."""

import pytest

from penstock.errors import StaleRead
from penstock.sink.feeds.feed import FeedState
from penstock.testing.ddlevents import create_table, table_schema
from penstock.testing.sinkdoubles import ScriptedSource

A, B = table_schema(1), table_schema(2)


@pytest.mark.parametrize("seen_as", ["created", "gone"])
async def test_a_table_whose_ddls_are_collected_is_not_taken_for_one_that_went_away(
    world, seen_as: str
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
    w.start()
    with pytest.raises(StaleRead, match="history of table 2 at 50 is gone"):
        await w.reached(90)
    assert w.feed.state is FeedState.FAILED
    assert w.progress.kept == kept
    assert w.progress.checkpoints[-1] == 50
