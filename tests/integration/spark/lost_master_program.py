"""A service on a standalone cluster without workers, whose master the test kills: says what happens to its
session. The argument is the master.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from py4j.protocol import Py4JError
from pyspark import SparkContext

from penstock.clock import SYSTEM
from penstock.control.bulk import open_engine
from penstock.errors import PenstockError, Unavailable
from penstock.metrics import SPARK_EXECUTORS_MISSING, SPARK_SESSIONS_LOST_TOTAL
from penstock.process import configure_logs
from penstock.settings import Settings, SparkSettings
from penstock.spark.errors import translate_spark_errors
from penstock.spark.labels import interrupt_jobs, label_jobs
from penstock.spark.supervised import SupervisedSession
from support.spark import SMALL
from support.sparkcluster import AUTH, java_of

TAG = "penstock-of-the-test"
WITHIN_S = 180.0  # of a busy machine; without the bound it would be waited for ever


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def count(session: SupervisedSession) -> None:
    try:
        spark = session.get()
        with translate_spark_errors(), label_jobs(spark, "a count", tag=TAG):
            say("counted:", spark.range(3).count())
    except (PenstockError, Py4JError) as error:  # of a cancelled job, Spark's own
        say("given back:", type(error).__name__)


def start_count(session: SupervisedSession) -> threading.Thread:
    """Return once the job waits for executors; the test has the deadline."""
    while True:
        try:
            tracker = session.get().sparkContext.statusTracker()
            break
        except Unavailable:  # the master is away
            SYSTEM.pause(0.1)
    job = threading.Thread(target=count, args=(session,), daemon=True)
    job.start()
    while not tracker.getActiveStageIds():
        assert job.is_alive()
        SYSTEM.pause(0.05)
    return job


def await_missing(value: float) -> float:
    deadline = SYSTEM.monotonic() + WITHIN_S
    while SPARK_EXECUTORS_MISSING._value.get() != value and SYSTEM.monotonic() < deadline:
        SYSTEM.pause(0.05)
    return float(SPARK_EXECUTORS_MISSING._value.get())


def main() -> None:
    configure_logs(style="text", level="INFO")
    given = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.authenticate.secret": AUTH,
    }
    spark = SparkSettings(master=sys.argv[1], driver_memory="1g", conf=SMALL | given)
    session = SupervisedSession(Settings(spark=spark), app_name="penstock-tests", unserved_s=1.0)
    waiting = start_count(session)
    say("executors are missing:", await_missing(1.0))
    interrupt_jobs(session.get(), TAG)
    waiting.join(WITHIN_S)
    say("cancelled:", not waiting.is_alive())
    say("executors are missing:", await_missing(0.0))

    start_count(session)
    say("waiting again")
    began_at = SYSTEM.monotonic()
    session.interrupt()
    session.stop()
    say("stopped:", SYSTEM.monotonic() - began_at < WITHIN_S)
    run_bulk_work(Settings(spark=spark))


class Waits:
    """A piece of bulk work, which no executor takes."""

    def run(self) -> int:
        return 1


def run_bulk_work(settings: Settings) -> None:
    """Run tasks as `penstock table verify` does, while the master is lost, and then while Java hangs."""
    with suppress(KeyboardInterrupt), open_engine(settings) as engine:
        telling = threading.Thread(target=when_waiting, args=(lambda: say("kill the master"),))
        telling.start()
        try:
            say("answered:", engine.run([Waits()]))
        except Unavailable as error:
            telling.join()
            say("given back:", error)
        say("lost:", SPARK_SESSIONS_LOST_TOTAL._value.get())
        threading.Thread(target=when_waiting, args=(hang_and_press_ctrl_c,), daemon=True).start()
        while True:
            try:
                say("answered:", engine.run([Waits()]))
            except Unavailable:  # the master is away
                SYSTEM.pause(0.1)
    say("ended:", java_of(os.getpid()))


def when_waiting(act: Callable[[], object]) -> None:
    """Act as soon as a job waits for executors; the test has the deadline."""
    while True:
        context = SparkContext._active_spark_context
        with suppress(Py4JError, AttributeError):  # the session is about to be replaced
            if context is not None and context.statusTracker().getActiveStageIds():
                return act()
        SYSTEM.pause(0.05)


def hang_and_press_ctrl_c() -> None:
    java = java_of(os.getpid())
    assert java is not None
    os.kill(java, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main()
