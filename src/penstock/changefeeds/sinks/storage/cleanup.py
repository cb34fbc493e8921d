"""Removes expired data files by a cron spec: which files have expired, and the task that deletes them."""

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
from penstock.eventloop import call_in_thread
from penstock.object_storage import STAGING, ObjectStorage, StoredObject

_log = logging.getLogger(__name__)

_THREADS = 16
_DAY_MS = 86_400_000
_NAP_S = 600.0  # the longest sleep before the wall clock is read again: it may be set meanwhile
_DATED = re.compile(
    r"/(?P<date>\d{4}-\d{2}-\d{2})"
    rf"/(?:CDC(?:_[0-9A-Za-z-]+_)?\d{{{NUMBER_DIGITS_MIN},}}\.[a-z.]+|meta/CDC(?:_[0-9A-Za-z-]+)?\.index)$",
    re.ASCII,
)


def expired_paths(paths: Iterable[str], checkpoint_ts: int, days: int) -> list[str]:
    """Return the data and index files whose date is more than `days` before the checkpoint's, in UTC.

    All other files stay: schema files have no date, and a table may have a name that looks like a date.
    """
    day = datetime.fromtimestamp(physical_ms(checkpoint_ts) / 1000, UTC).toordinal()
    if days >= day:  # there is no date so long ago
        return []
    oldest_kept = date.fromordinal(day - days).isoformat()
    return [path for path in paths if (found := _DATED.search(path)) and found["date"] < oldest_kept]


def young_folders(files: Iterable[StoredObject], since_ms: int) -> set[str]:
    """Return the folders of days with a file that was written after `since_ms`."""
    return {
        _day_folder(file.path) for file in files if file.modified_ms > since_ms and _DATED.search(file.path)
    }


def _day_folder(path: str) -> str:
    dated = _DATED.search(path)
    assert dated is not None, "only files in folders by day expire"
    return path[: dated.end("date")]


class FileCleanup:
    """Removes expired files at the times of the options' cron spec.

    A run that fails is logged, and the next one tries again. Runs never overlap.
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
                removed = await call_in_thread(self.clean)
            except Exception as error:  # noqa: BLE001 - nobody awaits this task, so it must survive any failure
                facts = {"error": f"{type(error).__name__}: {error}"}
                _log.warning("expired files could not all be removed", extra=facts)
            else:
                _log.info("removed expired files", extra={"files": removed})

    def clean(self) -> int:
        """Remove expired files, and local directories that are empty then; return the number of files.

        A folder stays while one of its files is younger than the expiration: a changefeed that catches up
        writes files of old commits, and their readers get the same time for them.
        """
        days = self._options.file_expiration_days
        files = self._target.list_objects("")
        young = young_folders(files, self._clock.wall_ms() - days * _DAY_MS)
        old = expired_paths((file.path for file in files), self._checkpoint_ts(), days)
        paths = [path for path in old if _day_folder(path) not in young]
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
    """Remove the directories below `root` that hold no files at any depth; return how many.

    A directory that gets a file meanwhile stays. A writer that was about to write the first file of a removed
    directory has to try again.
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
