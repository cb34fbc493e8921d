"""The spool: bytes and items, watermarks, quota."""

from penstock.changefeeds.engines.engine import Chunk
from penstock.changefeeds.sinks.sink import DmlEvent
from penstock.changefeeds.sinks.storage.spool import ItemBudget, ItemShare, Spool, SpoolAllowance
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
    spool = Spool(1000, items=ItemBudget(20).open())
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


class Taker:
    """A spool that takes one more piece as long as it is allowed to."""

    def __init__(self, share: ItemShare) -> None:
        self.share = share
        self.spool = Spool(1 << 40, items=share)

    def take(self, most: int = 10_000) -> int:
        while self.spool.items < most and (self.spool.release_held() or self.spool.admit(event())):
            self.spool.add_direct(1)
        return self.spool.items


def test_all_spools_of_a_process_share_its_items_and_who_comes_late_has_a_part() -> None:
    budget = ItemBudget(1000)
    greedy = [Taker(budget.open("ann")) for _ in range(3)]
    assert 400 <= greedy[0].take() <= 402
    late = Taker(budget.open("bob"))
    assert 200 <= late.take() <= 202, "a half of the second half: there are two accounts"
    for taker in greedy:
        taker.take()
    assert all(taker.spool.items >= 66 for taker in greedy), "a third of the account's part"
    assert budget.items <= 1000
    held = greedy[0].spool.items
    greedy[0].share.close()
    greedy[0].spool.remove_direct(held, held)  # what a closed sink still does counts for nobody
    assert budget.items == sum(taker.spool.items for taker in (*greedy[1:], late))
    more = [Taker(budget.open(f"account {number}")) for number in range(100)]
    assert all(taker.take() >= 1 for taker in more), "none starves"
    assert budget.items <= 1000


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
