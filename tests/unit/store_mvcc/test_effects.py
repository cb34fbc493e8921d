"""What a command leaves behind, and what change streams are told of it."""

import pytest

from penstock.store.mvcc.effects import Effects
from penstock.store.mvcc.records import LockKind, LockRecord


@pytest.mark.parametrize("one_phase", [False, True])
def test_a_deletion_announces_no_value_even_when_the_client_sent_one(one_phase: bool) -> None:
    effects = Effects()
    lock = LockRecord(LockKind.DELETE, 10, b"k", 3000)
    if one_phase:
        effects.commit_at_once(b"k", lock, b"left over", 20)
    else:
        effects.prewrite(b"k", lock, b"left over")
    (change,) = effects.changes
    assert change.value == b""
    assert not any(b"left over" in (value or b"") for _, _, value in effects.mutations)
