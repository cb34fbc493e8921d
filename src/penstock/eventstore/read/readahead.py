"""Reading one item ahead of whoever takes them, on a pool of threads that all readers share."""

import os
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")

_THREADS = 8  # they mostly wait for storage


class _Readers:
    """The threads; a forked process gets its own."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """Forget threads that this process does not have."""
        self.pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-read")  # starts none yet


_READERS = _Readers()


class ReadAhead(Generic[T]):
    """Fetches one item ahead, in the background. Use from one thread at a time; `close` it after use.

    Whoever needs an item that no thread has begun to fetch fetches it on the spot. So nobody waits for a free
    thread, and readers within readers cannot block each other, however few threads there are.
    """

    def __init__(self, items: Generator[T, None, None]) -> None:
        self._items = items
        self._failure: BaseException | None = None
        self._ahead: Future[T | None] | None = _READERS.pool.submit(self._fetch)

    def next(self) -> T | None:
        """The next item; None at the end. What fetching raised is raised again by every later call."""
        if self._failure is not None:
            raise self._failure
        if self._ahead is None:
            return None
        try:
            found = self._fetch() if self._ahead.cancel() else self._ahead.result()
        except BaseException as error:
            self._failure = error
            raise
        self._ahead = None if found is None else _READERS.pool.submit(self._fetch)
        return found

    def close(self) -> None:
        """Stop fetching; waits for an item that is being fetched."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and not ahead.cancel():
            ahead.exception()
        self._items.close()

    def _fetch(self) -> T | None:
        return next(self._items, None)
