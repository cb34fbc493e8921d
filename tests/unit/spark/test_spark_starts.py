"""The session of a service while Spark starts, with doubles in Spark's place."""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from penstock.clock import SYSTEM
from penstock.errors import Unavailable
from penstock.metrics import SPARK_SESSION_MISSING, SPARK_SESSION_STARTING
from penstock.settings import Settings
from penstock.spark import supervised
from penstock.spark.supervised import SupervisedSession

DEADLINE_S = 30.0


class Spark:
    """Builds sessions, which are objects, when it is let."""

    def __init__(self) -> None:
        self.may_build = threading.Event()
        self.built: list[object] = []
        self.dead: set[int] = set()
        self.error: Exception | None = None

    def build(self, *_: object, **__: object) -> object:
        assert self.may_build.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error
        context = SimpleNamespace(master="", getConf=dict)
        self.built.append(SimpleNamespace(sparkContext=context))
        return self.built[-1]

    def why_dead(self, session: object) -> str:
        return "it was killed" if id(session) in self.dead else ""


class WarmUp:
    """The first work on a session, which takes as long as one likes."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.sessions: list[object] = []
        self.error: Exception | None = None

    def __call__(self, session: object) -> None:
        self.sessions.append(session)
        assert self.may_end.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Spark:
    made = Spark()
    monkeypatch.setattr(supervised, "build_session", made.build)
    monkeypatch.setattr(supervised, "end_session", lambda: None)
    monkeypatch.setattr(supervised, "_why_dead", made.why_dead)
    monkeypatch.setattr(supervised, "_JAVA_END_S", 0.0)
    return made


@pytest.fixture
def warm_up() -> WarmUp:
    return WarmUp()


@pytest.fixture
def session(spark: Spark, warm_up: WarmUp) -> Iterator[SupervisedSession]:
    made = SupervisedSession(Settings(), app_name="test", warm_up=warm_up)
    SPARK_SESSION_STARTING.set(0)
    SPARK_SESSION_MISSING.set(0)
    yield made
    spark.may_build.set()
    warm_up.may_end.set()
    made.stop()


def shown() -> tuple[bool, bool]:
    """Whether Spark is said to start, and to be missing."""
    return bool(SPARK_SESSION_STARTING._value.get()), bool(SPARK_SESSION_MISSING._value.get())


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = SYSTEM.monotonic() + DEADLINE_S
    while not holds():
        assert SYSTEM.monotonic() < deadline
        SYSTEM.pause(0.001)


def test_nothing_starts_before_somebody_wants_it(session: SupervisedSession, spark: Spark) -> None:
    assert shown() == (False, False)
    spark.may_build.set()
    session.stop()
    assert spark.built == []
    session.start()
    assert spark.built == [], "nor after the end"


def test_spark_is_starting_until_its_first_job_has_run_and_work_need_not_wait_for_that(
    session: SupervisedSession, spark: Spark, warm_up: WarmUp
) -> None:
    session.start()
    wait_until(lambda: shown() == (True, False))
    session.start()  # again, as for a second changefeed
    spark.may_build.set()
    assert session.get() is spark.built[0]
    wait_until(lambda: warm_up.sessions == spark.built)
    assert shown() == (True, False)
    warm_up.may_end.set()
    wait_until(lambda: shown() == (False, False))
    assert len(spark.built) == 1


def test_a_first_job_that_fails_is_left_to_the_next(
    session: SupervisedSession, spark: Spark, warm_up: WarmUp
) -> None:
    warm_up.error = RuntimeError("no worker")
    warm_up.may_end.set()
    spark.may_build.set()
    session.start()
    wait_until(lambda: bool(warm_up.sessions) and shown() == (False, False))
    assert session.get() is spark.built[0]


def test_spark_that_cannot_start_is_missing(session: SupervisedSession, spark: Spark) -> None:
    spark.error = Unavailable("no master")
    spark.may_build.set()
    session.start()
    wait_until(lambda: shown() == (False, True))


def test_a_new_session_starts_whatever_becomes_of_the_first_job_of_the_old_one(
    session: SupervisedSession, spark: Spark, warm_up: WarmUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "_ASK_S", 0.001)  # whoever watches notices that it has died
    monkeypatch.setattr(supervised, "_BACKOFF", supervised.BackoffPolicy(base_s=0.001, cap_s=0.001))
    spark.may_build.set()
    first = session.get()
    wait_until(lambda: warm_up.sessions == [first])
    spark.may_build.clear()
    spark.dead.add(id(first))
    wait_until(lambda: shown() == (True, True))
    warm_up.may_end.set()  # of the old one, too late
    spark.may_build.set()
    wait_until(lambda: len(warm_up.sessions) == 2 and shown() == (False, False))
    assert session.get() is warm_up.sessions[1]
