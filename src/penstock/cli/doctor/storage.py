"""Folders that parts write to: whether they can, and how much room there is."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.changefeeds.sink_uri import split_uri
from penstock.cli.doctor.embedded import has_store
from penstock.cli.doctor.findings import Finding, bad, ok, warn
from penstock.cli.sizes import GIB, size
from penstock.errors import Invalid
from penstock.settings import Settings

__all__ = ["data_folders", "folder", "judge_space", "local_folder"]

SPACE_MIN, SPACE_ENOUGH = GIB, 10 * GIB


def data_folders(settings: Settings) -> Iterator[tuple[str, Path]]:
    """The folders of this machine that settings name, by their keys; what is kept elsewhere is left out."""
    if has_store(settings):
        yield "store.data", settings.store.data
    yield "capture.data", settings.capture.data
    yield "jobs.data", settings.jobs.data
    yield "up.data", settings.up.data
    urls = {"capture.storage": settings.capture.storage}
    for name, feed in settings.changefeeds.items():
        try:
            urls[f"changefeeds.{name}.sink_uri"] = split_uri(feed.sink_uri.get_secret_value()).url
        except Invalid:  # the check of the storage says so
            continue
    for key, url in urls.items():
        path = local_folder(url)
        if path is not None:
            yield key, path


def local_folder(url: str) -> Path | None:
    """The folder that a URL names, if it is one of this machine."""
    parts = urlsplit(url)
    return Path(unquote(parts.netloc + parts.path)).absolute() if parts.scheme == "file" else None


def folder(key: str, path: Path) -> Finding:
    """Whether a folder is there or can be made, can be written to, and has room."""
    there = path.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return bad(f"folder {key}", f"{there} is no folder", f"remove it, or change {key}")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
        free = shutil.disk_usage(there).free
    except OSError as error:
        what = f"{there} cannot be written to ({error.strerror})"
        return bad(f"folder {key}", what, f"give the user of Penstock the right to, or change {key}")
    return judge_space(key, path, free)


def judge_space(key: str, path: Path, free_bytes: int) -> Finding:
    """Whether there is enough room."""
    what = f"{size(free_bytes)} free at {path}"
    if free_bytes >= SPACE_ENOUGH:
        return ok(f"folder {key}", what)
    remedy = f"make room, or move {key} to a larger disk"
    if free_bytes < SPACE_MIN:
        return bad(f"folder {key}", what, remedy)
    return warn(f"folder {key}", what, remedy)
