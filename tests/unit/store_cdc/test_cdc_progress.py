import pytest

from penstock.store.bounds import EVERYTHING
from penstock.store.cdc.outbox import Outbox, Quota
from penstock.store.cdc.progress import Frontier, RequestProgress
from penstock.store.cdc.subscription import RegionSubscription, SubscriptionPhase


class Owner:
    store_id = 1

    def locks_changed(self, subscription):
        raise AssertionError

    def end(self, subscription, error):
        raise AssertionError


def subscription(region_id):
    made = RegionSubscription(
        owner=Owner(),
        outbox=Outbox(Quota(1 << 30)),
        region_id=region_id,
        request_id=9,
        checkpoint_ts=0,
        bounds=EVERYTHING,
        whole_region=True,
        old_values=False,
    )
    made.phase = SubscriptionPhase.LIVE
    return made


@pytest.fixture
def progress():
    return RequestProgress(9)


def told(progress, bound):
    return {(message.ts, tuple(message.regions)) for message in progress.advance(bound)}


def lock(progress, one, start_ts, key=b"k"):
    one.resolver.locks.add(key, start_ts)
    progress.place(one)


def unlock(progress, one, start_ts, key=b"k"):
    one.resolver.locks.remove(key, start_ts)
    progress.place(one)


def test_a_frontier_is_bound_by_the_oldest_memory_lock():
    assert Frontier().advance(100, None) == 100
    assert Frontier().advance(100, 60) == 60
    assert Frontier().advance(100, 160) == 100


def test_a_frontier_never_goes_back():
    frontier = Frontier()
    frontier.advance(100, None)
    assert frontier.advance(110, 40) == 100
    assert frontier.advance(120, None) == 120


def test_regions_without_locks_are_told_of_together(progress):
    for region_id in (1, 2, 3):
        progress.place(subscription(region_id))
    (message,) = progress.advance(50)
    assert (message.ts, list(message.regions), message.request_id) == (50, [1, 2, 3], 9)


def test_an_unchanged_bound_is_not_told_again_unless_a_region_came(progress):
    progress.place(subscription(1))
    assert told(progress, 50) == {(50, (1,))}
    assert told(progress, 50) == set()
    progress.place(subscription(2))
    assert told(progress, 50) == {(50, (1, 2))}


def test_locks_hold_back_their_region_only(progress):
    one, two = subscription(1), subscription(2)
    progress.place(two)
    lock(progress, one, 30)
    assert told(progress, 50) == {(30, (1,)), (50, (2,))}
    assert told(progress, 60) == {(60, (2,))}
    unlock(progress, one, 30)
    assert told(progress, 70) == {(70, (2, 1))}


def test_regions_held_back_by_one_transaction_share_a_message(progress):
    for region_id in (1, 2, 3):
        lock(progress, subscription(region_id), 30)
    assert told(progress, 50) == {(30, (1, 2, 3))}


def test_a_late_lock_does_not_take_back_what_was_told(progress):
    one = subscription(1)
    progress.place(one)
    assert told(progress, 50) == {(50, (1,))}
    lock(progress, one, 20)
    assert told(progress, 60) == set()
    unlock(progress, one, 20)
    assert told(progress, 60) == {(60, (1,))}


def test_a_region_free_for_a_moment_between_two_locks_still_moves(progress):
    one = subscription(1)
    lock(progress, one, 30)
    assert told(progress, 50) == {(30, (1,))}
    unlock(progress, one, 30)
    lock(progress, one, 40)
    assert told(progress, 60) == {(50, (1,))}


def test_the_first_timestamp_is_told_even_if_it_is_old(progress):
    one = subscription(1)
    lock(progress, one, 1)
    assert told(progress, 50) == {(1, (1,))}


def test_a_region_that_left_is_not_told_of(progress):
    one, two, three = subscription(1), subscription(2), subscription(3)
    progress.place(one)
    progress.place(two)
    lock(progress, three, 30)
    progress.remove(two)
    progress.remove(three)
    progress.remove(subscription(4))
    assert told(progress, 50) == {(50, (1,))}
    assert len(progress) == 1


def test_very_many_different_timestamps_are_told_in_few_messages(progress):
    count = 1000
    members = [subscription(region_id) for region_id in range(1, count + 1)]
    for i, one in enumerate(members):
        lock(progress, one, 100 + i)
    messages = progress.advance(10_000)
    assert len(messages) <= 6
    truth = {one.region_id: 100 + i for i, one in enumerate(members)}
    assert sorted(region for message in messages for region in message.regions) == sorted(truth)
    assert all(message.ts <= truth[region] for message in messages for region in message.regions)
    assert min(message.ts for message in messages) == 100


def test_grouping_many_timestamps_never_tells_a_region_less_than_before(progress):
    members = [subscription(region_id) for region_id in range(1, 61)]
    for i, one in enumerate(members):
        lock(progress, one, 100 + i)
    last = {}
    for bound in range(110, 400, 7):
        for message in progress.advance(bound):
            for region in message.regions:
                assert message.ts > last.get(region, -1)
                last[region] = message.ts
        for one in members[bound % 3 :: 3]:
            oldest = one.resolver.locks.oldest()
            unlock(progress, one, oldest)
            lock(progress, one, oldest + 31)
    assert len(last) == 60
