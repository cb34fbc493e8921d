"""Batches of changes, the hints that say when they can be applied, and the handle that yields them."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Self

import pyarrow as pa

from penstock import metrics
from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion


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


class ChangesHandle:
    """Yields batches until there are no more. A context and an iterator; use it from one thread at a time.

    Batches are read when they are asked for, in bounded memory. An error of `next` (Unavailable, StaleRead,
    Corrupt) is raised again by every later call, because the changes did not end there. Start again from the
    last `complete_ts`.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
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
