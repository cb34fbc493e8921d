"""Folders of this machine that run out of room."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.settings import Settings

__all__ = ["scarce"]

FREE_MIN = 1 << 30


def scarce(settings: Settings, *, free_min: int = FREE_MIN) -> dict[str, int]:
    """Bytes that are free where less than `free_min` are, by the key of the setting that names the folder."""
    found: dict[str, int] = {}
    for key, folder in _folders(settings):
        try:
            free = shutil.disk_usage(folder).free
        except OSError:  # nothing is written there, or not by us
            continue
        if free < free_min:
            found[key] = free
    return found


def _folders(settings: Settings) -> Iterator[tuple[str, Path]]:
    yield "store.data", settings.store.data
    yield "capture.data", settings.capture.data
    yield "jobs.data", settings.jobs.data
    parts = urlsplit(settings.capture.storage)
    if parts.scheme == "file":
        yield "capture.storage", Path(unquote(parts.netloc + parts.path))
