"""A Lance dataset whose rows and watermark are committed together, and that two writers cannot both change.

Every change replaces the marker row (see marker), which is alone in its fragment. Lance refuses one of
two commits that remove the same fragment, so whoever still writes after its iteration was given up loses:
its commit meets another marker and raises Fenced. Compactions and indexes leave the marker alone; a change
that meets one of them is made again on top of it.

What an index had of some keys before a change: so that what is dear to make is not made again.

The one row of a Lance dataset that says whose it is and how far it has come. Pure.

It is a row, because a row is what Lance commits together with others, carries through compactions, indexes
and the cleaning of old versions, and does not let two writers replace at once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance.dataset import LanceDataset, LanceOperation, Transaction
from lance.fragment import FragmentMetadata, write_fragments

from penstock.columnar.key_order import KeySet
from penstock.errors import Corrupt, Fenced, Invalid, Unavailable

__all__ = [
    "LANCE_FAILURES",
    "MARKER",
    "ROWS_ONLY",
    "Earlier",
    "IndexRows",
    "IndexVersion",
    "LanceTable",
    "Marker",
    "written",
]


MARKER = "_penstock"
"""The column that only the marker has; all its other columns are null."""
ROWS_ONLY = f"{MARKER} IS NULL"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """What a dataset knows of itself, in the same commit as its rows."""

    owner: str
    watermark: int
    recipe: str
    """How rows were made of those of the source; another one makes other rows."""
    last_id: int
    """The greatest id of a column that the source had."""
    job: str = ""
    """The owner's name, which a job that is registered anew has too; older versions did not write it."""
    attempt: str = ""
    """Which build made the dataset, a unique id."""
    complete: bool = True
    """False while indexes of a first build are still missing."""
    trained_rows: int = 0
    """How many rows there were when the index was last made anew; 0: it was not made yet."""
    changed_rows: int = 0
    """Changes since then."""
    measured_rows: int = 0
    """`changed_rows` when recall was last measured."""
    recall: float = 0.0
    """Recall right after training; 0: not measured."""
    trained_as: str = ""
    """What kind of index it was made as."""
    cleaned_version: int = 0
    """The version at which old ones were last removed."""

    def of(self, owner: str) -> int:
        """The watermark that counts for an owner; 0: the dataset is another's, or not complete."""
        return self.watermark if self.complete and self.owner == owner else 0

    def dump(self) -> str:
        """As it is kept."""
        return json.dumps({"format": FORMAT, **asdict(self)})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read it; raise Corrupt when it is no marker, Invalid when a newer Penstock wrote it."""
        try:
            tree = json.loads(text)
            written = tree.pop("format")
            if written > FORMAT:
                raise Invalid(f"the dataset has format {written}, a newer Penstock's; upgrade this one")
            return cls(**{each.name: tree[each.name] for each in fields(cls) if each.name in tree})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Corrupt("the marker row of a Lance dataset cannot be read; rebuild the index") from error


SERVING = "penstock-serving"
"""A tag on the last complete version while the next is built: what searches read, and nobody removes."""
LANCE_FAILURES = (OSError, ValueError, RuntimeError)
"""What Lance raises: a conflict of commits is an OSError."""
_ATTEMPTS = 5
_VERSIONS_BACK = 200
_ADDRESS = "_rowaddr"


@dataclass(frozen=True, slots=True)
class IndexVersion:
    """A version of the dataset and its marker."""

    dataset: LanceDataset
    marker: Marker
    marker_fragment: int

    @property
    def version(self) -> int:
        """Which one."""
        return self.dataset.version

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.dataset.count_rows() - 1

    def keeps(self, other: "IndexVersion") -> bool:
        """Whether another version has the same rows for the same owner."""
        return _identity(self.marker) == _identity(other.marker)


@dataclass(frozen=True, slots=True)
class IndexRows:
    """A change: fragments that were written, and the keys whose rows go first, each key once."""

    fragments: Sequence[FragmentMetadata]
    removed: pa.Table


class LanceTable:
    """The dataset at a URI. Blocking; used by one thread, beside other processes."""

    def __init__(self, uri: str, storage: Mapping[str, str], owner: str) -> None:
        self.uri = uri
        self.owner = owner
        self._storage = dict(storage)

    @property
    def storage(self) -> dict[str, str]:
        """Options of the storage, secrets among them."""
        return self._storage

    def latest(self) -> IndexVersion | None:
        """The newest version; None when there is no dataset. Raises Corrupt when it has no marker."""
        return self._open(None)

    def serving(self) -> tuple[IndexVersion, bool] | None:
        """The newest complete version of this owner, and whether it is the newest of all; None: none yet.

        It is not while the next one is built.
        """
        found = self.latest()
        if found is None:
            return None
        if found.marker.of(self.owner):
            return found, True
        tagged = self._open(SERVING) if SERVING in found.dataset.tags.list() else None
        return (tagged, False) if tagged and tagged.marker.of(self.owner) else None

    def at(self, ts: int) -> IndexVersion:
        """The newest version with this watermark; raise Fenced when it is gone."""
        found = self.latest()
        for _ in range(_VERSIONS_BACK):
            if found is None or found.version == 1 or found.marker.of(self.owner) <= ts:
                break
            found = self._open(found.version - 1)
        if found is None or found.marker.of(self.owner) != ts:
            raise Fenced(f"the index at {self.uri} has no version at {ts} any more; begin again")
        return found

    def reopened(self, standing: IndexVersion) -> LanceDataset:
        """The same version, read again; raise Fenced when it is gone."""
        found = self._open(standing.version)
        if found is None or not found.keeps(standing):
            raise self._fenced()
        return found.dataset

    def replace(
        self,
        before: IndexVersion | None,
        schema: pa.Schema,
        fragments: Sequence[FragmentMetadata],
        marker: Marker,
    ) -> IndexVersion:
        """Put rows in the place of everything; raise Fenced when the marker is not as it was `before`.

        Indexes go with the old rows. The version of before stays what is served until this one is complete.
        """
        base = before and self._unchanged(before)
        if base is not None and base.marker.of(self.owner):
            _tag(base)
        for _ in range(_ATTEMPTS):
            try:
                return self._replaced(base, schema, fragments, marker)
            except LANCE_FAILURES as error:
                self.check_absent(before, error)
                base = self._newer(before, base, error)
        raise self._busy()

    def check_absent(self, before: IndexVersion | None, error: Exception) -> None:
        """Raise Fenced when a first build failed because somebody else's is there by now."""
        if before is None and self.latest() is not None:
            raise self._fenced() from error

    def _replaced(
        self,
        base: IndexVersion | None,
        schema: pa.Schema,
        fragments: Sequence[FragmentMetadata],
        marker: Marker,
    ) -> IndexVersion:
        alone = self._write_marker(schema, marker, mode="create" if base is None else "overwrite")
        # An Overwrite that may not be retried is never rebased: it is a compare-and-set of the version. Yet
        # the number may be free again because newer versions were made, and then removed for their age.
        operation = LanceOperation.Overwrite(schema, [*fragments, *alone])
        made = self._committed(Transaction(base.version if base else 0, operation))
        newest = self.latest()
        if newest is None or newest.version < made.version or newest.marker.attempt != marker.attempt:
            raise self._fenced()
        return newest

    def change(
        self, before: IndexVersion, rows: IndexRows | None, mark: Callable[[Marker, int], Marker]
    ) -> IndexVersion:
        """Take rows out, put rows in, and replace the marker by `mark` of it and of how many keys were there.

        Raises Fenced, and changes nothing, when owner or watermark are not as they were `before`.
        """
        base = before
        for _ in range(_ATTEMPTS):
            try:
                return self._changed(base, rows, mark)
            except LANCE_FAILURES as error:
                base = self._newer(before, base, error)
        raise self._busy()

    def retire_tag(self, standing: IndexVersion) -> None:
        """Let the version go that was served while this one was built."""
        tagged = standing.dataset.tags.list().get(SERVING)
        if tagged and tagged["version"] < standing.version:
            standing.dataset.tags.delete(SERVING)

    def write(self, rows: pa.Table | pa.RecordBatchReader, *, mode: str = "append") -> list[FragmentMetadata]:
        """Write rows that nobody sees until they are committed."""
        return written(rows, self.uri, self._storage, mode=mode)

    def _changed(
        self, base: IndexVersion, rows: IndexRows | None, mark: Callable[[Marker, int], Marker]
    ) -> IndexVersion:
        base = self._isolated(base)
        removed, updated, gone = _deleted(base.dataset, rows.removed) if rows else ([], [], 0)
        marker = self._write_marker(base.dataset.schema, mark(base.marker, gone), mode="append")
        operation = LanceOperation.Update(
            removed_fragment_ids=[*removed, base.marker_fragment],
            updated_fragments=updated,
            new_fragments=[*(rows.fragments if rows else ()), *marker],
        )
        return self._committed(Transaction(base.version, operation))

    def _committed(self, transaction: Transaction) -> IndexVersion:
        """Commit. The version that was read is opened again for it: were it gone, so might be the versions
        after it, and what is not there conflicts with nothing.
        """
        dataset = LanceDataset.commit(
            self.uri, transaction, storage_options=self._storage or None, max_retries=0
        )
        return self._standing(dataset)

    def _unchanged(self, before: IndexVersion) -> IndexVersion:
        found = self.latest()
        if found is None or not found.keeps(before):
            raise self._fenced()
        return found

    def _newer(
        self, before: IndexVersion | None, base: IndexVersion | None, error: Exception
    ) -> IndexVersion:
        """The same rows in a newer version: why a commit failed. Raises the error when there is none.

        Fragments were written for the columns that there were, so these have to be the same too.
        """
        found = self._unchanged(before) if before else None
        if found is None or base is None or found.version == base.version:
            raise error
        if found.dataset.lance_schema != base.dataset.lance_schema:
            raise Unavailable(f"the columns of the index at {self.uri} were changed; try again") from error
        return found

    def _busy(self) -> Unavailable:
        return Unavailable(f"the index at {self.uri} is changed by others all the time; try again")

    def _fenced(self) -> Fenced:
        return Fenced(
            f"the index at {self.uri} was changed by another writer; this one's changes are left out"
        )

    def _isolated(self, base: IndexVersion) -> IndexVersion:
        """The same rows with the marker alone in its fragment: somebody's compaction may have moved it."""
        fragment = base.dataset.get_fragment(base.marker_fragment)
        assert fragment is not None
        if fragment.metadata.physical_rows == 1:
            return base
        rest = fragment.delete(f"{MARKER} IS NOT NULL")
        operation = LanceOperation.Update(
            removed_fragment_ids=[] if rest else [base.marker_fragment],
            updated_fragments=[rest] if rest else [],
            new_fragments=self._write_marker(base.dataset.schema, base.marker, mode="append"),
        )
        return self._committed(Transaction(base.version, operation))

    def _write_marker(self, schema: pa.Schema, marker: Marker, *, mode: str) -> list[FragmentMetadata]:
        cells = [
            pa.array([marker.dump()]) if each.name == MARKER else pa.nulls(1, each.type) for each in schema
        ]
        return self.write(pa.Table.from_arrays(cells, schema=schema), mode=mode)

    def _open(self, version: int | str | None) -> IndexVersion | None:
        try:
            dataset = lance.dataset(self.uri, version=version, storage_options=self._storage or None)
        except ValueError as error:
            if "was not found" in str(error):
                return None
            raise
        return self._standing(dataset)

    def _standing(self, dataset: LanceDataset) -> IndexVersion:
        fragments = dataset.get_fragments() if MARKER in dataset.schema.names else []
        # Nearly always alone in one of the newest fragments; else every one of them is looked through.
        likely = [each for each in reversed(fragments) if each.metadata.physical_rows == 1]
        for fragment in [*likely, *fragments]:
            texts = fragment.to_table(columns=[MARKER], filter=f"{MARKER} IS NOT NULL").column(MARKER)
            if len(texts):
                return IndexVersion(dataset, Marker.parse(texts[0].as_py()), fragment.fragment_id)
        raise Corrupt(f"the dataset at {self.uri} has no marker row: it is none of Penstock's; name another")


def written(
    rows: pa.Table | pa.RecordBatchReader, uri: str, storage: Mapping[str, str], *, mode: str
) -> list[FragmentMetadata]:
    """Write rows as fragments of a dataset, without committing them; on executors too."""
    if isinstance(rows, pa.Table) and not rows.num_rows:
        return []
    return write_fragments(rows, uri, mode=mode, storage_options=dict(storage) or None)


def _identity(marker: Marker) -> tuple[Any, ...]:
    return marker.attempt, marker.owner, marker.watermark, marker.complete


def _deleted(dataset: LanceDataset, keys: pa.Table) -> tuple[list[int], list[FragmentMetadata], int]:
    """What removing the rows of some keys makes of the fragments: those without rows, those with fewer."""
    if not keys.num_rows:
        return [], [], 0
    if not _joins_by_value(keys):
        return _deleted_by_address(dataset, keys)
    merge = dataset.merge_insert(keys.column_names).when_matched_delete()
    transaction, counts = merge.execute_uncommitted(keys)
    operation = transaction.operation
    assert isinstance(operation, LanceOperation.Update)
    return operation.removed_fragment_ids, operation.updated_fragments, counts["num_deleted_rows"]


def _joins_by_value(keys: pa.Table) -> bool:
    """Whether Lance's join finds the rows of all these keys: it tells -0.0 from 0.0, and no NULL matches."""
    return not any(
        column.null_count or (pa.types.is_floating(column.type) and pc.any(pc.equal(column, 0.0)).as_py())
        for column in keys.columns
    )


def _deleted_by_address(
    dataset: LanceDataset, keys: pa.Table
) -> tuple[list[int], list[FragmentMetadata], int]:
    """The same for any keys: rows are compared here, and removed by where they are."""
    changed = KeySet(keys)
    removed: list[int] = []
    updated: list[FragmentMetadata] = []
    gone = 0
    for fragment in dataset.get_fragments():
        rows = fragment.to_batches(columns=keys.column_names, filter=ROWS_ONLY, with_row_address=True)
        places = [place for batch in rows for place in changed.select_from(batch).column(_ADDRESS).to_pylist()]
        if not places:
            continue
        gone += len(places)
        left = fragment.delete(f"{_ADDRESS} IN ({', '.join(map(str, places))})")
        if left is None:
            removed.append(fragment.fragment_id)
        else:
            updated.append(left)
    return removed, updated, gone


def _tag(standing: IndexVersion) -> None:
    tags = standing.dataset.tags
    if SERVING in tags.list():
        tags.update(SERVING, standing.version)
    else:
        tags.create(SERVING, standing.version)


Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Earlier:
    """A version of the dataset. Pickled to executors, and opened there."""

    uri: str
    version: int
    keys: tuple[str, ...]
    storage: dict[str, str] = field(repr=False)

    def open(self) -> LanceDataset:
        """The dataset of then."""
        return lance.dataset(self.uri, version=self.version, storage_options=self.storage or None)

    def same(self, keys: pa.Table, column: str, values: pa.Array) -> tuple[LanceDataset, Places, Places]:
        """Which of some keys had these values in a column: their places in `keys`, and in the dataset.

        One scan of the key's columns and of that one; only what matches is kept.
        """
        dataset = self.open()
        keys = keys.cast(pa.schema([pa.field(name, dataset.schema.field(name).type) for name in self.keys]))
        wanted = keys.append_column("_mine", pa.array(np.arange(keys.num_rows))).append_column(
            "_value", values
        )
        mine, theirs, begin = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
        for batch in dataset.to_batches(columns=[*self.keys, column], batch_size=1 << 17):
            there = pa.table(batch).append_column(
                "_theirs", pa.array(np.arange(begin, begin + batch.num_rows))
            )
            joined = there.join(
                wanted, [*self.keys, column], [*self.keys, "_value"], join_type="inner", use_threads=False
            )
            mine.append(joined.column("_mine").to_numpy())
            theirs.append(joined.column("_theirs").to_numpy())
            begin += batch.num_rows
        return dataset, np.concatenate(mine), np.concatenate(theirs)
