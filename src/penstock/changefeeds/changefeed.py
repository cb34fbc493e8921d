"""A changefeed: from tables to files until it is stopped, finished, or cannot go on."""

from collections.abc import Callable

from penstock.changefeeds.failures import GIVE_UP_S, FailureTracker
from penstock.changefeeds.model import ChangefeedState, ProgressStore
from penstock.changefeeds.resume import ChangefeedOptions, Startup
from penstock.changefeeds.run import ChangefeedRun
from penstock.changefeeds.sinks.sink import Sink, SinkFiles
from penstock.clock import SYSTEM, Clock
from penstock.follow.source import SliceSource
from penstock.metrics import SINK_CHECKPOINT_LAG_SECONDS, SINK_DISPATCHERS, SINK_READING_DISPATCHERS


class Changefeed:
    """Carries the changes of tables to a sink, at least up to a checkpoint, and exactly once into its files.

    A failure closes the sink; what was kept is taken up again with a new one, until `give_up_s` have passed
    without progress. The parts are the caller's to close, but for the sink.
    """

    def __init__(
        self,
        feed_id: str,
        options: ChangefeedOptions,
        *,
        source: SliceSource,
        open_sink: Callable[[], Sink],
        files: SinkFiles,
        progress: ProgressStore,
        give_up_s: float = GIVE_UP_S,
        clock: Clock = SYSTEM,
    ) -> None:
        self._feed_id = feed_id
        self._options = options
        self._source = source
        self._open_sink = open_sink
        self._files = files
        self._progress = progress
        self._clock = clock
        self._trouble = FailureTracker(feed_id, give_up_s=give_up_s, clock=clock)
        self._startup = Startup(feed_id, source, progress, files, options, clock)
        self._life: ChangefeedRun | None = None
        self._ended: ChangefeedState | None = None
        self._attempt = 0

    @property
    def state(self) -> ChangefeedState:
        """NORMAL, WARNING while it tries to get over a failure, FINISHED or FAILED."""
        if self._ended is not None:
            return self._ended
        return ChangefeedState.WARNING if self._trouble.there else ChangefeedState.NORMAL

    @property
    def error(self) -> str:
        """What failed last, in one line; empty when there was progress since."""
        return self._trouble.error

    @property
    def checkpoint_ts(self) -> int:
        """Every change up to it is on the remote, and it is kept; 0 before it is known."""
        return self._life.kept_ts if self._life is not None else 0

    async def run(self) -> None:
        """Return when `target_ts` is reached. Cancel it to pause: what was read is written, then it ends.

        It can be run again after a pause or a failure. Raises what it could not get over, and is FAILED then:
        Invalid (but for Denied), StaleRead, Corrupt and Fenced at once, anything else after trying for long
        enough.
        """
        self._ended = None
        try:
            while not await self._live():
                pass
        finally:
            for gauge in (SINK_CHECKPOINT_LAG_SECONDS, SINK_DISPATCHERS, SINK_READING_DISPATCHERS):
                gauge.remove(self._feed_id)

    async def _live(self) -> bool:
        """Take up what was kept; whether the changefeed is finished. What can pass is waited for."""
        try:
            resumed = await self._startup.resume()
            self._life = ChangefeedRun(
                self._feed_id,
                resumed,
                source=self._source,
                sink=self._open_sink(),
                files=self._files,
                progress=self._progress,
                options=self._options,
                trouble=self._trouble,
                clock=self._clock,
            )
            await self._life.run()
        except Exception as error:  # noqa: BLE001 - whatever it was, the next try starts from what was kept
            await self._clock.sleep(self._wait(error))
            return False
        self._ended = ChangefeedState.FINISHED
        return True

    def _wait(self, error: Exception) -> float:
        self._attempt = self._attempt + 1 if self._trouble.there else 0
        try:
            return self._trouble.met(error, self._attempt)
        except Exception:
            self._ended = ChangefeedState.FAILED
            raise
