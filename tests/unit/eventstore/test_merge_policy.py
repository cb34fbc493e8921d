"""What is merged next: a table of cases, and the cost of following the choice for ever."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.eventstore.manifest import ManifestState, ObjectInfo, ObjectKind, Targets
from penstock.eventstore.paths import Side
from penstock.eventstore.upkeep.merge_policy import MergeChoice, MergePolicy
from support.campaign import examples

MIB = 1024 * 1024
POLICY = MergePolicy(128 * MIB)


def an_object(
    name: str,
    mib: float,
    *,
    side: Side = "data",
    rows: int = 1000,
    seq: int = 1,
    targets: Targets | None = (),
    kind: ObjectKind = "appendable",
    delete_ts: int = 0,
) -> ObjectInfo:
    return ObjectInfo(
        id=name, side=side, kind=kind, schema_version=1, create_ts=1, min_ts=1, max_ts=2, rows=rows,
        size_bytes=int(mib * MIB), key_min=b"a", key_max=b"b", seq=seq, targets=targets, delete_ts=delete_ts,
    )  # fmt: skip


def deleting(name: str, mib: float, *targets: tuple[str, int], rows: int = 0, seq: int = 9) -> ObjectInfo:
    total = rows or sum(count for _, count in targets) or 1
    return an_object(name, mib, side="tombstone", rows=total, seq=seq, targets=tuple(sorted(targets)))


def choice(*objects: ObjectInfo) -> tuple[set[str], set[str], set[str]] | None:
    found = POLICY.choose(ManifestState(objects={each.id: each for each in objects}))
    return None if found is None else tuple({each.id for each in part} for part in parts(found))


def parts(found: MergeChoice) -> tuple[tuple[ObjectInfo, ...], ...]:
    return found.data, found.tombstones, found.gone


def of_size(count: int, mib: float) -> list[ObjectInfo]:
    return [an_object(f"{mib}-{number}", mib) for number in range(count)]


@pytest.mark.parametrize(
    ("objects", "merged"),
    [
        ([], None),
        (of_size(7, 1), None),
        (of_size(8, 1), 8),
        (of_size(40, 1), 16),
        (of_size(7, 0.001), None),
        (of_size(8, 0.001), 8),
        (of_size(7, 0.3) + of_size(7, 1) + of_size(4, 20), None),
        (of_size(3, 40), 3),  # almost the target: fewer are worth it
        (of_size(2, 40), None),
        (of_size(5, 89), None),  # two of them would not make one
        (of_size(50, 91), None),
        (of_size(50, 400), None),
    ],
)
def test_objects_of_a_size_are_merged_when_they_make_a_larger_one(
    objects: list[ObjectInfo], merged: int | None
) -> None:
    found = choice(*objects)
    assert (found and len(found[0])) == merged
    assert found is None or found[1:] == (set(), set())


def test_an_object_is_rewritten_alone_once_much_of_it_is_dead() -> None:
    large = an_object("large", 128)
    assert choice(large, deleting("t", 1, ("large", 299))) is None
    assert choice(large, deleting("t", 1, ("large", 299)), deleting("u", 1, ("large", 1))) == (
        {"large"}, set(), {"t", "u"}
    )  # fmt: skip


def test_a_dead_object_leaves_with_its_tombstones() -> None:
    objects = an_object("dead", 100), an_object("other", 100)
    found = choice(*objects, deleting("t", 1, ("dead", 1000)), deleting("u", 20, ("dead", 1), ("other", 99)))
    assert found == ({"dead"}, set(), {"t"})


def test_removed_objects_are_no_candidates_and_no_targets() -> None:
    gone = [replace(each, delete_ts=5) for each in of_size(8, 1)]
    assert choice(*gone) is None
    tombstones = [deleting(f"t{number}", 1, ("1-0", 3)) for number in range(8)]
    assert choice(*gone, *tombstones[:7]) is None
    assert choice(*gone, *tombstones) == (set(), set(), {each.id for each in tombstones})


def test_small_tombstone_objects_are_merged_too() -> None:
    tombstones = [deleting(f"t{number}", 1, ("live", 10)) for number in range(8)]
    assert choice(an_object("live", 100), *tombstones) == (set(), {each.id for each in tombstones}, set())


def test_a_tombstone_object_is_rewritten_once_much_of_it_deletes_nothing() -> None:
    live = an_object("live", 100)
    assert choice(live, deleting("t", 50, ("live", 80), ("collected", 20))) is None
    assert choice(live, deleting("t", 50, ("live", 60), ("collected", 40))) == (set(), {"t"}, set())
    assert choice(live, deleting("t", 50, ("live", 60), rows=100)) == (set(), {"t"}, set())  # rows of none


def test_tombstones_that_do_not_say_what_they_delete_are_spread_over_older_objects() -> None:
    scattered = an_object("t", 50, side="tombstone", rows=600, seq=5, targets=None)
    old, new = an_object("old", 100, seq=5), an_object("new", 100, seq=6)
    assert choice(old, new, scattered) == ({"old"}, set(), {"t"})
    assert choice(replace(old, seq=6), new, scattered) is None
    assert choice(old, replace(new, seq=4), replace(scattered, rows=599)) is None
    assert choice(old, replace(new, seq=4), scattered) == ({"new"}, set(), set())


@settings(deadline=None, max_examples=examples(20))
@given(st.integers(MIB // 16, 40 * MIB), st.integers(100, 600), st.floats(0, 0.9))
def test_what_merges_write_is_logarithmic_in_what_flushes_write(size: int, flushes: int, dead: float) -> None:
    """Every flush deletes a share of its rows from the newest object before it."""
    state, written, seq, newest = ManifestState(), 0, 0, ""
    for _ in range(flushes):
        seq += 1
        name = f"{seq}"
        flushed = [an_object(name, size / MIB, rows=1000, seq=seq)]
        if newest and dead:
            flushed.append(deleting(f"t{seq}", size / MIB / 10, (newest, int(1000 * dead)), seq=seq))
        state = replace(state, objects={**state.objects, **{each.id: each for each in flushed}})
        newest = name
        rounds = 0
        while (found := POLICY.choose(state)) is not None:
            rounds += 1
            assert rounds < 50, "it goes on and on"
            seq += 1
            state, cost = apply(state, found, seq)
            written += cost
    steps = math.log(max(8.0, 128 * MIB / size), 8) + 2
    assert written <= size * flushes * (steps + 2.4)
    assert len(state.objects) <= 16 * (steps + 1) + 2 * size * flushes / (60 * MIB)


def apply(state: ManifestState, found: MergeChoice, seq: int) -> tuple[ManifestState, int]:
    """What the table is after a merge, and what that wrote."""
    objects = dict(state.objects)
    tombstones = [each for each in objects.values() if each.side == "tombstone"]
    dead = {each.id: 0 for each in found.data}
    for each in tombstones:
        for target, rows in each.targets or ():
            if target in dead:
                dead[target] += rows
    for taken in (found.data, found.tombstones, found.gone):
        for each in taken:
            del objects[each.id]
    made = []
    live = sum(each.rows - dead[each.id] for each in found.data)
    nbytes = sum(each.size_bytes * (each.rows - dead[each.id]) // each.rows for each in found.data)
    if live:
        made.append(an_object(f"m{seq}", nbytes / MIB, rows=live, seq=seq, kind="merged"))
    kept = [
        (target, rows)
        for each in found.tombstones
        for target, rows in each.targets or ()
        if target in objects
    ]
    if kept:
        share = sum(rows for _, rows in kept) / sum(each.rows for each in found.tombstones)
        size = sum(each.size_bytes for each in found.tombstones) * share / MIB
        made.append(replace(deleting(f"n{seq}", size, *kept, seq=seq), kind="merged"))
    cost = sum(each.size_bytes for each in made)
    return replace(state, objects={**objects, **{each.id: each for each in made}}), cost
