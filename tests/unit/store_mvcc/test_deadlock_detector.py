import pytest

from penstock.proto import deadlock_pb2 as deadlock
from penstock.store.lock_waiting import DeadlockDetector


def wait(txn: int, wait_for: int, key: bytes = b"k") -> deadlock.WaitForEntry:
    return deadlock.WaitForEntry(txn=txn, wait_for_txn=wait_for, key=key)


def edges(chain: list[deadlock.WaitForEntry] | None) -> list[tuple[int, int]] | None:
    return None if chain is None else [(entry.txn, entry.wait_for_txn) for entry in chain]


@pytest.mark.parametrize(
    ("before", "last", "expected"),
    [
        ([], (1, 2), None),
        ([(1, 2)], (2, 1), [(1, 2), (2, 1)]),
        ([(1, 2), (2, 3)], (3, 1), [(1, 2), (2, 3), (3, 1)]),
        ([(1, 2), (2, 3)], (1, 3), None),
        ([(1, 2), (1, 3), (3, 4), (2, 5)], (4, 1), [(1, 3), (3, 4), (4, 1)]),
        ([(1, 2), (2, 3), (1, 3), (3, 4)], (5, 1), None),
    ],
)
def test_a_wait_that_closes_a_cycle_is_refused_with_the_cycle(
    before: list[tuple[int, int]], last: tuple[int, int], expected: list[tuple[int, int]] | None
) -> None:
    detector = DeadlockDetector(ttl_s=10)
    for edge in before:
        assert detector.detect(wait(*edge), now=0) is None
    assert edges(detector.detect(wait(*last), now=0)) == expected


def test_a_refused_wait_leaves_no_edge() -> None:
    detector = DeadlockDetector(ttl_s=10)
    detector.detect(wait(1, 2), now=0)
    assert detector.detect(wait(2, 1), now=0)
    detector.remove(wait(1, 2))
    assert detector.is_empty()


def test_an_edge_stays_while_one_of_its_keys_is_waited_for() -> None:
    detector = DeadlockDetector(ttl_s=10)
    detector.detect(wait(1, 2, b"a"), now=0)
    detector.detect(wait(1, 2, b"b"), now=0)
    detector.remove(wait(1, 2, b"a"))
    assert detector.detect(wait(2, 1), now=0)
    detector.remove(wait(1, 2, b"b"))
    assert detector.detect(wait(2, 1), now=0) is None


def test_an_edge_that_nobody_removed_is_forgotten_after_its_ttl() -> None:
    detector = DeadlockDetector(ttl_s=1)
    detector.detect(wait(1, 2), now=0)
    assert detector.detect(wait(2, 1), now=1.5) is None


def test_removing_what_is_gone_changes_nothing() -> None:
    detector = DeadlockDetector(ttl_s=1)
    detector.remove(wait(1, 2))
    assert detector.is_empty()
