from penstock.proto.codec import encode_bytes
from penstock.store.cdc.delegates import Delegates
from penstock.store.cdc.outbox import Outbox, Quota
from penstock.store.cdc.subscription import RegionSubscription
from penstock.store.observe import Change, ChangeKind, WriteOp
from penstock.store.region import Peer, Region


class Owner:
    store_id = 1

    def locks_changed(self, subscription):
        pass

    def end(self, subscription, error):
        raise AssertionError


def region(region_id, start, end):
    return Region(
        region_id,
        encode_bytes(start) if start else b"",
        encode_bytes(end) if end else b"",
        1,
        1,
        (Peer(1, 1),),
        1,
    )


def subscribe(delegates, of, *, old_values=False):
    one = RegionSubscription(
        owner=Owner(),
        outbox=Outbox(Quota(1 << 30)),
        region_id=of.id,
        request_id=1,
        checkpoint_ts=0,
        bounds=of.bounds(),
        whole_region=True,
        old_values=old_values,
    )
    one.begin_scan()
    delegates.add(of, one)
    return one


def prewrite(key, start_ts=10):
    return Change(ChangeKind.PREWRITE, key, start_ts, 0, WriteOp.PUT, b"v")


def routed(delegates, *keys):
    changes = [prewrite(key) for key in keys]
    return [(delegate.region.id, [one.key for one in run]) for delegate, run in delegates.route(changes)]


def test_a_command_within_one_region_is_one_run():
    delegates = Delegates()
    subscribe(delegates, region(1, b"", b"m"))
    subscribe(delegates, region(2, b"m", b""))
    assert routed(delegates, b"a", b"b", b"c") == [(1, [b"a", b"b", b"c"])]
    assert routed(delegates, b"m", b"z") == [(2, [b"m", b"z"])]


def test_a_command_that_was_overtaken_by_a_split_is_several_runs():
    delegates = Delegates()
    subscribe(delegates, region(1, b"", b"m"))
    subscribe(delegates, region(2, b"m", b""))
    assert routed(delegates, b"z", b"a", b"b", b"m") == [(2, [b"z"]), (1, [b"a", b"b"]), (2, [b"m"])]


def test_keys_nobody_subscribed_to_are_passed_over():
    delegates = Delegates()
    subscribe(delegates, region(2, b"g", b"m"))
    assert routed(delegates, b"a", b"g", b"m", b"h") == [(2, [b"g"]), (2, [b"h"])]
    assert routed(delegates) == []


def test_a_delegate_goes_with_its_last_subscription():
    delegates = Delegates()
    of = region(1, b"", b"")
    first, second = subscribe(delegates, of), subscribe(delegates, of)
    delegates.remove(first)
    delegates.remove(first)
    assert routed(delegates, b"a") == [(1, [b"a"])]
    delegates.remove(second)
    assert routed(delegates, b"a") == []
    assert len(delegates) == 0


def test_regions_without_keys_do_not_confuse_the_others():
    delegates = Delegates()
    nothing = Region(1, b"", b"\x00", 1, 1, (Peer(1, 1),), 1)
    real = Region(2, b"\x00", b"", 1, 1, (Peer(1, 1),), 1)
    gone = subscribe(delegates, nothing)
    subscribe(delegates, real)
    assert routed(delegates, b"\x00", b"a") == [(2, [b"\x00", b"a"])]
    delegates.remove(gone)
    assert routed(delegates, b"\x00", b"a") == [(2, [b"\x00", b"a"])]


async def test_old_values_are_read_once_and_sent_to_those_who_asked():
    delegates = Delegates()
    of = region(1, b"", b"")
    plain, old, also_old = (subscribe(delegates, of, old_values=asks) for asks in (False, True, True))
    reads = []

    def old_values(changes):
        reads.append(changes)
        return [b"old"] * len(changes)

    changes = [prewrite(b"a"), prewrite(b"b")]
    assert delegates.get(1).publish(changes, old_values) == 6
    assert reads == [changes]
    for one, expected in ((plain, b""), (old, b"old"), (also_old, b"old")):
        (event,) = (await one._writer._outbox.next()).events
        assert [row.old_value for row in event.entries.entries] == [expected] * 2
