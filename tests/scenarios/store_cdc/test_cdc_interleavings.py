"""Each .txt file here is one order of scan and live changes on a single subscription.

Lines above `----` are what happens, lines below are what the client is sent. Above:
  view                            the view is taken, live changes are sent from here on
  prewrite|commit|rollback|1pc    live: KEY START [COMMIT] [VALUE]; without a value it is a delete
  lock KEY START [VALUE]          the scan comes to a lock of the view
  no-more-locks
  write KEY START COMMIT [VALUE]  the scan comes to a version of the view
  initialized                     the scan is done
  resolve BOUND                   a round of resolved timestamps
"""

from pathlib import Path

import pytest

from penstock.proto import cdcpb_pb2 as cdcpb
from penstock.store.bounds import KeyBounds
from penstock.store.cdc import subscription as rows
from penstock.store.cdc.outbox import Outbox, Quota
from penstock.store.cdc.progress import RequestProgress
from penstock.store.cdc.subscription import RegionSubscription
from penstock.store.observe import Change, ChangeKind, WriteOp

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))
CHECKPOINT_TS = 100


class Scene:
    store_id = 1

    def __init__(self):
        self.outbox = Outbox(Quota(1 << 30))
        self.progress = RequestProgress(0)
        self.subscription = RegionSubscription(
            owner=self,
            outbox=self.outbox,
            region_id=1,
            request_id=0,
            checkpoint_ts=CHECKPOINT_TS,
            bounds=KeyBounds(b"a", b"p"),
            whole_region=False,
            old_values=False,
        )

    def locks_changed(self, subscription):
        self.progress.place(subscription)

    def end(self, subscription, error):
        raise AssertionError

    def play(self, line):
        verb, *words = line.split()
        getattr(self, "do_" + verb.replace("-", "_"))(*words)

    def do_view(self):
        self.subscription.begin_scan()

    def live(self, kind, key, start_ts, commit_ts=0, value=None):
        op = WriteOp.DELETE if value is None else WriteOp.PUT
        change = Change(kind, key.encode(), int(start_ts), int(commit_ts), op, (value or "").encode())
        self.subscription.deliver([(change, b"")])

    def do_prewrite(self, key, start_ts, value=None):
        self.live(ChangeKind.PREWRITE, key, start_ts, 0, value)

    def do_commit(self, key, start_ts, commit_ts):
        self.live(ChangeKind.COMMIT, key, start_ts, commit_ts)

    def do_rollback(self, key, start_ts):
        self.live(ChangeKind.ROLLBACK, key, start_ts)

    def do_1pc(self, key, start_ts, commit_ts, value=None):
        self.live(ChangeKind.COMMITTED, key, start_ts, commit_ts, value)

    def do_lock(self, key, start_ts, value=None):
        op = rows.DELETE if value is None else rows.PUT
        self.subscription.scan_lock(key.encode(), int(start_ts), op, (value or "").encode(), b"")
        self.subscription.end_of_slice()

    def do_no_more_locks(self):
        self.subscription.end_of_locks()

    def do_write(self, key, start_ts, commit_ts, value=None):
        op = rows.DELETE if value is None else rows.PUT
        self.subscription.scan_write(
            key.encode(), int(start_ts), int(commit_ts), op, (value or "").encode(), b""
        )
        self.subscription.end_of_slice()

    def do_initialized(self):
        self.subscription.end_of_scan()

    def do_resolve(self, bound):
        for message in self.progress.advance(int(bound)):
            self.outbox.add_resolved(cdcpb.ChangeDataEvent(resolved_ts=message))

    async def sent(self):
        lines = []
        while self.outbox._waiting or self.outbox._open is not None:
            message = await self.outbox.next()
            lines += [shown(row) for event in message.events for row in event.entries.entries]
            lines += [f"resolved {message.resolved_ts.ts}"] * message.HasField("resolved_ts")
        return lines


def shown(row):
    words = [cdcpb.Event.LogType.Name(row.type)]
    if row.key:
        words += [row.key.decode(), str(row.start_ts)]
    if row.commit_ts:
        words.append(str(row.commit_ts))
    if row.value:
        words.append(row.value.decode())
    return " ".join(words)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
async def test_an_interleaving(path):
    told, expected = path.read_text().split("----\n")
    scene = Scene()
    for line in told.splitlines():
        if line and not line.startswith("#"):
            scene.play(line)
    assert await scene.sent() == expected.splitlines()


def test_there_are_scenarios():
    assert len(SCENARIOS) >= 10
