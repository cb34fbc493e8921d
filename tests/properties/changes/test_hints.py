"""Whatever the changes, and however they come in slices: hints never lie, and nothing is lost."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.changes.batches import ChangeBatch, Hint
from penstock.changes.options import ChangeOptions, ReadColumns
from penstock.changes.tail import Tail
from penstock.eventstore.paths import Side
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import side_schema
from support.campaign import examples
from support.events import a_table

VERSION = SchemaVersion(0, 1, a_table())
END = 1000

Row = dict[str, Any]
State = dict[int, str]
History = list[tuple[int, frozenset[int], frozenset[int]]]  # commit-ts, rows written, rows deleted if there

numbers = st.frozensets(st.integers(1, 12), max_size=12)
histories = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=14).map(
    lambda given: [(2 * ts + 1, put, gone - put) for ts, (put, gone) in enumerate(given)]
)
modes = st.fixed_dictionaries(
    {"coalesce": st.booleans(), "skip_deletes": st.booleans(), "batch_rows": st.integers(1, 8)}
)


def played(history: History) -> tuple[list[Row], list[Row], dict[int, State]]:
    """The data and the tombstones of a history, and the table after each commit."""
    state: State = {}
    data: list[Row] = []
    ends: list[Row] = []
    states = {0: dict(state)}
    for ts, put, gone in history:
        for number in sorted(put | gone):
            there = number in state
            row = {
                "id": number,
                "_handle": number.to_bytes(8, "big"),
                "_commit_ts": ts,
                "_start_ts": ts - 1,
                "_update": there and number in put,
            }
            if there:
                ends.append({**row, "_old": {"id": number, "name": state.pop(number)}})
            if number in put:
                state[number] = f"{number} at {ts}"
                data.append({**row, "name": state[number]})
        states[ts] = dict(state)
    return data, ends, states


def slices(rows: list[Row], side: Side, options: ChangeOptions, sizes: list[int]) -> Iterator[pa.RecordBatch]:
    schema = side_schema(VERSION.table, side)
    whole = pa.RecordBatch.from_pylist(
        [{name: row.get(name) for name in schema.names} for row in rows], schema
    )
    whole = whole.select(ReadColumns.of(VERSION.table, options).of_side(side).read.names)
    at = nth = 0
    while at < len(rows):
        yield whole.slice(at, sizes[nth % len(sizes)])
        at, nth = at + sizes[nth % len(sizes)], nth + 1


def collected(
    data: list[Row], ends: list[Row], mode: dict[str, Any], sizes: list[int], from_ts: int = 0
) -> list[ChangeBatch]:
    options = ChangeOptions(**mode)
    tail = Tail(
        slices([row for row in data if row["_commit_ts"] > from_ts], "data", options, sizes),
        slices([row for row in ends if row["_commit_ts"] > from_ts], "tombstone", options, sizes),
        schema=VERSION,
        columns=ReadColumns.of(VERSION.table, options),
        options=options,
        to_ts=END,
    )
    return list(tail.batches())


def steps(batches: list[ChangeBatch]) -> list[tuple[int, int, int, str]]:
    """Both sides of every change, in the order in which they take effect."""
    found = [
        (row["_commit_ts"], order, row["id"], row.get("name", ""))
        for batch in batches
        for order, side in enumerate((batch.tombstones, batch.data))
        for row in side.to_pylist()
    ]
    return sorted(found)


def applied(state: State, batches: list[ChangeBatch], *, upserts: bool) -> State:
    now = dict(state)
    for _, order, number, name in steps(batches):
        if order:
            assert upserts or number not in now
            now[number] = name
        else:
            del now[number]
    return now


def groups(batches: list[ChangeBatch]) -> Iterator[list[ChangeBatch]]:
    """The batches that belong together, each with its TAIL_DONE."""
    held: list[ChangeBatch] = []
    for batch in batches:
        held.append(batch)
        if batch.hint is Hint.TAIL_DONE:
            yield held
            held = []
    assert not held, "the last batch is no TAIL_DONE"


sizes_ = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@settings(max_examples=examples(150), deadline=None)
@given(histories, modes, sizes_)
def test_what_is_done_is_complete_and_never_crossed(
    history: History, mode: dict[str, Any], sizes: list[int]
) -> None:
    data, ends, _ = played(history)
    before = 0
    for group in groups(collected(data, ends, mode, sizes)):
        complete = group[-1].complete_ts
        times = [step[0] for step in steps(group)]
        assert all(before < ts <= complete for ts in times)
        for batch in group[:-1]:
            assert (batch.complete_ts, batch.hint) == (times[0] - 1, Hint.TAIL_WIP)
        sides = [bool(batch.data.num_rows) for batch in group]
        if len(group) > 1:  # pieces of one commit-ts
            assert len(set(times)) == 1
            assert sides == sorted(sides)
            assert not any(batch.data.num_rows and batch.tombstones.num_rows for batch in group)
        for batch in group:
            for side in (batch.data, batch.tombstones):
                told = side.column("_commit_ts").to_pylist()
                assert told == sorted(told)
                assert len(told) <= 2 * mode["batch_rows"]
        before = complete


@settings(max_examples=examples(150), deadline=None)
@given(histories, modes, sizes_, sizes_)
def test_slices_change_nothing_and_the_changes_lead_to_the_end(
    history: History, mode: dict[str, Any], sizes: list[int], others: list[int]
) -> None:
    data, ends, states = played(history)
    found = collected(data, ends, mode, sizes)
    assert found == collected(data, ends, mode, others)
    last = max(states)
    assert applied({}, found, upserts=mode["skip_deletes"]) == states[last]
    if not mode["coalesce"]:
        updated = {(row["_commit_ts"], row["id"]) for row in data if row["_update"]}
        every = [(row["_commit_ts"], 1, row["id"], row["name"]) for row in data]
        every += [
            (row["_commit_ts"], 0, row["id"], "")
            for row in ends
            if not mode["skip_deletes"] or (row["_commit_ts"], row["id"]) not in updated
        ]
        assert steps(found) == sorted(every)


@settings(max_examples=examples(100), deadline=None)
@given(histories, modes, sizes_, st.data())
def test_reading_on_from_a_complete_ts_gives_what_is_missing(
    history: History, mode: dict[str, Any], sizes: list[int], choice: st.DataObject
) -> None:
    data, ends, states = played(history)
    found = list(groups(collected(data, ends, mode, sizes)))
    if not found:
        return
    taken = choice.draw(st.integers(1, len(found)))
    before = [batch for group in found[:taken] for batch in group]
    rest = collected(data, ends, mode, sizes, from_ts=before[-1].complete_ts)
    state = applied({}, before, upserts=mode["skip_deletes"])
    assert applied(state, rest, upserts=mode["skip_deletes"]) == states[max(states)]
    if not mode["coalesce"]:
        assert steps(before) + steps(rest) == steps([batch for group in found for batch in group])
