"""Row ids against models: of the pure match, and of histories through flushes, crashes, lost answers."""

import shutil
import tempfile
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import Unavailable
from penstock.eventstore.capture.store import EventStore
from penstock.eventstore.objects.primary_key_index import PrimaryKeyIndex
from penstock.eventstore.objects.row_ids import (
    ASK,
    UNKNOWN,
    Events,
    Places,
    RowIds,
    as_sort_keys,
    match_tombstones,
)
from penstock.object_storage import ObjectStorage, open_storage
from penstock.settings import CaptureSettings
from penstock.tables.decoding.decoder import TidbRowDecoder
from support.campaign import examples
from support.events import (
    FixedSchemas,
    RowId,
    a_table,
    change,
    find_moved_rows,
    live_rows,
    objects,
    read_object,
)
from support.rawbatches import Change, raw

START = 1 << 60  # neighbouring timestamps up here are one and the same float
TABLE = a_table()
HANDLES = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=1, max_size=9))


@settings(deadline=None, max_examples=examples(60, 200))
@given(
    handles=st.lists(HANDLES, min_size=1, max_size=4, unique=True),
    steps=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["put", "delete", "update"])), max_size=20),
    apart=st.lists(st.booleans(), min_size=20, max_size=20),
)
def test_every_tombstone_ends_the_row_written_last_before_it(
    handles: list[bytes], steps: list[tuple[int, str]], apart: list[bool]
) -> None:
    written: list[tuple[bytes, int]] = []
    ended: list[tuple[bytes, int]] = []
    expected: list[int] = []
    last: dict[bytes, tuple[str, int]] = {}
    touched: set[bytes] = set()
    ts = START
    for (number, what), another in zip(steps, apart, strict=False):
        handle = handles[number % len(handles)]
        if another or handle in touched:  # at one commit-ts a handle changes once
            ts, touched = ts + 1, set()
        touched.add(handle)
        if what != "put":
            before, at = last.get(handle, ("", ASK))
            expected.append(UNKNOWN if before == "tombstone" else at)
            last[handle] = "tombstone", len(ended)
            ended.append((handle, ts))
        if what != "delete":
            last[handle] = "data", len(written)
            written.append((handle, ts))
    found = match_tombstones(_events(written), _events(ended))
    assert found.ends.tolist() == expected
    left = sorted(last.items())
    assert found.live.tolist() == [at for _, (side, at) in left if side == "data"]
    assert found.gone.tolist() == [at for _, (side, at) in left if side == "tombstone"]


def _events(rows: list[tuple[bytes, int]]) -> Events:
    handles = pa.array([handle for handle, _ in rows], pa.binary())
    cut = len(rows) // 2  # they come in parts, which may be slices
    times = pa.array([ts for _, ts in rows], pa.int64())
    return Events.of([handles[:cut], handles[cut:]], [times[:cut], times[cut:]])


@settings(deadline=None)
@given(st.lists(HANDLES, max_size=20), st.integers(0, 5))
def test_numbers_compare_as_the_handles_do(handles: list[bytes], skipped: int) -> None:
    numbers = as_sort_keys(pa.array(handles, pa.binary())[skipped:]).tolist()
    kept = handles[skipped:]
    assert [[a < b for b in numbers] for a in numbers] == [[a < b for b in kept] for a in kept]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 3), st.integers(START, START + 3)), max_size=20),
    st.permutations(["aa", "bb", "cc"]),
)
def test_row_ids_are_ordered_by_object_offset_and_time_and_unknown_ones_come_last(
    rows: list[tuple[int, int, int]], names: list[str]
) -> None:
    objects_of = np.array([row[0] for row in rows], np.int32)
    offsets = np.array([row[1] if row[0] >= 0 else -1 for row in rows], np.int64)
    ids = RowIds(names, objects_of, offsets)
    order = ids.order(np.array([row[2] for row in rows], np.int64))
    found = list(zip(*(each.to_pylist() for each in ids.columns(order)), strict=True))
    keys = [
        (name is None, name or "", offset or 0, rows[at][2])
        for (name, offset), at in zip(found, order, strict=True)
    ]
    assert keys == sorted(keys)
    assert [(name is None, offset is None) for name, offset in found] == [(key[0], key[0]) for key in keys]


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_places_of_rows_that_fill_one_object_after_the_other(rows: list[int]) -> None:
    names = [f"object {number}" for number in range(len(rows))]
    ids = Places(names, rows).of(np.array([UNKNOWN, ASK, *range(sum(rows))], np.int64))
    found = list(zip(ids.objects.tolist(), ids.offsets.tolist(), strict=True))
    each = [(number, offset) for number, size in enumerate(rows) for offset in range(size)]
    assert found == [(-1, -1), (-1, -1), *each]


# -- whole histories --------------------------------------------------------------------------------


class _Flaky(ObjectStorage):
    """Loses the answer of the next commit."""

    lose = False

    def create(self, path: str, data: bytes) -> bool:
        made = super().create(path, data)
        if self.lose:
            self.lose = False
            raise Unavailable("lost answer")
        return made


COMMITS = st.lists(  # at one commit-ts: the rows that each transaction touches, and what it does to them
    st.lists(
        st.tuples(st.sets(st.integers(1, 8), min_size=1, max_size=4), st.sampled_from(["put", "delete"])),
        min_size=1,
        max_size=2,
    ),
    min_size=1,
    max_size=6,
)
AFTER = st.sampled_from(
    ["", "lost answer", "index behind", "index unmarked", "crash", "index lost", "given up", "merge", "merge"]
)


@settings(deadline=None, max_examples=examples(15, 40))
@given(
    rounds=st.lists(st.tuples(COMMITS, AFTER), min_size=1, max_size=5),
    large=st.sampled_from([300, 1 << 20]),
    sort=st.sampled_from([1024, 1 << 20]),
)
def test_every_row_id_is_right_and_the_index_is_what_the_objects_say(
    rounds: list[tuple[list[list[tuple[set[int], str]]], str]], large: int, sort: int
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="penstock-rowids-"))
    clean = open_storage("memory:///")
    history = _History(folder, _Flaky(clean.url, clean._store), large, sort)
    try:
        for commits, after in rounds:
            for transactions in commits:
                history.commit(transactions)
            history.flush(after)
            history.check()
        history.check_rebuilt()
    finally:
        history.store.close(flush=False)
        shutil.rmtree(folder)


class _History:
    def __init__(self, folder: Path, storage: _Flaky, large: int, sort: int) -> None:
        self.folder = folder
        self.storage = storage
        self.settings = CaptureSettings(
            data=folder / "data",
            flush_interval_s=3600,
            idle_flush_interval_s=10**9,
            flush_bytes=1 << 30,
            large_txn_bytes=large,
            sort_bytes=sort,
        )
        self.ts = START
        self.rows: dict[int, str] = {}
        self.changes: list[Change] = []
        self.open()

    def open(self) -> None:
        self.store = EventStore(
            self.settings, self.storage, decoder=TidbRowDecoder(), schemas=FixedSchemas.of(TABLE)
        )
        self.store.start()
        self.table = self.store.open_table(TABLE.id)

    def commit(self, transactions: list[tuple[set[int], str]]) -> None:
        """Transactions with one commit-ts; a row is in one of them only."""
        self.ts += 4
        seen: set[int] = set()
        for number, (ids, what) in enumerate(transactions):
            for each in sorted(ids - seen):
                old = {"id": each, "name": self.rows[each]} if each in self.rows else None
                if what == "delete" and old is not None:
                    made = change(TABLE, self.ts, None, old)
                    del self.rows[each]
                else:
                    self.rows[each] = f"{each} at {self.ts}" + "." * 40
                    made = change(TABLE, self.ts, {"id": each, "name": self.rows[each]}, old)
                self.changes.append((made[0], made[1] - number, *made[2:]))
            seen |= ids

    def give(self) -> None:
        fresh = [each for each in self.changes if each[0] > self.table.resolved_ts]
        done = threading.Event()
        if fresh and self.table.consume_kv_events(raw(fresh[::-1]), done.set):
            assert done.wait(10)
        self.table.advance_resolved_ts(self.ts)

    def flush(self, after: str) -> None:
        self.give()
        if after == "lost answer":
            self.storage.lose = True
            assert not self.store.flush(1)
        elif after in {"index behind", "index unmarked"}:  # a crash while the index learns of a commit
            index = self.store._find_owned(1).index
            index._mark = _stop
            if after == "index behind":
                index._put = _stop
            assert not self.store.flush(1)
            self.store.close(flush=False)
            self.open()
            self.give()
        assert self.store.flush(1)
        if after in {"crash", "index lost"}:
            self.store.close(flush=False)
            if after == "index lost":
                shutil.rmtree(self.folder / "data" / "index")
            self.open()
        elif after == "merge":
            self.store.merge(1)
        elif after == "given up":
            self.store.close_table(1)
            self.table = self.store.open_table(1)

    def check(self) -> None:
        state = self.store.ownership(1).state
        live = live_rows(self.storage, 1, state.flushed_ts)  # fails when a row id is wrong
        assert {row["id"]: row["name"] for _, row in live.values()} == self.rows
        self.store._find_owned(1).index.catch_up(state)
        found = index_contents(self.store._index)
        assert found.keys() == live.keys()
        moved = find_moved_rows(self.storage, 1)
        for handle, (located, row) in live.items():
            version = (handle, row["_commit_ts"])
            assert found[handle] == located or moved[found[handle]] == version
            assert state.objects[found[handle][0]].is_visible(state.flushed_ts)
        for info in objects(self.storage, 1, "tombstone"):
            rows = read_object(self.storage, 1, info).to_pylist()
            keys = [(row["_object"], row["_offset"], row["_commit_ts"]) for row in rows]
            assert keys == sorted(keys)
            named = [row["_object"] for row in rows]
            assert info.targets == tuple((each, named.count(each)) for each in sorted(set(named)))
            assert info.kind == "appendable" or len({row["_start_ts"] for row in rows}) == 1
        spans = [
            (each.min_ts, each.max_ts)
            for each in objects(self.storage, 1, "tombstone")
            if each.kind == "appendable"
        ]
        assert all(one[1] < two[0] for one, two in pairwise(spans))

    def check_rebuilt(self) -> None:
        rebuilt = PrimaryKeyIndex(self.folder / "rebuilt")
        rebuilt.table(1, self.storage).catch_up(self.store.ownership(1).state)
        assert index_contents(rebuilt) == index_contents(self.store._index)
        rebuilt.close()


def _stop(*_: object) -> None:
    raise Unavailable("killed")


def index_contents(index: PrimaryKeyIndex | None) -> dict[bytes, RowId]:
    assert index is not None
    prefix = (1).to_bytes(8, "big")
    return {
        bytes(key).removeprefix(prefix): (value[:16].hex(), int.from_bytes(value[16:], "big"))
        for key, value in index.current().items()
        if key != prefix
    }
