from penstock.store.cdc.subscription import LockTable, Resolver


def test_without_locks_the_bound_is_resolved():
    assert Resolver().resolve(100) == 100


def test_the_oldest_lock_holds_the_resolved_timestamp():
    resolver = Resolver()
    resolver.locks.add(b"a", 50)
    resolver.locks.add(b"b", 40)
    assert resolver.resolve(100) == 40
    resolver.locks.remove(b"b", 40)
    assert resolver.resolve(100) == 50
    resolver.locks.remove(b"a", 50)
    assert resolver.resolve(100) == 100


def test_a_transaction_holds_until_its_last_key_is_done():
    resolver = Resolver()
    for key in (b"a", b"b", b"c"):
        resolver.locks.add(key, 10)
    for key in (b"a", b"b"):
        assert resolver.locks.remove(key, 10)
        assert resolver.resolve(100) == 10
    assert resolver.locks.remove(b"c", 10)
    assert resolver.resolve(100) == 100


def test_the_resolved_timestamp_never_decreases():
    resolver = Resolver()
    assert resolver.resolve(100) == 100
    resolver.locks.add(b"late", 30)
    assert resolver.resolve(120) == 100
    assert resolver.resolve(90) == 100
    resolver.locks.remove(b"late", 30)
    assert resolver.resolve(120) == 120


def test_what_was_told_on_behalf_of_a_subscription_is_its_floor():
    resolver = Resolver()
    resolver.resolve_at_least(70)
    resolver.locks.add(b"a", 20)
    assert resolver.resolve(200) == 70


def test_tracking_a_lock_twice_needs_one_removal():
    locks = LockTable()
    locks.add(b"a", 10)
    locks.add(b"a", 10)
    assert locks.remove(b"a", 10)
    assert not locks
    assert locks.oldest() is None


def test_removing_an_unknown_lock_says_so():
    locks = LockTable()
    locks.add(b"a", 10)
    assert not locks.remove(b"a", 11)
    assert not locks.remove(b"b", 10)
    assert locks.oldest() == 10


def test_a_start_that_comes_back_counts_again():
    locks = LockTable()
    locks.add(b"a", 10)
    locks.remove(b"a", 10)
    locks.add(b"a", 10)
    assert locks.oldest() == 10
    locks.remove(b"a", 10)
    assert locks.oldest() is None


def test_finished_transactions_behind_a_stuck_one_take_no_memory():
    locks = LockTable()
    locks.add(b"stuck", 1)
    for start_ts in range(2, 5_000):
        locks.add(b"k", start_ts)
        locks.remove(b"k", start_ts)
    assert len(locks._starts) < 200
    assert locks.oldest() == 1
