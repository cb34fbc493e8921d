"""The spool: bytes and items, watermarks, quota."""

from penstock.changefeeds.engines.engine import Chunk
from penstock.changefeeds.sinks.sink import DmlEvent
from penstock.changefeeds.sinks.storage.spool import Spool, SpoolAllowance
from penstock.follow.slices import Position
from support.sinkparts import slice_of


def chunk(nbytes: int, segment: int = 1, number: int = 0) -> Chunk:
    return Chunk(segment, number, Position(1), Position(2), 1, nbytes)


def event() -> DmlEvent:
    return DmlEvent(slice_of(1, 5))


def test_bytes_and_items_are_counted_from_encoding_to_the_remote() -> None:
    spool = Spool(100)
    spool.add([chunk(30), chunk(20, number=1)])
    assert (spool.nbytes, spool.items) == (50, 2)
    spool.remove([chunk(30)])
    assert (spool.nbytes, spool.items) == (20, 1)


def test_wakes_stop_above_the_high_mark_and_resume_at_the_low_one() -> None:
    spool = Spool(100)
    spool.add([chunk(80)])
    assert spool.admit(event())  # 80 is not above 80
    spool.add([chunk(1, number=1)])
    held = [event(), event()]
    assert not any(spool.admit(each) for each in held)
    assert spool.held_wakes == 2
    spool.remove([chunk(1, number=1)])
    spool.add([chunk(0, 2)])
    assert not spool.release_held()  # 80 is below high and still above low
    assert not spool.admit(event())
    spool.remove([chunk(80)])
    assert len(spool.release_held()) == 3
    assert spool.release_held() == ()
    assert spool.held_wakes == 0
    assert spool.admit(event())


def test_wakes_resume_at_exactly_the_low_mark() -> None:
    spool = Spool(100)
    spool.add([chunk(60), chunk(21, number=1)])
    assert not spool.admit(held := event())
    spool.remove([chunk(21, number=1)])
    assert spool.release_held() == [held]


def test_the_marks_are_shares_of_the_quota() -> None:
    assert (Spool(1000).high_bytes, Spool(1000).low_bytes) == (800, 600)
    assert (Spool(1000, high=0.5, low=0.1).high_bytes, Spool(1000, high=0.5, low=0.1).low_bytes) == (500, 100)


def test_a_job_under_way_takes_room_before_it_has_ended() -> None:
    spool = Spool(100)
    spool.expect(70)
    assert spool.room == 30
    spool.settle(70)
    spool.add([chunk(50)])
    assert spool.room == 50


def test_room_is_never_less_than_nothing() -> None:
    spool = Spool(100)
    spool.add([chunk(250)])
    assert spool.room == 0
    assert not spool.empty


def test_any_single_event_may_come_only_while_nothing_is_there_or_expected() -> None:
    spool = Spool(100)
    assert spool.empty
    spool.expect(1)
    assert not spool.empty
    spool.settle(1)
    spool.add([chunk(1)])
    assert not spool.empty
    spool.remove([chunk(1)])
    assert spool.empty


def test_a_segment_takes_room_until_its_last_chunk_is_gone() -> None:
    spool = Spool(100)
    spool.add([chunk(60), chunk(10, number=1)])
    assert spool.remove([chunk(60)]) == []
    assert (spool.nbytes, spool.retained_bytes, spool.room) == (10, 70, 30)
    assert spool.remove([chunk(10, number=1)]) == [1]
    assert spool.room == 100


def test_the_oldest_segments_are_named_until_few_enough_bytes_are_left() -> None:
    spool = Spool(100)
    for segment in (7, 3, 5):
        spool.add([chunk(20, segment)])
    assert list(spool.oldest_segments(60)) == []
    assert list(spool.oldest_segments(30)) == [7, 3]
    assert list(spool.oldest_segments(0)) == [7, 3, 5]


def test_many_small_items_hold_wakes_back_as_bytes_do() -> None:
    spool = Spool(1000, items_max=10)
    for number in range(8):
        spool.add([chunk(1, number, number)])
    assert spool.admit(event())
    spool.add_direct(1)
    assert not spool.admit(event())
    assert spool.keep_bytes == 0
    spool.remove_direct(1, 1)
    spool.remove([chunk(1, 0, 0)])
    assert not spool.release_held()  # seven are above the low mark
    spool.remove([chunk(1, 1, 1)])
    assert len(spool.release_held()) == 1
    assert spool.keep_bytes == spool.low_bytes


def test_spools_of_an_account_share_its_allowance() -> None:
    allowance = SpoolAllowance(100)
    allowance.open = 1
    first = Spool(80, allowance=allowance)
    assert (first.quota_bytes, first.room) == (80, 80), "its own quota counts too"
    first.add([chunk(45)])
    assert first.admit(event())
    allowance.open = 2
    assert (first.quota_bytes, first.room) == (50, 5)
    held = event()
    assert not first.admit(held), "its part is smaller now"
    second = Spool(80, allowance=allowance)
    assert second.room == 50
    allowance.open = 1
    assert first.release_held() == [held], "the other spool is closed"
