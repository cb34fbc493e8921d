"""`penstock demo`: the order of things.

Every target against its source.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

from rich.console import Console

from penstock.cli.demo import shop
from penstock.cli.demo.display import (
    DemoProgress,
    DemoVerified,
    Pace,
    Report,
    Show,
    StageProgress,
    print_report,
    progress_of,
    show_on,
)
from penstock.cli.demo.scene import (
    FEEDS,
    FULLTEXT,
    JOBS,
    VECTOR,
    DemoTarget,
    Scene,
    asked,
    create,
    folder_of,
    places,
    scene_in,
)
from penstock.cli.demo.shop import Shop
from penstock.cli.demo.watch import Watch, Writers, staff
from penstock.cli.service import run_until_signalled
from penstock.cli.up.supervisor import running
from penstock.clock import SYSTEM, Clock
from penstock.control.deployment import Deployment, deployed
from penstock.control.verify import TargetReport, VerifyOptions, verify_targets
from penstock.errors import PenstockError
from penstock.verify.target import TargetVerifyReport

__all__ = ["judged", "run", "verify"]


_TIMEOUT = "60s"


def verify(
    deployment: Deployment, targets: Sequence[DemoTarget], at_ts: int, tell: Callable[[str], None]
) -> list[DemoVerified]:
    """Compare targets that have everything up to a timestamp with what the event store has."""
    compared: list[DemoVerified] = []
    for target in targets:
        tell(f"comparing with the source: {target.title}")
        options = VerifyOptions(at=str(at_ts), timeout=_TIMEOUT)
        (report,) = verify_targets(deployment, [target.verified_as], options)
        compared.append(judged(target.title, report))
    return compared


def judged(title: str, found: TargetReport) -> DemoVerified:
    """What a comparison came to; one that could not be made is a difference."""
    if found.report is None:
        return DemoVerified(title, same=False, rows=0, differs=found.error or found.note)
    parts = [found.report] if isinstance(found.report, TargetVerifyReport) else list(found.report.tables)
    rows = sum(each.source_rows for each in parts)
    if found.report.same:
        return DemoVerified(title, same=True, rows=rows)
    wrong = ", ".join(
        f"{sum(getattr(each.counts, way) for each in parts):,} {way}"
        for way in ("missing", "different", "extra")
    )
    return DemoVerified(title, same=False, rows=rows, differs=wrong)


_CUSTOMERS, _PRODUCTS = 1_000, 500
_CATCH_UP_S = 300.0
_SHOW_S = 0.25
_COUNT_FILES_S = 2.0
_LOG_LINES = 20


def run(*, seconds: float, keep: bool = False, data: Path | None = None, clock: Clock = SYSTEM) -> bool:
    """Run the demonstration and print what happened; whether every target equals its source in the end.

    `keep`: everything goes on afterwards, until SIGINT or SIGTERM. Raises what made it impossible.
    """
    console = Console()
    with _terminable(), folder_of(data) as folder, _parts_logged(folder / "parts.log", console):
        scene = scene_in(folder)
        console.print("Starting a store, a capture, changefeeds, jobs, the API and its pages …")
        with (
            running(scene.settings, log_level="WARNING") as supervisor,
            deployed(supervisor.settings) as deployment,
        ):
            pages = f"http://{supervisor.settings.api.addr}"
            console.print(f"All run in {folder}; pages at {pages}", soft_wrap=True)
            play = _Play(deployment, scene, clock, console)
            good = play.perform(seconds)
            if keep:
                console.print(f"Everything goes on; look at {pages}. Ctrl-C ends it.", soft_wrap=True)
                play.go_on()
            console.print("Stopping …")
    return good


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end it as Ctrl-C does: with everything stopped and cleared away."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _parts_logged(path: Path, console: Console) -> Iterator[None]:
    """Keep what parts say in a file; show the end of it when the demonstration fails."""
    with path.open("w+", encoding="utf-8") as log:
        try:
            with redirect_stderr(log):
                yield
        except PenstockError:
            log.seek(0)
            for line in log.readlines()[-_LOG_LINES:]:
                console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)
            raise


class _Play:
    """The shop, its writers, and who watches."""

    def __init__(self, deployment: Deployment, scene: Scene, clock: Clock, console: Console) -> None:
        self._deployment = deployment
        self._scene = scene
        self._clock = clock
        self._console = console
        self._watch = Watch(deployment, clock=clock)
        self._shop = Shop(deployment.catalog, clock, self._watch.committed)
        self._writers = Writers(staff(self._shop), clock)
        self._schema_changes: list[str] = []
        self._began_at = clock.monotonic()
        self._files = (0.0, 0)
        self._pace = Pace()

    def perform(self, seconds: float) -> bool:
        """Open the shop, let it work, wait for all targets, compare them; whether all are right."""
        with show_on(self._console, self._clock) as show:
            show.tell(f"opening the shop: {_CUSTOMERS:,} customers, {_PRODUCTS:,} products")
            self._shop.open(customers=_CUSTOMERS, products=_PRODUCTS)
            create(self._deployment, self._scene)
            with self._watch.running():
                show.tell("filling every target with the first rows, while Spark gets warm")
                self._caught_up(show)
                show.tell(f"everybody writes, for {seconds:.0f} s")
                worked_s = self._work(show, seconds)
                show.tell("waiting until every target has everything")
                end_ts = self._caught_up(show)
            report = self._report(show, worked_s, end_ts)
        print_report(report, self._console)
        return report.good

    def _caught_up(self, show: Show) -> int:
        """Wait until every target has everything that was written; up to when that is."""
        end_ts = self._deployment.now_ts()
        self._watch.wait(end_ts, _CATCH_UP_S, lambda: self._update(show))
        return end_ts

    def _work(self, show: Show, seconds: float) -> float:
        """Write for some seconds, and change the schema meanwhile; how long it took."""
        began_at = self._clock.monotonic()
        changes: list[tuple[float, Callable[[], str]]] = [
            (seconds / 3, self._shop.add_channels),
            (seconds / 2, self._shop.open_reviews),
        ]
        with self._writers.running():
            while (elapsed := self._clock.monotonic() - began_at) < seconds or changes:
                self._writers.check()
                self._watch.check()
                if changes and elapsed >= changes[0][0]:
                    self._schema_changes.append(changes.pop(0)[1]())
                    show.tell(self._schema_changes[-1])
                self._update(show)
                self._clock.pause(_SHOW_S)
        return self._clock.monotonic() - began_at

    def _update(self, show: Show) -> None:
        elapsed = self._clock.monotonic() - self._began_at
        counted_at, files = self._files
        if elapsed - counted_at >= _COUNT_FILES_S:
            files = sum(each.files for each in places(self._scene))
            self._files = elapsed, files
        rows = self._watch.rows
        stages = self._stages()
        show.update(DemoProgress(elapsed, rows, self._pace.per_s(rows, elapsed), files, stages))

    def _stages(self) -> list[StageProgress]:
        at_ms = self._clock.wall_ms()
        return [progress_of(each, at_ms) for each in self._watch.stages]

    def _report(self, show: Show, worked_s: float, at_ts: int) -> Report:
        """Compare every target with its source, ask the indexes, count what there is."""
        compared = verify(self._deployment, (*FEEDS, *JOBS), at_ts, show.tell)
        return Report(
            seconds=worked_s,
            rows=self._watch.rows,
            first_rows=self._watch.first_rows,
            commits=self._watch.commits,
            stages=self._stages(),
            places=places(self._scene),
            asked=shop.ASKED,
            answers=[asked(self._deployment, each) for each in (FULLTEXT, VECTOR)],
            schema_changes=self._schema_changes,
            verified=compared,
        )

    def go_on(self) -> None:
        """Let the shop work until somebody signals."""

        async def look_on() -> None:
            while True:
                self._writers.check()
                await self._clock.sleep(_SHOW_S)

        with self._writers.running():
            run_until_signalled(look_on())
