"""What people do with changefeeds, and what they are shown of them."""

import logging
from typing import Any

from penstock import eventloop
from penstock.changefeeds.commands import create_feed, dump, pause_feed, resume_feed, update_feed
from penstock.changefeeds.model import ChangefeedRecord
from penstock.changefeeds.sink_uri import mask_uri
from penstock.clock import SYSTEM, physical_ms
from penstock.control.deployment import Deployment
from penstock.control.display import shown_ms
from penstock.errors import Invalid, Unavailable
from penstock.follow.holds import ClusterHold
from penstock.settings import ChangefeedSettings, parse_changefeed
from penstock.tables.accounts import SYSTEM as SYSTEM_ACCOUNT

_log = logging.getLogger(__name__)

_HIDDEN = {"sink": "***", "storage_options": "***"}


def listed(deployment: Deployment, *, account: str | None = None) -> list[ChangefeedRecord]:
    """All changefeeds, or those of an account."""
    return eventloop.run(deployment.feeds_of(account).list())


def get(deployment: Deployment, name: str, *, account: str | None = None) -> ChangefeedRecord:
    """One of them; raise NotFound when there is none of that name."""
    return eventloop.run(deployment.feeds_of(account).get(name))


def pause(deployment: Deployment, name: str, *, account: str | None = None) -> ChangefeedRecord:
    """Stop one where it is."""
    return eventloop.run(pause_feed(deployment.feeds_of(account), name))


def resume(deployment: Deployment, name: str, *, account: str | None = None) -> ChangefeedRecord:
    """Let one go on that was paused or has failed."""
    return eventloop.run(resume_feed(deployment.feeds_of(account), name))


def create(deployment: Deployment, name: str, options: dict[str, Any]) -> ChangefeedRecord:
    """Create a changefeed, of the options and what the settings say under its name."""
    known = deployment.settings.changefeeds.get(name)
    tree = {**(dump(known) if known is not None else {}), **options}
    if "sink_uri" not in tree:
        raise Invalid(
            f"changefeed {name} has no sink; give --sink-uri, or a section changefeeds.{name} in --config"
        )
    return add(deployment, name, parse_changefeed(tree, origin=f"changefeed {name}"))


def add(
    deployment: Deployment, name: str, wanted: ChangefeedSettings, *, account: str | None = None
) -> ChangefeedRecord:
    """Create a changefeed of an account, as it is wanted; raise AlreadyExists when its name is taken."""
    return eventloop.run(
        create_feed(
            deployment.feeds, name, wanted, now_ts=deployment.now_ts(), account=account or SYSTEM_ACCOUNT.name
        )
    )


def update(deployment: Deployment, name: str, options: dict[str, Any]) -> ChangefeedRecord:
    """Change a paused changefeed: by the options, or to what the settings say under its name."""
    known = deployment.settings.changefeeds.get(name)
    changes = options
    if not changes and known is not None:
        changes = {key: value for key, value in dump(known).items() if key != "start"}
    return change(deployment, name, changes)


def change(
    deployment: Deployment, name: str, changes: dict[str, Any], *, account: str | None = None
) -> ChangefeedRecord:
    """Change a paused changefeed; raise Invalid when nothing is to be changed."""
    if not changes:
        raise Invalid(
            f"nothing of changefeed {name} is to be changed; give an option, or its section in --config"
        )
    return eventloop.run(update_feed(deployment.feeds_of(account), name, changes))


def remove(deployment: Deployment, name: str, *, account: str | None = None) -> None:
    """Forget a changefeed, and let the cluster collect what it would have needed.

    A cluster that cannot be told so now collects it a day later: the changefeed is gone all the same.
    """

    async def work() -> None:
        await deployment.feeds_of(account).remove(name)
        try:
            history = await ClusterHold.connect(deployment.settings, name)
            try:
                await history.release()
            finally:
                await history.close()
        except Unavailable as error:
            facts = {"changefeed": name, "error": str(error)}
            _log.warning("history of a removed changefeed is held for up to a day", extra=facts)

    eventloop.run(work())


def summary(feed: ChangefeedRecord) -> dict[str, Any]:
    """How a changefeed does."""
    checkpoint_ms = physical_ms(feed.status.checkpoint_ts)
    return {
        "id": feed.info.id,
        "account": feed.info.account,
        "state": feed.state.value,
        "checkpoint_ts": feed.status.checkpoint_ts,
        "checkpoint_time": shown_ms(checkpoint_ms),
        "lag_s": max(0, round((SYSTEM.wall_ms() - checkpoint_ms) / 1000)),
        "error": feed.status.error,
    }


def everything(feed: ChangefeedRecord) -> dict[str, Any]:
    """All that is known of a changefeed, without its secrets."""
    kept = {key: _HIDDEN.get(key, value) if value else value for key, value in feed.info.settings.items()}
    return {
        **summary(feed),
        "start_ts": feed.info.start_ts,
        "snapshot": feed.info.snapshot,
        "ddl_ts": feed.status.ddl_ts,
        "settings": {**kept, "sink_uri": mask_uri(str(feed.info.settings["sink_uri"]))},
    }
