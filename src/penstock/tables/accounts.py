"""Accounts: the tenants that databases belong to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Account:
    """A tenant. Databases that were never given to one belong to SYSTEM."""

    id: int
    name: str

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return cls(tree["id"], tree["name"])

    def to_json(self) -> dict[str, Any]:
        """Write it for the meta keys."""
        return {"id": self.id, "name": self.name}


SYSTEM = Account(0, "sys")
