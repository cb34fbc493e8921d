"""What people do with changefeeds: create, pause, resume, update and remove them."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock.changefeeds.codecs.options import check_readable
from penstock.changefeeds.codecs.row_filter import check_predicate
from penstock.changefeeds.filters import TableFilter
from penstock.changefeeds.model import (
    ChangefeedInfo,
    ChangefeedRecord,
    ChangefeedState,
    ChangefeedStatus,
    check_feed_id,
)
from penstock.changefeeds.sink_uri import location_of
from penstock.changefeeds.sinks.storage.options import SinkOptions, sink_options
from penstock.changefeeds.sinks.storage.remote_files import check_unused
from penstock.changefeeds.store import ChangefeedStore, Check
from penstock.clock import SYSTEM, Clock
from penstock.errors import Denied, Invalid, Unavailable
from penstock.settings import ChangefeedSettings, parse_changefeed

_ENDED = frozenset({ChangefeedState.STOPPED, ChangefeedState.FAILED, ChangefeedState.FINISHED})

_PLACING = frozenset({"sink_uri", "storage_options"})  # what may lead elsewhere

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
    feeds: ChangefeedStore,
    feed_id: str,
    wanted: ChangefeedSettings,
    *,
    now_ts: int,
    account: str = "sys",
    clock: Clock = SYSTEM,
) -> ChangefeedRecord:
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
    options = sink_options(wanted)
    await _look_for_files(options)
    info = ChangefeedInfo(
        id=feed_id,
        settings=dump(wanted),
        start_ts=start_ts,
        snapshot=wanted.start == "snapshot",
        created_ms=clock.wall_ms(),
        account=account,
    )
    await feeds.create(info, check=_alone(feed_id, options, account))
    return ChangefeedRecord(info, ChangefeedStatus.of_new(info))


async def pause_feed(feeds: ChangefeedStore, feed_id: str) -> ChangefeedRecord:
    """Stop it where it is; what it has read by then is written. Raises Invalid when it has ended."""

    def pause(feed: ChangefeedRecord) -> ChangefeedRecord:
        if feed.state is ChangefeedState.FINISHED:
            raise Invalid(f"changefeed {feed_id} has reached its target; there is nothing to pause")
        return ChangefeedRecord(replace(feed.info, stopped=True), feed.status)

    return await feeds.change(feed_id, pause)


async def resume_feed(feeds: ChangefeedStore, feed_id: str) -> ChangefeedRecord:
    """Let one go on that was paused or has failed. Raises Invalid when it has ended."""

    def resume(feed: ChangefeedRecord) -> ChangefeedRecord:
        if feed.state is ChangefeedState.FINISHED:
            raise Invalid(f"changefeed {feed_id} has reached its target; create another one")
        return ChangefeedRecord(replace(feed.info, stopped=False), feed.status.resumed())

    return await feeds.change(feed_id, resume)


async def update_feed(feeds: ChangefeedStore, feed_id: str, changes: Mapping[str, Any]) -> ChangefeedRecord:
    """Give some settings other values. Tables that come in begin at the checkpoint; those that go out end.

    Another place gets everything after the checkpoint, and must hold no files of a changefeed.

    Raises Invalid when it runs, or the settings cannot be carried out; where it began cannot be changed.
    """
    if "start" in changes:
        raise Invalid("a changefeed's start cannot be changed; remove it and create another one")
    known = await feeds.get(feed_id)
    options = sink_options(_merged(known, changes))
    if _moves(known, options):
        await _look_for_files(options)

    def update(feed: ChangefeedRecord) -> ChangefeedRecord:
        if feed.state not in _ENDED:
            raise Invalid(f"changefeed {feed_id} is {feed.state}; pause it before it is changed")
        updated = _merged(feed, changes)
        check_settings(updated)
        _check_shape(feed, updated)
        status, left = feed.status, None
        if _moves(feed, sink_options(updated)):
            # Until its next start, what is kept belongs to the place that it leaves.
            left = _begun_with(feed)
            if status.location is None:
                status = replace(status, location=_location(_options(feed)))
        if status.state is ChangefeedState.FINISHED and "target_ts" in changes:
            status = status.resumed()
        return ChangefeedRecord(replace(feed.info, settings=dump(updated), stopped=True, left=left), status)

    placed = not _PLACING.isdisjoint(changes)
    check = _alone(feed_id, options, known.info.account) if placed else None
    return await feeds.change(feed_id, update, check=check)


def check_settings(wanted: ChangefeedSettings) -> None:
    """Raise Invalid for what the run of a changefeed would refuse, as far as that can be told beforehand."""
    sink_options(wanted)
    TableFilter(wanted.tables)
    for each in wanted.row_filters:
        check_predicate(each.where)


def _merged(feed: ChangefeedRecord, changes: Mapping[str, Any]) -> ChangefeedSettings:
    return parse_changefeed({**feed.info.settings, **changes}, origin=f"changefeed {feed.info.id}")


def _options(feed: ChangefeedRecord) -> SinkOptions:
    return sink_options(_merged(feed, {}))


def _begun_with(feed: ChangefeedRecord) -> Mapping[str, Any]:
    """The settings with which a changefeed has begun where it was last, or will if it has not begun."""
    left = feed.info.left
    if left is None:
        return feed.info.settings
    options = sink_options(parse_changefeed(dict(left), origin=f"changefeed {feed.info.id}"))
    return left if _location(options) == feed.status.location else feed.info.settings


def _files(feed: ChangefeedRecord) -> SinkOptions:
    """What the files of a changefeed are like, and where they are."""
    return sink_options(parse_changefeed(dict(_begun_with(feed)), origin=f"changefeed {feed.info.id}"))


def _location(options: SinkOptions) -> str:
    return str(location_of(options.target.url, options.target.options))


def _moves(feed: ChangefeedRecord, options: SinkOptions) -> bool:
    """Whether these options lead to another place than where a changefeed has its files."""
    return _location(_files(feed)) != _location(options)


def _alone(feed_id: str, options: SinkOptions, account: str) -> Check:
    """A check that raises Invalid when another changefeed writes to the same place, above or below it.

    Nobody but its own account learns what it is called.
    """
    mine = location_of(options.target.url, options.target.options, follow_links=True)

    def check(feeds: list[ChangefeedRecord]) -> None:
        for feed in feeds:
            if feed.info.id == feed_id:
                continue
            try:
                target = _options(feed).target
            except Invalid:  # it cannot run either
                continue
            if mine.meets(location_of(target.url, target.options, follow_links=True)):
                named = f"changefeed {feed.info.id} writes to {target.url.rstrip('/')}/"
                told = named if feed.info.account == account else "another changefeed writes there"
                raise Invalid(f"{told}; give changefeed {feed_id} a place of its own")

    return check


async def _look_for_files(options: SinkOptions) -> None:
    """Raise Invalid when there are files of a changefeed at a new place, as its first start would.

    Storage that this process cannot open, or that does not answer it, is left to that start: only who writes
    has to reach it. A directory that is not there is not made.
    """

    def look() -> None:
        url = urlsplit(options.target.url)
        try:
            if url.scheme == "file" and not Path(unquote(url.netloc + url.path)).is_dir():
                return
            target = options.target.open()
        except (Invalid, OSError):
            return
        with suppress(Unavailable, Denied):
            check_unused(target)

    await asyncio.to_thread(look)


def _check_shape(feed: ChangefeedRecord, updated: ChangefeedSettings) -> None:
    """Raise Invalid when a version of a table would have files of two kinds: who reads them goes by one."""
    was, is_now = _files(feed), sink_options(updated)
    if _moves(feed, is_now):
        _check_readable(updated)
        return
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


def dump(wanted: ChangefeedSettings) -> dict[str, Any]:
    """Settings as they are kept: with their secrets."""
    return {**wanted.model_dump(mode="json"), "sink_uri": wanted.sink_uri.get_secret_value()}
