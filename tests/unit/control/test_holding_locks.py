"""Which of the locks in a table holds it back, and what is said of it."""

from penstock.control.overview.locks import HoldingLock, oldest_lock
from penstock.kv.locks import Lock
from penstock.tables.keys import meta_string_key, record_key
from support.overviews import NOW_TS, ago


def lock(start_ts: int, *, primary: bytes = b"", pessimistic: bool = False) -> Lock:
    return Lock(key=record_key(7, 1), primary=primary, start_ts=start_ts, pessimistic=pessimistic)


def test_the_oldest_transaction_that_writes_holds_back() -> None:
    found = oldest_lock([lock(30), lock(20, primary=record_key(9, 5)), lock(10, pessimistic=True)])
    assert found is not None
    assert (found.start_ts, found.primary_table_id) == (20, 9)


def test_locks_that_only_reserve_keys_hold_nothing_back() -> None:
    assert oldest_lock([lock(10, pessimistic=True)]) is None
    assert oldest_lock([]) is None


def test_a_primary_is_shown_without_the_row() -> None:
    found = oldest_lock([lock(10, primary=record_key(9, b"a-secret-name"))])
    assert found is not None
    assert b"secret".hex() not in found.primary
    outside = oldest_lock([lock(10, primary=meta_string_key(b"SchemaVersionKey"))])
    assert outside is not None
    assert outside.primary_table_id is None
    short = oldest_lock([lock(10, primary=b"t")])
    assert short is not None
    assert (short.primary_table_id, short.primary) == (None, "0x74")


def test_the_age_of_a_lock_is_that_of_its_transaction() -> None:
    assert HoldingLock(ago(12.5), 7, "0x74").age_s(NOW_TS) == 12.5
    assert HoldingLock(ago(-3), 7, "0x74").age_s(NOW_TS) == 0
