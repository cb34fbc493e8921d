"""The history checker finds each anomaly that it is there to find."""

import pytest

from support.histories import Outcome, Transaction, check

A, B = b"a", b"b"


def txn(
    name, start, commit=0, *, reads=None, writes=(), outcome=Outcome.COMMITTED, locked=False
) -> Transaction:
    return Transaction(
        name=name,
        start_ts=start,
        commit_ts=commit,
        outcome=outcome,
        reads=reads or {},
        writes=frozenset(writes),
        locked=locked,
    )


def test_a_serial_history_is_accepted() -> None:
    history = [
        txn("t1", 1, 2, reads={A: ()}, writes=[A]),
        txn("t2", 3, 4, reads={A: ("t1",)}, writes=[A, B]),
        txn("t3", 5, 6, reads={A: ("t1", "t2"), B: ("t2",)}),
    ]
    assert check(history, {A: ("t1", "t2"), B: ("t2",)}) == []


def test_write_skew_is_allowed_by_snapshot_isolation() -> None:
    history = [txn("t1", 1, 3, reads={B: ()}, writes=[A]), txn("t2", 2, 4, reads={A: ()}, writes=[B])]
    assert check(history, {A: ("t1",), B: ("t2",)}) == []


def test_an_unknown_outcome_may_have_happened_or_not() -> None:
    history = [txn("t1", 1, outcome=Outcome.UNKNOWN, writes=[A]), txn("t2", 5, 6, reads={A: ("t1",)})]
    assert check(history, {A: ("t1",)}) == []
    assert check([history[0]], {A: ()}) == []


@pytest.mark.parametrize(
    ("history", "final", "says"),
    [
        ([txn("t1", 1, 2, writes=[A])], {A: ()}, "lost"),
        ([txn("t1", 1, 2, writes=[A, B])], {A: ("t1",), B: ()}, "only"),
        ([txn("t1", 1, outcome=Outcome.ABORTED, writes=[A])], {A: ("t1",)}, "aborted, yet"),
        ([txn("t1", 1, 2, writes=[A])], {A: ("t1", "t1")}, "twice"),
        ([txn("t1", 1, 3, writes=[A]), txn("t2", 2, 4, writes=[A])], {A: ("t1", "t2")}, "overlap"),
        ([txn("t1", 1, 2, writes=[A]), txn("t2", 3, 4, reads={A: ()})], {A: ("t1",)}, "did not see"),
        ([txn("t1", 1, 5, writes=[A]), txn("t2", 3, 6, reads={A: ("t1",)})], {A: ("t1",)}, "too early"),
        ([txn("t1", 1, 2, writes=[A]), txn("t2", 3, 4, reads={A: ("t9",)})], {A: ("t1",)}, "contradicts"),
        ([txn("t1", 5, 5, writes=[A])], {A: ("t1",)}, "not after its start"),
    ],
)
def test_each_anomaly_is_reported(history, final, says) -> None:
    assert any(says in problem for problem in check(history, final))
