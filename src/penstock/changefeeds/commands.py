"""What people do with changefeeds: create, pause, resume and update what is stored of them."""

from collections.abc import Callable, Mapping
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
    check_changefeed_id,
)
from penstock.changefeeds.sink_uri import location_of
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.options import sink_options as resolve_sink_options
from penstock.changefeeds.sinks.storage.remote_files import check_unused
from penstock.changefeeds.store import ChangefeedStore, Check
from penstock.clock import SYSTEM, Clock
from penstock.errors import Denied, Invalid, Unavailable
from penstock.eventloop import call_in_thread
from penstock.settings import ChangefeedSettings, parse_changefeed

_ENDED = frozenset({ChangefeedState.STOPPED, ChangefeedState.FAILED, ChangefeedState.FINISHED})

_LOCATION_SETTINGS = frozenset({"sink_uri", "storage_options"})  # those that may change the location

_FILE_OPTIONS = (
    "protocol",
    "compression",
    "terminator",
    "csv",
    "use_table_id_as_path",
    "date_separator",
    "enable_partition_separator",
    "file_index_digit",
    "output_column_id",
    "schema_files",
    "column_selectors",
)  # what a consumer assumes of all files of a version


def sink_options(settings: ChangefeedSettings) -> SinkOptions:
    """Return a changefeed's options as far as this process has its secrets; only its runner needs them."""
    return resolve_sink_options(settings, lenient=True)


async def create_changefeed(
    store: ChangefeedStore,
    changefeed_id: str,
    settings: ChangefeedSettings,
    *,
    now_ts: int,
    account: str = "sys",
    check: Check | None = None,
    clock: Clock = SYSTEM,
) -> ChangefeedRecord:
    """Add a changefeed of an account; `now_ts` is a current timestamp of the database.

    `check` is called with all other changefeeds, in the transaction that adds this one; an error of it is
    raised, and nothing is added. Raises Invalid when the changefeed could not run with its settings,
    AlreadyExists when the name is taken.
    """
    check_changefeed_id(changefeed_id)
    check_settings(settings)
    _check_readable(settings)
    start_ts = settings.start if isinstance(settings.start, int) else now_ts
    if start_ts > now_ts:
        raise Invalid(
            f"changefeed {changefeed_id} is to start at {start_ts}, which is in the future; now is {now_ts}"
        )
    if settings.target_ts is not None and settings.target_ts <= start_ts:
        raise Invalid(
            f"changefeed {changefeed_id} is to end at {settings.target_ts}, not after its start at {start_ts}"
        )
    options = sink_options(settings)
    await _check_target_unused(options)
    info = ChangefeedInfo(
        id=changefeed_id,
        settings=dump_settings(settings),
        start_ts=start_ts,
        snapshot=settings.start == "snapshot",
        created_ms=clock.wall_ms(),
        account=account,
    )
    is_free = _location_check(changefeed_id, options, account)

    def check_others(others: list[ChangefeedRecord]) -> None:
        if check is not None:
            check(others)
        is_free(others)

    await store.create(info, check=check_others)
    return ChangefeedRecord(info, ChangefeedStatus.of_new(info))


async def pause_changefeed(store: ChangefeedStore, changefeed_id: str) -> ChangefeedRecord:
    """Stop a changefeed after it has written what it has read. Raises Invalid when it is finished."""

    def pause(record: ChangefeedRecord) -> ChangefeedRecord:
        if record.state is ChangefeedState.FINISHED:
            raise Invalid(f"changefeed {changefeed_id} has reached its target; there is nothing to pause")
        return ChangefeedRecord(replace(record.info, stopped=True), record.status)

    return await store.change(changefeed_id, pause)


async def resume_changefeed(store: ChangefeedStore, changefeed_id: str) -> ChangefeedRecord:
    """Let a paused or failed changefeed run again. Raises Invalid when it is finished."""

    def resume(record: ChangefeedRecord) -> ChangefeedRecord:
        if record.state is ChangefeedState.FINISHED:
            raise Invalid(f"changefeed {changefeed_id} has reached its target; create another one")
        return ChangefeedRecord(replace(record.info, stopped=False), record.status.without_error())

    return await store.change(changefeed_id, resume)


async def update_changefeed(
    store: ChangefeedStore,
    changefeed_id: str,
    changes: Mapping[str, Any],
    *,
    permit: Callable[[ChangefeedSettings], None] | None = None,
) -> ChangefeedRecord:
    """Change some settings. Tables that the patterns add begin at the checkpoint; those they drop end there.

    A new location gets everything after the checkpoint, and must hold no files of a changefeed.

    `permit` is called with the changed settings: before anything is done with them, and again in the
    transaction that stores them; an error of it is raised, and nothing is changed. Raises Invalid when the
    changefeed runs, when it could not run with the settings, or when `changes` has its start, which cannot be
    changed.
    """
    if "start" in changes:
        raise Invalid("a changefeed's start cannot be changed; remove it and create another one")
    known = await store.get(changefeed_id)
    wanted = _merge_settings(known, changes)
    if permit is not None:
        await call_in_thread(permit, wanted)  # the file system of a target may be slow
    options = sink_options(wanted)
    if _moves_files(known, options):
        await _check_target_unused(options)

    def update(record: ChangefeedRecord) -> ChangefeedRecord:
        if record.state not in _ENDED:
            raise Invalid(f"changefeed {changefeed_id} is {record.state}; pause it before it is changed")
        updated = _merge_settings(record, changes)
        if permit is not None and updated != wanted:  # somebody has changed it since
            permit(updated)
        check_settings(updated)
        _check_file_options(record, updated)
        status, previous = record.status, None
        if _moves_files(record, sink_options(updated)):
            # Until its next start, the stored progress describes the former location.
            previous = _settings_in_use(record)
            if status.location is None:
                status = replace(status, location=_location(_wanted_options(record)))
        if status.state is ChangefeedState.FINISHED and "target_ts" in changes:
            status = status.without_error()
        info = replace(record.info, settings=dump_settings(updated), stopped=True, previous_settings=previous)
        return ChangefeedRecord(info, status)

    check = None
    if not _LOCATION_SETTINGS.isdisjoint(changes):
        check = _location_check(changefeed_id, options, known.info.account)
    return await store.change(changefeed_id, update, check=check)


def check_settings(settings: ChangefeedSettings) -> None:
    """Raise Invalid for settings that a run would refuse, as far as that is known before it."""
    sink_options(settings)
    TableFilter(settings.tables)
    for rule in settings.row_filters:
        check_predicate(rule.where)


def _merge_settings(record: ChangefeedRecord, changes: Mapping[str, Any]) -> ChangefeedSettings:
    return parse_changefeed({**record.info.settings, **changes}, origin=f"changefeed {record.info.id}")


def _wanted_options(record: ChangefeedRecord) -> SinkOptions:
    return sink_options(_merge_settings(record, {}))


def _settings_in_use(record: ChangefeedRecord) -> Mapping[str, Any]:
    """Return the settings of the files that exist, or those of the first files if there are none yet."""
    previous = record.info.previous_settings
    if previous is None:
        return record.info.settings
    options = sink_options(parse_changefeed(dict(previous), origin=f"changefeed {record.info.id}"))
    return previous if _location(options) == record.status.location else record.info.settings


def _options_in_use(record: ChangefeedRecord) -> SinkOptions:
    """Return the format and the location of a changefeed's files."""
    return sink_options(
        parse_changefeed(dict(_settings_in_use(record)), origin=f"changefeed {record.info.id}")
    )


def _location(options: SinkOptions) -> str:
    return str(location_of(options.target.url, options.target.options))


def _moves_files(record: ChangefeedRecord, options: SinkOptions) -> bool:
    """Return whether these options lead to another location than that of the changefeed's files."""
    return _location(_options_in_use(record)) != _location(options)


def _location_check(changefeed_id: str, options: SinkOptions, account: str) -> Check:
    """Return a check that raises Invalid when another changefeed writes to the same location, above or below.

    Only its own account learns the other changefeed's name.
    """
    own = location_of(options.target.url, options.target.options, follow_links=True)

    def check(records: list[ChangefeedRecord]) -> None:
        for record in records:
            try:
                target = _wanted_options(record).target
            except Invalid:  # it cannot run either
                continue
            if own.overlaps(location_of(target.url, target.options, follow_links=True)):
                named = f"changefeed {record.info.id} writes to {target.url.rstrip('/')}/"
                reason = named if record.info.account == account else "another changefeed writes there"
                raise Invalid(f"{reason}; give changefeed {changefeed_id} a place of its own")

    return check


async def _check_target_unused(options: SinkOptions) -> None:
    """Raise Invalid when there are files of a changefeed at a new location, as its first start would.

    Storage that this process cannot open, or that does not answer it, is left to that start: only the process
    that writes has to reach it. A missing directory is not made.
    """

    def check() -> None:
        url = urlsplit(options.target.url)
        try:
            if url.scheme == "file" and not Path(unquote(url.netloc + url.path)).is_dir():
                return
            target = options.target.open()
        except (Invalid, OSError):
            return
        with suppress(Unavailable, Denied):
            check_unused(target)

    await call_in_thread(check)


def _check_file_options(record: ChangefeedRecord, updated: ChangefeedSettings) -> None:
    """Raise Invalid when a version of a table would have files of two formats: its readers expect one."""
    before, after = _options_in_use(record), sink_options(updated)
    if _moves_files(record, after):
        _check_readable(updated)
        return
    changed = [name for name in _FILE_OPTIONS if getattr(before, name) != getattr(after, name)]
    if changed:
        raise Invalid(
            f"the {changed[0].replace('_', ' ')} of changefeed {record.info.id} cannot be changed where its"
            " files are; give it another place with it, by --sink-uri"
        )


def _check_readable(settings: ChangefeedSettings) -> None:
    """Raise Invalid when files of these settings could not be read back. For a location without files."""
    options = sink_options(settings)
    check_readable(options.protocol, options.terminator, options.csv)


def dump_settings(settings: ChangefeedSettings) -> dict[str, Any]:
    """Return settings as they are stored: with their secrets."""
    return {**settings.model_dump(mode="json"), "sink_uri": settings.sink_uri.get_secret_value()}
