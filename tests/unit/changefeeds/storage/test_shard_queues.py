"""Queues by dispatcher before encoding."""

from collections import Counter

import pytest

from penstock.changefeeds.sinks.sink import DmlEvent, DrainMarker
from penstock.changefeeds.sinks.storage.ledger import ShardBatch, Shards
from support.sinkparts import dispatcher, slice_of

LARGE = 1 << 40


def event(number: int, ts: int, nbytes: int = 10) -> DmlEvent:
    return DmlEvent(slice_of(number, ts, nbytes))


def weigh(each: DmlEvent) -> int:
    return each.slice.nbytes


def take(shards: Shards, *, room: int = LARGE, limit: int = LARGE, alone: bool = False) -> list[ShardBatch]:
    return shards.take(weigh, room=room, limit=limit, alone=alone)


def sent(batches: list[ShardBatch]) -> list[tuple[str, int]]:
    return [(each.slice.dispatcher.id, each.slice.end.ts) for batch in batches for each in batch.events]


def test_a_dispatcher_always_has_the_same_shard() -> None:
    assert [Shards(8).route(str(number)) for number in range(50)] == [
        Shards(8).route(str(number)) for number in range(50)
    ]


def test_dispatchers_are_spread_over_all_shards() -> None:
    shards = Shards(16)
    counts = [0] * 16
    for number in range(1600):
        counts[shards.route(str(number))] += 1
    assert min(counts) > 60
    assert max(counts) < 140


def test_what_a_dispatcher_sends_comes_out_in_order() -> None:
    shards = Shards(4)
    for ts in range(1, 6):
        shards.put(event(1, ts))
    assert sent(take(shards)) == [("1", ts) for ts in range(1, 6)]


def test_a_dispatcher_has_one_batch_under_way() -> None:
    shards = Shards(1)
    shards.put(event(1, 1))
    (batch,) = take(shards)
    shards.put(event(1, 2))
    assert take(shards) == []
    shards.finish(batch)
    assert sent(take(shards)) == [("1", 2)]


@pytest.mark.parametrize("count", [1, 2])
def test_a_slow_dispatcher_does_not_hold_others_of_its_shard_or_of_another(count: int) -> None:
    shards = Shards(count)
    slow, fast = 1, next(n for n in range(2, 99) if count == 1 or shards.route(str(n)) != shards.route("1"))
    shards.put(event(slow, 1))
    take(shards)
    shards.put(event(slow, 2))
    shards.put(event(fast, 1))
    assert sent(take(shards)) == [(str(fast), 1)]


def test_a_job_takes_of_every_shard_that_is_ready_and_not_all_of_one() -> None:
    shards = Shards(4)
    for number in range(40):
        for ts in (1, 2, 3):
            shards.put(event(number, ts, 10))
    first = take(shards, limit=400)
    taken = Counter(shards.route(batch.dispatcher_id) for batch in first)
    assert set(taken) == {0, 1, 2, 3}
    assert max(taken.values()) - min(taken.values()) <= 1
    assert sum(len(batch.items) for batch in first) == 40


def test_no_more_is_taken_than_there_is_room_for() -> None:
    shards = Shards(1)
    for ts in (1, 2, 3):
        shards.put(event(1, ts, 10))
    assert sent(take(shards, room=25)) == [("1", 1), ("1", 2)]
    assert len(shards) == 1


def test_nothing_is_taken_when_the_first_does_not_fit_and_nobody_overtakes_it() -> None:
    shards = Shards(2)
    other = next(n for n in range(2, 99) if shards.route(str(n)) != shards.route("1"))
    shards.put(event(1, 1, 50))
    shards.put(event(other, 1, 1))
    assert take(shards, room=20) == []
    waiting = shards.first_waiting()
    assert waiting is not None
    assert waiting.slice.dispatcher.id == "1"


def test_an_event_larger_than_the_room_goes_alone() -> None:
    shards = Shards(1)
    shards.put(event(1, 1, 500))
    shards.put(event(1, 2, 1))
    assert sent(take(shards, room=100, limit=50, alone=True)) == [("1", 1)]


def test_an_event_larger_than_a_job_goes_alone() -> None:
    shards = Shards(1)
    shards.put(event(1, 1, 500))
    shards.put(event(1, 2, 1))
    assert sent(take(shards, limit=50)) == [("1", 1)]


def test_a_marker_keeps_its_place_among_the_events() -> None:
    shards = Shards(1)
    marker = DrainMarker(dispatcher(1), 9, at=0.0)
    shards.put(event(1, 1))
    shards.put(marker)
    shards.put(event(1, 2))
    (batch,) = take(shards)
    assert batch.items[1] is marker
    assert len(batch.events) == 2


def test_markers_need_no_room() -> None:
    shards = Shards(1)
    shards.put(DrainMarker(dispatcher(1), 9, at=0.0))
    (batch,) = take(shards, room=0)
    assert batch.events == []


def test_what_waits_of_a_dispatcher_is_dropped_and_nothing_else() -> None:
    shards = Shards(1)
    for number in (1, 2, 1):
        shards.put(event(number, 1))
    assert len(shards.drop("1")) == 2
    assert sent(take(shards)) == [("2", 1)]


def test_a_shard_that_was_emptied_is_not_ready() -> None:
    shards = Shards(1)
    shards.put(event(1, 1))
    shards.drop("1")
    assert take(shards) == []
    assert shards.idle
    shards.put(event(1, 2))
    assert sent(take(shards)) == [("1", 2)]


def test_it_is_known_whose_events_are_under_way() -> None:
    shards = Shards(1)
    shards.put(event(1, 1))
    (batch,) = take(shards)
    assert shards.is_underway("1")
    assert not shards.is_underway("2")
    assert not shards.idle
    shards.finish(batch)
    assert not shards.is_underway("1")
    assert shards.idle
