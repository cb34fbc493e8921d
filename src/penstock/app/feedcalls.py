"""What the commands of `penstock changefeed` do, and what they show of changefeeds."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from penstock import eventloop
from penstock.app.answering import shown_ms
from penstock.clock import SYSTEM, physical_ms
from penstock.errors import Invalid
from penstock.kv import AsyncClient
from penstock.settings import Settings, parse_changefeed
from penstock.sink.feeds.feed import Feed
from penstock.sink.feeds.feedcommands import create_feed, dump, update_feed
from penstock.sink.feeds.kvfeedstore import Feeds
from penstock.sink.files.sinkuri import mask_uri
from penstock.sink.source.clusterhistory import ClusterHistory

T = TypeVar("T")

_HIDDEN = {"sink": "***", "storage_options": "***"}


def call(loaded: Settings, work: Callable[[Feeds, AsyncClient], Awaitable[T]]) -> T:
    """Do something with the changefeeds of a cluster."""

    async def connected() -> T:
        async with await AsyncClient.connect(loaded.pd_addrs, tls=loaded.tls, settings=loaded.kv) as client:
            return await work(Feeds(client), client)

    return eventloop.run(connected())


def create(loaded: Settings, name: str, options: dict[str, Any]) -> Feed:
    """Create a changefeed, of the options and what the settings say under its name."""
    known = loaded.changefeeds.get(name)
    tree = {**(dump(known) if known is not None else {}), **options}
    if "sink_uri" not in tree:
        raise Invalid(
            f"changefeed {name} has no sink; give --sink-uri, or a section changefeeds.{name} in --config"
        )
    wanted = parse_changefeed(tree, origin=f"changefeed {name}")

    async def work(feeds: Feeds, client: AsyncClient) -> Feed:
        return await create_feed(feeds, name, wanted, now_ts=await client.timestamp())

    return call(loaded, work)


def update(loaded: Settings, name: str, options: dict[str, Any]) -> Feed:
    """Change a paused changefeed: by the options, or to what the settings say under its name."""
    changes = options
    if not changes and name in loaded.changefeeds:
        changes = {key: value for key, value in dump(loaded.changefeeds[name]).items() if key != "start"}
    if not changes:
        raise Invalid(
            f"nothing of changefeed {name} is to be changed; give an option, or its section in --config"
        )
    return call(loaded, lambda feeds, _: update_feed(feeds, name, changes))


def remove(loaded: Settings, name: str) -> None:
    """Forget a changefeed, and let the cluster collect what it would have needed."""

    async def work(feeds: Feeds, _client: AsyncClient) -> None:
        await feeds.remove(name)
        history = await ClusterHistory.connect(loaded, name)
        try:
            await history.release()
        finally:
            await history.close()

    call(loaded, work)


def summary(feed: Feed) -> dict[str, Any]:
    """How a changefeed does."""
    checkpoint_ms = physical_ms(feed.status.checkpoint_ts)
    return {
        "id": feed.info.id,
        "state": feed.state.value,
        "checkpoint_ts": feed.status.checkpoint_ts,
        "checkpoint_time": shown_ms(checkpoint_ms),
        "lag_s": max(0, round((SYSTEM.wall_ms() - checkpoint_ms) / 1000)),
        "error": feed.status.error,
    }


def everything(feed: Feed) -> dict[str, Any]:
    """All that is known of a changefeed, without its secrets."""
    kept = {key: _HIDDEN.get(key, value) if value else value for key, value in feed.info.settings.items()}
    return {
        **summary(feed),
        "start_ts": feed.info.start_ts,
        "snapshot": feed.info.snapshot,
        "ddl_ts": feed.status.ddl_ts,
        "settings": {**kept, "sink_uri": mask_uri(str(feed.info.settings["sink_uri"]))},
    }


def print_table(found: list[Feed]) -> None:
    """Changefeeds on a terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table("changefeed", "state", "checkpoint", "lag", "error")
    for feed in found:
        row = summary(feed)
        table.add_row(row["id"], row["state"], row["checkpoint_time"], f"{row['lag_s']} s", row["error"])
    Console().print(table)
