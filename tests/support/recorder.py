"""A consumer of the puller that remembers everything, and checks the contract while it does."""

import threading
from collections.abc import Callable

import pyarrow as pa

from penstock.clock import SYSTEM

Row = tuple[
    bytes, int, int, int, bytes | None, bytes | None
]  # key, commit_ts, start_ts, op, value, old value


class Recorder:
    """Persists synchronously, or holds `finish` callbacks back until `release` (`hold`).

    Fails (see `problems`) when a resolved timestamp goes back, or when a row comes at or below one
    that was told before.
    """

    def __init__(self, *, hold: bool = False) -> None:
        self.rows: list[Row] = []
        self.resolved: list[int] = []
        self.problems: list[str] = []
        self.held: list[Callable[[], None]] = []
        self._hold = hold
        self._changed = threading.Condition()

    def consume(self, raw: pa.RecordBatch, finish: Callable[[], None], /) -> bool:
        """Record the rows of a raw batch."""
        columns = raw.to_pydict()
        rows = list(
            zip(
                columns["key"],
                columns["commit_ts"],
                columns["start_ts"],
                columns["op"],
                columns["value"],
                columns["old_value"],
                strict=True,
            )
        )
        with self._changed:
            told = self.resolved[-1] if self.resolved else 0
            self.problems += [
                f"a row of {row[1]} came after {told} was resolved" for row in rows if row[1] <= told
            ]
            self.rows += rows
            if self._hold:
                self.held.append(finish)
            self._changed.notify_all()
        return self._hold

    def advance(self, ts: int) -> None:
        """Record a resolved timestamp of a subscription."""
        with self._changed:
            if self.resolved and ts <= self.resolved[-1]:
                self.problems.append(f"{ts} came after {self.resolved[-1]}")
            self.resolved.append(ts)
            self._changed.notify_all()

    def release(self) -> None:
        """Say that everything held back is persisted."""
        with self._changed:
            held, self.held = self.held, []
        for finish in held:
            finish()

    @property
    def resolved_ts(self) -> int:
        """The last timestamp told; 0 for none."""
        return self.resolved[-1] if self.resolved else 0

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 15.0) -> None:
        """Wait for something to become true of what was recorded."""
        deadline = SYSTEM.monotonic() + timeout_s
        with self._changed:
            while not condition():
                left = deadline - SYSTEM.monotonic()
                assert left > 0, f"timed out: {len(self.rows)} rows, resolved {self.resolved_ts}"
                self._changed.wait(min(left, 0.2))

    def distinct(self) -> dict[tuple[bytes, int, int], Row]:
        """Return the rows without repetitions; a repetition that differs is a problem."""
        found: dict[tuple[bytes, int, int], Row] = {}
        for row in self.rows:
            known = found.setdefault(row[:3], row)
            if known != row:
                self.problems.append(f"the change {row[1]} came twice and differs")
        return found

    def state_at(self, ts: int) -> dict[bytes, bytes]:
        """Return the values of keys at a timestamp by these rows; the old value of each must match."""
        state: dict[bytes, bytes] = {}
        order = sorted(self.distinct().values(), key=lambda row: (row[1], row[2], row[0]))
        for key, commit_ts, _, op, value, old in order:
            if commit_ts > ts:
                break
            if state.get(key) != old:
                self.problems.append(f"the old value of the change {commit_ts} is not what was there")
            if op == 1:
                assert value is not None
                state[key] = value
            else:
                state.pop(key, None)
        return state
