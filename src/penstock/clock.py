"""Time and randomness. No other module of Penstock may ask the machine for either.

A timestamp (`_ts`) is a logical time: physical milliseconds << 18 | logical counter. Wall time
is `_at` or `_ms`.
"""

import asyncio
import os
import random
import secrets
import threading
import time
import uuid
from typing import Protocol

LOGICAL_BITS = 18
LOGICAL_MAX = (1 << LOGICAL_BITS) - 1
TS_MAX = (1 << 64) - 1


def compose_ts(physical_ms: int, logical: int = 0) -> int:
    """Build a timestamp from milliseconds and a counter."""
    return (physical_ms << LOGICAL_BITS) + logical


def physical_ms(ts: int) -> int:
    """Return the milliseconds of a timestamp."""
    return ts >> LOGICAL_BITS


def logical(ts: int) -> int:
    """Return the counter within the millisecond of a timestamp."""
    return ts & LOGICAL_MAX


class Clock(Protocol):
    """The source of time and randomness of a component. A test passes its own and so decides both."""

    def wall_ms(self) -> int:
        """Return the milliseconds since the epoch. They may jump in either direction."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment. They never go back."""

    async def sleep(self, seconds: float) -> None:
        """Suspend the task for so many seconds."""

    def pause(self, seconds: float) -> None:
        """Block the thread for so many seconds."""

    def random(self) -> float:
        """Return a random number in [0, 1)."""

    def unique_id(self) -> str:
        """Return 32 random hex digits, an id that no other call returns."""


class SystemClock:
    """The machine's own time. The environment variable PENSTOCK_SEED, when set, seeds the randomness."""

    def __init__(self) -> None:
        seed = os.environ.get("PENSTOCK_SEED")
        self._random = random.Random(seed)  # noqa: S311 - jitter and sampling, never a secret
        self._seeded = seed is not None
        self._lock = threading.Lock()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def random(self) -> float:
        return self._random.random()

    def unique_id(self) -> str:
        if not self._seeded:
            return uuid.uuid4().hex
        with self._lock:
            return f"{self._random.getrandbits(128):032x}"


SYSTEM = SystemClock()

_SECRET_BYTES = 32


def secret_token() -> str:
    """Return 256 random bits as text for URLs and headers. It is a secret: no seed repeats it."""
    return secrets.token_urlsafe(_SECRET_BYTES)
