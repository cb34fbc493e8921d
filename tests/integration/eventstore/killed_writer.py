"""A process that writes an event store until it is killed: `killed_writer.py DATA STORAGE`.

It prints a line for every change that was acknowledged. The changes are a function of their number.
"""

import sys
from pathlib import Path
from typing import Any

from penstock.eventstore.capture.store import EventStore
from penstock.object_storage import open_storage
from penstock.settings import CaptureSettings
from penstock.tables.decoding.decoder import TidbRowDecoder
from support.events import FixedSchemas, a_table, change
from support.rawbatches import Change, raw

TABLE = a_table()
START = 1 << 58
KEYS = 40


def commit_ts(number: int) -> int:
    return START + 2 * number


def value(number: int) -> dict[str, Any] | None:
    """What change `number` leaves of its row."""
    deletes = number % 7 == 0 and number > KEYS
    return None if deletes else {"id": number % KEYS, "name": f"change {number}"}


def nth_change(number: int) -> Change:
    before = value(number - KEYS) if number > KEYS else None
    new = value(number)
    if new is None and before is None:
        new = {"id": number % KEYS, "name": f"change {number}"}
    return change(TABLE, commit_ts(number), new, before)


def state_after(count: int) -> dict[int, str]:
    """The table after the first `count` changes."""
    state: dict[int, str] = {}
    for number in range(1, count + 1):
        before, new = value(number - KEYS) if number > KEYS else None, value(number)
        if new is None and before is not None:
            del state[number % KEYS]
        else:
            state[number % KEYS] = f"change {number}"
    return state


def open_store(data: Path, storage_url: str) -> EventStore:
    settings = CaptureSettings(
        data=data, flush_bytes=4000, flush_interval_s=0.05, wal_segment_bytes=20_000, memory_bytes=30_000,
        sort_bytes=6000,
    )  # fmt: skip
    return EventStore(
        settings, open_storage(storage_url), decoder=TidbRowDecoder(), schemas=FixedSchemas.of(TABLE)
    )


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(data: Path, storage_url: str) -> None:
    store = open_store(data, storage_url)
    store.start()
    table = store.open_table(TABLE.id)
    number = max(0, (table.resolved_ts - START) // 2)
    say(f"resumes {number}")
    while True:
        batch = range(number + 1, number + 6)

        def finish(last: int = batch[-1]) -> None:
            say(f"acknowledged {last}")
            table.advance_resolved_ts(commit_ts(last))

        table.consume_kv_events(raw([nth_change(each) for each in batch]), finish)
        number += 5


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
