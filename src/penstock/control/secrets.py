"""Operations on the keys of a deployment: put a new one first, and drop those that nothing needs any more."""

from typing import Any

from penstock import eventloop
from penstock.changefeeds.store import ChangefeedStore
from penstock.control.deployment import Deployment
from penstock.jobs.log.job_log import JobLog
from penstock.kv import Transaction
from penstock.kv.transact import transact
from penstock.secret_keys import KEY_ROW, LossyKeyring

__all__ = ["prune_keys", "rotate_key"]


def rotate_key(deployment: Deployment, *, prepare: bool = False, lost: bool = False) -> dict[str, Any]:
    """Put a new key first, and seal everything with it; with `prepare` only add the key to the file.

    Former keys stay in the file, because other processes may seal with them until they read the file again.
    Run again after a failure: what is sealed with a former key can still be opened. With `lost` a key that is
    not in the file is given up: jobs that it sealed have no options any more, changefeeds no sink.
    """
    keys = deployment.keys
    if not lost:
        _check_key(deployment)
    key_id = keys.rotate(prepare=prepare)
    if prepare:
        return {"key": key_id, "seals": False, "file": str(keys.path)}
    return {"key": key_id, "seals": True, "file": str(keys.path), **_reseal(deployment, lost=lost)}


def prune_keys(deployment: Deployment) -> dict[str, Any]:
    """Seal everything with the first key, then remove the former keys from the file."""
    _check_key(deployment)
    resealed = _reseal(deployment)
    return {"dropped": deployment.keys.drop_old(), "file": str(deployment.keys.path), **resealed}


def _check_key(deployment: Deployment) -> None:
    """Raise MissingKey when the deployment has a key that is not here; another one would replace it."""
    with deployment.blocking_client.begin() as txn:
        deployment.keys.claim(txn.get(KEY_ROW))


def _reseal(deployment: Deployment, *, lost: bool = False) -> dict[str, int]:
    keys = deployment.keys
    first = keys.ids[0].encode()

    def note(txn: Transaction) -> None:
        txn.put(KEY_ROW, first)

    transact(deployment.blocking_client.begin, note, repeatable=True)
    log, feeds = deployment.jobs().log, deployment.feeds
    if lost:
        log = JobLog(deployment.blocking_client, keys=LossyKeyring(keys, {}))
        no_sink = {"sink_uri": "", "sink": {}, "storage_options": {}}
        feeds = ChangefeedStore(
            deployment.client, keys=LossyKeyring(keys, {"settings": no_sink, "left": no_sink})
        )
    return {"jobs": log.reseal(), "changefeeds": eventloop.run(feeds.reseal())}
