"""One changefeed through its failures: it runs until it is stopped, finished, or cannot go on."""

from collections.abc import Awaitable, Callable
from contextlib import nullcontext

from penstock.changefeeds.failures import GIVE_UP_S, STALL_S, FailureTracker
from penstock.changefeeds.model import ChangefeedState, ProgressStore
from penstock.changefeeds.resume import ChangefeedOptions, restore_progress
from penstock.changefeeds.run import ChangefeedRun
from penstock.changefeeds.sinks.sink import Sink, SinkFiles
from penstock.clock import SYSTEM, Clock
from penstock.eventloop import Place
from penstock.follow.source import SliceSource
from penstock.metrics import SINK_CHECKPOINT_LAG_SECONDS, SINK_DISPATCHERS, SINK_READING_DISPATCHERS


class Changefeed:
    """Replicates the changes of tables to a sink: up to a checkpoint, and exactly once into its files.

    A failure ends the run and closes its sink. The next run resumes from the stored progress with a new sink,
    until `give_up_s` have passed without progress. The caller closes the other parts.
    """

    def __init__(
        self,
        changefeed_id: str,
        options: ChangefeedOptions,
        *,
        source: SliceSource,
        open_sink: Callable[[], Awaitable[Sink]],
        files: SinkFiles,
        progress: ProgressStore,
        give_up_s: float = GIVE_UP_S,
        reading: Place = nullcontext,
        mask: Callable[[str], str] = str,
        clock: Clock = SYSTEM,
    ) -> None:
        """Replicate with these parts. Each read of the source holds a place of `reading`."""
        self._reading = reading
        self._changefeed_id = changefeed_id
        self._options = options
        self._source = source
        self._open_sink = open_sink
        self._files = files
        self._progress = progress
        self._clock = clock
        self._failures = FailureTracker(changefeed_id, give_up_s=give_up_s, mask=mask, clock=clock)
        self._current_run: ChangefeedRun | None = None
        self._end_state: ChangefeedState | None = None
        self._attempt = 0
        self._opening_at: float | None = None

    @property
    def state(self) -> ChangefeedState:
        """NORMAL, WARNING while it retries after a failure or a table is missing, FINISHED or FAILED."""
        if self._end_state is not None:
            return self._end_state
        return ChangefeedState.WARNING if self._failures.failing or self.warning else ChangefeedState.NORMAL

    @property
    def error(self) -> str:
        """The last failure in one line; empty when there was progress since."""
        return self._failures.error

    @property
    def warning(self) -> str:
        """Which tables it goes on without or waits for, or that its target does not answer, and the remedy.

        Empty when it is well.
        """
        if self._opening_at is not None:
            opening_s = self._clock.monotonic() - self._opening_at
            silent = f"its target has not answered for {opening_s:.0f} s; look at the target"
            return silent if opening_s >= STALL_S else ""
        return self._current_run.warning if self._current_run is not None else ""

    @property
    def checkpoint_ts(self) -> int:
        """Every change up to it is on the remote, and it is stored; 0 before it is known."""
        return self._current_run.kept_ts if self._current_run is not None else 0

    async def run(self) -> None:
        """Return when `target_ts` is reached. To pause it, cancel it: it writes what was read, then ends.

        It can be run again after a pause or a failure. Raises the failure that ended it, and is FAILED then:
        Invalid (except Denied), StaleRead, Corrupt and Fenced at once, any other after `give_up_s` of
        retries.
        """
        self._end_state = None
        try:
            while not await self._run_once():
                pass
        finally:
            for gauge in (SINK_CHECKPOINT_LAG_SECONDS, SINK_DISPATCHERS, SINK_READING_DISPATCHERS):
                gauge.remove(self._changefeed_id)

    async def _run_once(self) -> bool:
        """Resume and run; return whether the changefeed is finished. Wait after a failure that may pass."""
        self._opening_at = self._clock.monotonic()
        try:
            resumed = await restore_progress(
                self._changefeed_id,
                self._options,
                source=self._source,
                progress=self._progress,
                files=self._files,
                clock=self._clock,
            )
            self._current_run = ChangefeedRun(
                self._changefeed_id,
                resumed,
                source=self._source,
                sink=await self._open_sink(),
                files=self._files,
                progress=self._progress,
                options=self._options,
                failures=self._failures,
                reading=self._reading,
                clock=self._clock,
            )
            self._opening_at = None
            await self._current_run.run()
        except Exception as error:  # noqa: BLE001 - whatever it was, the next try starts from the stored progress
            self._opening_at = None
            await self._clock.sleep(self._record(error))
            return False
        self._end_state = ChangefeedState.FINISHED
        return True

    def _record(self, error: Exception) -> float:
        """Return the seconds to wait before the next run; raise the failure when there is to be none."""
        self._attempt = self._attempt + 1 if self._failures.failing else 0
        try:
            return self._failures.record(error, self._attempt)
        except Exception:
            self._end_state = ChangefeedState.FAILED
            raise
