"""The changes of a table between two timestamps, as a handle that gives them batch by batch."""

from collections.abc import Generator, Iterator
from typing import Self

from penstock import metrics
from penstock.changes.batches import ChangeBatch
from penstock.errors import Invalid

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
