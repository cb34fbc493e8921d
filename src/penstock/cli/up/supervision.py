"""What the supervisor does next: which parts to start, when to start one again, which to stop first.

Pure: time is an argument, in seconds that never go back, and processes are the caller's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from penstock.retry import BackoffPolicy
from penstock.settings import UpSettings

__all__ = ["Again", "Rank", "Supervision"]


class Rank(IntEnum):
    """The order of parts: a part begins after those of lower ranks, and ends before them."""

    STORE = 0
    """Everybody needs it: nothing else begins before it was ready once."""
    CAPTURE = 1
    """Others begin once it was ready, or could not be: pages that tell why are better than none."""
    REST = 2


@dataclass(frozen=True, slots=True)
class Again:
    """A part ended, and is to be started again."""

    wait_s: float
    news: bool
    """Whether it ended for another reason than the last time."""


@dataclass(slots=True)
class _Life:
    rank: Rank
    alive: bool = False
    ready_at: float | None = None
    """Of this life."""
    begun: bool = False
    was_ready: bool = False
    ends: int = 0
    """In a row, without a steady life in between."""
    error: str = ""
    due_at: float = 0.0


class Supervision:
    """All parts of a deployment.

    A part that ends is started again after a wait, which doubles with each end up to a limit, until it has
    been ready for `steady_s` at a stretch. After `stop` nothing is started any more.
    """

    def __init__(self, ranks: Mapping[str, Rank], settings: UpSettings) -> None:
        self._lives = {name: _Life(rank) for name, rank in sorted(ranks.items(), key=lambda item: item[1])}
        self._steady_s = settings.steady_s
        self._backoff = BackoffPolicy(base_s=settings.backoff_s, cap_s=settings.backoff_max_s)
        self.stopping = False

    @property
    def all_were_ready(self) -> bool:
        """Whether every part was ready at some time."""
        return all(life.was_ready for life in self._lives.values())

    def due(self, now: float) -> list[str]:
        """Parts to start now, first things first; `began` is called for each."""
        return [name for name, life in self._lives.items() if self._may_begin(life) and life.due_at <= now]

    def next_at(self) -> float | None:
        """When a part is due next if nothing happens until then; None: never."""
        return min((life.due_at for life in self._lives.values() if self._may_begin(life)), default=None)

    def began(self, name: str) -> None:
        """A part was started."""
        life = self._lives[name]
        assert not life.alive, "a part runs once at a time"
        life.alive = life.begun = True
        life.ready_at = None

    def ready(self, name: str, now: float) -> None:
        """A part has said that it is ready."""
        life = self._lives[name]
        assert life.alive, "only what runs can be ready"
        life.ready_at = now
        life.was_ready = True

    def ended(self, name: str, now: float, error: str) -> Again | None:
        """A part ended; when it is to be started again, or None when it was to end."""
        life = self._lives[name]
        assert life.alive, "only what runs can end"
        life.alive = False
        if self.stopping:
            return None
        if life.ready_at is not None and now - life.ready_at >= self._steady_s:
            life.ends, life.error = 0, ""
        life.ends += 1
        wait_s = self._backoff.delay_s(life.ends)
        life.due_at = now + wait_s
        news = error != life.error
        life.error = error
        return Again(wait_s, news)

    def stop(self) -> None:
        """Everything is to end: see `stoppable`."""
        self.stopping = True

    def stoppable(self) -> list[str]:
        """Parts that run and may end now: those that nothing else that runs depends on."""
        alive = {name: life.rank for name, life in self._lives.items() if life.alive}
        last = max(alive.values(), default=None)
        return [name for name, rank in alive.items() if rank == last]

    def _may_begin(self, life: _Life) -> bool:
        if life.alive or self.stopping:
            return False
        return life.begun or all(
            other.was_ready or (other.ends > 0 and other.rank is not Rank.STORE)
            for other in self._lives.values()
            if other.rank < life.rank
        )
