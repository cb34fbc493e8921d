"""A store reduced to what a change stream can see of it, stepped in any order by Hypothesis.

A command becomes visible at one step and is observed at a later one; scans move record by record
over a view; rounds of resolved timestamps run at any time. The client is the public matcher: what is
fatal to it fails the test, and in the end it must have every change after its checkpoint.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from penstock.store.bounds import EVERYTHING, KeyBounds
from penstock.store.cdc.outbox import Outbox, Quota
from penstock.store.cdc.progress import Frontier, RequestProgress
from penstock.store.cdc.subscription import (
    COMMIT,
    COMMITTED,
    OPS,
    PREWRITE,
    ROLLBACK,
    RegionSubscription,
    SubscriptionPhase,
)
from penstock.store.observe import Change, ChangeKind, WriteOp
from support.campaign import examples

KEYS = (b"a", b"b", b"c", b"d")


class Matcher:
    """What a client does with the rows of one region (facts of the public matcher)."""

    def __init__(self, checkpoint_ts):
        self.start_ts = self.resolved_ts = checkpoint_ts
        self.initialized = False
        self.prewrites = {}
        self.cached_commits = []
        self.cached_rollbacks = []
        self.emitted = {}

    def take(self, row):
        lock = (row.start_ts, row.key)
        if row.type == PREWRITE:
            if row.value or lock not in self.prewrites:
                self.prewrites[lock] = row
        elif row.type == COMMITTED:
            self.emit(row, row)
        elif row.type == COMMIT:
            self.commit(row)
        elif row.type == ROLLBACK:
            if self.initialized:
                self.prewrites.pop(lock, None)
            else:
                self.cached_rollbacks.append(lock)
        else:
            self.initialize()

    def commit(self, row):
        found = self.prewrites.get((row.start_ts, row.key))
        if found is not None and (found.value or self.initialized):
            del self.prewrites[row.start_ts, row.key]
            self.emit(row, found)
        else:
            assert not self.initialized, "a COMMIT without a PREWRITE is fatal"
            self.cached_commits.append(row)

    def initialize(self):
        assert not self.initialized
        self.initialized = True
        for row in self.cached_commits:
            found = self.prewrites.pop((row.start_ts, row.key), None)
            if found is not None:
                self.emit(row, found)
        for lock in self.cached_rollbacks:
            self.prewrites.pop(lock, None)

    def emit(self, row, values):
        if row.commit_ts <= self.start_ts and row.type == COMMIT:
            return
        assert row.commit_ts > self.resolved_ts, "a change at or below the resolved timestamp is fatal"
        change = (row.key, row.start_ts, row.commit_ts)
        content = (row.op_type, values.value, values.old_value)
        assert self.emitted.setdefault(change, content) == content

    def resolve(self, ts):
        assert self.initialized, "a resolved timestamp before INITIALIZED"
        self.resolved_ts = max(self.resolved_ts, ts)


@dataclass
class Txn:
    start_ts: int
    keys: tuple[bytes, ...]
    op: WriteOp
    value: bytes
    guarded: bool = False  # async or one-phase commit
    min_commit_ts: int = 0
    answered: bool = False  # the prewrite is
    locked: set[bytes] = field(default_factory=set)
    commit_ts: int = 0


@dataclass
class Command:
    """Between its durable write and the observer."""

    txn: Txn
    keys: tuple[bytes, ...]
    changes: list[tuple[Change, bytes]]


@dataclass
class Scan:
    subscription: RegionSubscription
    locks: list[tuple[bytes, Txn, bytes]]
    writes: list[tuple[bytes, int, Txn, bytes]]


class Store(RuleBasedStateMachine):
    store_id = 1

    @initialize()
    def begin(self):
        self.ts = 10
        self.max_ts = 0
        self.locks = {}
        self.versions = {key: [] for key in KEYS}  # oldest first
        self.txns = []
        self.in_flight = []
        self.guards = []
        self.scans = []
        self.frontier = Frontier()
        self.progress = {}
        self.clients = []
        self.told = {}

    def tso(self):
        self.ts += 1
        return self.ts

    def latched(self):
        return {key for command in self.in_flight for key in command.keys}

    # The store: each command decides, becomes visible, and is observed at a later step.

    @rule(
        keys=st.sets(st.sampled_from(KEYS), min_size=1, max_size=3),
        protocol=st.sampled_from("2a1"),
        op=st.sampled_from([WriteOp.PUT, WriteOp.DELETE]),
    )
    def prewrite(self, keys, protocol, op):
        free = tuple(sorted(key for key in keys if key not in self.locks and key not in self.latched()))
        if not free:
            return
        start_ts = self.tso()
        txn = Txn(
            start_ts, free, op, b"v%d" % start_ts if op is WriteOp.PUT else b"", guarded=protocol != "2"
        )
        if txn.guarded:
            txn.min_commit_ts = max(self.max_ts, start_ts) + 1
            self.guards.append(txn)
        if protocol == "1":
            self.write_versions(txn, free, txn.min_commit_ts)
            self.submit(txn, free, ChangeKind.COMMITTED, txn.min_commit_ts)
            return
        self.txns.append(txn)
        for key in free:
            self.locks[key] = txn
            txn.locked.add(key)
        self.submit(txn, free, ChangeKind.PREWRITE)

    def write_versions(self, txn, keys, commit_ts):
        for key in keys:
            self.versions[key].append((commit_ts, txn))

    def old_value(self, key, before):
        older = [txn for commit_ts, txn in self.versions[key] if commit_ts < before]
        return older[-1].value if older else b""

    def submit(self, txn, keys, kind, commit_ts=0):
        shown = txn.value if kind in {ChangeKind.PREWRITE, ChangeKind.COMMITTED} else b""
        changes = [
            (
                Change(kind, key, txn.start_ts, commit_ts, txn.op, shown),
                self.old_value(key, commit_ts or 1 << 60) if shown or txn.op is WriteOp.DELETE else b"",
            )
            for key in keys
        ]
        self.in_flight.append(Command(txn, keys, changes))

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def observe(self, data):
        self.observe_command(data.draw(st.sampled_from(self.in_flight)))

    def observe_command(self, command):
        for _, subscription in self.clients:
            subscription.deliver(command.changes)
        self.in_flight.remove(command)
        kind = command.changes[0][0].kind
        if kind in {ChangeKind.PREWRITE, ChangeKind.COMMITTED} and command.txn.guarded:
            self.guards.remove(command.txn)
        command.txn.answered = True

    @precondition(lambda self: any(txn.answered for txn in self.txns))
    @rule(data=st.data(), rolls_back=st.booleans())
    def finish_some_keys(self, data, rolls_back):
        txn = data.draw(st.sampled_from([txn for txn in self.txns if txn.answered]))
        self.finish(txn, rolls_back=rolls_back)

    def finish(self, txn, *, rolls_back=False):
        keys = tuple(key for key in sorted(txn.locked) if key not in self.latched())[:2]
        if not keys:
            return
        if not txn.commit_ts and not (rolls_back and len(txn.locked) == len(txn.keys)):
            txn.commit_ts = txn.min_commit_ts or self.tso()
        for key in keys:
            del self.locks[key]
            txn.locked.remove(key)
        if txn.commit_ts:
            self.write_versions(txn, keys, txn.commit_ts)
            self.submit(txn, keys, ChangeKind.COMMIT, txn.commit_ts)
        else:
            txn.keys = tuple(txn.locked)  # rolled back as a whole, some keys later
            self.submit(txn, keys, ChangeKind.ROLLBACK)
        if not txn.locked:
            self.txns.remove(txn)

    # The change stream.

    @rule(back=st.integers(0, 40), bounds=st.sampled_from([EVERYTHING, KeyBounds(b"b", b"d")]))
    def subscribe(self, back, bounds):
        if len(self.clients) >= 4:
            return
        checkpoint_ts = max(self.ts - back, 0)
        subscription = RegionSubscription(
            owner=self,
            outbox=Outbox(Quota(1 << 40)),
            region_id=len(self.clients) + 1,
            request_id=0,
            checkpoint_ts=checkpoint_ts,
            bounds=bounds,
            whole_region=bounds == EVERYTHING,
            old_values=True,
        )
        self.clients.append((Matcher(checkpoint_ts), subscription))
        self.progress[subscription.region_id] = RequestProgress(0)

    @precondition(lambda self: any(one.phase is SubscriptionPhase.WAITING for _, one in self.clients))
    @rule(data=st.data())
    def take_a_view(self, data):
        self.take_view(
            data.draw(
                st.sampled_from([one for _, one in self.clients if one.phase is SubscriptionPhase.WAITING])
            )
        )

    def take_view(self, subscription):
        held = subscription.bounds.contains
        locks = [
            (key, txn, self.old_value(key, 1 << 60)) for key, txn in sorted(self.locks.items()) if held(key)
        ]
        writes = [
            (key, commit_ts, txn, self.old_value(key, commit_ts))
            for key in KEYS
            if held(key)
            for commit_ts, txn in reversed(self.versions[key])
            if commit_ts > subscription.checkpoint_ts
        ]
        self.scans.append(Scan(subscription, locks, writes))
        subscription.begin_scan()

    @precondition(lambda self: self.scans)
    @rule(data=st.data(), steps=st.integers(1, 12))
    def scan_a_slice(self, data, steps):
        scan = data.draw(st.sampled_from(self.scans))
        for _ in range(steps):
            if scan in self.scans:
                self.scan_on(scan)

    def scan_on(self, scan):
        one = scan.subscription
        if scan.locks:
            key, txn, old = scan.locks.pop(0)
            one.scan_lock(key, txn.start_ts, OPS[txn.op], txn.value, old)
        elif one.phase is SubscriptionPhase.LOCKS:
            one.end_of_locks()
        elif scan.writes:
            key, commit_ts, txn, old = scan.writes.pop(0)
            one.scan_write(key, txn.start_ts, commit_ts, OPS[txn.op], txn.value, old)
        else:
            one.end_of_scan()
            self.scans.remove(scan)
        one.end_of_slice()

    def locks_changed(self, subscription):
        self.progress[subscription.region_id].place(subscription)

    @rule()
    def round(self):
        oracle_ts = self.tso()
        self.max_ts = max(self.max_ts, oracle_ts)
        oldest = min((txn.start_ts for txn in self.guards), default=None)
        bound = self.frontier.advance(oracle_ts, oldest)
        for matcher, one in self.clients:
            self.receive()
            for message in self.progress[one.region_id].advance(bound):
                assert list(message.regions) == [one.region_id]
                assert message.ts >= self.told.get(one.region_id, -1), "a resolved timestamp went back"
                self.told[one.region_id] = message.ts
                matcher.resolve(message.ts)

    @rule()
    def receive(self):
        for matcher, one in self.clients:
            outbox = one._writer._outbox
            outbox._seal()
            while outbox._waiting:
                for event in outbox._waiting.popleft().message.events:
                    for row in event.entries.entries:
                        matcher.take(row)

    def teardown(self):
        if not hasattr(self, "clients"):
            return
        self.drain()
        self.round()
        self.receive()
        for matcher, one in self.clients:
            expected = {
                (key, txn.start_ts, commit_ts)
                for key in KEYS
                if one.bounds.contains(key)
                for commit_ts, txn in self.versions[key]
                if commit_ts > one.checkpoint_ts
            }
            assert set(matcher.emitted) == expected
            assert not matcher.prewrites, "the client keeps a PREWRITE for ever"
            assert self.told[one.region_id] == self.frontier.ts == self.ts
            assert not one.resolver.locks

    def drain(self):
        """Finish every command, transaction and scan."""
        while self.in_flight or self.txns:
            for command in tuple(self.in_flight):
                self.observe_command(command)
            for txn in tuple(self.txns):
                self.finish(txn)
        for _, one in self.clients:
            if one.phase is SubscriptionPhase.WAITING:
                self.take_view(one)
        while self.scans:
            self.scan_on(self.scans[0])


Store.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=50, deadline=None)
TestEveryInterleaving = Store.TestCase
