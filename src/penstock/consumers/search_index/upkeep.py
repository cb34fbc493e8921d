"""When an index needs care: a decision of numbers alone. Pure.

New rows are found by reading them until they are folded into the index. Folding leaves the index's own model
(centroids, codebooks, statistics of terms) as it was trained, so quality decays as rows change: it is then
trained anew.

Makes the index of a dataset, and takes care of it: what `upkeep` decides is done here.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Protocol

from lance.commit import CommitConflictError
from lance.dataset import LanceDataset
from lance.optimize import Compaction, CompactionOptions

from penstock.consumers.search_index.lance_table import LANCE_FAILURES, IndexVersion, LanceTable
from penstock.errors import Fenced
from penstock.metrics import JOBS_INDEX_UPKEEP_SECONDS

__all__ = [
    "INDEX",
    "Condition",
    "Fragment",
    "IndexKeeper",
    "IndexKind",
    "IndexUpkeepStep",
    "Limits",
    "next_steps",
    "to_compact",
]


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


INDEX = "penstock"
"""What the index is called in the dataset."""
os.environ.setdefault("LANCE_INCLUDE_VECTOR_CENTROIDS", "false")  # else statistics carry all centroids
_log = logging.getLogger(__name__)


class IndexKind(Protocol):
    """One way to index a column."""

    @property
    def signature(self) -> str:
        """What it is, with its parameters: an index of another one is made anew."""

    def create(self, dataset: LanceDataset) -> None:
        """Make it of all rows, in place of one that is there."""

    def recall(self, dataset: LanceDataset) -> float:
        """The share of exact answers that it finds, by a sample; 0 where its answers are exact."""


@dataclass(frozen=True, slots=True)
class IndexKeeper:
    """Takes care of the index of one dataset, after its rows were committed."""

    table: LanceTable
    kind: IndexKind
    limits: Limits
    retain_s: float

    def build(self, standing: IndexVersion) -> IndexVersion:
        """Make the index of new rows, if they are enough for one, and let them be searched."""
        made = self._trained(standing) if self.limits.wants_index(standing.rows) else {}
        found = self.table.change(standing, None, lambda marker, _: replace(marker, complete=True, **made))
        self.table.retire_tag(found)
        return found

    def keep(self, standing: IndexVersion) -> None:
        """Do what is necessary now. The rows are safe whatever becomes of it: a step that fails is logged,
        and wanted again after the next change.
        """
        facts = {"index": self.table.uri}
        try:
            self._keep(standing)
        except (CommitConflictError, Fenced):
            _log.info("an index was changed while it was taken care of", extra=facts)
        except LANCE_FAILURES as error:
            _log.warning("care of an index failed", extra=facts | {"error": type(error).__name__})

    def _keep(self, standing: IndexVersion) -> None:
        condition = self._condition(standing)
        steps = next_steps(condition, self.limits)
        if steps == (IndexUpkeepStep.MEASURE,):
            with JOBS_INDEX_UPKEEP_SECONDS.labels(IndexUpkeepStep.MEASURE).time():
                recall = self.kind.recall(standing.dataset)
            standing = self._noted(standing, measured_rows=standing.marker.changed_rows)
            steps = next_steps(replace(condition, recall=recall), self.limits)
        for step in steps:
            with JOBS_INDEX_UPKEEP_SECONDS.labels(step).time():
                standing = self._done(step, standing)

    def _done(self, step: IndexUpkeepStep, standing: IndexVersion) -> IndexVersion:
        dataset = standing.dataset
        match step:
            case IndexUpkeepStep.TRAIN:
                return self._noted(standing, **self._trained(standing))
            case IndexUpkeepStep.FOLD:
                dataset.optimize.optimize_indices(index_names=[INDEX], num_indices_to_merge=0)
            case IndexUpkeepStep.MERGE:
                folded = _statistics(dataset)["num_segments"] - 1
                dataset.optimize.optimize_indices(index_names=[INDEX], num_indices_to_merge=folded)
            case IndexUpkeepStep.COMPACT:
                self._compact(standing)
            case IndexUpkeepStep.CLEAN:
                self.table.retire_tag(standing)  # a build may have been killed just before it did that
                kept = timedelta(seconds=self.retain_s)
                dataset.cleanup_old_versions(kept, error_if_tagged_old_versions=False)
                return self._noted(standing, cleaned_version=standing.version)
        return self._reopened(standing)

    def _compact(self, standing: IndexVersion) -> None:
        """Write fragments together; raises Fenced when the version that was read is gone.

        Lance refuses to replace fragments that others have changed since, but it finds that out by the
        versions in between. A process that stood still while those were cleaned away would bring rows back
        that are deleted. Versions are removed by age: while the one that was read is there, so are those
        after it. (Indexes need no such care: ids of fragments are never used again.)
        """
        dataset = standing.dataset
        chosen = to_compact(_fragments(standing), self.limits)
        others = [each.fragment_id for each in dataset.get_fragments() if each.fragment_id not in chosen]
        options = CompactionOptions(
            excluded_fragment_ids=others, target_rows_per_fragment=self.limits.fragment_rows
        )
        made = [task.execute(dataset) for task in Compaction.plan(dataset, options).tasks]
        if made:
            Compaction.commit(self.table.reopened(standing), made, options)

    def _trained(self, standing: IndexVersion) -> dict[str, Any]:
        """Make the index anew; what the marker says of it then."""
        self.kind.create(standing.dataset)
        return {
            "trained_as": self.kind.signature,
            "trained_rows": standing.rows,
            "changed_rows": 0,
            "measured_rows": 0,
            "recall": self.kind.recall(standing.dataset),
        }

    def _noted(self, standing: IndexVersion, **facts: Any) -> IndexVersion:
        return self.table.change(self._reopened(standing), None, lambda marker, _: replace(marker, **facts))

    def _reopened(self, standing: IndexVersion) -> IndexVersion:
        found = self.table.latest()
        if found is None or not found.keeps(standing):
            raise Fenced(f"the index at {self.table.uri} was changed by another writer")
        return found

    def _condition(self, standing: IndexVersion) -> Condition:
        marker, dataset = standing.marker, standing.dataset
        index = _statistics(dataset)
        return Condition(
            rows=standing.rows,
            trained=bool(index) and marker.trained_as == self.kind.signature,
            trained_rows=marker.trained_rows,
            changed_rows=marker.changed_rows,
            measured_rows=marker.measured_rows,
            recall_trained=marker.recall,
            largest_share=_largest_share(index),
            unindexed_rows=max(0, index.get("num_unindexed_rows", 0) - 1),  # the marker is none
            segments=index.get("num_segments", 1),
            fragments=_fragments(standing),
            versions=standing.version - marker.cleaned_version,
        )


def _fragments(standing: IndexVersion) -> tuple[Fragment, ...]:
    found = (each.metadata for each in standing.dataset.get_fragments())
    return tuple(
        Fragment(each.id, each.physical_rows, each.num_deletions)
        for each in found
        if each.id != standing.marker_fragment
    )


def _statistics(dataset: LanceDataset) -> dict[str, Any]:
    """What Lance says of the index; nothing when there is none."""
    if all(each.name != INDEX for each in dataset.describe_indices()):
        return {}
    return dataset.stats.index_stats(INDEX)


def _largest_share(index: dict[str, Any]) -> float:
    """The largest partition of all segments by the mean; 0 for an index that has none."""
    sizes = [
        partition["size"]
        for segment in index.get("indices", ())
        for partition in segment.get("partitions", ())
    ]
    return max(sizes) * len(sizes) / sum(sizes) if sum(sizes) else 0.0
