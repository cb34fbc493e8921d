"""What a comparison of a changefeed's directory with its tables found. Pure values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.verify.tally import Counts

__all__ = ["FeedReport", "TableReport", "VerifyScope"]


class VerifyScope(StrEnum):
    """What of a table was compared."""

    ALL = "all rows"
    CHANGES = "changes only"
    """The directory does not begin with the table's rows: only keys that it has changes of count."""
    NOTHING = "nothing"
    """Why, is in the note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """One table."""

    table: str
    scope: VerifyScope
    source_rows: int = 0
    target_rows: int = 0
    counts: Counts = field(default_factory=Counts)
    samples: Mapping[str, list[str]] = field(default_factory=dict, repr=False)
    """Digests of some keys, by how they differ; no values."""
    keys_seen: int = 0
    """Keys that the directory has changes of."""
    keys_moving: int = 0
    """Keys that changed meanwhile, of which files do not tell the time; they were left out."""
    faults: tuple[str, ...] = ()
    """Files that are missing or damaged, and whatever else is wrong with the table as a whole."""
    note: str = ""

    @property
    def differs(self) -> bool:
        """Whether something is wrong with it."""
        return bool(self.counts.total or self.faults)

    @property
    def same(self) -> bool | None:
        """Whether nothing differs; None when nothing was compared, and nothing else is wrong."""
        return None if self.scope is VerifyScope.NOTHING and not self.differs else not self.differs


@dataclass(frozen=True, slots=True)
class FeedReport:
    """A changefeed whose directory was read up to its checkpoint `at_ts`."""

    feed: str
    at_ts: int
    tables: tuple[TableReport, ...]

    @property
    def same(self) -> bool:
        """Whether nothing differs in any table that could be compared."""
        return not any(each.differs for each in self.tables)
