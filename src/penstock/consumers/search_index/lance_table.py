"""A Lance dataset whose rows and watermark are committed together, and that two writers cannot both change.

The marker is the one row that says which job owns the dataset and how far it is. It is a row, because a row
is what Lance commits together with other rows, carries through compactions, indexes and the cleanup of old
versions, and does not let two writers replace at once.

Every change replaces the marker, which is alone in its fragment. Lance refuses one of two commits that remove
the same fragment. So an iteration that still writes after it was abandoned loses: its commit meets another
marker and raises Fenced. Compactions and indexes do not touch the marker; a change that meets one of them is
repeated on top of it.

`Earlier` reads what a version had for some keys, so that expensive values are not computed again.
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
    "write_rows",
]


MARKER = "_penstock"
"""The column that only the marker has; all its other columns are NULL."""
ROWS_ONLY = f"{MARKER} IS NULL"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """What a dataset knows of itself, in the same commit as its rows."""

    owner: str
    watermark: int
    recipe: str
    """How rows were made of those of the source; another recipe makes other rows."""
    last_id: int
    """The greatest id of a column that the source had."""
    job: str = ""
    """The owner's name, which a job that is registered again has too; older versions did not write it."""
    attempt: str = ""
    """The unique id of the build that made the dataset."""
    complete: bool = True
    """False while indexes of a first build are still missing."""
    trained_rows: int = 0
    """The number of rows when the index was last built; 0: it was not built yet."""
    changed_rows: int = 0
    """Changes since then."""
    measured_rows: int = 0
    """`changed_rows` when recall was last measured."""
    recall: float = 0.0
    """Recall right after training; 0: not measured."""
    trained_as: str = ""
    """The signature of the index that was built."""
    cleaned_version: int = 0
    """The version at which old ones were last removed."""

    def of(self, owner: str) -> int:
        """Return the watermark for an owner; 0: the dataset is another's, or not complete."""
        return self.watermark if self.complete and self.owner == owner else 0

    def dump(self) -> str:
        """Return the JSON of the marker."""
        return json.dumps({"format": FORMAT, **asdict(self)})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a marker; raise Corrupt when it is damaged, Invalid when a newer Penstock wrote it."""
        try:
            tree = json.loads(text)
            version = tree.pop("format")
            if version > FORMAT:
                raise Invalid(f"the dataset has format {version}, a newer Penstock's; upgrade this one")
            return cls(**{known.name: tree[known.name] for known in fields(cls) if known.name in tree})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Corrupt("the marker row of a Lance dataset cannot be read; rebuild the index") from error


SERVING = "penstock-serving"
"""A tag on the last complete version while the next is built: searches read it, and it is not removed."""
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
        """The number of the version."""
        return self.dataset.version

    @property
    def rows(self) -> int:
        """The number of rows, without the marker."""
        return self.dataset.count_rows() - 1

    def has_same_rows(self, other: "IndexVersion") -> bool:
        """Return whether another version has the same rows for the same owner."""
        return _identity(self.marker) == _identity(other.marker)


@dataclass(frozen=True, slots=True)
class IndexRows:
    """A change: fragments that were written, and the keys whose rows are deleted first, each key once."""

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
        """Return the newest version; None when there is no dataset. Raises Corrupt when it has no marker."""
        return self._open(None)

    def serving(self) -> tuple[IndexVersion, bool] | None:
        """Return this owner's newest complete version, and whether it is the newest of all; None: none yet.

        It is not the newest while the next one is built.
        """
        found = self.latest()
        if found is None:
            return None
        if found.marker.of(self.owner):
            return found, True
        tagged = self._open(SERVING) if SERVING in found.dataset.tags.list() else None
        return (tagged, False) if tagged and tagged.marker.of(self.owner) else None

    def at(self, ts: int) -> IndexVersion:
        """Return the newest version with this watermark; raise Fenced when it is gone."""
        found = self.latest()
        for _ in range(_VERSIONS_BACK):
            if found is None or found.version == 1 or found.marker.of(self.owner) <= ts:
                break
            found = self._open(found.version - 1)
        if found is None or found.marker.of(self.owner) != ts:
            raise Fenced(f"the index at {self.uri} has no version at {ts} any more; start again")
        return found

    def reopen(self, current: IndexVersion) -> LanceDataset:
        """Open the same version again; raise Fenced when it is gone."""
        found = self._open(current.version)
        if found is None or not found.has_same_rows(current):
            raise self._fenced_error()
        return found.dataset

    def replace(
        self,
        before: IndexVersion | None,
        schema: pa.Schema,
        fragments: Sequence[FragmentMetadata],
        marker: Marker,
    ) -> IndexVersion:
        """Replace all rows; raise Fenced when the marker is not as it was `before`.

        Indexes are removed with the old rows. The former version is served until this one is complete.
        """
        base = before and self._require_unchanged(before)
        if base is not None and base.marker.of(self.owner):
            _tag(base)
        for _ in range(_ATTEMPTS):
            try:
                return self._replace_once(base, schema, fragments, marker)
            except LANCE_FAILURES as error:
                self.check_absent(before, error)
                base = self._newer(before, base, error)
        raise self._busy_error()

    def check_absent(self, before: IndexVersion | None, error: Exception) -> None:
        """Raise Fenced when a first build failed because another writer's is there by now."""
        if before is None and self.latest() is not None:
            raise self._fenced_error() from error

    def _replace_once(
        self,
        base: IndexVersion | None,
        schema: pa.Schema,
        fragments: Sequence[FragmentMetadata],
        marker: Marker,
    ) -> IndexVersion:
        alone = self._write_marker(schema, marker, mode="create" if base is None else "overwrite")
        # An Overwrite without retries is never rebased: it is a compare-and-set of the version. Yet the
        # number may be free again, because newer versions were made and then removed for their age.
        operation = LanceOperation.Overwrite(schema, [*fragments, *alone])
        committed = self._commit(Transaction(base.version if base else 0, operation))
        newest = self.latest()
        if newest is None or newest.version < committed.version or newest.marker.attempt != marker.attempt:
            raise self._fenced_error()
        return newest

    def change(
        self, before: IndexVersion, rows: IndexRows | None, mark: Callable[[Marker, int], Marker]
    ) -> IndexVersion:
        """Delete rows, add rows, and replace the marker by `mark` of it and of the number of deleted keys.

        Raises Fenced, and changes nothing, when owner or watermark are not as they were `before`.
        """
        base = before
        for _ in range(_ATTEMPTS):
            try:
                return self._change_once(base, rows, mark)
            except LANCE_FAILURES as error:
                base = self._newer(before, base, error)
        raise self._busy_error()

    def retire_tag(self, current: IndexVersion) -> None:
        """Release the version that was served while this one was built."""
        tagged = current.dataset.tags.list().get(SERVING)
        if tagged and tagged["version"] < current.version:
            current.dataset.tags.delete(SERVING)

    def write(self, rows: pa.Table | pa.RecordBatchReader, *, mode: str = "append") -> list[FragmentMetadata]:
        """Write rows that are not visible until they are committed."""
        return write_rows(rows, self.uri, self._storage, mode=mode)

    def _change_once(
        self, base: IndexVersion, rows: IndexRows | None, mark: Callable[[Marker, int], Marker]
    ) -> IndexVersion:
        base = self._isolate_marker(base)
        removed, updated, gone = _delete_keys(base.dataset, rows.removed) if rows else ([], [], 0)
        marker = self._write_marker(base.dataset.schema, mark(base.marker, gone), mode="append")
        operation = LanceOperation.Update(
            removed_fragment_ids=[*removed, base.marker_fragment],
            updated_fragments=updated,
            new_fragments=[*(rows.fragments if rows else ()), *marker],
        )
        return self._commit(Transaction(base.version, operation))

    def _commit(self, transaction: Transaction) -> IndexVersion:
        """Commit a transaction on the version that was read.

        Lance opens that version again: if it were gone, later versions might be gone too, and a conflict with
        them would not be noticed.
        """
        dataset = LanceDataset.commit(
            self.uri, transaction, storage_options=self._storage or None, max_retries=0
        )
        return self._read_version(dataset)

    def _require_unchanged(self, before: IndexVersion) -> IndexVersion:
        found = self.latest()
        if found is None or not found.has_same_rows(before):
            raise self._fenced_error()
        return found

    def _newer(
        self, before: IndexVersion | None, base: IndexVersion | None, error: Exception
    ) -> IndexVersion:
        """Return a newer version with the same rows, whose commit was faster; raise `error` if there is none.

        Fragments were written for the columns that there were, so these have to be the same too.
        """
        found = self._require_unchanged(before) if before else None
        if found is None or base is None or found.version == base.version:
            raise error
        if found.dataset.lance_schema != base.dataset.lance_schema:
            raise Unavailable(f"the columns of the index at {self.uri} were changed; try again") from error
        return found

    def _busy_error(self) -> Unavailable:
        return Unavailable(f"the index at {self.uri} is being changed all the time; try again")

    def _fenced_error(self) -> Fenced:
        return Fenced(
            f"the index at {self.uri} was changed by another writer; this one's changes are dropped"
        )

    def _isolate_marker(self, base: IndexVersion) -> IndexVersion:
        """Return the same rows with the marker alone in its fragment: a compaction may have moved it."""
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
        return self._commit(Transaction(base.version, operation))

    def _write_marker(self, schema: pa.Schema, marker: Marker, *, mode: str) -> list[FragmentMetadata]:
        cells = [
            pa.array([marker.dump()]) if column.name == MARKER else pa.nulls(1, column.type)
            for column in schema
        ]
        return self.write(pa.Table.from_arrays(cells, schema=schema), mode=mode)

    def _open(self, version: int | str | None) -> IndexVersion | None:
        try:
            dataset = lance.dataset(self.uri, version=version, storage_options=self._storage or None)
        except ValueError as error:
            if "was not found" in str(error):
                return None
            raise
        return self._read_version(dataset)

    def _read_version(self, dataset: LanceDataset) -> IndexVersion:
        if dataset.base_paths():  # whoever can write here could have our credentials read there
            raise Invalid(
                f"the dataset at {self.uri} has files at other places, so Penstock did not write it; name"
                " another"
            )
        fragments = dataset.get_fragments() if MARKER in dataset.schema.names else []
        # The marker is nearly always alone in one of the newest fragments; if not, all are searched.
        likely = [fragment for fragment in reversed(fragments) if fragment.metadata.physical_rows == 1]
        for fragment in [*likely, *fragments]:
            texts = fragment.to_table(columns=[MARKER], filter=f"{MARKER} IS NOT NULL").column(MARKER)
            if len(texts):
                return IndexVersion(dataset, Marker.parse(texts[0].as_py()), fragment.fragment_id)
        raise Corrupt(
            f"the dataset at {self.uri} has no marker row, so Penstock did not write it; name another"
        )


def write_rows(
    rows: pa.Table | pa.RecordBatchReader, uri: str, storage: Mapping[str, str], *, mode: str
) -> list[FragmentMetadata]:
    """Write rows as fragments of a dataset, without committing them; also used on executors."""
    if isinstance(rows, pa.Table) and not rows.num_rows:
        return []
    return write_fragments(rows, uri, mode=mode, storage_options=dict(storage) or None)


def _identity(marker: Marker) -> tuple[Any, ...]:
    return marker.attempt, marker.owner, marker.watermark, marker.complete


def _delete_keys(dataset: LanceDataset, keys: pa.Table) -> tuple[list[int], list[FragmentMetadata], int]:
    """Return the fragments that lose all rows, those that lose some, and the number of rows deleted."""
    if not keys.num_rows:
        return [], [], 0
    if not _joins_by_value(keys):
        return _delete_by_address(dataset, keys)
    merge = dataset.merge_insert(keys.column_names).when_matched_delete()
    transaction, counts = merge.execute_uncommitted(keys)
    operation = transaction.operation
    assert isinstance(operation, LanceOperation.Update)
    return operation.removed_fragment_ids, operation.updated_fragments, counts["num_deleted_rows"]


def _joins_by_value(keys: pa.Table) -> bool:
    """Return whether Lance's join finds all these keys: for it -0.0 is not 0.0, and no NULL matches."""
    return not any(
        column.null_count or (pa.types.is_floating(column.type) and pc.any(pc.equal(column, 0.0)).as_py())
        for column in keys.columns
    )


def _delete_by_address(
    dataset: LanceDataset, keys: pa.Table
) -> tuple[list[int], list[FragmentMetadata], int]:
    """Delete rows of any keys: compare them here, and delete them by their addresses."""
    changed = KeySet(keys)
    removed: list[int] = []
    updated: list[FragmentMetadata] = []
    gone = 0
    for fragment in dataset.get_fragments():
        rows = fragment.to_batches(columns=keys.column_names, filter=ROWS_ONLY, with_row_address=True)
        addresses = [
            address for batch in rows for address in changed.select_from(batch).column(_ADDRESS).to_pylist()
        ]
        if not addresses:
            continue
        gone += len(addresses)
        left = fragment.delete(f"{_ADDRESS} IN ({', '.join(map(str, addresses))})")
        if left is None:
            removed.append(fragment.fragment_id)
        else:
            updated.append(left)
    return removed, updated, gone


def _tag(current: IndexVersion) -> None:
    tags = current.dataset.tags
    if SERVING in tags.list():
        tags.update(SERVING, current.version)
    else:
        tags.create(SERVING, current.version)


Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Earlier:
    """A version of the dataset. Pickled to executors, and opened there."""

    uri: str
    version: int
    keys: tuple[str, ...]
    storage: dict[str, str] = field(repr=False)

    def open(self) -> LanceDataset:
        """Open the dataset at that version."""
        return lance.dataset(self.uri, version=self.version, storage_options=self.storage or None)

    def find_same(
        self, keys: pa.Table, column: str, values: pa.Array
    ) -> tuple[LanceDataset, Positions, Positions]:
        """Find which keys had these values in a column; return their positions in `keys` and in the dataset.

        Does one scan of the key's columns and of that column; only matches are kept in memory.
        """
        dataset = self.open()
        keys = keys.cast(pa.schema([pa.field(name, dataset.schema.field(name).type) for name in self.keys]))
        wanted = keys.append_column("_mine", pa.array(np.arange(keys.num_rows))).append_column(
            "_value", values
        )
        mine, theirs, begin = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
        for batch in dataset.to_batches(columns=[*self.keys, column], batch_size=1 << 17):
            rows = pa.table(batch).append_column(
                "_theirs", pa.array(np.arange(begin, begin + batch.num_rows))
            )
            joined = rows.join(
                wanted, [*self.keys, column], [*self.keys, "_value"], join_type="inner", use_threads=False
            )
            mine.append(joined.column("_mine").to_numpy())
            theirs.append(joined.column("_theirs").to_numpy())
            begin += batch.num_rows
        return dataset, np.concatenate(mine), np.concatenate(theirs)
