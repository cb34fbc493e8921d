"""The one Spark session of a service: built when it is first needed, warmed up, watched, and replaced when
it dies.

A session dies with its Java process, with the gateway to it, with its standalone master, or when Spark stops
its context. Whoever works on it gets Unavailable and repeats the work, as for anything that does not
answer. One thread builds and watches: it builds a new session at once, and waits longer before every further
try.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
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
from penstock.spark.parallelism import default_parallelism
from penstock.spark.session import build_session, end_session, has_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SupervisedSession"]

_ASK_S = 1.0
"""Seconds between questions to the gateway. The end of Java itself is noticed at once."""
_ANSWER_S = 60.0
"""Java that does not answer for so long hangs, whatever it is doing: it is killed, and replaced."""
_BACKOFF = BackoffPolicy(base_s=1.0, cap_s=60.0, jitter=EQUAL_JITTER)
_STEADY_S = 60.0
"""A session that died sooner counts as a failure in a row."""
_JAVA_END_S = 0.5
_STOP_S = 4.0
"""Seconds from `interrupt` on for work to end, Spark to stop and Java to end; then Java is killed."""

_log = logging.getLogger(__name__)


class SupervisedSession:
    """The session of this process, for any number of threads.

    `warm_up` is called with each new session, on a thread of its own; other work need not wait for it.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        app_name: str,
        warm_up: "Callable[[SparkSession], None] | None" = None,
        answer_s: float = _ANSWER_S,
        clock: Clock = SYSTEM,
    ) -> None:
        self._settings = settings
        self._app_name = app_name
        self._warm_up = warm_up
        self._answer_s = answer_s
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

        Raises Invalid when Java is missing or too old, Unavailable when the master does not answer.
        """
        if has_session():
            return
        master = parse_master(with_defaults(self._settings.spark).master)
        if not master.url.startswith(CONNECT):  # whose Java is on the server
            require_java()
        require_master(master)

    def start(self) -> None:
        """Begin to build a session unless there is one; return at once."""
        with self._changed:
            if not self._interrupted:
                self._want()

    def __call__(self, account: str) -> "SparkSession":
        """Return the session, with the account's pool for this thread's jobs; raise as `get`."""
        spark = self.get()
        enter_pool(spark, account)
        return spark

    def get(self) -> "SparkSession":
        """Return a session that lives; wait for one that is being built.

        Raises what `build_session` raises; after a session with these settings was built once, always
        Unavailable. Raises it at once while a failed build waits for its next try, and after `interrupt`.
        """
        with self._changed:
            spark = self._spark
        if spark is not None:
            reason = _why_dead(spark)
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
            metrics.SPARK_SESSION_STARTING.set(0)
            self._error = Unavailable(f"the Spark session died: {reason}; a new one is being built")
            self._changed.notify_all()
            if self._interrupted:
                return
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
        with self._changed:
            java = self._java
        java.kill()

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
                with closing(MasterWatch(self._master())) as master:
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

    def _master(self) -> str:
        """Return the master of the session, which may be that of `spark-submit`; empty without one."""
        with self._changed:
            spark = self._spark
        context = None if spark is None else find_context(spark)
        return "" if context is None else context.master or ""

    def _watch(self, master: MasterWatch) -> None:
        """Return when the session has died, or is to end."""
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopping or self._spark is None or self._java_end, timeout=_ASK_S
                )
                spark, end = self._spark, self._java_end
                if self._stopping or spark is None:
                    return
            with self._killing_slow_java():
                reason = end or ("its master is lost" if master.is_lost() else _why_dead(spark))
            if reason:
                self._lose(spark, reason)

    @contextmanager
    def _killing_slow_java(self) -> Iterator[None]:
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
        """End Spark and Java, whatever is left of them."""
        with self._changed:
            self._spark = None
        with self._killing_slow_java():
            end_session()
        self._java.end(_STOP_S)


def _why_dead(spark: "SparkSession") -> str:
    """Return why a session cannot be used any more; empty when it can. Asks Java, and the context there."""
    try:
        default_parallelism(spark)  # the cheapest public question that checks both
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing would work
        return first_line(error)
    return ""
