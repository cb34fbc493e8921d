"""Which physical tables hold a range of a table's changes, and whether it can be read row by row. Pure.

TRUNCATE TABLE, TRUNCATE / DROP / EXCHANGE / REORGANIZE PARTITION and another table under the same name remove
rows, or bring rows, without a change of any row. They all show in the physical ids: an id goes, or one comes
that had rows before. MODIFY COLUMN may give every row another value without a change of any row: then a
column has another id. A range with such a moment cannot be read as changes; a snapshot at that moment can be
read, and the changes after it. A partition that is added begins empty, and so does a new table.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from penstock.clock import TS_MAX
from penstock.errors import StaleRead
from penstock.eventstore.schema_version import SchemaVersion, rewritten_columns


class Life(NamedTuple):
    """A version of a table, and when it ended: by another version, or with the table (TS_MAX: not yet)."""

    schema: SchemaVersion
    until_ts: int = TS_MAX

    @property
    def since_ts(self) -> int:
        """When the version began."""
        return self.schema.since_ts

    @property
    def ids(self) -> tuple[int, ...]:
        """The physical tables of the version."""
        return self.schema.table.physical_ids

    def is_called(self, name: str) -> bool:
        """Return whether the table has the name; case does not matter."""
        return self.schema.name.lower() == name.lower()


class PartitionSet(NamedTuple):
    """The physical tables that a table consists of from `since_ts` on."""

    since_ts: int
    ids: tuple[int, ...]


class AskedTable(NamedTuple):
    """The table that a reader asks for.

    With `named` it is whatever table has the name at a time; else the table of the id, whatever its name.
    """

    name: str
    table_id: int
    named: bool = True
    across_rewrites: bool = False  # the reader looks for rewritten columns itself


def lives_of(physical_id: int, versions: Iterable[SchemaVersion], ended: Collection[int]) -> list[Life]:
    """Return the versions that a physical table was part of, out of all that its manifest knows.

    It may have been part of one table and then of another. `ended` has the times at which it was dropped.
    """
    by_time = sorted(versions, key=lambda version: version.since_ts)
    found: list[Life] = []
    for version, follower in zip_longest(by_time, by_time[1:]):
        ends = [*ended, *([] if follower is None else [follower.since_ts])]
        if physical_id in version.table.physical_ids:
            until_ts = min((ts for ts in ends if ts > version.since_ts), default=TS_MAX)
            found.append(Life(version, until_ts))
    return found


def merge_lives(lives: Iterable[Life]) -> list[Life]:
    """Merge the lives that several physical tables know, by time; the earliest end of a life counts."""
    found: dict[tuple[int, int], Life] = {}
    for life in lives:
        key = life.since_ts, life.schema.table.id
        known = found.get(key)
        found[key] = life if known is None else known._replace(until_ts=min(known.until_ts, life.until_ts))
    return [found[key] for key in sorted(found)]


def life_at(lives: Iterable[Life], table_id: int, ts: int) -> Life | None:
    """Return the version of a table at `ts`; None when it does not exist then, or is not known."""
    mine = (life for life in lives if life.schema.table.id == table_id)
    there = (life for life in mine if life.since_ts <= ts < life.until_ts)
    return max(there, key=lambda life: life.since_ts, default=None)


def partition_sets(asked: AskedTable, lives: Sequence[Life], from_ts: int, to_ts: int) -> list[PartitionSet]:
    """Return the sets of physical tables that a table's changes in (from_ts, to_ts] are in, by time.

    The first is the set at `from_ts`; the last has all physical tables. Empty when the table is not known in
    the range. `lives` are of the table and, if it did not exist at `from_ts` under its name, of every other
    table that had the name. Raises StaleRead when the changes from `from_ts` on cannot be read row by row;
    its `oldest_ts` is the commit-ts of the last DDL that prevents that.
    """
    try:
        return _unbroken_sets(asked, lives, from_ts, to_ts)
    except StaleRead as error:
        oldest_ts = error.oldest_ts
    last_ts = from_ts
    while last_ts < oldest_ts < to_ts:  # a later DDL may prevent it too
        last_ts = oldest_ts
        try:
            _unbroken_sets(asked, lives, last_ts, to_ts)
        except StaleRead as error:
            oldest_ts = error.oldest_ts
    raise StaleRead(asked.name, from_ts, oldest_ts=oldest_ts, replaced=True)


def _unbroken_sets(asked: AskedTable, lives: Sequence[Life], from_ts: int, to_ts: int) -> list[PartitionSet]:
    """Return the sets of a range; raise StaleRead, for any of several reasons, when it has none."""
    mine = [life for life in lives if life.schema.table.id == asked.table_id]
    if not mine:
        return []
    start = life_at(lives, asked.table_id, from_ts)
    if asked.named and (start is None or not start.is_called(asked.name)):
        others = (life for life in lives if life.schema.table.id != asked.table_id)
        if any(life.is_called(asked.name) and life.since_ts <= from_ts < life.until_ts for life in others):
            inside = [life for life in mine if life.since_ts <= to_ts]
            named_ts = _naming_ts(inside or mine, asked.name)
            raise StaleRead(asked.name, from_ts, oldest_ts=named_ts, replaced=True)
    known = [life for life in mine if life.since_ts <= to_ts]
    if not known:
        return []
    if from_ts < known[-1].until_ts <= to_ts:  # the table was dropped
        raise StaleRead(asked.name, from_ts, oldest_ts=known[-1].until_ts, replaced=True)
    after = [life for life in known if life.since_ts > from_ts]
    if start is None and not asked.named and after and after[0].ids != (asked.table_id,):
        # A reader that follows a table by its id has read it before, with other partitions than these.
        raise StaleRead(asked.name, from_ts, oldest_ts=after[-1].since_ts, replaced=True)
    _require_unbroken(asked, lives, start, after, from_ts)
    if start is None and not after:
        return []  # it was dropped before the range
    first = start or after[0]
    return [PartitionSet(from_ts, first.ids), *(PartitionSet(life.since_ts, life.ids) for life in after)]


def _require_unbroken(
    asked: AskedTable, lives: Sequence[Life], start: Life | None, after: Sequence[Life], from_ts: int
) -> None:
    """Raise StaleRead when rows came or went with a physical table after `from_ts`, or were rewritten."""
    base: set[int] = set() if start is None else set(start.ids)
    before, broken, last_ts = base, False, 0
    previous = start
    for life in after:
        now = set(life.ids)
        brought = any(
            other.since_ts < life.since_ts and not now.isdisjoint(set(other.ids) - before) for other in lives
        )
        rewritten = (
            previous is not None
            and not asked.across_rewrites
            and bool(rewritten_columns(previous.schema.table, life.schema.table))
        )
        if brought or rewritten or not before <= now:
            last_ts = life.since_ts
        broken = broken or brought or rewritten or not base <= now
        before, previous = now, life
    if broken:
        raise StaleRead(asked.name, from_ts, oldest_ts=last_ts, replaced=True)


def _naming_ts(mine: Sequence[Life], name: str) -> int:
    """Return when a table got its name, for the last time."""
    since_ts = 0
    for before, life in zip([None, *mine], mine, strict=False):
        begun = before is None or not before.is_called(name) or before.until_ts < life.since_ts
        if begun and life.is_called(name):
            since_ts = life.since_ts
    return since_ts or mine[-1].since_ts


def first_set(sets: Sequence[PartitionSet], to_ts: int) -> tuple[int, tuple[int, ...]]:
    """Return the end of the longest range that has one set of physical tables, and that set.

    The range ends before a partition is added. A partition that is added by the first commit of the range
    belongs to the set.
    """
    from_ts, ids = sets[0]
    for since_ts, now in sets[1:]:
        if set(now) > set(ids):
            if since_ts > from_ts + 1:
                return since_ts - 1, ids
            ids = now
    return to_ts, ids
