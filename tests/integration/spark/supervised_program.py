"""A service with nothing but its Spark session: says what happens to it until a signal ends it.

It runs in a process of its own, because its Java is killed.
"""

import asyncio
import os
import signal
import sys
import threading
from typing import Any

from penstock.changefeeds.engines.rounds import warm_up
from penstock.cli.service import run_until_signalled
from penstock.clock import SYSTEM
from penstock.errors import Unavailable
from penstock.metrics import SPARK_SESSION_MISSING, SPARK_SESSION_STARTING, SPARK_SESSIONS_LOST_TOTAL
from penstock.process import configure_logs
from penstock.spark.errors import translate_spark_errors
from penstock.spark.supervised import SupervisedSession
from support.spark import local_settings
from support.sparkcluster import java_of


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def work_forever(batches: Any) -> Any:
    from penstock.clock import SYSTEM

    for batch in batches:
        SYSTEM.pause(3600.0)
        yield batch


def run_job(session: SupervisedSession, running: threading.Event) -> None:
    """Run a job without an end, and say how it ended."""
    spark = session("billing")
    running.set()
    try:
        with translate_spark_errors():
            spark.range(1).mapInArrow(work_forever, "id long").count()
    except Unavailable as error:
        say("given back:", error)


def start_job(session: SupervisedSession) -> threading.Thread:
    """Return once a task of the job runs."""
    running = threading.Event()
    job = threading.Thread(target=run_job, args=(session, running), daemon=True)
    job.start()
    assert running.wait(300)
    tracker = session.get().sparkContext.statusTracker()
    while not any(
        stage is not None and stage.numActiveTasks
        for stage in map(tracker.getStageInfo, tracker.getActiveStageIds())
    ):
        assert job.is_alive()
    return job


async def serve(session: SupervisedSession) -> None:
    session.start()
    await wait_for_start(1.0)
    await wait_for_start(0.0)
    say("started:", SPARK_SESSION_MISSING._value.get())
    await asyncio.to_thread(session.get)
    await asyncio.to_thread(lose_and_find, session)
    await asyncio.Event().wait()


async def wait_for_start(starting: float) -> None:
    """Return once Spark is said to be starting, or not; the test has the deadline."""
    while SPARK_SESSION_STARTING._value.get() != starting:
        await SYSTEM.sleep(0.01)


def lose_and_find(session: SupervisedSession) -> None:
    def count() -> int:
        """Count as services work: again after a session that died; the test has the deadline."""
        while True:
            try:
                with translate_spark_errors():
                    return session("billing").range(3).count()
            except Unavailable:
                SYSTEM.pause(0.1)

    job = start_job(session)
    java = java_of(os.getpid())
    assert java is not None
    say("own session:", os.getsid(java) == java)
    conf = session.get().sparkContext.getConf()
    say("conf:", *(conf.get(key) for key in ("spark.master", "spark.app.name", "spark.sql.session.timeZone")))
    os.kill(java, signal.SIGKILL)
    job.join(300)
    say(
        "after the kill:", count(), SPARK_SESSIONS_LOST_TOTAL._value.get(), SPARK_SESSION_MISSING._value.get()
    )

    session.get().sparkContext._jsc.stop()  # as Spark does by itself when the master is lost
    say(
        "after the stop:", count(), SPARK_SESSIONS_LOST_TOTAL._value.get(), SPARK_SESSION_MISSING._value.get()
    )
    java = java_of(os.getpid())
    assert java is not None
    os.kill(java, signal.SIGSTOP)
    say(
        "after the hang:", count(), SPARK_SESSIONS_LOST_TOTAL._value.get(), SPARK_SESSION_MISSING._value.get()
    )
    start_job(session)
    say("java", java_of(os.getpid()))


if __name__ == "__main__":
    configure_logs(style="text", level="INFO")
    supervised = SupervisedSession(local_settings(), app_name="penstock-tests", warm_up=warm_up, answer_s=10)
    try:
        run_until_signalled(serve(supervised), on_signal=supervised.interrupt)
    finally:
        supervised.stop()
    say("stopped")
