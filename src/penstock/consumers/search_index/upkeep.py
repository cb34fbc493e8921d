"""When an index needs care: a decision of numbers alone. Pure.

New rows are found by reading them until they are folded into the index. Folding leaves the index's own model
(centroids, codebooks, statistics of terms) as it was trained, so quality decays as rows change: it is then
trained anew.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Condition", "Fragment", "IndexUpkeepStep", "Limits", "next_steps", "to_compact"]


class IndexUpkeepStep(StrEnum):
    """What can be done for an index."""

    MEASURE = "measure"
    """Find out how much of an exact answer it finds."""
    COMPACT = "compact"
    """Write fragments of about one size together, and those with many deleted rows anew. Comes before the
    index takes rows in: then it does not have to be told where they are now."""
    TRAIN = "train"
    """Make it anew of all rows."""
    FOLD = "fold"
    """Add the rows that it lacks, as a segment of its own."""
    MERGE = "merge"
    """Make one segment of all that were folded in; what was trained stays."""
    CLEAN = "clean"
    """Remove versions that are older than they have to be kept."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """Rows that are in files of their own."""

    id: int
    rows: int
    """With the deleted ones."""
    deleted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """How an index is."""

    rows: int
    trained: bool
    """Whether there is an index of the kind that is wanted."""
    trained_rows: int = 0
    """Rows when it was trained."""
    changed_rows: int = 0
    """Changes since then."""
    measured_rows: int = 0
    """Of these, those before recall was last measured."""
    recall_trained: float = 0.0
    """Recall when it was trained; 0: it is not measured for this kind."""
    recall: float | None = None
    """Recall now; None: not measured now."""
    largest_share: float = 0.0
    """The largest partition by the mean of all; 0: there are none."""
    unindexed_rows: int = 0
    segments: int = 1
    fragments: tuple[Fragment, ...] = ()
    """Without the marker's."""
    versions: int = 0
    """Versions since old ones were last removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far an index may decay."""

    rows_min: int | None = 0
    """Rows below which reading them all is as fast as an index; None: there is to be none."""
    changed_share: float = 0.5
    """Changes since the training, by the rows of then."""
    measured_share: float = 0.05
    """Changes after which recall is measured."""
    recall_loss: float = 0.1
    """Recall that may be lost since the training."""
    largest_share: float = 8.0
    """How much larger than the mean a partition may be, where enough rows changed to be measured."""
    unindexed_rows: int = 1_000
    unindexed_share: float = 0.005
    """Rows that may wait to be folded in: so many, or this share of all."""
    segments: int = 8
    fragments: int = 16
    """How many of about one size there may be: each is that many times as large as one of the size below."""
    fragment_rows: int = 1 << 20
    """Rows of the largest."""
    deleted_rows: int = 1_000
    deleted_share: float = 0.2
    """Deleted rows that may stay in a fragment: so many, or this share of it."""
    versions: int = 64

    def wants_index(self, rows: int) -> bool:
        """Whether there are enough rows for an index."""
        return self.rows_min is not None and rows >= self.rows_min


def next_steps(now: Condition, limits: Limits) -> tuple[IndexUpkeepStep, ...]:
    """What to do, in this order. After MEASURE, ask again with what was measured."""
    training = _wants_training(now, limits)
    if now.trained and not training and now.recall is None and _wants_measure(now, limits):
        return (IndexUpkeepStep.MEASURE,)
    steps: list[IndexUpkeepStep] = []
    if to_compact(now.fragments, limits):
        steps.append(IndexUpkeepStep.COMPACT)
    if training:
        steps.append(IndexUpkeepStep.TRAIN)
    elif now.trained:
        folding = now.unindexed_rows > max(limits.unindexed_rows, limits.unindexed_share * now.rows)
        if folding:
            steps.append(IndexUpkeepStep.FOLD)
        if now.segments + folding > limits.segments:
            steps.append(IndexUpkeepStep.MERGE)
    if now.versions >= limits.versions:
        steps.append(IndexUpkeepStep.CLEAN)
    return tuple(steps)


def to_compact(fragments: Iterable[Fragment], limits: Limits) -> frozenset[int]:
    """The fragments that should be written again: all of a size that has too many, and those half deleted."""
    sizes: dict[int, list[int]] = defaultdict(list)
    found: set[int] = set()
    for each in fragments:
        if each.deleted > max(limits.deleted_rows, limits.deleted_share * each.rows):
            found.add(each.id)
        if each.rows < limits.fragment_rows:
            sizes[_tier(each.rows, limits.fragments)].append(each.id)
    for ids in sizes.values():
        if len(ids) >= limits.fragments:
            found.update(ids)
    return frozenset(found)


def _tier(rows: int, base: int) -> int:
    tier = 0
    while rows >= base:
        rows, tier = rows // base, tier + 1
    return tier


def _wants_training(now: Condition, limits: Limits) -> bool:
    if not limits.wants_index(now.rows):
        return False
    if not now.trained:
        return True
    if now.changed_rows > limits.changed_share * now.trained_rows + limits.unindexed_rows:
        return True
    if now.recall is not None and now.recall < now.recall_trained - limits.recall_loss:
        return True
    enough = now.changed_rows > limits.measured_share * now.trained_rows
    return enough and now.largest_share > limits.largest_share


def _wants_measure(now: Condition, limits: Limits) -> bool:
    since = now.changed_rows - now.measured_rows
    return now.recall_trained > 0 and since > limits.measured_share * now.trained_rows
