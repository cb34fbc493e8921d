"""Changefeeds as rows in the key-value store, and the transactions that change them.

Commands use `ChangefeedStore`. The one process that runs a changefeed stores its progress with
`LeasedProgress`, whose every write renews the lease in the same transaction. So a process that was taken
over, however late it wakes up, meets a conflict on the lease's row, reads the newer epoch there and is
fenced: it changes nothing.
"""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from penstock.changefeeds.model import (
    ChangefeedInfo,
    ChangefeedRecord,
    ChangefeedState,
    ChangefeedStatus,
    DispatcherRecord,
    DoneDdls,
    LeftOutTable,
    PendingFile,
    account_changefeed_id,
    check_changefeed_id,
    is_sealed,
)
from penstock.clock import physical_ms
from penstock.errors import AlreadyExists, Corrupt, Fenced, NotFound
from penstock.follow.slices import Position, TableSpan
from penstock.kv import AsyncClient, AsyncTransaction
from penstock.kv.lease import Lease, LeaseKey
from penstock.kv.transact import transact_async
from penstock.secret_keys import KEY_ROW, Keyring
from penstock.tables.accounts import SYSTEM_ACCOUNT
from penstock.tables.keys import prefix_end

_log = logging.getLogger(__name__)

_PREFIX = b"penstock/changefeed/"
INFOS, STATUSES, LEASES = _PREFIX + b"info/", _PREFIX + b"status/", _PREFIX + b"lease/"
LOCATIONS = _PREFIX + b"locations"
"""Every transaction that chooses a location writes this row, so that two at the same time conflict."""

Check = Callable[[list[ChangefeedRecord]], None]
"""Checks all other changefeeds, of every account, before one gets a location; an error refuses it."""


@dataclass(frozen=True, slots=True)
class ChangefeedKeys:
    """The keys of one changefeed. Rows of a kind are together: listing changefeeds reads no dispatchers."""

    changefeed_id: str

    @property
    def info(self) -> bytes:
        """The row with the changefeed's info."""
        return INFOS + self.changefeed_id.encode()

    @property
    def status(self) -> bytes:
        """The row with the changefeed's status."""
        return STATUSES + self.changefeed_id.encode()

    @property
    def lease(self) -> LeaseKey:
        """The row with the lease of the process that runs the changefeed."""
        work = f"changefeed {self.changefeed_id}"
        return LeaseKey(
            LEASES + self.changefeed_id.encode(), work, "remove the changefeed and create it again"
        )

    @property
    def dispatchers(self) -> bytes:
        """The prefix of the rows of its dispatchers."""
        return _PREFIX + b"dispatcher/" + self.changefeed_id.encode() + b"/"

    def dispatcher(self, dispatcher_id: str) -> bytes:
        """Return the row of one dispatcher."""
        return self.dispatchers + dispatcher_id.encode()


class ChangefeedStore:
    """The changefeeds of a cluster, or of one account, for commands. Every method may raise Unavailable.

    To an account, changefeeds of others do not exist: the methods raise NotFound, with the same message. An
    account knows its changefeeds by their names, everybody else by their ids. Changefeeds of earlier versions
    have their names as ids.
    Sinks are sealed with `keys`, by default those of the deployment in the working directory; methods raise
    MissingKey when they need a key that is not there.
    """

    def __init__(
        self, client: AsyncClient, *, account: str | None = None, keys: Keyring | None = None
    ) -> None:
        self._client = client
        self._account = account
        self._is_tenant = account not in {None, SYSTEM_ACCOUNT.name}
        self._keyring = keys or Keyring()
        self._key_is_known = False

    async def create(self, info: ChangefeedInfo, *, check: Check | None = None) -> None:
        """Add a changefeed; raise AlreadyExists when the name is taken, and what `check` raises."""
        check_changefeed_id(info.id)
        own_id = self._new_id(info.id)
        keys = ChangefeedKeys(own_id)
        tried = False

        async def create(txn: AsyncTransaction) -> None:
            nonlocal tried
            found_id = await self._find_id(txn, info.id)
            existing = await txn.get(ChangefeedKeys(found_id).info)
            if existing is not None and (found_id == own_id or self._is_own_row(found_id, existing)):
                if self._has(existing, info) or (tried and self._is_same_creation(info, existing)):
                    return  # an unanswered attempt of this call created it; it may be running already
                raise AlreadyExists(
                    f"there is a changefeed {info.id} already; remove it first, or take another name"
                )
            await self._check_all(txn, check, own_id)
            tried = True
            await txn.put(keys.info, info.to_json(self._keyring))
            await txn.put(keys.status, ChangefeedStatus.of_new(info).to_json())

        await self._claim_key()
        await transact_async(self._client.begin, create, repeatable=True)

    async def list(self, *, every: bool = False) -> list[ChangefeedRecord]:
        """Return the changefeeds by name; with `every` also those of other accounts.

        A changefeed with damaged rows is left out and logged; it can be removed.
        """
        async with self._client.begin() as txn:
            records = await _list_changefeeds(txn, self._keyring)
        return [self._show(record) for record in records if every or self._is_visible(record.info)]

    async def get(self, changefeed_id: str) -> ChangefeedRecord:
        """Return a changefeed; raise NotFound when there is none of that name."""
        async with self._client.begin() as txn:
            return self._show(await self._get(txn, changefeed_id))

    async def owners(self) -> dict[str, str]:
        """Return the process that runs each changefeed now; the lease of a silent process expires."""
        async with self._client.begin() as txn:
            now_ms = physical_ms(await txn.start_ts)
            rows = [row async for row in txn.scan(LEASES, prefix_end(LEASES))]
        owners = {}
        for key, value in rows:
            name = key.removeprefix(LEASES).decode()
            lease = ChangefeedKeys(name).lease.decode(value)
            if lease.is_held(now_ms):
                owners[name] = lease.owner
        return owners

    async def change(
        self,
        changefeed_id: str,
        edit: Callable[[ChangefeedRecord], ChangefeedRecord],
        *,
        check: Check | None = None,
    ) -> ChangefeedRecord:
        """Change a changefeed in a transaction and return it.

        Raises NotFound when there is none of that name, and what `check` or `edit` raises; nothing is changed
        then.
        """

        async def change(txn: AsyncTransaction) -> ChangefeedRecord:
            record = await self._get(txn, changefeed_id)
            keys = ChangefeedKeys(record.info.id)
            await self._check_all(txn, check, record.info.id)
            edited = edit(record)
            await txn.put(keys.info, edited.info.to_json(self._keyring))
            if edited.status != record.status:
                await txn.put(keys.status, edited.status.to_json())
            return edited

        await self._claim_key()
        return self._show(await transact_async(self._client.begin, change, repeatable=True))

    async def remove(self, changefeed_id: str) -> str:
        """Remove a changefeed, damaged or not, but not its files; the process that runs it is fenced.

        Returns its id. Raises NotFound when there is none of that name as the call begins. A changefeed of
        the same name that is created during the call stays.
        """
        found_id = changefeed_id
        seen: bytes | None = None

        async def remove(txn: AsyncTransaction) -> None:
            nonlocal found_id, seen
            if seen is not None:
                there = await txn.get(ChangefeedKeys(found_id).info)
                if there is None or not self._is_same_changefeed(found_id, seen, there):
                    return  # an unanswered attempt of this call, or another call, has removed it
            else:
                found_id = await self._find_id(txn, changefeed_id)
            keys = ChangefeedKeys(found_id)
            info = await require_changefeed(txn, found_id)
            if self._account is not None and not self._is_visible(
                ChangefeedInfo.from_json(found_id, info, self._keyring)
            ):
                raise no_such_changefeed(changefeed_id)
            seen = info
            for key in (keys.info, keys.status, keys.lease.key):
                await txn.delete(key)
            async for key, _ in txn.scan(keys.dispatchers, prefix_end(keys.dispatchers)):
                await txn.delete(key)

        await transact_async(self._client.begin, remove, repeatable=True)
        return found_id

    async def _check_all(self, txn: AsyncTransaction, check: Check | None, own_id: str) -> None:
        if check is not None:
            others = [
                record for record in await _list_changefeeds(txn, self._keyring) if record.info.id != own_id
            ]
            check([self._show(record) for record in others])
            await txn.put(LOCATIONS, b"%d" % await txn.start_ts)

    async def _get(self, txn: AsyncTransaction, name: str) -> ChangefeedRecord:
        """Return a changefeed, with its id, by the name that the caller gave."""
        record = await get_changefeed(txn, await self._find_id(txn, name), self._keyring)
        if not self._is_visible(record.info):
            raise no_such_changefeed(name)
        return record

    def _new_id(self, name: str) -> str:
        return account_changefeed_id(self._account or "", name) if self._is_tenant else name

    async def _find_id(self, txn: AsyncTransaction, name: str) -> str:
        """Return the id that a name stands for: an account's own, or one of an earlier version."""
        own_id = self._new_id(name)
        if own_id == name or await txn.get(ChangefeedKeys(own_id).info) is not None:
            return own_id
        return name

    def _is_own_row(self, changefeed_id: str, info: bytes) -> bool:
        """Return whether a row is of this account, whose name for it is then taken."""
        try:
            return self._is_visible(ChangefeedInfo.from_json(changefeed_id, info, self._keyring))
        except Corrupt:
            return False

    def _show(self, record: ChangefeedRecord) -> ChangefeedRecord:
        """Return a changefeed as the account knows it."""
        if not self._is_tenant or record.info.account != self._account:
            return record
        return replace(record, info=replace(record.info, id=record.info.name))

    def _is_visible(self, info: ChangefeedInfo) -> bool:
        return self._account in {None, info.account}

    async def acquire(self, changefeed_id: str, owner: str, *, ttl_s: float) -> "LeasedProgress":
        """Take the lease of a changefeed, to run it.

        Raises Unavailable while another process holds the lease, NotFound when there is no such changefeed.
        """
        lease = await Lease.acquire(
            self._client,
            ChangefeedKeys(changefeed_id).lease,
            owner,
            ttl_s=ttl_s,
            check=lambda txn: get_changefeed(txn, changefeed_id, self._keyring),
        )
        return LeasedProgress(self._client, changefeed_id, lease, self._keyring)

    async def reseal(self) -> int:
        """Seal sinks that are in clear, or sealed with an older key; change nothing else. Return how many.

        Makes the key of a deployment that has none: those who run changefeeds have it before anybody else. A
        damaged changefeed is left as it is. Raises MissingKey when its secrets cannot be opened.
        """
        await self._claim_key()
        async with self._client.begin() as txn:
            rows = [row async for row in txn.scan(INFOS, prefix_end(INFOS))]
        due = [key for key, value in rows if not is_sealed(value, self._keyring)]

        async def reseal(txn: AsyncTransaction) -> None:
            for key in due:
                value = await txn.get(key)
                if value is not None:
                    with suppress(Corrupt):
                        name = key.removeprefix(INFOS).decode()
                        info = ChangefeedInfo.from_json(name, value, self._keyring)
                        await txn.put(key, info.to_json(self._keyring))

        if due:
            await transact_async(self._client.begin, reseal, repeatable=True)
        return len(due)

    async def _claim_key(self) -> None:
        """Make sure that the key that seals is the deployment's; make it if there is none.

        In a transaction of its own: others who come first, too, do not conflict with the caller's then.
        """

        async def claim(txn: AsyncTransaction) -> None:
            wanted = self._keyring.claim(await txn.get(KEY_ROW))
            if wanted is not None:
                await txn.put(KEY_ROW, wanted)

        if not self._key_is_known:
            await transact_async(self._client.begin, claim, repeatable=True)
            self._key_is_known = True

    def _has(self, row: bytes, info: ChangefeedInfo) -> bool:
        """Return whether a row has this very info; equal rows are sealed to different texts."""
        try:
            return ChangefeedInfo.from_json(info.id, row, self._keyring) == info
        except Corrupt:
            return False

    def _is_same_changefeed(self, changefeed_id: str, seen: bytes, there: bytes) -> bool:
        """Return whether two rows are of one changefeed, whatever was changed between them."""
        if seen == there:
            return True
        try:
            info = ChangefeedInfo.from_json(changefeed_id, seen, self._keyring)
            return self._is_same_creation(info, there)
        except Corrupt:
            return False  # of a damaged row only the bytes can be compared

    def _is_same_creation(self, info: ChangefeedInfo, there: bytes) -> bool:
        """Return whether a row comes from the creation that made `info`, whatever was changed since."""
        found = ChangefeedInfo.from_json(info.id, there, self._keyring)
        own = (info.created_ms, info.start_ts, info.account)
        return own == (found.created_ms, found.start_ts, found.account)


class LeasedProgress:
    """The stored progress of a changefeed, for the process that holds its lease. Implements ProgressStore."""

    def __init__(self, client: AsyncClient, changefeed_id: str, lease: Lease, keyring: Keyring) -> None:
        self.changefeed_id = changefeed_id
        self._keyring = keyring
        self._client = client
        self._lease = lease
        self._keys = ChangefeedKeys(changefeed_id)

    async def get_record(self) -> ChangefeedRecord:
        """Return the changefeed as it is stored now; a command may have stopped or changed it."""
        async with self._client.begin() as txn:
            await self._lease.check(txn)
            return await get_changefeed(txn, self.changefeed_id, self._keyring)

    async def renew(self) -> None:
        """Renew the lease; raise Fenced when another process has it."""
        await self._lease.renew()

    async def keep_state(self, state: ChangefeedState, error: str = "", warning: str = "") -> None:
        """Store the state that people see."""
        await self._change_status(lambda status: replace(status, state=state, error=error, warning=warning))

    async def location(self) -> str | None:
        """Return the location that the stored progress describes."""
        return (await self.get_record()).status.location

    async def begin_at(self, location: str, *, is_new: bool) -> None:
        """Store the location; with `is_new` forget the dispatchers and what is after the checkpoint."""

        async def begin(txn: AsyncTransaction) -> None:
            record = await get_changefeed(txn, self.changefeed_id, self._keyring)
            status = replace(record.status, location=location)
            # If the location is stored already, an unanswered attempt of this call has committed.
            if is_new and record.status.location != location:
                status = record.status.at_new_location(location, record.info)
                folder = self._keys.dispatchers
                async for key, _ in txn.scan(folder, prefix_end(folder)):
                    await txn.delete(key)
            await txn.put(self._keys.status, status.to_json())

        await self._lease.write(begin)

    async def checkpoint_ts(self) -> int:
        """Return the stored checkpoint."""
        return (await self.get_record()).status.checkpoint_ts

    async def keep_checkpoint(self, ts: int) -> None:
        """Store a checkpoint, unless the stored one is later."""
        await self._change_status(lambda status: replace(status, checkpoint_ts=max(ts, status.checkpoint_ts)))

    async def done_ddls(self) -> DoneDdls:
        """Return the DDLs that are on the remote."""
        return (await self.get_record()).status.done_ddls

    async def dispatchers(self) -> list[DispatcherRecord]:
        """Return every stored dispatcher."""
        folder = self._keys.dispatchers
        async with self._client.begin() as txn:
            await self._lease.check(txn)
            return [read_dispatcher(value) async for _, value in txn.scan(folder, prefix_end(folder))]

    async def left_out(self) -> tuple[LeftOutTable, ...]:
        """Return the tables without which the changefeed goes on."""
        return (await self.get_record()).status.left_out

    async def change_dispatchers(
        self,
        added: Sequence[DispatcherRecord],
        removed: Iterable[str],
        *,
        done: DoneDdls | None = None,
        left_out: Sequence[LeftOutTable] | None = None,
    ) -> None:
        """Add and remove dispatchers, and store DDLs that are done and the tables left out, in one
        transaction.
        """
        gone = list(removed)

        async def change(txn: AsyncTransaction) -> None:
            for dispatcher_id in gone:
                await txn.delete(self._keys.dispatcher(dispatcher_id))
            for record in added:
                await txn.put(self._keys.dispatcher(record.span.id), write_dispatcher(record))
            if done is None and left_out is None:
                return
            status = (await get_changefeed(txn, self.changefeed_id, self._keyring)).status
            if done is not None:
                status = status.with_done_ddls(done)
            if left_out is not None:
                status = replace(status, left_out=tuple(left_out))
            await txn.put(self._keys.status, status.to_json())

        await self._lease.write(change)

    async def begin_files(self, files: Sequence[PendingFile]) -> None:
        """Store the pending files of dispatchers; raise Fenced when a dispatcher is gone."""
        begun: dict[str, list[PendingFile]] = {}
        for file in files:
            begun.setdefault(file.dispatcher_id, []).append(file)

        async def begin(txn: AsyncTransaction) -> None:
            rows = await txn.batch_get([self._keys.dispatcher(dispatcher_id) for dispatcher_id in begun])
            for dispatcher_id, pending in begun.items():
                key = self._keys.dispatcher(dispatcher_id)
                if key not in rows:
                    raise Fenced(
                        f"changefeed {self.changefeed_id} has no dispatcher {dispatcher_id} any more"
                    )
                record = replace(read_dispatcher(rows[key]), pending=tuple(pending))
                await txn.put(key, write_dispatcher(record))

        await self._lease.write(begin)

    async def give_up(self) -> None:
        """Let another process run the changefeed at once; does nothing when one runs it already."""
        await self._lease.give_up()

    async def _change_status(self, edit: Callable[[ChangefeedStatus], ChangefeedStatus]) -> None:
        async def change(txn: AsyncTransaction) -> None:
            status = edit((await get_changefeed(txn, self.changefeed_id, self._keyring)).status)
            await txn.put(self._keys.status, status.to_json())

        await self._lease.write(change)


async def _list_changefeeds(txn: AsyncTransaction, keyring: Keyring) -> list[ChangefeedRecord]:
    rows = {
        key: value
        for prefix in (INFOS, STATUSES)
        async for key, value in txn.scan(prefix, prefix_end(prefix))
    }
    records = []
    for name in (key.removeprefix(INFOS).decode() for key in rows if key.startswith(INFOS)):
        keys = ChangefeedKeys(name)
        try:
            records.append(changefeed_of(name, rows[keys.info], rows.get(keys.status), keyring))
        except Corrupt as error:
            _log.error("a changefeed is left out", extra={"changefeed": name, "error": str(error)})
    return records


async def get_changefeed(txn: AsyncTransaction, changefeed_id: str, keyring: Keyring) -> ChangefeedRecord:
    """Return a changefeed as a transaction sees it; raise NotFound when there is none of that name."""
    info = await require_changefeed(txn, changefeed_id)
    status = await txn.get(ChangefeedKeys(changefeed_id).status)
    return changefeed_of(changefeed_id, info, status, keyring)


async def require_changefeed(txn: AsyncTransaction, changefeed_id: str) -> bytes:
    """Return the info row of a changefeed; raise NotFound when there is none of that name."""
    info = await txn.get(ChangefeedKeys(changefeed_id).info)
    if info is None:
        raise no_such_changefeed(changefeed_id)
    return info


def no_such_changefeed(changefeed_id: str) -> NotFound:
    """Return the error for a changefeed that does not exist, or is not the caller's."""
    return NotFound(
        f"there is no changefeed {changefeed_id}; `penstock changefeed list` shows those there are"
    )


def changefeed_of(
    changefeed_id: str, info: bytes, status: bytes | None, keyring: Keyring
) -> ChangefeedRecord:
    """Return a changefeed from its two rows; raise Corrupt when one is damaged or missing."""
    known = ChangefeedInfo.from_json(changefeed_id, info, keyring)
    if status is None:
        raise Corrupt(f"changefeed {changefeed_id} has no status; remove it and create it again")
    return ChangefeedRecord(known, ChangefeedStatus.from_json(changefeed_id, status))


def write_dispatcher(record: DispatcherRecord) -> bytes:
    """Return the row of a dispatcher."""
    span = record.span
    tree: dict[str, Any] = {
        "table_id": span.table_id,
        "id": span.id,
        "handle_from": span.handle_from.hex(),
        "handle_to": span.handle_to.hex(),
        "begin": record.begin.to_json(),
    }
    if record.pending:
        tree["pending"] = [_write_pending(file) for file in record.pending]
    return json.dumps(tree).encode()


def read_dispatcher(data: bytes) -> DispatcherRecord:
    """Return a dispatcher from its row; raise Corrupt when it is damaged.

    Earlier releases had one file of a dispatcher under way, and stored it without a list.
    """
    try:
        tree = json.loads(data)
        span = TableSpan(
            tree["id"],
            int(tree["table_id"]),
            bytes.fromhex(tree["handle_from"]),
            bytes.fromhex(tree["handle_to"]),
        )
        pending = tree.get("pending") or []
        files = [pending] if isinstance(pending, dict) else pending
        begin = Position.from_json(tree["begin"])
        return DispatcherRecord(span, begin, tuple(_read_pending(span.id, file) for file in files))
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(
            "the row of a changefeed's dispatcher is damaged; remove the changefeed and create it again"
        ) from error


def _write_pending(file: PendingFile) -> dict[str, Any]:
    return {
        "data_path": file.data_path,
        "index_path": file.index_path,
        "start": file.start.to_json(),
        "end": file.end.to_json(),
        "nbytes": file.nbytes,
        "where": file.where,
        "followed": file.followed,
    }


def _read_pending(dispatcher_id: str, tree: dict[str, Any]) -> PendingFile:
    return PendingFile(
        dispatcher_id,
        tree["data_path"],
        tree["index_path"],
        Position.from_json(tree["start"]),
        Position.from_json(tree["end"]),
        int(tree["nbytes"]),
        None if tree.get("where") is None else str(tree["where"]),
        bool(tree.get("followed", False)),
    )
