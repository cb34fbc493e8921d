import pytest

from penstock.store.cdc.scan import CommittedChange, read_committed_after
from penstock.store.mvcc.records import Write, WriteKind, version_key

PUT, DELETE, LOCK, ROLLBACK = WriteKind.PUT, WriteKind.DELETE, WriteKind.LOCK, WriteKind.ROLLBACK


def record(key, commit_ts, kind, value=None):
    return version_key(key, commit_ts), Write(kind, commit_ts - 1, value).encode()


def changes(records, after_ts):
    def value_of(key, write):
        return write.short_value if write.short_value is not None else b"long of " + key

    return [
        change for change in read_committed_after(sorted(records), after_ts, value_of) if change is not None
    ]


def test_versions_come_newest_first_each_with_the_value_it_replaced():
    found = changes(
        [
            record(b"a", 10, PUT, b"1"),
            record(b"a", 20, PUT, b"2"),
            record(b"a", 30, DELETE),
            record(b"b", 15, PUT, b"x"),
        ],
        0,
    )
    assert found == [
        CommittedChange(b"a", 29, 30, DELETE, b"", b"2"),
        CommittedChange(b"a", 19, 20, PUT, b"2", b"1"),
        CommittedChange(b"a", 9, 10, PUT, b"1"),
        CommittedChange(b"b", 14, 15, PUT, b"x"),
    ]


def test_only_what_is_after_the_checkpoint_comes_but_the_replaced_value_may_be_older():
    found = changes(
        [record(b"a", 10, PUT, b"1"), record(b"a", 20, PUT, b"2"), record(b"b", 20, PUT, b"x")], 19
    )
    assert found == [CommittedChange(b"a", 19, 20, PUT, b"2", b"1"), CommittedChange(b"b", 19, 20, PUT, b"x")]
    assert changes([record(b"a", 20, PUT, b"2")], 20) == []


@pytest.mark.parametrize("empty", [LOCK, ROLLBACK])
def test_versions_without_data_are_passed_over(empty):
    found = changes(
        [
            record(b"a", 10, PUT, b"1"),
            record(b"a", 15, empty),
            record(b"a", 20, PUT, b"2"),
            record(b"a", 25, empty),
        ],
        12,
    )
    assert found == [CommittedChange(b"a", 19, 20, PUT, b"2", b"1")]


def test_a_deleted_version_leaves_nothing_to_replace():
    found = changes([record(b"a", 5, PUT, b"0"), record(b"a", 10, DELETE), record(b"a", 20, PUT, b"2")], 12)
    assert found == [CommittedChange(b"a", 19, 20, PUT, b"2")]


def test_long_values_are_fetched():
    found = changes([record(b"a", 10, PUT), record(b"a", 20, DELETE)], 0)
    assert [(change.value, change.old_value) for change in found] == [
        (b"", b"long of a"),
        (b"long of a", b""),
    ]


def test_keys_with_zero_bytes_keep_apart():
    found = changes(
        [record(b"a", 20, PUT, b"1"), record(b"a\0", 10, PUT, b"2"), record(b"a\0\0", 5, PUT, b"3")], 0
    )
    assert [(change.key, change.old_value) for change in found] == [
        (b"a", b""),
        (b"a\0", b""),
        (b"a\0\0", b""),
    ]


def test_every_record_looked_at_is_counted():
    records = [record(b"%d" % i, 10, PUT, b"v") for i in range(100)]
    assert list(read_committed_after(sorted(records), 50, lambda *_: b"")) == [None] * 100
