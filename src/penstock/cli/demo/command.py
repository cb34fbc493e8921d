"""`penstock demo`: runs a deployment under a workload, then compares every target with its source."""

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
    choose_show,
    print_report,
    stage_progress,
)
from penstock.cli.demo.scene import (
    FEEDS,
    FULLTEXT,
    JOBS,
    VECTOR,
    DemoTarget,
    Scene,
    ask_index,
    create_targets,
    demo_folder,
    make_scene,
    measure_places,
)
from penstock.cli.demo.shop import Shop
from penstock.cli.demo.watch import Watch, Writers, make_writers
from penstock.cli.service import run_until_signalled
from penstock.cli.up.display import sign_in_link
from penstock.cli.up.supervisor import run_deployment
from penstock.clock import SYSTEM, Clock
from penstock.control.deployment import Deployment, open_deployment
from penstock.control.verify import TargetReport, VerifyOptions, verify_targets
from penstock.durable_files import create_private
from penstock.errors import PenstockError
from penstock.jobs.consumer import find_consumer
from penstock.verify.target import TargetVerifyReport

__all__ = ["judge_report", "run", "verify_all"]


_VERIFY_TIMEOUT = "60s"


def verify_all(
    deployment: Deployment, targets: Sequence[DemoTarget], at_ts: int, announce: Callable[[str], None]
) -> list[DemoVerified]:
    """Compare targets with the event store, once they have every change up to a timestamp."""
    results: list[DemoVerified] = []
    for target in targets:
        announce(f"comparing with the source: {target.title}")
        options = VerifyOptions(at=str(at_ts), timeout=_VERIFY_TIMEOUT)
        (report,) = verify_targets(deployment, [target.verify_name], options)
        results.append(judge_report(target.title, report))
    return results


def judge_report(title: str, report: TargetReport) -> DemoVerified:
    """Return the result of a comparison for the report; a comparison that failed counts as a difference."""
    if report.report is None:
        return DemoVerified(title, same=False, rows=0, differs=report.error or report.note)
    tables = [report.report] if isinstance(report.report, TargetVerifyReport) else list(report.report.tables)
    rows = sum(table.source_rows for table in tables)
    if report.report.same:
        return DemoVerified(title, same=True, rows=rows)
    differs = ", ".join(
        f"{sum(getattr(table.counts, kind) for table in tables):,} {kind}"
        for kind in ("missing", "different", "extra")
    )
    return DemoVerified(title, same=False, rows=rows, differs=differs)


_CUSTOMERS, _PRODUCTS = 1_000, 500
_CATCH_UP_S = 300.0
_SHOW_S = 0.25
_COUNT_FILES_S = 2.0
_LOG_LINES = 20


def run(*, seconds: float, keep: bool = False, data: Path | None = None, clock: Clock = SYSTEM) -> bool:
    """Run the demonstration and print its report; return whether every target equals its source.

    With `keep`, everything keeps running afterwards, until SIGINT or SIGTERM. Raises a PenstockError when a
    part cannot start or a target stops.
    """
    console = Console()
    with _end_on_sigterm(), demo_folder(data) as folder, _log_parts(folder / "parts.log", console):
        scene = make_scene(folder)
        for target in JOBS:
            find_consumer(target.folder)  # raises where a package is missing, before anything starts
        console.print("Starting a store, a capture, changefeeds, jobs, the API and its pages …")
        with (
            run_deployment(scene.settings, log_level="WARNING") as supervisor,
            open_deployment(supervisor.settings) as deployment,
        ):
            started = supervisor.settings
            pages = sign_in_link(f"http://{started.api.addr}", started.admin_token_path)
            console.print(f"Everything runs in {folder}; pages at {pages}", soft_wrap=True)
            demonstration = _Demonstration(deployment, scene, clock, console)
            all_equal = demonstration.run(seconds)
            if keep:
                console.print(f"Everything keeps running; see {pages}. Ctrl-C ends it.", soft_wrap=True)
                demonstration.keep_running()
            console.print("Stopping …")
    return all_equal


@contextmanager
def _end_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the demonstration as Ctrl-C does: parts stopped, folder removed."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _log_parts(path: Path, console: Console) -> Iterator[None]:
    """Write the log lines of parts to a file; print its last lines when the demonstration fails."""
    create_private(path)
    with path.open("w+", encoding="utf-8") as log:
        try:
            with redirect_stderr(log):
                yield
        except PenstockError:
            log.seek(0)
            for line in log.readlines()[-_LOG_LINES:]:
                console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)
            raise


class _Demonstration:
    """The shop, its writers, and the watch over the targets."""

    def __init__(self, deployment: Deployment, scene: Scene, clock: Clock, console: Console) -> None:
        self._deployment = deployment
        self._scene = scene
        self._clock = clock
        self._console = console
        self._watch = Watch(deployment, clock=clock)
        self._shop = Shop(deployment.catalog, clock, self._watch.record_commit)
        self._writers = Writers(make_writers(self._shop), clock)
        self._schema_changes: list[str] = []
        self._began_at = clock.monotonic()
        self._files = (0.0, 0)
        self._pace = Pace()

    def run(self, seconds: float) -> bool:
        """Run the workload, wait for all targets and compare them; return whether all are equal."""
        with choose_show(self._console, self._clock) as show:
            show.announce(f"opening the shop: {_CUSTOMERS:,} customers, {_PRODUCTS:,} products")
            self._shop.open(customers=_CUSTOMERS, products=_PRODUCTS)
            create_targets(self._deployment, self._scene)
            with self._watch.running():
                show.announce("filling every target with the first rows, while Spark warms up")
                self._wait_caught_up(show)
                show.announce(f"all writers write for {seconds:.0f} s")
                worked_s = self._run_workload(show, seconds)
                show.announce("waiting until every target has every change")
                end_ts = self._wait_caught_up(show)
            report = self._report(show, worked_s, end_ts)
        print_report(report, self._console)
        return report.all_equal

    def _wait_caught_up(self, show: Show) -> int:
        """Wait until every target has every change up to now; return the timestamp of now."""
        end_ts = self._deployment.now_ts()
        self._watch.wait(end_ts, _CATCH_UP_S, lambda: self._update(show))
        return end_ts

    def _run_workload(self, show: Show, seconds: float) -> float:
        """Write for some seconds, and change the schema meanwhile; return the seconds that it took."""
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
                    show.announce(self._schema_changes[-1])
                self._update(show)
                self._clock.pause(_SHOW_S)
        return self._clock.monotonic() - began_at

    def _update(self, show: Show) -> None:
        elapsed = self._clock.monotonic() - self._began_at
        counted_at, files = self._files
        if elapsed - counted_at >= _COUNT_FILES_S:
            files = sum(place.files for place in measure_places(self._scene))
            self._files = elapsed, files
        rows = self._watch.rows
        stages = self._stages()
        show.update(DemoProgress(elapsed, rows, self._pace.per_s(rows, elapsed), files, stages))

    def _stages(self) -> list[StageProgress]:
        at_ms = self._clock.wall_ms()
        return [stage_progress(stage, at_ms) for stage in self._watch.stages]

    def _report(self, show: Show, worked_s: float, at_ts: int) -> Report:
        """Compare every target with its source, search the indexes, measure the folders."""
        verified = verify_all(self._deployment, (*FEEDS, *JOBS), at_ts, show.announce)
        return Report(
            seconds=worked_s,
            rows=self._watch.rows,
            first_rows=self._watch.first_rows,
            commits=self._watch.commits,
            stages=self._stages(),
            places=measure_places(self._scene),
            search_words=shop.SEARCH_WORDS,
            answers=[ask_index(self._deployment, target) for target in (FULLTEXT, VECTOR)],
            schema_changes=self._schema_changes,
            verified=verified,
        )

    def keep_running(self) -> None:
        """Let the shop work until a signal."""

        async def check_writers() -> None:
            while True:
                self._writers.check()
                await self._clock.sleep(_SHOW_S)

        with self._writers.running():
            run_until_signalled(check_writers())
