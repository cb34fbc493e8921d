"""A handle: how it ends, how it fails, and that it lets go of everything."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.changes import ChangeBatch, ChangesHandle, Hint, collect, collect_changes
from penstock.changes.options import ChangeOptions
from penstock.errors import Invalid, StaleRead, Unavailable
from penstock.eventstore.read.partition import PartitionState
from penstock.eventstore.read.streams import ChangeStream, open_streams
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables import impossible_dates
from penstock.tables.codec.times import pack
from penstock.tables.define import define_table
from support.itemtables import item, item_table
from support.tableworld import START, TableWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TableWorld]:
    with TableWorld(tmp_path, item_table()) as made:
        for number in range(1, 40):
            made.commit(item("integer", number, "a"))
        made.flush()
        made.commit(*(item("integer", number, "b") for number in range(1, 20)))
        made.resolve()
        yield made


class Watched:
    """The streams that were opened, and those that were closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[ChangeStream] = []
        self.closed: list[ChangeStream] = []
        self.fails_at = 0
        monkeypatch.setattr(collect, "open_streams", self.open_streams)

    def open_streams(self, *arguments: Any, **rest: Any) -> list[ChangeStream]:
        if self.fails_at and len(self.opened) >= self.fails_at:
            raise Unavailable("nobody answers")
        made = open_streams(*arguments, **rest)
        for stream in made:
            self._watch(stream)
        self.opened += made
        return made

    def _watch(self, stream: ChangeStream) -> None:
        close = stream.close

        def closing() -> None:
            self.closed.append(stream)
            close()

        stream.close = closing  # type: ignore[method-assign] # watched, not changed


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_a_handle_that_is_closed_early_lets_go_of_every_stream(world: TableWorld, watched: Watched) -> None:
    with collect_changes(world.view(), START, world.ts, batch_rows=2) as handle:
        first = handle.next()
        assert first is not None
        assert len(watched.opened) == 3  # objects and memory of the data, memory of the tombstones
        assert not watched.closed
    assert set(map(id, watched.closed)) == set(map(id, watched.opened))
    with pytest.raises(Invalid, match="closed"):
        handle.next()
    handle.close()


def test_a_handle_at_its_end_has_let_go_of_every_stream(world: TableWorld, watched: Watched) -> None:
    handle = collect_changes(world.view(), START, world.ts)
    assert list(handle)
    assert set(map(id, watched.closed)) == set(map(id, watched.opened))
    assert handle.next() is None
    handle.close()
    assert handle.next() is None


def test_a_handle_that_was_never_asked_opens_nothing(world: TableWorld, watched: Watched) -> None:
    collect_changes(world.view(), START, world.ts).close()
    assert not watched.opened


def test_streams_are_let_go_when_another_cannot_be_opened(world: TableWorld, watched: Watched) -> None:
    watched.fails_at = 2
    handle = collect_changes(world.view(), START, world.ts)
    with pytest.raises(Unavailable):
        handle.next()
    assert len(watched.opened) == 2
    assert set(map(id, watched.closed)) == set(map(id, watched.opened))


def test_a_failure_is_not_the_end_however_often_it_is_asked() -> None:
    def batches() -> Iterator[ChangeBatch]:
        yield from ()
        raise Unavailable("storage sleeps")

    handle = ChangesHandle(batches())  # type: ignore[arg-type] # a generator
    for _ in range(3):
        with pytest.raises(Unavailable, match="sleeps"):
            handle.next()
    handle.close()
    with pytest.raises(Unavailable):
        next(handle)


@pytest.mark.parametrize(
    ("definition", "side", "hint", "refused"),
    [
        ([("k", "date primary key"), ("v", "int")], "data", Hint.TAIL_DONE, True),
        ([("k", "date primary key"), ("v", "int")], "tombstones", Hint.TAIL_WIP, True),
        ([("k", "date primary key"), ("v", "int")], "data", Hint.SNAPSHOT, False),
        ([("v", "int primary key"), ("k", "date")], "data", Hint.TAIL_DONE, False),
    ],
)
def test_a_changed_key_with_a_date_that_no_calendar_has_needs_a_snapshot(
    definition: list[tuple[str, str]], side: str, hint: Hint, refused: bool
) -> None:
    table = define_table("t", definition)
    days = impossible_dates.to_days(np.array([pack(2024, 2, 31)])).astype("int32")
    row = pa.RecordBatch.from_pydict({"k": pa.array(days).cast(pa.date32()), "v": pa.array([1], pa.int32())})
    none = row.slice(0, 0)
    sides = {"data": none, "tombstones": none, side: row}
    batch = ChangeBatch(**sides, hint=hint, schema=SchemaVersion(5, 1, table, "shop"), complete_ts=9)

    def hand_over(**options: Any) -> ChangesHandle:
        return ChangesHandle((each for each in [batch]), ChangeOptions(**options))

    read = hand_over().next()
    assert read is not None
    assert getattr(read, side).to_pylist() == [{"k": None, "v": 1}]
    if refused:
        with pytest.raises(StaleRead, match="key column k has dates that no calendar has"):
            hand_over(whole_keys=True).next()
    else:
        assert hand_over(whole_keys=True).next() == read


def test_reading_on_from_what_is_complete_gives_the_rest_exactly(world: TableWorld) -> None:
    whole = told(list(collect_changes(world.view(), START, world.ts, coalesce=False, batch_rows=3)))
    taken: list[ChangeBatch] = []
    at = START
    while at < world.ts:  # a new handle for every batch that is done
        with collect_changes(world.view(), at, world.ts, coalesce=False, batch_rows=3) as handle:
            while True:
                batch = handle.next()
                assert batch is not None
                taken.append(batch)
                if batch.hint is Hint.TAIL_DONE:
                    break
        assert batch.complete_ts > at
        at = batch.complete_ts
    assert told(taken) == whole


def told(batches: list[ChangeBatch]) -> list[list[tuple[Any, ...]]]:
    return [
        [tuple(row.values()) for batch in batches for row in side(batch).to_pylist()]
        for side in (lambda batch: batch.data, lambda batch: batch.tombstones)
    ]


def test_flushes_in_between_change_nothing(world: TableWorld) -> None:
    world.commit(item("integer", 5, "c"), delete=[(6,), (7,)])
    world.commit(item("integer", 7, "d"))
    world.resolve()
    modes: list[dict[str, Any]] = [
        {"coalesce": False, "old_rows": True},
        {"batch_rows": 4},
        {"skip_deletes": True, "columns": ["_handle", "name", "_update"]},
    ]
    before = [shape(collect_changes(world.view(), START, world.ts, **mode)) for mode in modes]
    world.flush()
    assert [shape(collect_changes(world.view(), START, world.ts, **mode)) for mode in modes] == before


def shape(handle: ChangesHandle) -> list[tuple[Any, ...]]:
    """All of the batches but how their schema is written down."""
    return [(each.data, each.tombstones, each.hint, each.complete_ts, each.schema.version) for each in handle]


def test_a_handle_that_was_opened_before_a_flush_reads_on(world: TableWorld) -> None:
    expected = told(list(collect_changes(world.view(), START, world.ts, batch_rows=3)))
    with collect_changes(world.view(), START, world.ts, batch_rows=3) as handle:
        first = handle.next()
        assert first is not None
        world.flush()
        assert told([first, *handle]) == expected


@pytest.mark.parametrize(
    ("from_ts", "to_ts", "options", "message"),
    [
        (5, 5, {}, "no range"),
        (9, 5, {}, "no range"),
        (-1, 5, {}, "no range"),
        (START, START + 2, {"columns": ["nom"]}, "no column 'nom'; it has id, name"),
        (START, START + 2, {"columns": ["_old"]}, "old_rows"),
        (START, START + 2, {"columns": ["_offset"]}, "no column '_offset'"),
        (START, START + 2, {"batch_rows": 0}, "at least one row"),
        (0, START + 2, {"columns": ["nom"]}, "no column 'nom'"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(
    world: TableWorld, from_ts: int, to_ts: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(Invalid, match=message):
        collect_changes(world.view(), from_ts, to_ts, **options)


def test_what_is_not_there_yet_or_any_more_is_refused_at_once(
    world: TableWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unavailable, match="wait"):
        collect_changes(world.view(), START, world.ts + 1)
    monkeypatch.setattr(PartitionState, "oldest_ts", property(lambda _: START + 10))
    for from_ts in (START, START + 9):
        with pytest.raises(StaleRead) as caught:
            collect_changes(world.view(), from_ts, world.ts)
        assert caught.value.oldest_ts == START + 10
    with collect_changes(world.view(), START + 10, world.ts) as handle:
        assert handle.next() is not None
    with pytest.raises(StaleRead):
        collect_changes(world.view(), 0, START + 9)


def test_from_nothing_on_the_rows_of_a_table_are_given(world: TableWorld) -> None:
    ts = world.ts
    batches = list(collect_changes(world.view(), 0, ts, columns=["name", "_update"], batch_rows=10))
    assert {batch.hint for batch in batches} == {Hint.SNAPSHOT}
    assert [batch.complete_ts for batch in batches] == [0] * (len(batches) - 1) + [ts]
    assert len(batches) > 1
    rows = [row for batch in batches for row in batch.data.to_pylist()]
    assert sorted(row["name"] for row in rows) == ["a"] * 20 + ["b"] * 19
    assert not any(row["_update"] for row in rows)
    assert all(batch.tombstones.num_rows == 0 for batch in batches)
    assert batches[0].tombstones.schema.names == ["id", "_update", "_commit_ts"]


def test_a_table_without_rows_says_that_it_is_complete(tmp_path: Path) -> None:
    with TableWorld(tmp_path, item_table()) as empty:
        empty.tick()
        empty.resolve()
        for from_ts in (0, START):
            (batch,) = collect_changes(empty.view(), from_ts, empty.ts)
            assert batch.complete_ts == empty.ts
            assert (batch.data.num_rows, batch.tombstones.num_rows) == (0, 0)
