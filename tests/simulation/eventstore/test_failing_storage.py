"""Storage that fails and dawdles under a running event store: late, never wrong.

A failing seed is printed and replayed with PENSTOCK_SEED.
"""

import os
import threading
from pathlib import Path

import pytest

from penstock.clock import SYSTEM, SystemClock
from penstock.errors import Unavailable
from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.objects import flush
from penstock.object_storage import ObjectStorage, open_storage
from penstock.retry import BackoffPolicy
from penstock.settings import CaptureSettings
from penstock.tables.decoding.decoder import TidbRowDecoder
from support.events import FixedSchemas, a_table, change, replay_objects
from support.rawbatches import raw

START = 1 << 58
TABLES = {number: a_table(number) for number in (1, 2, 3)}
STEPS = 100
KEYS = 12


class _Weather(ObjectStorage):
    """Calls fail before or after their effect, and take their time, while the weather is bad."""

    def __init__(self, inner: ObjectStorage, clock: SystemClock) -> None:
        super().__init__(inner.url, inner._store)
        self.clock = clock
        self.bad = True
        self.failures = 0

    def _strike(self, chance: float) -> None:
        if self.bad and self.clock.random() < chance:
            self.failures += 1
            raise Unavailable("bad weather")

    def create(self, path: str, data: bytes) -> bool:
        self._strike(0.15)
        self.clock.pause(self.clock.random() * 0.005)
        made = super().create(path, data)
        self._strike(0.15)
        return made

    def write(self, path: str, data: bytes | Path) -> None:
        self._strike(0.1)
        self.clock.pause(self.clock.random() * 0.005)
        super().write(path, data)

    def read(self, path: str) -> bytes | None:
        self._strike(0.03)
        return super().read(path)


@pytest.mark.parametrize("seed", [os.environ.get("PENSTOCK_SEED", "1"), "2", "3"])
def test_every_change_arrives_once_however_storage_behaves(
    seed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SEED", seed)
    monkeypatch.setattr(flush, "_BACKOFF", BackoffPolicy(base_s=0.01, cap_s=0.05))
    clock = SystemClock()
    weather = _Weather(open_storage("memory:///"), clock)
    settings = CaptureSettings(
        data=tmp_path, flush_bytes=1500, flush_interval_s=0.02, memory_bytes=20_000, sort_bytes=20_000,
        wal_bytes=40_000, wal_segment_bytes=4000, large_txn_bytes=600,
    )  # fmt: skip
    state: dict[int, dict[int, str]] = {number: {} for number in TABLES}
    opened: list[EventStore] = []

    def open_store() -> EventStore:
        store = EventStore(
            settings,
            weather,
            decoder=TidbRowDecoder(),
            schemas=FixedSchemas.of(*TABLES.values()),
            clock=clock,
        )
        opened.append(store)
        store.start()
        weather.bad = False
        for number in TABLES:
            store.open_table(number)
        weather.bad = True
        return store

    store = open_store()
    try:
        for step in range(1, STEPS + 1):
            if clock.random() < 0.03:
                store.close(flush=False)
                store = open_store()
            number = 1 + int(clock.random() * 3)
            _transaction(store, number, START + 4 * step, state[number], clock)
        weather.bad = False
        store.close()
        for number in TABLES:
            found = replay_objects(weather, number, START + 4 * STEPS)
            assert {row["id"]: row["name"] for row in found.values()} == state[number], f"seed {seed}"
        assert weather.failures > 10
    finally:
        for each in opened:
            each.close(flush=False)


def _transaction(store: EventStore, number: int, ts: int, state: dict[int, str], clock: SystemClock) -> None:
    table, rows = TABLES[number], store.tables()[number]
    changes = []
    for key in {int(clock.random() * KEYS) for _ in range(1 + int(clock.random() * KEYS))}:
        old = {"id": key, "name": state[key]} if key in state else None
        if old is not None and clock.random() < 0.3:
            changes.append(change(table, ts, None, old))
            del state[key]
        else:
            state[key] = f"{ts}" + "." * 30
            changes.append(change(table, ts, {"id": key, "name": state[key]}, old))
    half = len(changes) // 2
    done = threading.Semaphore(0)
    for batch in (changes[:half] or changes, changes[half:]):  # some come twice
        assert rows.consume_kv_events(raw(batch), done.release)
    for _ in range(2):
        assert done.acquire(timeout=20)
    rows.advance_resolved_ts(ts)
    SYSTEM.pause(0.001)
