"""An event loop whose time is simulated and whose threads take turns: a run can be repeated exactly.

Time moves when nobody has anything to do, to the next moment at which somebody has. Threads are real, so
that blocking code runs as it is, but only one of them runs at a time, and it gives way only where it says so,
by `pause`. Who comes next is decided by time alone.
"""

import asyncio
import selectors
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future
from contextvars import Context
from typing import Any, Self, TypeVar

__all__ = ["SimLoop", "SimPool", "Stuck"]

T = TypeVar("T")

_TURN_MAX_S = 60.0  # of real time
_WORKERS_MAX = 64


class Stuck(AssertionError):
    """Nothing can happen any more, or a thread does not give way."""


class _Idle(selectors.SelectSelector):
    """Waits for nobody: whoever would wait is told that time has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("everybody waits for somebody else")
        self.now += max(timeout, 0.0)
        return []


class SimLoop(asyncio.SelectorEventLoop):
    """For one simulation; close it at the end."""

    def __init__(self) -> None:
        self._idle = _Idle()
        self._workers: list[_Worker] = []
        self._paused: dict[_Worker, tuple[asyncio.TimerHandle, Callable[[], None]]] = {}
        self._turn = threading.local()
        super().__init__(self._idle)

    def time(self) -> float:
        """Simulated seconds."""
        return self._idle.now

    def call_soon_threadsafe(  # type: ignore[override] # the same at run time
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Threads take turns with the loop, so that everything is safe."""
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override] # the same at run time
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        """Run it on a thread of the simulation, whoever's it would be."""
        pool = executor if isinstance(executor, SimPool) else SimPool()
        return asyncio.wrap_future(pool.submit(func, *args), loop=self)

    @property
    def worker(self) -> Hashable | None:
        """The thread of the simulation that asks; None on the loop's own."""
        return getattr(self._turn, "worker", None)

    def pause(self, seconds: float) -> None:
        """Let time pass for the thread that calls, while others go on; nothing on the loop's own thread."""
        worker = self.worker
        if isinstance(worker, _Worker):
            worker.give_way(seconds)

    def wake(self, worker: Hashable) -> None:
        """Let a thread go on now that has paused."""
        assert isinstance(worker, _Worker), "no thread of a simulation"
        timer, done = self._paused.pop(worker)
        timer.cancel()
        self.call_soon(self._go_on, worker, done)

    def start(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        """Run work on a thread from now on; `done` is called on the loop when it has ended."""
        worker = self._workers.pop() if self._workers else _Worker(self._turn)
        worker.begin(work)
        self.call_soon(self._go_on, worker, done)

    def _go_on(self, worker: "_Worker", done: Callable[[], None]) -> None:
        self._paused.pop(worker, None)
        seconds = worker.take_turn()
        if seconds is not None:
            self._paused[worker] = self.call_later(seconds, self._go_on, worker, done), done
            return
        if len(self._workers) < _WORKERS_MAX:
            self._workers.append(worker)
        else:
            worker.end()
        done()

    def close(self) -> None:
        """End the threads that are idle."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        super().close()


class _Worker:
    """A thread that runs while it has the turn, and then gives it back."""

    def __init__(self, turn: threading.local) -> None:
        self._turn = turn
        self._mine = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._work: Callable[[], None] | None = None
        self._pause_s: float | None = None
        threading.Thread(target=self._run, name="penstock-simulated", daemon=True).start()

    def begin(self, work: Callable[[], None]) -> None:
        self._work = work

    def take_turn(self) -> float | None:
        """Let it run until it gives way: for so many seconds, or for good."""
        self._mine.release()
        if not self._back.acquire(timeout=_TURN_MAX_S):
            raise Stuck("a thread waits for another, or takes minutes")
        return self._pause_s

    def give_way(self, seconds: float) -> None:
        self._pause_s = max(seconds, 0.0)
        self._back.release()
        self._mine.acquire()

    def end(self) -> None:
        self._work = None
        self._mine.release()

    def _run(self) -> None:
        self._turn.worker = self
        while True:
            self._mine.acquire()
            if self._work is None:
                return
            self._work()
            self._work, self._pause_s = None, None
            self._back.release()


class SimPool:
    """In place of a ThreadPoolExecutor, on the loop that runs.

    What a thread of the simulation submits itself it does at once: it would only wait for it.
    """

    def __init__(self, max_workers: int = _WORKERS_MAX, thread_name_prefix: str = "") -> None:
        del thread_name_prefix
        self._room = max_workers
        self._waiting: deque[tuple[Callable[[], None], Future[Any]]] = deque()
        self._loop: SimLoop | None = None

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        """Run a call on a simulated thread."""
        future: Future[T] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001 - whoever waits for it hears of it
                    future.set_exception(error)

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            work()
            return future
        assert isinstance(loop, SimLoop), "threads are simulated on a SimLoop only"
        self._loop = loop
        self._waiting.append((work, future))
        self._next()
        return future

    def map(self, function: Callable[..., T], *given: Iterable[Any]) -> Iterator[T]:
        """Submit a call for each set of arguments; return their results in order."""
        return iter([self.submit(function, *arguments).result() for arguments in zip(*given, strict=False)])

    def _next(self) -> None:
        while self._room and self._waiting:
            assert self._loop is not None
            self._room -= 1
            self._loop.start(self._waiting.popleft()[0], self._finish)

    def _finish(self) -> None:
        self._room += 1
        self._next()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - Executor's
        """Start no more calls; those that run continue to their end."""
        del wait
        while cancel_futures and self._waiting:
            self._waiting.popleft()[1].cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
