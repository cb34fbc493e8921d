"""Which capture owns which table. A pure decision: every capture that sees the same members agrees."""

import hashlib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

_BOOKKEEPING = frozenset({"information_schema", "metrics_schema", "mysql", "performance_schema", "sys"})


def owner(table_id: int, captures: Iterable[str]) -> str | None:
    """The capture with the highest hash for a table; when one leaves, only its own tables move."""
    return max(captures, key=lambda capture: (_weight(capture, table_id), capture), default=None)


def _weight(capture: str, table_id: int) -> bytes:
    return hashlib.blake2b(f"{capture}/{table_id}".encode(), digest_size=8).digest()


def wanted(database: str, table: str, patterns: Sequence[str]) -> bool:
    """Whether `database.table` fits one of the patterns; names are compared without case.

    The database's own bookkeeping is left out, unless a pattern names it without a wildcard.
    """
    database, name = database.lower(), f"{database}.{table}".lower()
    lowered = [pattern.lower() for pattern in patterns]
    if database in _BOOKKEEPING:
        lowered = [pattern for pattern in lowered if pattern.startswith(f"{database}.")]
    return any(fnmatchcase(name, pattern) for pattern in lowered)
