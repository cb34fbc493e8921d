"""Batches of changes, the hints that say when they can be applied, and the handle that yields them."""

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from enum import Enum
from typing import Self

import pyarrow as pa

from penstock import metrics
from penstock.changes.columns import key_names
from penstock.changes.options import ChangeOptions
from penstock.errors import Invalid, StaleRead
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.impossible_dates import hide, log_columns


class Hint(Enum):
    """What a reader may do with a batch when it arrives.

    SNAPSHOT: the batch has rows of a table that was empty before; no row ends. TAIL_WIP: later batches may
    have to be applied before this one, so keep it. TAIL_DONE: no later batch comes before this one, or before
    those that were kept. Apply all of them, smaller `_commit_ts` first, and at one `_commit_ts` tombstones
    first.
    """

    SNAPSHOT = "snapshot"
    TAIL_WIP = "tail_wip"
    TAIL_DONE = "tail_done"


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Some changes of one schema version, each side ordered by `_commit_ts`.

    Once this batch has been delivered, every change up to `complete_ts` has been delivered. A reader that
    starts again from `complete_ts` gets the missing changes, and none twice.
    """

    data: pa.RecordBatch
    tombstones: pa.RecordBatch
    hint: Hint
    schema: SchemaVersion
    complete_ts: int


Batches = Generator[ChangeBatch, None, None]

_DEFAULTS = ChangeOptions()


def _hide_impossible_dates(batches: Batches, options: ChangeOptions) -> Batches:
    """Yield batches with null for dates that no calendar has, unless the reader keeps them."""
    with closing(batches):
        for batch in batches:
            data, of_data = hide(batch.data)
            tombstones, of_tombstones = hide(batch.tombstones)
            hidden = {*of_data, *of_tombstones}
            if hidden:
                if not options.impossible_dates:
                    metrics.CHANGES_HIDDEN_DATES_TOTAL.inc()
                    log_columns(batch.schema.name, hidden)
                if options.whole_keys and batch.hint is not Hint.SNAPSHOT:
                    _check_keys(batch, hidden)
                if not options.impossible_dates:
                    batch = replace(batch, data=data, tombstones=tombstones)  # noqa: PLW2901 - the same batch without them
            yield batch


def _check_keys(batch: ChangeBatch, hidden: set[str]) -> None:
    """Raise StaleRead if a hidden date is in a key: readers cannot tell such rows apart."""
    for name in key_names(batch.schema.table):
        if name in hidden:
            raise StaleRead(
                batch.schema.name,
                batch.complete_ts,
                oldest_ts=batch.complete_ts,
                replaced=True,
                remedy=f"key column {name} has dates that no calendar has; read a snapshot and go on from it",
            )


class ChangesHandle:
    """Yields batches until there are no more. A context and an iterator; use it from one thread at a time.

    Batches are read when they are asked for, in bounded memory. An error of `next` (Unavailable, StaleRead,
    Corrupt) is raised again by every later call, because the changes did not end there. Start again from the
    last `complete_ts`.

    Without `impossible_dates`, dates that no calendar has are null. A metric counts the batches that had
    some, and a line in the log names the column, once for each column and process. With `whole_keys`, `next`
    raises StaleRead for a change of a row that has such a date in its key.
    """

    def __init__(self, batches: Batches, options: ChangeOptions = _DEFAULTS) -> None:
        looks = options.whole_keys or not options.impossible_dates
        self._batches = _hide_impossible_dates(batches, options) if looks else batches
        self._ended = False
        self._failure: Exception | None = None

    def next(self) -> ChangeBatch | None:
        """Return the next batch, or None after the last one. Raise Invalid once the handle is closed."""
        if self._failure is not None:
            raise self._failure
        if self._ended:
            return None
        try:
            batch = next(self._batches)
        except StopIteration:
            self._ended = True
            return None
        except Exception as error:
            self._failure = error
            raise
        metrics.CHANGES_BATCHES_TOTAL.labels(batch.hint.value).inc()
        metrics.CHANGES_ROWS_TOTAL.labels("data").inc(batch.data.num_rows)
        metrics.CHANGES_ROWS_TOTAL.labels("tombstone").inc(batch.tombstones.num_rows)
        return batch

    def close(self) -> None:
        """Close everything that is open. Closing twice is fine."""
        if not self._ended and self._failure is None:
            self._failure = Invalid("the handle of changes is closed; collect the changes again")
        self._batches.close()

    def __iter__(self) -> Iterator[ChangeBatch]:
        return self

    def __next__(self) -> ChangeBatch:
        batch = self.next()
        if batch is None:
            raise StopIteration
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
