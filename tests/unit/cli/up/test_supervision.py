"""What the supervisor does next, without a process."""

from penstock.cli.up.supervision import Rank, Restart, Supervision
from penstock.settings import UpSettings

SETTINGS = UpSettings(backoff_s=1, backoff_max_s=5, steady_s=60)
RANKS = {"api": Rank.REST, "jobs": Rank.REST, "capture-1": Rank.CAPTURE, "store": Rank.STORE}


def started(core: Supervision, now: float) -> list[str]:
    names = core.due_parts(now)
    for name in names:
        core.record_start(name)
    return names


def all_running() -> Supervision:
    core = Supervision(RANKS, SETTINGS)
    while names := started(core, 0):
        for name in names:
            core.record_ready(name, 0)
    assert core.all_were_ready
    return core


def test_each_rank_waits_until_the_one_before_it_was_ready() -> None:
    core = Supervision(RANKS, SETTINGS)
    assert started(core, 0) == ["store"]
    assert started(core, 0) == []
    core.record_ready("store", 1)
    assert started(core, 1) == ["capture-1"]
    core.record_ready("capture-1", 2)
    assert not core.all_were_ready
    assert started(core, 2) == ["api", "jobs"]


def test_the_rest_does_not_wait_for_a_capture_that_cannot_start() -> None:
    core = Supervision(RANKS, SETTINGS)
    started(core, 0)
    core.record_ready("store", 0)
    started(core, 0)
    core.record_exit("capture-1", 0, "wrong")
    assert started(core, 0) == ["api", "jobs"]


def test_nothing_begins_without_the_store() -> None:
    core = Supervision(RANKS, SETTINGS)
    started(core, 0)
    core.record_exit("store", 0, "port taken")
    assert core.next_start_at() == 1
    assert started(core, 0.5) == []
    assert started(core, 1) == ["store"]


def test_the_wait_doubles_up_to_its_limit() -> None:
    core, now, waits = Supervision({"store": Rank.STORE}, SETTINGS), 0.0, []
    for _ in range(5):
        assert started(core, now) == ["store"]
        again = core.record_exit("store", now, "wrong")
        assert again is not None
        waits.append(again.wait_s)
        now += again.wait_s
    assert waits == [1, 2, 4, 5, 5]


def test_a_steady_life_makes_the_wait_short_again_and_the_error_news() -> None:
    core = Supervision({"store": Rank.STORE}, SETTINGS)
    started(core, 0)
    assert core.record_exit("store", 0, "wrong") == Restart(1, new_reason=True)
    started(core, 1)
    core.record_ready("store", 1)
    assert core.record_exit("store", 60, "wrong") == Restart(2, new_reason=False)
    started(core, 62)
    core.record_ready("store", 70)
    assert core.record_exit("store", 130, "wrong") == Restart(1, new_reason=True)


def test_a_long_start_is_no_steady_life() -> None:
    core = Supervision({"store": Rank.STORE}, SETTINGS)
    started(core, 0)
    core.record_exit("store", 0, "wrong")
    started(core, 1)
    assert core.record_exit("store", 1000, "another") == Restart(2, new_reason=True)


def test_parts_stop_in_the_reverse_order() -> None:
    core = all_running()
    core.stop()
    assert core.stoppable_parts() == ["api", "jobs"]
    assert core.record_exit("api", 1, "") is None
    assert core.stoppable_parts() == ["jobs"]
    core.record_exit("jobs", 1, "")
    assert core.stoppable_parts() == ["capture-1"]
    core.record_exit("capture-1", 1, "")
    assert core.stoppable_parts() == ["store"]
    core.record_exit("store", 1, "")
    assert core.stoppable_parts() == []


def test_nothing_begins_once_all_is_to_stop() -> None:
    core = all_running()
    core.record_exit("jobs", 1, "wrong")
    core.stop()
    assert core.due_parts(1000) == []
    assert core.next_start_at() is None
    assert core.stoppable_parts() == ["api"]
