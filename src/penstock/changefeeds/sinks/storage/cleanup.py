"""Data files that are old enough go: which they are, and the job that removes them by a cron spec."""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.changefeeds.sinks.storage.layout import NUMBER_DIGITS_MIN
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.clock import SYSTEM, Clock, physical_ms
from penstock.object_storage import STAGING, ObjectStorage, Stored

_log = logging.getLogger(__name__)

_THREADS = 16
_DAY_MS = 86_400_000
_NAP_S = 600.0  # how long the wall clock is trusted to go on as it does
_DATED = re.compile(
    r"/(?P<date>\d{4}-\d{2}-\d{2})"
    rf"/(?:CDC(?:_[0-9A-Za-z-]+_)?\d{{{NUMBER_DIGITS_MIN},}}\.[a-z.]+|meta/CDC(?:_[0-9A-Za-z-]+)?\.index)$",
    re.ASCII,
)


def expired(paths: Iterable[str], checkpoint_ts: int, days: int) -> list[str]:
    """The data and index files whose date is more than `days` before that of the checkpoint, in UTC.

    Everything else stays: schema files have no date, and a table may have a name that looks like one.
    """
    day = datetime.fromtimestamp(physical_ms(checkpoint_ts) / 1000, UTC).toordinal()
    if days >= day:  # there is no date so long ago
        return []
    oldest_kept = date.fromordinal(day - days).isoformat()
    return [path for path in paths if (found := _DATED.search(path)) and found["date"] < oldest_kept]


def young_folders(files: Iterable[Stored], since_ms: int) -> set[str]:
    """The folders by day that have a file which was written since a moment."""
    found = ((_DATED.search(each.path), each) for each in files)
    return {_folder(each.path) for dated, each in found if dated and each.modified_ms > since_ms}


def _folder(path: str) -> str:
    dated = _DATED.search(path)
    assert dated is not None, "only files in folders by day expire"
    return path[: dated.end("date")]


class FileCleanup:
    """Removes files that have expired, whenever the cron spec of the options comes round.

    A run that fails is logged and left to the next one; runs never overlap.
    """

    def __init__(
        self,
        target: ObjectStorage,
        options: SinkOptions,
        checkpoint_ts: Callable[[], int],
        *,
        clock: Clock = SYSTEM,
    ) -> None:
        self._target = target
        self._options = options
        self._checkpoint_ts = checkpoint_ts
        self._clock = clock

    async def run(self) -> None:
        """Clean up for ever; return at once when files do not expire."""
        if not self._options.file_expiration_days:
            return
        while True:
            await self._sleep_until(self._options.file_cleanup_cron_spec.next_ms(self._clock.wall_ms()))
            try:
                removed = await asyncio.to_thread(self.clean)
            except Exception as error:  # noqa: BLE001 - nobody waits for this task: it must outlive whatever it is
                facts = {"error": f"{type(error).__name__}: {error}"}
                _log.warning("expired files could not all be removed", extra=facts)
            else:
                _log.info("removed expired files", extra={"files": removed})

    def clean(self) -> int:
        """Remove what has expired, and local directories that are empty then; return the number of files.

        A folder of which a file was written within those days stays: a changefeed that catches up writes
        files of old commits, and whoever reads them has as long for them.
        """
        days = self._options.file_expiration_days
        files = self._target.listed("")
        young = young_folders(files, self._clock.wall_ms() - days * _DAY_MS)
        old = expired((each.path for each in files), self._checkpoint_ts(), days)
        paths = [path for path in old if _folder(path) not in young]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-cleanup") as pool:
            for _ in pool.map(self._target.delete, paths):
                pass
        url = urlsplit(self._options.target.url)
        if url.scheme == "file":
            remove_empty_directories(Path(unquote(url.netloc + url.path)))
        return len(paths)

    async def _sleep_until(self, wall_ms: int) -> None:
        while (left_ms := wall_ms - self._clock.wall_ms()) > 0:
            await self._clock.sleep(min(left_ms / 1000, _NAP_S))


def remove_empty_directories(root: Path) -> int:
    """Remove the directories below `root` that hold nothing but such directories; return how many.

    One that somebody writes into stays; whoever was about to write the first file there has to try again.
    """
    staging = root / STAGING.rstrip("/")
    folders = [path for path in root.rglob("*") if path.is_dir() and path != staging]
    removed = 0
    for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
        try:
            folder.rmdir()
        except OSError:  # it is not empty, or gone already
            continue
        removed += 1
    return removed
