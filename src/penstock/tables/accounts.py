"""Accounts: the tenants that databases belong to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from penstock.errors import Invalid
from penstock.tables.keys import decode_meta_key, meta_hash_prefix
from penstock.tables.meta import ACCOUNTS, MetaReader, parse_json
from penstock.tables.schema import DatabaseInfo
from penstock.tables.schema_snapshot import choices

_ACCOUNT_FIELD = b"Account:"
_OWNER_FIELD = b"DB:"
_ACCOUNT_KEYS = meta_hash_prefix(ACCOUNTS)


@dataclass(frozen=True, slots=True)
class Account:
    """A tenant. Databases without an account belong to SYSTEM_ACCOUNT."""

    id: int
    name: str

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return cls(tree["id"], tree["name"])

    def to_json(self) -> dict[str, Any]:
        """Return the form that is stored in the meta keys."""
        return {"id": self.id, "name": self.name}


SYSTEM_ACCOUNT = Account(0, "sys")


class OwnerRecord(NamedTuple):
    """What a meta key says of a database: the account that it belongs to; None: the record was removed."""

    database_id: int
    account_id: int | None


def read_account_record(key: bytes, value: bytes | None) -> Account | OwnerRecord | None:
    """Decode what a key's new value says of an account or an owner; None when it is about something else.

    An account that was removed is None too: it owned nothing.
    """
    if not key.startswith(_ACCOUNT_KEYS):
        return None
    field = decode_meta_key(key).field or b""
    if field.startswith(_OWNER_FIELD):
        database_id = int(field.removeprefix(_OWNER_FIELD))
        return OwnerRecord(database_id, None if value is None else int(parse_json(value)))
    if field.startswith(_ACCOUNT_FIELD) and value is not None:
        return Account.from_json(parse_json(value))
    return None


def account_field(account_id: int) -> bytes:
    """Return the field of an account in the hash of accounts."""
    return _ACCOUNT_FIELD + b"%d" % account_id


def owner_field(database_id: int) -> bytes:
    """Return the field that says which account a database belongs to."""
    return _OWNER_FIELD + b"%d" % database_id


@dataclass(frozen=True, slots=True)
class Accounts:
    """All accounts by lower-case name, and the owners of databases by database id."""

    by_name: Mapping[str, Account]
    owners: Mapping[int, int]

    @classmethod
    def load(cls, meta: MetaReader) -> Self:
        """Read all accounts and owners."""
        by_name, owners = {SYSTEM_ACCOUNT.name: SYSTEM_ACCOUNT}, {}
        for field, value in meta.fields(ACCOUNTS):
            if field.startswith(_ACCOUNT_FIELD):
                account = Account.from_json(parse_json(value))
                by_name[account.name.lower()] = account
            else:
                owners[int(field.removeprefix(_OWNER_FIELD))] = int(parse_json(value))
        return cls(by_name, owners)

    def find(self, name: str) -> Account:
        """Return the account of that name; raise Invalid when there is none."""
        try:
            return self.by_name[name.lower()]
        except KeyError:
            raise Invalid(f"there is no account {name!r}; {choices(self.by_name)}") from None

    def of(self, database: DatabaseInfo) -> Account:
        """Return the account that a database belongs to."""
        owner = self.owners.get(database.id, SYSTEM_ACCOUNT.id)
        return next((account for account in self.by_name.values() if account.id == owner), SYSTEM_ACCOUNT)
