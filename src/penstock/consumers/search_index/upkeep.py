"""The upkeep of an index: `next_steps` decides what is due, from numbers alone, and `IndexKeeper` does it.

Searches read new rows one by one until they are folded into the index. Folding does not change the index's
own model (centroids, codebooks, statistics of terms), so its quality decays as rows change: then it is
trained again.
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
    """Measure the share of exact answers that it finds."""
    COMPACT = "compact"
    """Merge fragments of similar size, and rewrite those with many deleted rows. This comes before rows are
    folded in, so that the index need not learn their new places."""
    TRAIN = "train"
    """Build it again from all rows."""
    FOLD = "fold"
    """Add the rows that it does not have yet, as a new segment."""
    MERGE = "merge"
    """Merge all segments that were folded in; the trained model stays."""
    CLEAN = "clean"
    """Remove versions that are older than the retention."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """Rows that have files of their own."""

    id: int
    rows: int
    """Rows, deleted ones included."""
    deleted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The state of an index."""

    rows: int
    trained: bool
    """Whether there is an index of the wanted kind."""
    trained_rows: int = 0
    """Rows when it was trained."""
    changed_rows: int = 0
    """Changes since then."""
    measured_rows: int = 0
    """`changed_rows` when recall was last measured."""
    recall_trained: float = 0.0
    """Recall when it was trained; 0: recall is not measured for this kind."""
    recall: float | None = None
    """Recall now; None: not measured now."""
    largest_share: float = 0.0
    """The size of the largest partition, divided by the mean; 0: there are no partitions."""
    unindexed_rows: int = 0
    segments: int = 1
    fragments: tuple[Fragment, ...] = ()
    """Fragments without the marker's."""
    versions: int = 0
    """Versions since old ones were last removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far an index may decay."""

    rows_min: int | None = 0
    """With fewer rows, reading them all is as fast as an index; None: there is no index at all."""
    changed_share: float = 0.5
    """Train again once this share of the trained rows has changed."""
    measured_share: float = 0.05
    """Measure recall once this share of the trained rows has changed."""
    recall_loss: float = 0.1
    """Recall that may be lost since the training."""
    largest_share: float = 8.0
    """The largest partition may have this multiple of the mean, once enough rows changed to be measured."""
    unindexed_rows: int = 1_000
    unindexed_share: float = 0.005
    """Rows that may wait to be folded in: `unindexed_rows`, or this share of all."""
    segments: int = 8
    fragments: int = 16
    """How many fragments of one size class there may be; each class is that many times as large as the one
    below."""
    fragment_rows: int = 1 << 20
    """Rows of the largest fragments."""
    deleted_rows: int = 1_000
    deleted_share: float = 0.2
    """Deleted rows that may stay in a fragment: `deleted_rows`, or this share of it."""
    versions: int = 64

    def wants_index(self, rows: int) -> bool:
        """Return whether there are enough rows for an index."""
        return self.rows_min is not None and rows >= self.rows_min


def next_steps(now: Condition, limits: Limits) -> tuple[IndexUpkeepStep, ...]:
    """Return what to do, in order. After MEASURE, call it again with the measured recall."""
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
    """Return the fragments to rewrite: those of a size class that has too many, or with many deleted rows."""
    sizes: dict[int, list[int]] = defaultdict(list)
    found: set[int] = set()
    for fragment in fragments:
        if fragment.deleted > max(limits.deleted_rows, limits.deleted_share * fragment.rows):
            found.add(fragment.id)
        if fragment.rows < limits.fragment_rows:
            sizes[_size_class(fragment.rows, limits.fragments)].append(fragment.id)
    for ids in sizes.values():
        if len(ids) >= limits.fragments:
            found.update(ids)
    return frozenset(found)


def _size_class(rows: int, base: int) -> int:
    """Return the logarithm of `rows` to `base`, rounded down."""
    size_class = 0
    while rows >= base:
        rows, size_class = rows // base, size_class + 1
    return size_class


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
"""The name of the index in the dataset."""
os.environ.setdefault("LANCE_INCLUDE_VECTOR_CENTROIDS", "false")  # else statistics contain all centroids
_log = logging.getLogger(__name__)


class IndexKind(Protocol):
    """One way to index a column."""

    @property
    def signature(self) -> str:
        """The kind with its parameters: an index of another signature is built again."""

    def create(self, dataset: LanceDataset) -> None:
        """Build the index from all rows, in place of an existing one."""

    def recall(self, dataset: LanceDataset) -> float:
        """Return the share of exact answers that it finds in a sample; 0 if its answers are exact."""


@dataclass(frozen=True, slots=True)
class IndexKeeper:
    """Does the upkeep of one dataset's index, after its rows were committed."""

    table: LanceTable
    kind: IndexKind
    limits: Limits
    retain_s: float

    def build(self, current: IndexVersion) -> IndexVersion:
        """Build the index of new rows, if they are enough for one, and make them visible to searches."""
        trained = self._train(current) if self.limits.wants_index(current.rows) else {}
        found = self.table.change(current, None, lambda marker, _: replace(marker, complete=True, **trained))
        self.table.retire_tag(found)
        return found

    def keep(self, current: IndexVersion) -> None:
        """Do the steps that are due.

        The rows are safe whatever happens: a step that fails is logged, and due again after the next change.
        """
        facts = {"index": self.table.uri}
        try:
            self._keep(current)
        except (CommitConflictError, Fenced):
            _log.info("an index was changed during its upkeep", extra=facts)
        except LANCE_FAILURES as error:
            _log.warning("upkeep of an index failed", extra=facts | {"error": type(error).__name__})

    def _keep(self, current: IndexVersion) -> None:
        condition = self._condition(current)
        steps = next_steps(condition, self.limits)
        if steps == (IndexUpkeepStep.MEASURE,):
            with JOBS_INDEX_UPKEEP_SECONDS.labels(IndexUpkeepStep.MEASURE).time():
                recall = self.kind.recall(current.dataset)
            current = self._update_marker(current, measured_rows=current.marker.changed_rows)
            steps = next_steps(replace(condition, recall=recall), self.limits)
        for step in steps:
            with JOBS_INDEX_UPKEEP_SECONDS.labels(step).time():
                current = self._do_step(step, current)

    def _do_step(self, step: IndexUpkeepStep, current: IndexVersion) -> IndexVersion:
        dataset = current.dataset
        match step:
            case IndexUpkeepStep.TRAIN:
                return self._update_marker(current, **self._train(current))
            case IndexUpkeepStep.FOLD:
                dataset.optimize.optimize_indices(index_names=[INDEX], num_indices_to_merge=0)
            case IndexUpkeepStep.MERGE:
                folded = _statistics(dataset)["num_segments"] - 1
                dataset.optimize.optimize_indices(index_names=[INDEX], num_indices_to_merge=folded)
            case IndexUpkeepStep.COMPACT:
                self._compact(current)
            case IndexUpkeepStep.CLEAN:
                self.table.retire_tag(current)  # a build may have been killed just before this
                kept = timedelta(seconds=self.retain_s)
                dataset.cleanup_old_versions(kept, error_if_tagged_old_versions=False)
                return self._update_marker(current, cleaned_version=current.version)
        return self._reopen(current)

    def _compact(self, current: IndexVersion) -> None:
        """Merge fragments; raise Fenced when the version that was read is gone.

        Lance refuses to replace fragments that others have changed since, but it finds that out from the
        versions in between. A process that stood still while those were removed would bring deleted rows
        back. Versions are removed by age: while the one that was read exists, so do those after it. (Indexes
        need no such check: ids of fragments are never reused.)
        """
        dataset = current.dataset
        chosen = to_compact(_fragments(current), self.limits)
        others = [
            fragment.fragment_id for fragment in dataset.get_fragments() if fragment.fragment_id not in chosen
        ]
        options = CompactionOptions(
            excluded_fragment_ids=others, target_rows_per_fragment=self.limits.fragment_rows
        )
        trained = [task.execute(dataset) for task in Compaction.plan(dataset, options).tasks]
        if trained:
            Compaction.commit(self.table.reopen(current), trained, options)

    def _train(self, current: IndexVersion) -> dict[str, Any]:
        """Build the index; return the fields of the marker that describe it."""
        self.kind.create(current.dataset)
        return {
            "trained_as": self.kind.signature,
            "trained_rows": current.rows,
            "changed_rows": 0,
            "measured_rows": 0,
            "recall": self.kind.recall(current.dataset),
        }

    def _update_marker(self, current: IndexVersion, **facts: Any) -> IndexVersion:
        return self.table.change(self._reopen(current), None, lambda marker, _: replace(marker, **facts))

    def _reopen(self, current: IndexVersion) -> IndexVersion:
        found = self.table.latest()
        if found is None or not found.has_same_rows(current):
            raise Fenced(f"the index at {self.table.uri} was changed by another writer")
        return found

    def _condition(self, current: IndexVersion) -> Condition:
        marker, dataset = current.marker, current.dataset
        index = _statistics(dataset)
        return Condition(
            rows=current.rows,
            trained=bool(index) and marker.trained_as == self.kind.signature,
            trained_rows=marker.trained_rows,
            changed_rows=marker.changed_rows,
            measured_rows=marker.measured_rows,
            recall_trained=marker.recall,
            largest_share=_largest_share(index),
            unindexed_rows=max(0, index.get("num_unindexed_rows", 0) - 1),  # without the marker
            segments=index.get("num_segments", 1),
            fragments=_fragments(current),
            versions=current.version - marker.cleaned_version,
        )


def _fragments(current: IndexVersion) -> tuple[Fragment, ...]:
    found = (fragment.metadata for fragment in current.dataset.get_fragments())
    return tuple(
        Fragment(metadata.id, metadata.physical_rows, metadata.num_deletions)
        for metadata in found
        if metadata.id != current.marker_fragment
    )


def _statistics(dataset: LanceDataset) -> dict[str, Any]:
    """Return Lance's statistics of the index; an empty dict when there is none."""
    if all(index.name != INDEX for index in dataset.describe_indices()):
        return {}
    return dataset.stats.index_stats(INDEX)


def _largest_share(index: dict[str, Any]) -> float:
    """Return the size of the largest partition of all segments, divided by the mean; 0 without partitions."""
    sizes = [
        partition["size"]
        for segment in index.get("indices", ())
        for partition in segment.get("partitions", ())
    ]
    return max(sizes) * len(sizes) / sum(sizes) if sum(sizes) else 0.0
