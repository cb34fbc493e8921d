"""A directory of this process for scratch files; those of processes that have ended are removed."""

import fcntl
import shutil
from pathlib import Path
from typing import IO

from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid

_OURS, _NEW, _LOCK = "runner-", ".new-", "LOCK"


class Scratch:
    """A directory below `data` that no other process uses, whoever shares `data`."""

    def __init__(self, data: Path, *, clock: Clock = SYSTEM) -> None:
        self._data = data
        self._name = clock.unique_id()
        self._lock: IO[bytes] | None = None

    @property
    def folder(self) -> Path:
        """Where it is, while it is open."""
        return self._data / f"{_OURS}{self._name}"

    def open(self) -> None:
        """Make it, and remove what others left; raise Invalid when the directory cannot be used."""
        new = self._data / f"{_NEW}{self._name}"
        try:
            new.mkdir(parents=True)
            self._lock = (new / _LOCK).open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(self.folder)  # only now others see it: it is locked
            for other in self._data.glob(f"{_OURS}*"):
                if other != self.folder:
                    _remove_unused(other)
        except OSError as error:
            raise Invalid(
                f"directory {self._data} cannot be used ({error.strerror}); check jobs.data"
            ) from error

    def close(self) -> None:
        """Remove it. Can be called twice."""
        if self._lock is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._lock.close()
            self._lock = None


def _remove_unused(folder: Path) -> None:
    try:
        with (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except (BlockingIOError, FileNotFoundError):
        return  # it is used, or somebody else was faster
