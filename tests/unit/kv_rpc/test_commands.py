"""Which commands travel in batches."""

import pytest

from penstock.kv.members import bare_addr
from penstock.kv.rpc.connections import BATCH_FIELDS


@pytest.mark.parametrize(
    ("method", "field"),
    [
        ("KvGet", "Get"),
        ("KvPrewrite", "Prewrite"),
        ("KVPessimisticRollback", "PessimisticRollback"),
        ("KvGC", "GC"),
        ("RawGet", "RawGet"),
        ("KvCheckSecondaryLocks", "CheckSecondaryLocks"),
    ],
)
def test_a_command_with_a_batch_form_knows_its_field(method, field):
    assert BATCH_FIELDS[method] == field


@pytest.mark.parametrize(
    "method",
    [
        "SplitRegion",
        "UnsafeDestroyRange",
        "MvccGetByKey",
        "MvccGetByStartTs",
        "GetStoreSafeTS",
        "RawCompareAndSwap",
    ],
)
def test_the_other_commands_are_unary(method):
    assert method not in BATCH_FIELDS


@pytest.mark.parametrize("url", ["http://127.0.0.1:2379", "https://127.0.0.1:2379/", "127.0.0.1:2379"])
def test_a_member_may_be_written_as_a_url(url):
    assert bare_addr(url) == "127.0.0.1:2379"
