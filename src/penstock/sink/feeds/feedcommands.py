"""What people do with changefeeds: create, pause, resume, update and remove them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid
from penstock.settings import ChangefeedSettings, parse_changefeed
from penstock.sink.dispatch.tablefilter import TableFilter
from penstock.sink.feeds.feed import Feed, FeedInfo, FeedState, FeedStatus, check_feed_id
from penstock.sink.feeds.kvfeedstore import Feeds
from penstock.sink.files.options import sink_options
from penstock.sink.formats.options import check_readable
from penstock.sink.formats.rowfilter import check_predicate

_ENDED = frozenset({FeedState.STOPPED, FeedState.FAILED, FeedState.FINISHED})

_SHAPES = (
    "protocol",
    "compression",
    "terminator",
    "csv",
    "use_table_id_as_path",
    "date_separator",
    "enable_partition_separator",
    "file_index_digit",
    "output_column_id",
    "column_selectors",
)  # what consumers go by, for all files of a version


async def create_feed(
    feeds: Feeds,
    feed_id: str,
    wanted: ChangefeedSettings,
    *,
    now_ts: int,
    account: str = "sys",
    clock: Clock = SYSTEM,
) -> Feed:
    """Add a changefeed of an account; `now_ts` is a timestamp of the database.

    Raises Invalid when its settings cannot be carried out, AlreadyExists when there is one of that name.
    """
    check_feed_id(feed_id)
    check_settings(wanted)
    _check_readable(wanted)
    start_ts = wanted.start if isinstance(wanted.start, int) else now_ts
    if start_ts > now_ts:
        raise Invalid(
            f"changefeed {feed_id} is to start at {start_ts}, which is in the future; now is {now_ts}"
        )
    if wanted.target_ts is not None and wanted.target_ts <= start_ts:
        raise Invalid(
            f"changefeed {feed_id} is to end at {wanted.target_ts}, not after its start at {start_ts}"
        )
    await _check_target(feeds, feed_id, wanted, account)
    info = FeedInfo(
        id=feed_id,
        settings=dump(wanted),
        start_ts=start_ts,
        snapshot=wanted.start == "snapshot",
        created_ms=clock.wall_ms(),
        account=account,
    )
    await feeds.create(info)
    return Feed(info, FeedStatus.of_new(info))


async def pause_feed(feeds: Feeds, feed_id: str) -> Feed:
    """Stop it where it is; what it has read by then is written. Raises Invalid when it has ended."""

    def pause(feed: Feed) -> Feed:
        if feed.state is FeedState.FINISHED:
            raise Invalid(f"changefeed {feed_id} has reached its target; there is nothing to pause")
        return Feed(replace(feed.info, stopped=True), feed.status)

    return await feeds.change(feed_id, pause)


async def resume_feed(feeds: Feeds, feed_id: str) -> Feed:
    """Let one go on that was paused or has failed. Raises Invalid when it has ended."""

    def resume(feed: Feed) -> Feed:
        if feed.state is FeedState.FINISHED:
            raise Invalid(f"changefeed {feed_id} has reached its target; create another one")
        return Feed(replace(feed.info, stopped=False), feed.status.resumed())

    return await feeds.change(feed_id, resume)


async def update_feed(feeds: Feeds, feed_id: str, changes: Mapping[str, Any]) -> Feed:
    """Give some settings other values. Tables that come in begin at the checkpoint; those that go out end.

    Raises Invalid when it runs, or the settings cannot be carried out; where it began cannot be changed.
    """
    if "start" in changes:
        raise Invalid("a changefeed's start cannot be changed; remove it and create another one")
    if "sink_uri" in changes:
        known = await feeds.get(feed_id)
        wanted = parse_changefeed({**known.info.settings, **changes}, origin=f"changefeed {feed_id}")
        await _check_target(feeds, feed_id, wanted, known.info.account)

    def update(feed: Feed) -> Feed:
        if feed.state not in _ENDED:
            raise Invalid(f"changefeed {feed_id} is {feed.state}; pause it before it is changed")
        updated = parse_changefeed({**feed.info.settings, **changes}, origin=f"changefeed {feed_id}")
        check_settings(updated)
        _check_shape(feed, updated)
        finished = feed.status.state is FeedState.FINISHED
        status = feed.status.resumed() if finished and "target_ts" in changes else feed.status
        return Feed(replace(feed.info, settings=dump(updated), stopped=True), status)

    return await feeds.change(feed_id, update)


def check_settings(wanted: ChangefeedSettings) -> None:
    """Raise Invalid for what the run of a changefeed would refuse, as far as that can be told beforehand."""
    sink_options(wanted)
    TableFilter(wanted.tables)
    for each in wanted.row_filters:
        check_predicate(each.where)


async def _check_target(feeds: Feeds, feed_id: str, wanted: ChangefeedSettings, account: str) -> None:
    """Raise Invalid when another changefeed writes to the same place, above or below it.

    Nobody but its own account learns what it is called.
    """
    mine = _folder(wanted)
    for feed in await feeds.list(every=True):
        try:
            other = _folder(parse_changefeed(dict(feed.info.settings), origin=f"changefeed {feed.info.id}"))
        except Invalid:  # it cannot run either
            continue
        if feed.info.id != feed_id and (mine.startswith(other) or other.startswith(mine)):
            named = f"changefeed {feed.info.id} writes to {other}"
            told = named if feed.info.account == account else "another changefeed writes there"
            raise Invalid(f"{told}; give changefeed {feed_id} a place of its own")


def _check_shape(feed: Feed, updated: ChangefeedSettings) -> None:
    """Raise Invalid when a version of a table would have files of two kinds: who reads them goes by one."""
    before = parse_changefeed(dict(feed.info.settings), origin=f"changefeed {feed.info.id}")
    if _folder(before) != _folder(updated):
        _check_readable(updated)
        return
    was, is_now = sink_options(before), sink_options(updated)
    changed = [name for name in _SHAPES if getattr(was, name) != getattr(is_now, name)]
    if changed:
        raise Invalid(
            f"the {changed[0].replace('_', ' ')} of changefeed {feed.info.id} cannot be changed where its"
            " files are; give it another place with it, by --sink-uri"
        )


def _check_readable(wanted: ChangefeedSettings) -> None:
    """Raise Invalid when files of these settings could not be read back. For a place that has none yet."""
    options = sink_options(wanted)
    check_readable(options.protocol, options.terminator, options.csv)


def _folder(wanted: ChangefeedSettings) -> str:
    return sink_options(wanted).target.url.rstrip("/") + "/"


def dump(wanted: ChangefeedSettings) -> dict[str, Any]:
    """Settings as they are kept: with their secrets."""
    return {**wanted.model_dump(mode="json"), "sink_uri": wanted.sink_uri.get_secret_value()}
