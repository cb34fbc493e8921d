"""Accounts: the tenants that databases belong to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from penstock.errors import Invalid
from penstock.tables.meta import ACCOUNTS, MetaReader, parse_json
from penstock.tables.schema import DatabaseInfo
from penstock.tables.schema_snapshot import choices

_ACCOUNT_FIELD = b"Account:"
_OWNER_FIELD = b"DB:"


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
