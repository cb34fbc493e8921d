"""Asking many at once, without waiting for those that do not answer."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from penstock.clock import SYSTEM, Clock
from penstock.errors import PenstockError, Unavailable

__all__ = ["Probe"]

T = TypeVar("T")


class Probe(Generic[T]):
    """Work that is done in a thread of its own while somebody waits, and no longer than they like.

    The thread goes on until the work ends, but keeps no process from ending.
    """

    def __init__(self, what: str, work: Callable[[], T], *, clock: Clock = SYSTEM) -> None:
        self.what = what
        self._clock = clock
        self._answer: Future[T] = Future()
        threading.Thread(target=self._do, args=(work,), name="penstock-asking", daemon=True).start()

    def _do(self, work: Callable[[], T]) -> None:
        try:
            self._answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            self._answer.set_exception(error)

    def answer(self, deadline: float) -> T:
        """What came of it; raise what the work raised, or Unavailable at the deadline (monotonic)."""
        try:
            return self._answer.result(max(0.0, deadline - self._clock.monotonic()))
        except TimeoutError:
            if self._answer.done():
                raise
            raise Unavailable(f"{self.what} took too long to find out; try again") from None

    def answer_or(self, default: T, deadline: float, unknown: dict[str, str]) -> T:
        """The same, but for errors of ours: those are noted as what is not known, and `default` is given."""
        try:
            return self.answer(deadline)
        except PenstockError as error:
            unknown[self.what] = str(error)
            return default
