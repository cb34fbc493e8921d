"""Everybody who is busy in the shop at the same time, each a thread with its own habits."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from penstock.cli.demo.shop import Shop
from penstock.clock import Clock

__all__ = ["Writer", "Writers", "staff"]

_SUPPLY_ROWS = 40


@dataclass(frozen=True, slots=True)
class Writer:
    """Does one of some things again and again, with a pause between them; what stands twice is done twice."""

    name: str
    pause_s: float
    deeds: Sequence[Callable[[], None]]


def staff(shop: Shop) -> list[Writer]:
    """Those of the demonstration: optimistic and pessimistic buyers, and who works behind them."""
    buy, insist = partial(shop.order, pessimistic=False), partial(shop.order, pessimistic=True)
    return [
        Writer("visitors", 0.05, [buy]),
        Writer("customers", 0.05, [insist]),
        Writer("members", 0.1, [shop.sign_up, shop.move, shop.move, shop.leave]),
        Writer("warehouse", 0.1, [shop.proceed, shop.proceed, shop.restock, shop.cancel]),
        Writer("editors", 0.15, [shop.rewrite, shop.rewrite, shop.offer, shop.review, shop.retire]),
        Writer("suppliers", 3.0, [partial(shop.offer, _SUPPLY_ROWS)]),
    ]


class Writers:
    """Threads that write until they are told to stop."""

    def __init__(self, staff: Sequence[Writer], clock: Clock) -> None:
        self._staff = staff
        self._clock = clock
        self._stopped = threading.Event()
        self._work: list[Future[None]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write during the block; raise what one of them met."""
        self._stopped.clear()
        with ThreadPoolExecutor(len(self._staff), thread_name_prefix="penstock-demo") as pool:
            self._work = [pool.submit(self._write, each) for each in self._staff]
            try:
                yield
            finally:
                self._stopped.set()
        self.check()

    def check(self) -> None:
        """Raise what one of them met: it writes no more."""
        for each in self._work:
            if each.done():
                each.result()

    def _write(self, writer: Writer) -> None:
        while not self._stopped.wait(2 * self._clock.random() * writer.pause_s):
            writer.deeds[int(self._clock.random() * len(writer.deeds))]()
