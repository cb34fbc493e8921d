"""The one Spark session of a service: built when it is first needed, warmed up, watched, and replaced when
it dies.

A session dies with its Java process, with the gateway to it, with its standalone master or server of Spark
Connect, or when Spark stops its context. Whoever works on it gets Unavailable and repeats the work, as for
anything that does not answer. One thread builds and watches: it builds a new session at once, and waits
longer before every further try.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

from penstock import metrics
from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid, PenstockError, Unavailable
from penstock.retry import EQUAL_JITTER, BackoffPolicy
from penstock.settings import Settings
from penstock.spark.defaults import with_defaults
from penstock.spark.errors import first_line
from penstock.spark.jvm import (
    CONNECT,
    JavaProcess,
    MasterWatch,
    find_context,
    parse_master,
    require_java,
    require_master,
    shown_master,
)
from penstock.spark.labels import enter_pool
from penstock.spark.session import (
    build_session,
    close_client,
    connect_url,
    end_session,
    has_session,
    require_secret,
    retry_shortly,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SupervisedSession", "TaskWait"]

_ASK_S = 1.0
"""Seconds between questions to the gateway. The end of Java itself is noticed at once."""
_ANSWER_S = 60.0
"""Java that does not answer for so long hangs, whatever it is doing: it is killed, and replaced."""
_UNSERVED_S = 30.0
"""Tasks that wait for so long while none runs have no executors."""
_BACKOFF = BackoffPolicy(base_s=1.0, cap_s=60.0, jitter=EQUAL_JITTER)
_STEADY_S = 60.0
"""A session that died sooner counts as a failure in a row."""
_RPC_TLS = "spark.ssl.rpc.enabled"
_JAVA_END_S = 0.5
_STOP_S = 4.0
"""Seconds from `interrupt` on for work to end, Spark to stop and Java to end; then Java is killed."""

_log = logging.getLogger(__name__)


class SupervisedSession:
    """The session of this process, for any number of threads.

    `warm_up` is called with each new session, on a thread of its own; other work need not wait for it. With
    `leave_open`, `stop` leaves the session to whoever has built it.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        app_name: str,
        warm_up: "Callable[[SparkSession], None] | None" = None,
        leave_open: bool = False,
        answer_s: float = _ANSWER_S,
        unserved_s: float = _UNSERVED_S,
        clock: Clock = SYSTEM,
    ) -> None:
        self._settings = settings
        self._app_name = app_name
        self._warm_up = warm_up
        self._leave_open = leave_open
        self._answer_s = answer_s
        self._unserved_s = unserved_s
        self._clock = clock
        self._changed = threading.Condition()
        # All below belongs to the condition.
        self._spark: SparkSession | None = None
        self._java = JavaProcess()
        self._java_end = ""  # how it ended
        self._error: PenstockError | None = None  # why there is no session
        self._builds = 0  # that have ended, in whatever way
        self._was_up = False
        self._wanted = False
        self._pausing = False
        self._interrupted = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """Check that a session can be built, and start nothing.

        Raises Invalid when Java is missing or too old, or a standalone master of another machine has no
        secret, Unavailable when the master does not answer.
        """
        if has_session():
            return
        wanted = with_defaults(self._settings.spark)
        master = parse_master(wanted.master)
        require_secret(wanted, master)
        if not master.url.startswith(CONNECT):  # whose Java is on the server
            require_java()
        require_master(master)

    def start(self) -> None:
        """Begin to build a session unless there is one; return at once."""
        with self._changed:
            if not self._interrupted:
                self._want()

    def __call__(self, account: str) -> "SparkSession":
        """Return the session, with the account's pool for this thread's jobs.

        Waits for one that is being built. Raises Invalid when no session can be built with the settings,
        Unavailable while there is none.
        """
        spark = self.get()
        enter_pool(spark, account)
        return spark

    def get(self) -> "SparkSession":
        """Return a session that lives; wait for one that is being built.

        Raises Invalid when Java is missing or a setting is refused; after a session with these settings was
        built once, always Unavailable. Raises it at once while a failed build waits for its next try, and
        after `interrupt`.
        """
        with self._changed:
            spark = self._spark
        if spark is not None:
            # A server of Spark Connect that is gone is asked for minutes: there the thread notices alone.
            reason = _why_dead(spark) if find_context(spark) is not None else ""
            if not reason:
                return spark
            self._lose(spark, reason)
        with self._changed:
            if not self._pausing and not self._interrupted:
                self._await_build()
            if self._spark is not None:
                return self._spark
            kind = Invalid if isinstance(self._error, Invalid) else Unavailable
            # A new one: an exception that several threads raise would collect the tracebacks of all.
            raise kind(str(self._error or "Spark is stopped; start the service again"))

    def _want(self) -> None:
        self._wanted = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._supervise, name="penstock-spark", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _await_build(self) -> None:
        builds = self._builds
        self._want()
        self._changed.wait_for(lambda: self._interrupted or self._spark is not None or self._builds > builds)

    def _lose(self, spark: "SparkSession", reason: str) -> None:
        """Give up a session that has died, unless that is known."""
        with self._changed:
            # How Java ended says more than that it does not answer, and is known in a moment.
            if self._changed.wait_for(lambda: self._java_end, timeout=_JAVA_END_S):
                reason = f"Java {self._java_end}"
            if self._spark is not spark or self._stopping:
                return
            self._spark = None
            self._leave_open = False  # the next one is ours
            metrics.SPARK_SESSION_STARTING.set(0)
            self._error = Unavailable(f"the Spark session died: {reason}; a new one is being built")
            self._changed.notify_all()
            if self._interrupted:
                return
        if find_context(spark) is None:
            close_client(spark)  # else what is under way would go on asking for a server
        metrics.SPARK_SESSIONS_LOST_TOTAL.inc()
        metrics.SPARK_SESSION_MISSING.set(1)
        _log.error("the Spark session died; a new one is built", extra={"reason": reason})

    def interrupt(self) -> None:
        """Build no more sessions; end Java that is starting. A session that lives goes on for a few seconds.

        Work can end in that time, and then `stop` be called. Java is killed when that takes longer.
        """
        with self._changed:
            if self._interrupted:
                return
            self._interrupted = True
            if self._spark is None:
                self._java.kill()
            self._changed.notify_all()
        killing = threading.Timer(_STOP_S, self._kill_java)
        killing.daemon = True
        killing.start()

    def _kill_java(self) -> None:
        """Make every call of Java, or of a server of Spark Connect, fail at once."""
        with self._changed:
            java, spark = self._java, self._spark
        java.kill()
        if spark is not None and find_context(spark) is None:
            close_client(spark)

    def stop(self) -> None:
        """End the session and its Java, if there is one."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self.interrupt()
        if self._thread is not None:
            self._thread.join(2 * _STOP_S)  # by then Java was killed

    # All below runs on the thread.

    def _supervise(self) -> None:
        failures = 0
        while self._await_wanted():
            try:
                self._build()
            except PenstockError as error:
                failures += 1
                self._end()
                self._publish(error)
            else:
                built_at = self._clock.monotonic()
                with closing(self._watch_master()) as master:
                    self._watch(master)
                lived_s = self._clock.monotonic() - built_at
                failures = 0 if lived_s >= _STEADY_S else failures + 1
                self._end()
            if failures:
                self._pause(failures)

    def _await_wanted(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._interrupted)
            return not self._interrupted

    def _build(self) -> None:
        _log.info(
            "starting Spark", extra={"master": shown_master(with_defaults(self._settings.spark).master)}
        )
        began_at = self._clock.monotonic()
        metrics.SPARK_SESSION_STARTING.set(1)
        with self._changed:
            java = self._java = JavaProcess()
            self._java_end = ""
            if self._interrupted:
                java.kill()
        try:
            spark = build_session(self._settings, app_name=self._app_name, java=java)
        except PenstockError:
            raise
        except Exception as error:  # Java died meanwhile, in the middle of whatever PySpark did
            raise Unavailable(f"Spark did not start: {first_line(error)}; it is tried again") from error
        if find_context(spark) is None:
            retry_shortly(spark)
        if java.is_started:
            threading.Thread(target=self._await_java, args=(java,), name="penstock-java", daemon=True).start()
        with self._changed:
            self._spark, self._error, self._was_up = spark, None, True
            self._builds += 1
            self._changed.notify_all()
        metrics.SPARK_SESSION_MISSING.set(0)
        warming = threading.Thread(
            target=self._end_start, args=(spark, began_at), name="penstock-warm-up", daemon=True
        )
        warming.start()

    def _end_start(self, spark: "SparkSession", began_at: float) -> None:
        """Run on a thread of its own: warm a new session up, and tell that it has started.

        A failure is not reported here: whoever works on the session next meets it, and reports it.
        """
        try:
            if self._warm_up is not None:
                self._warm_up(spark)
        except Exception as error:  # noqa: BLE001 - see above
            _log.info("Spark was not warmed up", extra={"error": first_line(error)})
        with self._changed:
            if self._spark is not spark:  # it died; another one may be starting
                return
            seconds = round(self._clock.monotonic() - began_at, 1)
            _log.info("Spark has started", extra={"seconds": seconds})
            metrics.SPARK_SESSION_STARTING.set(0)

    def _await_java(self, java: JavaProcess) -> None:
        """Run on a thread of its own: tell the supervising one that Java has ended."""
        end = java.wait()
        with self._changed:
            if self._java is java:
                self._java_end = end
                self._changed.notify_all()

    def _publish(self, error: PenstockError) -> None:
        """Tell the threads that wait for a session why there is none."""
        with self._changed:
            if self._was_up and not isinstance(error, Unavailable):
                error = Unavailable(str(error))  # the same settings were good before
            self._wanted = isinstance(error, Unavailable)  # else nothing changes until somebody asks again
            self._error = error
            self._builds += 1
            self._changed.notify_all()
            if self._interrupted:
                return
        metrics.SPARK_SESSION_MISSING.set(1)
        metrics.SPARK_SESSION_STARTING.set(0)
        _log.error("Spark could not be started", extra={"error": str(error)})

    def _watch_master(self) -> MasterWatch:
        """Return a watch on the master of the session, which may be that of `spark-submit`."""
        with self._changed:
            spark = self._spark
        if spark is None:
            return MasterWatch("")
        context = find_context(spark)
        if context is None:
            return MasterWatch(connect_url(with_defaults(self._settings.spark).master))
        tls = False
        with suppress(Exception):  # it has died at once: the first question says so
            tls = context.getConf().get(_RPC_TLS, "false") == "true"
        return MasterWatch(context.master or "", tls=tls)

    def _watch(self, master: MasterWatch) -> None:
        """Return when the session has died, or is to end."""
        tasks = TaskWait(self._unserved_s)
        try:
            self._watch_with(master, tasks)
        finally:
            tasks.update(waiting=0, running=0, now=self._clock.monotonic())

    def _watch_with(self, master: MasterWatch, tasks: "TaskWait") -> None:
        question: _Question | None = None
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopping or self._spark is None or self._java_end, timeout=_ASK_S
                )
                spark, end = self._spark, self._java_end
                if self._stopping or spark is None:
                    return
            if find_context(spark) is None:
                question = question if question and question.is_open else _Question(spark, self._clock)
                lost = "its server is lost" if master.is_lost() else ""
                reason = lost or question.failure(self._answer_s)
            else:
                with self._kill_slow_java():
                    reason = end or ("its master is lost" if master.is_lost() else _why_dead(spark))
                    waiting, running = (0, 0) if reason else _count_tasks(spark)
                tasks.update(waiting=waiting, running=running, now=self._clock.monotonic())
            if reason:
                self._lose(spark, reason)

    @contextmanager
    def _kill_slow_java(self) -> Iterator[None]:
        """Kill Java when it does not answer in time: PySpark waits for an answer without bound."""
        overdue = threading.Timer(self._answer_s, self._kill_java)
        overdue.daemon = True
        overdue.start()
        try:
            yield
        finally:
            overdue.cancel()

    def _pause(self, failures: int) -> None:
        """Wait before the next try; whoever asks for a session meanwhile learns at once why there is none."""
        with self._changed:
            self._pausing = True
            delay_s = _BACKOFF.delay_s(failures, self._clock.random())
            self._changed.wait_for(lambda: self._interrupted, timeout=delay_s)
            self._pausing = False

    def _end(self) -> None:
        """End Spark and Java, whatever is left of them, unless the session is another's."""
        with self._changed:
            self._spark = None
            if self._leave_open:
                return
        with self._kill_slow_java():
            end_session()
        self._java.end(_STOP_S)


class TaskWait:
    """Notices that tasks wait and none runs, as when a cluster has lost all of its workers.

    Spark itself waits without bound. The metric says so until a task runs or none waits.
    """

    def __init__(self, unserved_s: float) -> None:
        self._unserved_s = unserved_s
        self._since: float | None = None
        self._missing = False

    def update(self, *, waiting: int, running: int, now: float) -> bool:
        """Take the tasks of all jobs as they are now; return whether executors are missing."""
        if not waiting or running:
            self._since = None
        elif self._since is None:
            self._since = now
        missing = self._since is not None and now >= self._since + self._unserved_s
        if missing != self._missing:
            self._missing = missing
            metrics.SPARK_EXECUTORS_MISSING.set(int(missing))
            if missing:
                _log.error(
                    "Spark has no executors: jobs wait; start workers, or free cores and memory",
                    extra={"waiting_tasks": waiting},
                )
            else:
                _log.info("Spark jobs no longer wait for executors")
        return missing


def _count_tasks(spark: "SparkSession") -> tuple[int, int]:
    """Return how many tasks of all jobs wait, and how many run; none when the session has died."""
    waiting = running = 0
    try:
        tracker = spark.sparkContext.statusTracker()
        for stage_id in tracker.getActiveStageIds():
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                running += stage.numActiveTasks
                waiting += stage.numTasks - stage.numActiveTasks - stage.numCompletedTasks
    except Exception:  # noqa: BLE001 - the next question to the session says why
        return 0, 0
    return waiting, running


class _Question:
    """Asks a server of Spark Connect whether the session is there, on a thread: PySpark repeats calls."""

    def __init__(self, spark: "SparkSession", clock: Clock) -> None:
        self._clock = clock
        self._asked_at = clock.monotonic()
        self._answer: str | None = None
        threading.Thread(target=self._ask, args=(spark,), name="penstock-ask", daemon=True).start()

    def _ask(self, spark: "SparkSession") -> None:
        self._answer = _why_dead(spark)

    @property
    def is_open(self) -> bool:
        """Whether there is no answer yet, or a failure."""
        return self._answer != ""

    def failure(self, answer_s: float) -> str:
        """Return why the session cannot be used, or that there was no answer in time; else empty."""
        overdue = self._answer is None and self._clock.monotonic() >= self._asked_at + answer_s
        return "its server does not answer" if overdue else self._answer or ""


def _why_dead(spark: "SparkSession") -> str:
    """Return why a session cannot be used any more; empty when it can. Asks Java, and the context there."""
    context = find_context(spark)
    try:
        # The cheapest public questions that check both.
        _ = spark.conf.get("spark.app.name", "") if context is None else context.defaultParallelism
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing would work
        return first_line(error)
    return ""
