"""What a reader of changes is given, and what it may do with it at once.

The changes of a table between two timestamps, as a handle that gives them batch by batch.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Self

import pyarrow as pa

from penstock import metrics
from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion


class Hint(Enum):
    """What a batch means for those before and behind it.

    SNAPSHOT: rows of a table that was empty before; nothing ends. TAIL_WIP: what follows may have to be
    applied first, so keep it. TAIL_DONE: nothing that follows comes before this batch, nor before what was
    kept: apply all of that, smaller `_commit_ts` first, and at one `_commit_ts` tombstones first.
    """

    SNAPSHOT = "snapshot"
    TAIL_WIP = "tail_wip"
    TAIL_DONE = "tail_done"


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Some changes, of one schema version, each side ordered by `_commit_ts`.

    Once this batch has been delivered, every change up to `complete_ts` has: reading on from there gives what
    is missing, and nothing twice.
    """

    data: pa.RecordBatch
    tombstones: pa.RecordBatch
    hint: Hint
    schema: SchemaVersion
    complete_ts: int


Batches = Generator[ChangeBatch, None, None]


class ChangesHandle:
    """Gives batches until there are no more. A context, and an iterator. Use from one thread at a time.

    Batches come as they are asked for, in bounded memory. What `next` raises while it reads (Unavailable,
    StaleRead, Corrupt) it raises again when asked again: the changes did not end there. Read on from the
    last `complete_ts`.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._ended = False
        self._failure: Exception | None = None

    def next(self) -> ChangeBatch | None:
        """The next batch; None when every change has been delivered. Raises Invalid once it is closed."""
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
        """Let go of everything that is open. Can be called twice."""
        if not self._ended and self._failure is None:
            self._failure = Invalid("the handle is closed; collect the changes again")
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
