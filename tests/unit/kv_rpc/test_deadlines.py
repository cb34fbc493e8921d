"""Many timeouts under one timer."""

from penstock.kv.rpc.batch import Deadlines
from penstock.kv.rpc.stream import PendingRequest


class FakeLoop:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, at, callback):
        timer = FakeTimer(at, callback)
        self.timers.append(timer)
        return timer

    def move(self, to: float) -> None:
        self.now = to
        for timer in [timer for timer in self.timers if timer.live and timer.at <= to]:
            timer.live = False
            timer.callback()

    def live(self) -> list[float]:
        return [timer.at for timer in self.timers if timer.live]


class FakeTimer:
    def __init__(self, at, callback) -> None:
        self.at = at
        self.callback = callback
        self.live = True

    def cancel(self) -> None:
        self.live = False


def made():
    loop, expired = FakeLoop(), []
    return loop, expired, Deadlines(loop, expired.append)


def test_one_timer_serves_requests_of_the_same_timeout():
    loop, expired, deadlines = made()
    for moment in range(100):
        loop.now = float(moment)
        entry = PendingRequest(None, "Get", None)
        deadlines.add(entry, 30.0)
        deadlines.unanswered.discard(entry)  # answered
        loop.move(float(moment))
    assert len(loop.timers) <= 4
    assert expired == []


def test_a_request_expires_at_its_deadline_and_not_before():
    loop, expired, deadlines = made()
    late, later = PendingRequest(None, "Get", None), PendingRequest(None, "Get", None)
    deadlines.add(late, 10.0)
    loop.now = 4.0
    deadlines.add(later, 10.0)
    loop.move(9.9)
    assert expired == []
    loop.move(10.0)
    assert expired == [late]
    assert loop.live() == [14.0]
    loop.move(14.0)
    assert expired == [late, later]
    assert loop.live() == []


def test_a_shorter_timeout_moves_the_timer_forward():
    loop, expired, deadlines = made()
    patient, hasty = PendingRequest(None, "Get", None), PendingRequest(None, "Get", None)
    deadlines.add(patient, 30.0)
    deadlines.add(hasty, 1.0)
    assert loop.live() == [1.0]
    loop.move(1.0)
    assert expired == [hasty]
    assert loop.live() == [30.0]


def test_an_answered_request_never_expires():
    loop, expired, deadlines = made()
    entry = PendingRequest(None, "Get", None)
    deadlines.add(entry, 1.0)
    deadlines.unanswered.discard(entry)
    loop.move(5.0)
    assert expired == []
    assert loop.live() == []


def test_a_stopped_timer_stays_quiet():
    loop, expired, deadlines = made()
    deadlines.add(PendingRequest(None, "Get", None), 1.0)
    deadlines.stop()
    loop.move(5.0)
    assert expired == []
