"""What of a changefeed may be changed, and what its consumers would not survive."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import Invalid
from penstock.settings import parse_changefeed
from penstock.sink.feeds.feed import Feed, FeedInfo, FeedStatus
from penstock.sink.feeds.feedcommands import create_feed, dump, update_feed

PLACE = "file:///out"
SELECTED = [{"tables": ["shop.*"], "columns": ["id"]}]


class One:
    """A paused changefeed."""

    def __init__(self, **settings: Any) -> None:
        wanted = parse_changefeed({"sink_uri": f"{PLACE}?protocol=csv", **settings}, origin="a test")
        info = FeedInfo(id="feed", settings=dump(wanted), start_ts=1, stopped=True)
        self.feed = Feed(info, FeedStatus.of_new(info))

    async def list(self, *, every: bool = False) -> list[Feed]:
        return [self.feed]

    async def get(self, _feed_id: str) -> Feed:
        return self.feed

    async def change(self, _feed_id: str, edit: Callable[[Feed], Feed]) -> Feed:
        self.feed = edit(self.feed)
        return self.feed


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"column_selectors": SELECTED}, "column selectors"),
        ({"sink_uri": f"{PLACE}?protocol=canal-json"}, "protocol"),
        ({"sink_uri": f"{PLACE}?protocol=csv&date-separator=none"}, "date separator"),
        ({"sink_uri": f"{PLACE}?protocol=csv&file-index-digit=6"}, "file index digit"),
    ],
)
async def test_files_of_one_place_are_all_alike(changes: dict[str, Any], named: str) -> None:
    feeds = One()
    before = feeds.feed
    with pytest.raises(Invalid, match=f"{named} .* give it another place"):
        await update_feed(feeds, "feed", changes)
    assert feeds.feed == before


@pytest.mark.parametrize(
    "changes",
    [
        {"column_selectors": SELECTED, "sink_uri": "file:///new?protocol=parquet"},
        {"sink_uri": f"{PLACE}/?protocol=csv&flush-interval=10s&file-size=1048576"},
        {"tables": ["shop.*"], "target_ts": 5, "split_rows": 10},
    ],
)
async def test_another_place_may_have_other_files_and_one_place_other_tables(changes: dict[str, Any]) -> None:
    feeds = One()
    await update_feed(feeds, "feed", changes)
    assert all(feeds.feed.info.settings[name] == value for name, value in changes.items())


LOSING = "?protocol=csv&quote=&null=NULL"


async def test_what_could_not_be_read_back_is_not_begun() -> None:
    wanted = parse_changefeed({"sink_uri": f"file:///new{LOSING}"}, origin="a test")
    with pytest.raises(Invalid, match="could not be read back: null"):
        await create_feed(One(), "another", wanted, now_ts=9)
    with pytest.raises(Invalid, match="could not be read back: null"):
        await update_feed(One(), "feed", {"sink_uri": f"file:///new{LOSING}"})


async def test_a_changefeed_from_before_the_check_keeps_what_it_has_in_its_place() -> None:
    feeds = One(sink_uri=f"{PLACE}{LOSING}")
    await update_feed(feeds, "feed", {"target_ts": 5})
    assert feeds.feed.info.settings["target_ts"] == 5
