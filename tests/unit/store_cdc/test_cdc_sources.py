"""Which rows a change stream sends, by the source of their transaction, as TiKV does."""

from collections.abc import Iterator

import pytest

from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.store.bounds import EVERYTHING
from penstock.store.cdc.outbox import Outbox, Quota
from penstock.store.cdc.subscription import COMMITTED, PREWRITE, PUT, RegionSubscription
from penstock.store.observe import Change, ChangeKind, WriteOp

REPLICATED, REWRITE, LIGHTNING = 1, 1 << 8, 1 << 16


class _Owner:
    store_id = 1

    def locks_changed(self, subscription: RegionSubscription) -> None:
        """Take no note."""

    def end(self, subscription: RegionSubscription, error: cdcpb.Error | None) -> None:
        raise AssertionError


def subscribe(outbox: Outbox, *, filter_loop: bool = False) -> RegionSubscription:
    return RegionSubscription(
        owner=_Owner(),
        outbox=outbox,
        region_id=1,
        request_id=1,
        checkpoint_ts=0,
        bounds=EVERYTHING,
        whole_region=True,
        old_values=False,
        filter_loop=filter_loop,
    )


def rows_of(outbox: Outbox) -> Iterator[cdcpb.Event.Row]:
    assert outbox._open is not None
    for event in outbox._open.events:
        yield from event.entries.entries


def change(kind: ChangeKind, source: int, commit_ts: int = 0) -> tuple[Change, bytes]:
    return Change(kind, b"k%d" % source, 10, commit_ts, WriteOp.PUT, b"v", source), b""


@pytest.mark.parametrize(("filter_loop", "sent"), [(False, [0, REPLICATED]), (True, [0])])
def test_rewrites_and_imports_are_never_sent_and_replicated_rows_only_if_asked_for(
    filter_loop: bool, sent: list[int]
) -> None:
    outbox = Outbox(Quota(1 << 30))
    subscription = subscribe(outbox, filter_loop=filter_loop)
    subscription.begin_scan()
    sources = (0, REPLICATED, REWRITE, REWRITE | REPLICATED, LIGHTNING)
    for source in sources:
        subscription.scan_lock(b"scanned%d" % source, 5, PUT, b"v", b"", source)
    subscription.end_of_locks()
    for source in sources:
        subscription.scan_write(b"w%d" % source, 3, 4, PUT, b"v", b"", source)
    subscription.end_of_scan()
    kinds = (ChangeKind.PREWRITE, ChangeKind.COMMIT, ChangeKind.COMMITTED)
    subscription.deliver([change(kind, source, 20) for kind in kinds for source in sources])
    found: dict[int, list[int]] = {}
    for row in rows_of(outbox):
        found.setdefault(row.type, []).append(row.txn_source)
    assert found.pop(cdcpb.Event.INITIALIZED) == [0]
    assert found == {
        PREWRITE: [*sent, *sent],
        COMMITTED: [*sent, *sent],
        cdcpb.Event.COMMIT: sent,
    }


def test_a_transaction_that_is_not_sent_holds_the_resolved_timestamp_back() -> None:
    subscription = subscribe(Outbox(Quota(1 << 30)))
    subscription.begin_scan()
    subscription.end_of_locks()
    subscription.end_of_scan()
    subscription.deliver([change(ChangeKind.PREWRITE, REWRITE)])
    assert subscription.resolver.resolve(100) == 10
    subscription.deliver([change(ChangeKind.COMMIT, REWRITE, 20)])
    assert subscription.resolver.resolve(100) == 100
