"""Operations on changefeeds, and their JSON views without secrets.

Each operation takes the deployment first. `account` restricts it to the changefeeds of that account; None
means all of them. A changefeed that does not exist, or belongs to another account, raises NotFound.
"""

import logging
from collections.abc import Callable
from typing import Any

from penstock import eventloop
from penstock.changefeeds import commands
from penstock.changefeeds.model import ChangefeedRecord
from penstock.changefeeds.sink_uri import mask_uri
from penstock.clock import SYSTEM, physical_ms
from penstock.control.deployment import Deployment
from penstock.control.display import format_ms, format_ts
from penstock.control.tenancy import check_quota
from penstock.errors import Invalid, Unavailable
from penstock.follow.holds import ClusterHold
from penstock.settings import ChangefeedSettings, parse_changefeed
from penstock.tables.accounts import SYSTEM_ACCOUNT

_log = logging.getLogger(__name__)

_MASKED = {"sink": "***", "storage_options": "***"}


def list_changefeeds(deployment: Deployment, *, account: str | None = None) -> list[ChangefeedRecord]:
    """Return every changefeed, or those of one account."""
    return eventloop.run(deployment.feeds_of(account).list())


def get_changefeed(deployment: Deployment, name: str, *, account: str | None = None) -> ChangefeedRecord:
    """Return one changefeed; raise NotFound when there is none of that name."""
    return eventloop.run(deployment.feeds_of(account).get(name))


def pause_changefeed(deployment: Deployment, name: str, *, account: str | None = None) -> ChangefeedRecord:
    """Stop a changefeed at its checkpoint."""
    return eventloop.run(commands.pause_changefeed(deployment.feeds_of(account), name))


def resume_changefeed(deployment: Deployment, name: str, *, account: str | None = None) -> ChangefeedRecord:
    """Start a paused or failed changefeed again from its checkpoint."""
    return eventloop.run(commands.resume_changefeed(deployment.feeds_of(account), name))


def create_from_options(deployment: Deployment, name: str, options: dict[str, Any]) -> ChangefeedRecord:
    """Create a changefeed from the settings section of its name, overridden by `options`."""
    section = deployment.settings.changefeeds.get(name)
    tree = {**(commands.dump_settings(section) if section is not None else {}), **options}
    if "sink_uri" not in tree:
        raise Invalid(
            f"changefeed {name} has no sink; give --sink-uri, or add a section changefeeds.{name} to the"
            " --config file"
        )
    return create_changefeed(deployment, name, parse_changefeed(tree, origin=f"changefeed {name}"))


def create_changefeed(
    deployment: Deployment, name: str, settings: ChangefeedSettings, *, account: str | None = None
) -> ChangefeedRecord:
    """Create a changefeed of an account; raise AlreadyExists when the account has one of that name.

    Raises TenantRefused when the account has as many changefeeds as it may have.
    """
    known = None if account is None else deployment.settings.api.accounts.get(account)

    def check_count(others: list[ChangefeedRecord]) -> None:
        if account is not None and known is not None:
            count = sum(record.info.account == account for record in others)
            check_quota(account, "changefeeds", count, known.changefeeds_max)

    if account is not None:  # before its target is asked, and again in the transaction that adds it
        check_count(list_changefeeds(deployment, account=account))
    return eventloop.run(
        commands.create_changefeed(
            deployment.feeds_of(account),
            name,
            settings,
            now_ts=deployment.now_ts(),
            account=account or SYSTEM_ACCOUNT.name,
            check=check_count,
        )
    )


def update_from_options(deployment: Deployment, name: str, options: dict[str, Any]) -> ChangefeedRecord:
    """Change a paused changefeed by `options`; without options, to the settings section of its name."""
    section = deployment.settings.changefeeds.get(name)
    changes = options
    if not changes and section is not None:
        changes = {key: value for key, value in commands.dump_settings(section).items() if key != "start"}
    return update_changefeed(deployment, name, changes)


def update_changefeed(
    deployment: Deployment,
    name: str,
    changes: dict[str, Any],
    *,
    account: str | None = None,
    permit: Callable[[ChangefeedSettings], None] | None = None,
) -> ChangefeedRecord:
    """Change a paused changefeed; raise Invalid when `changes` is empty.

    `permit` is called with the changed settings in the transaction that stores them, and raises when the
    caller may not have them: what somebody else changes meanwhile is among them.
    """
    if not changes:
        raise Invalid(
            f"no change is given for changefeed {name}; give an option, or its section in the --config file"
        )
    return eventloop.run(
        commands.update_changefeed(deployment.feeds_of(account), name, changes, permit=permit)
    )


def remove_changefeed(deployment: Deployment, name: str, *, account: str | None = None) -> None:
    """Remove a changefeed and release the cluster's history that it held.

    If the cluster cannot be reached to release the history, the changefeed is removed all the same, and the
    hold expires after a day.
    """

    async def remove() -> None:
        changefeed_id = await deployment.feeds_of(account).remove(name)
        try:
            history = await ClusterHold.connect(deployment.settings, changefeed_id)
            try:
                await history.release()
            finally:
                await history.close()
        except Unavailable as error:
            facts = {"changefeed": name, "error": str(error)}
            _log.warning("history of a removed changefeed is held for up to a day", extra=facts)

    eventloop.run(remove())


def changefeed_summary(feed: ChangefeedRecord) -> dict[str, Any]:
    """Return the state, checkpoint and lag of a changefeed."""
    checkpoint_ms = physical_ms(feed.status.checkpoint_ts)
    return {
        "id": feed.info.id,
        "account": feed.info.account,
        "state": feed.state.value,
        "checkpoint_ts": feed.status.checkpoint_ts,
        "checkpoint_time": format_ms(checkpoint_ms),
        "lag_s": max(0, round((SYSTEM.wall_ms() - checkpoint_ms) / 1000)),
        "error": feed.status.error,
        "warning": feed.status.warning,
    }


def changefeed_details(feed: ChangefeedRecord) -> dict[str, Any]:
    """Return the summary and the settings of a changefeed, with secrets masked."""
    settings = {key: _MASKED.get(key, value) if value else value for key, value in feed.info.settings.items()}
    return {
        **changefeed_summary(feed),
        "start_ts": feed.info.start_ts,
        "snapshot": feed.info.snapshot,
        "ddl_ts": feed.status.ddl_ts,
        "left_out": [
            {
                "table": table.name,
                "table_id": table.table_id,
                "reason": table.reason,
                "since_ts": table.since_ts,
                "since_time": format_ts(table.since_ts),
            }
            for table in feed.status.left_out
        ],
        "settings": {**settings, "sink_uri": mask_uri(str(feed.info.settings["sink_uri"]))},
    }
