"""What of a changefeed may be changed, and what its consumers would not survive."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.changefeeds.commands import create_changefeed, dump_settings, update_changefeed
from penstock.changefeeds.model import ChangefeedInfo, ChangefeedRecord, ChangefeedStatus
from penstock.changefeeds.sinks.storage.remote_files import check_unused
from penstock.changefeeds.store import Check
from penstock.errors import Invalid
from penstock.object_storage import open_storage
from penstock.settings import parse_changefeed

PLACE = "file:///out"
SELECTED = [{"tables": ["shop.*"], "columns": ["id"]}]


class One:
    """A paused changefeed."""

    def __init__(self, *, uri: str = f"{PLACE}?protocol=csv", **settings: Any) -> None:
        wanted = parse_changefeed({"sink_uri": uri, **settings}, origin="a test")
        info = ChangefeedInfo(id="feed", settings=dump_settings(wanted), start_ts=1, stopped=True)
        self.feed = ChangefeedRecord(info, ChangefeedStatus.of_new(info))
        self.created: ChangefeedInfo | None = None

    async def get(self, _feed_id: str) -> ChangefeedRecord:
        return self.feed

    async def create(self, info: ChangefeedInfo, *, check: Check) -> None:
        check([self.feed])
        self.created = info

    async def change(
        self,
        _feed_id: str,
        edit: Callable[[ChangefeedRecord], ChangefeedRecord],
        *,
        check: Check | None = None,
    ) -> ChangefeedRecord:
        if check is not None:
            check([])  # there is no other changefeed
        self.feed = edit(self.feed)
        return self.feed


async def create(feeds: One, uri: str, **settings: Any) -> None:
    wanted = parse_changefeed({"sink_uri": f"{uri}?protocol=csv", **settings}, origin="a test")
    await create_changefeed(feeds, "other", wanted, now_ts=5)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"column_selectors": SELECTED}, "column selectors"),
        ({"sink_uri": f"{PLACE}?protocol=canal-json"}, "protocol"),
        ({"sink_uri": f"{PLACE}?protocol=csv&date-separator=none"}, "date separator"),
        ({"sink_uri": f"{PLACE}?protocol=csv&file-index-digit=6"}, "file index digit"),
        ({"sink_uri": "file:///./out?protocol=canal-json"}, "protocol"),
    ],
)
async def test_files_of_one_place_are_all_alike(changes: dict[str, Any], named: str) -> None:
    feeds = One()
    before = feeds.feed
    with pytest.raises(Invalid, match=f"{named} .* give it another place"):
        await update_changefeed(feeds, "feed", changes)
    assert feeds.feed == before


@pytest.mark.parametrize(
    "changes",
    [
        {"column_selectors": SELECTED, "sink_uri": "file:///new?protocol=parquet"},
        {"sink_uri": f"{PLACE}/?protocol=csv&flush-interval=10s&file-size=1048576"},
        {"sink_uri": "file:///x/../%6Fut?protocol=csv&flush-interval=10s"},
        {"tables": ["shop.*"], "target_ts": 5, "split_rows": 10},
    ],
)
async def test_another_place_may_have_other_files_and_one_place_other_tables(changes: dict[str, Any]) -> None:
    feeds = One()
    await update_changefeed(feeds, "feed", changes)
    assert all(feeds.feed.info.settings[name] == value for name, value in changes.items())


LOSING = "?protocol=csv&quote=&null=NULL"


async def test_what_could_not_be_read_back_is_not_begun() -> None:
    wanted = parse_changefeed({"sink_uri": f"file:///new{LOSING}"}, origin="a test")
    with pytest.raises(Invalid, match="could not be read back: null"):
        await create_changefeed(One(), "another", wanted, now_ts=9)
    with pytest.raises(Invalid, match="could not be read back: null"):
        await update_changefeed(One(), "feed", {"sink_uri": f"file:///new{LOSING}"})


async def test_a_changefeed_from_before_the_check_keeps_what_it_has_in_its_place() -> None:
    feeds = One(uri=f"{PLACE}{LOSING}")
    await update_changefeed(feeds, "feed", {"target_ts": 5})
    assert feeds.feed.info.settings["target_ts"] == 5


@pytest.mark.parametrize(
    "uri",
    ["{}/f", "{}/f/", "{}/./f", "{}//f", "{}/x/../f", "{}/%66", "{}/f/below", "{}", "{}/link", "{}/link/x"],
)
async def test_two_changefeeds_on_one_directory_are_refused_however_it_is_spelled(
    tmp_path: Path, uri: str
) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "f")
    feeds = One(uri=f"file://{tmp_path}/f?protocol=csv")
    with pytest.raises(Invalid, match=r"changefeed feed writes to .* a place of its own"):
        await create(feeds, f"file://{uri.format(tmp_path)}")
    await create(feeds, f"file://{tmp_path}/ff")
    assert feeds.created is not None


@pytest.mark.parametrize(
    ("endpoint", "refused"), [("http://MINIO:9000/", True), ("http://minio:9001", False)]
)
async def test_a_bucket_of_another_server_is_another_place(endpoint: str, refused: bool) -> None:
    feeds = One(uri="s3://lake/f?protocol=csv&endpoint=http://minio:9000")
    wanted = parse_changefeed(
        {"sink_uri": "s3://lake/f?protocol=csv", "storage_options": {"aws_endpoint": endpoint}}, origin="x"
    )
    if refused:
        with pytest.raises(Invalid, match="a place of its own"):
            await create_changefeed(feeds, "other", wanted, now_ts=5)
    else:
        await create_changefeed(feeds, "other", wanted, now_ts=5)


@pytest.mark.parametrize(
    "path",
    [
        "metadata",
        "shop/items/meta/schema_5_0123456789.json",
        "shop/items/5/2023-03-09/CDC000001.json",
        "shop/items/5/meta/CDC_77.index",
        "below/shop/items/5/meta/CDC.index",
    ],
)
async def test_a_directory_that_a_changefeed_has_used_is_refused(tmp_path: Path, path: str) -> None:
    used = tmp_path / "used" / path
    used.parent.mkdir(parents=True)
    used.touch()
    feeds = One()
    before = feeds.feed
    with pytest.raises(
        Invalid, match=rf"holds files of a changefeed already, such as {path}; .* another one"
    ):
        await create(feeds, f"file://{tmp_path}/used")
    with pytest.raises(Invalid, match="holds files of a changefeed already"):
        await update_changefeed(feeds, "feed", {"sink_uri": f"file://{tmp_path}/used?protocol=csv"})
    assert (feeds.created, feeds.feed) == (None, before)


async def test_a_directory_with_files_of_others_is_as_good_as_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "README").touch()
    (tmp_path / "metadata.json").touch()
    feeds = One()
    await create(feeds, f"file://{tmp_path}")
    await create(feeds, f"file://{tmp_path}/new")
    assert not (tmp_path / "new").exists(), "who writes there makes it"


async def test_folders_that_cannot_be_listed_do_not_make_a_directory_unusable(tmp_path: Path) -> None:
    """As `lost+found`, of the file system's owner, at the root of a volume."""
    (tmp_path / "lost+found").mkdir(mode=0)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dangling").symlink_to("nowhere")
    check_unused(open_storage(f"file://{tmp_path}"))
    (tmp_path / "zoo/items/meta").mkdir(parents=True)
    (tmp_path / "zoo/items/meta/schema_5_0123456789.json").touch()
    with pytest.raises(Invalid, match=r"such as zoo/items/meta/schema_5_0123456789\.json;"):
        check_unused(open_storage(f"file://{tmp_path}"))


async def test_one_of_an_earlier_release_that_is_moved_keeps_which_place_it_leaves() -> None:
    feeds = One()
    feeds.feed = ChangefeedRecord(feeds.feed.info, replace(feeds.feed.status, location=None))
    await update_changefeed(feeds, "feed", {"target_ts": 7})
    assert feeds.feed.status.location is None
    await update_changefeed(feeds, "feed", {"sink_uri": "file:///new?protocol=csv"})
    assert feeds.feed.status.location == "file:///out"


async def test_a_move_can_be_taken_back_until_it_has_begun(tmp_path: Path) -> None:
    was = f"file://{tmp_path}/was?protocol=csv"
    (tmp_path / "was").mkdir()
    (tmp_path / "was/metadata").touch()
    feeds = One(uri=was)
    feeds.feed = begun(feeds.feed, f"file://{tmp_path}/was")
    await update_changefeed(feeds, "feed", {"sink_uri": f"file://{tmp_path}/mistaken?protocol=csv"})
    await update_changefeed(feeds, "feed", {"sink_uri": f"file://{tmp_path}/worse?protocol=parquet"})
    await update_changefeed(feeds, "feed", {"sink_uri": was})
    assert feeds.feed.info.settings["sink_uri"] == was
    await update_changefeed(feeds, "feed", {"sink_uri": f"file://{tmp_path}/new?protocol=csv"})
    feeds.feed = begun(feeds.feed, f"file://{tmp_path}/new")
    with pytest.raises(Invalid, match="holds files of a changefeed already"):
        await update_changefeed(feeds, "feed", {"sink_uri": was})


async def test_who_takes_a_move_back_takes_back_what_files_are_like() -> None:
    """Also where the storage is another machine's, so that nobody here sees the files."""
    feeds = One()
    feeds.feed = begun(feeds.feed, PLACE)
    await update_changefeed(feeds, "feed", {"sink_uri": "file:///new?protocol=parquet"})
    with pytest.raises(Invalid, match=r"protocol .* give it another place"):
        await update_changefeed(feeds, "feed", {"sink_uri": f"{PLACE}?protocol=parquet"})


def begun(feed: ChangefeedRecord, location: str) -> ChangefeedRecord:
    return ChangefeedRecord(feed.info, replace(feed.status, location=location))
