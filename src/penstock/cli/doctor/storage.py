"""Folders that parts write to: whether they can, and how much room there is.

Storage of the event store and of changefeeds: whether it takes what must be put on a condition.

Two writers that both believe to own a table, or a file's number, are told apart by storage alone: it must
refuse to create an object that is there. Some services answer as if they did.
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.changefeeds.sink_uri import is_secret, split_uri
from penstock.changefeeds.sinks.storage.options import sink_options
from penstock.cli.doctor.findings import CheckResult, Finding, bad, ok, refused, warn
from penstock.cli.doctor.network import has_store
from penstock.cli.output import GIB, size
from penstock.clock import SYSTEM, Clock
from penstock.errors import Invalid, PenstockError
from penstock.object_storage import STAGING, ObjectStorage, StorageRef, open_storage
from penstock.settings import Settings

__all__ = ["data_folders", "folder", "judge_space", "local_folder", "probe", "storage", "storages"]


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


_MASK = "***"
_SECRET_CHARS_MIN = 6
"""Shorter ones are made up, and parts of words."""
_FIRST, _SECOND, _THIRD = b"first", b"second", b"third"
_CONDITIONAL = "use one that has puts with If-None-Match and If-Match, or bring it to a version that has"


def storages(settings: Settings) -> Iterator[tuple[str, StorageRef | Invalid]]:
    """What the settings name, by key; the error of a sink URI that is refused."""
    yield "capture.storage", StorageRef(settings.capture.storage, settings.capture.storage_options)
    for name, feed in settings.changefeeds.items():
        try:
            yield f"changefeeds.{name}.sink_uri", sink_options(feed).target
        except Invalid as error:
            yield f"changefeeds.{name}.sink_uri", error


def storage(key: str, ref: StorageRef | Invalid, *, clock: Clock = SYSTEM) -> Finding:
    """Put an object there, as captures and changefeeds do, and remove it."""
    name = f"storage {key}"
    if isinstance(ref, Invalid):
        return refused(name, ref)
    if ref.url.startswith("memory:"):
        return warn(name, f"{ref.url} is one process's own, and gone with it", f"give {key} a lasting place")
    local = local_folder(ref.url)
    if local is not None and not local.exists():
        return ok(name, f"{ref.url} will be made")
    staging = local / STAGING if local is not None else None
    foreign = staging is not None and not staging.exists()
    try:
        return probe(name, open_storage(ref.url, ref.options, clock=clock), clock=clock)
    except PenstockError as error:
        found = refused(name, error)
        what, remedy = (_without_secrets(text, ref.options) for text in (found.what, found.remedy))
        return Finding(name, CheckResult.BAD, what, remedy)
    finally:
        if staging is not None and foreign:
            with suppress(OSError):  # nothing was put there, or somebody else works there by now
                (staging / "lock").unlink(missing_ok=True)
                staging.rmdir()


def probe(name: str, opened: ObjectStorage, *, clock: Clock = SYSTEM) -> Finding:
    """Whether storage creates and replaces on conditions, and refuses when they do not hold."""
    path = f"penstock-doctor-{clock.unique_id()}"
    try:
        found = _tried(name, opened, path)
    except PenstockError:
        with suppress(PenstockError):  # the first failure tells more
            opened.delete(path)
        raise
    opened.delete(path)
    return found


def _tried(name: str, opened: ObjectStorage, path: str) -> Finding:
    opened.create(path, _FIRST)
    if opened.create(path, _SECOND) or opened.read(path) != _FIRST:
        what = f"{opened.url} overwrites an object that it is told to create"
        return bad(name, f"{what}: two writers could lose rows", _CONDITIONAL)
    if opened.swap(path, _SECOND, seen=_THIRD) or not opened.swap(path, _SECOND, seen=_FIRST):
        return bad(name, f"{opened.url} does not replace an object on a condition", _CONDITIONAL)
    return ok(name, f"{opened.url} can be written to, on conditions too")


def _without_secrets(text: str, options: Mapping[str, str]) -> str:
    """What a service says may repeat what it was given."""
    for name, value in options.items():
        if len(value) >= _SECRET_CHARS_MIN and is_secret(name):
            text = text.replace(value, _MASK)
    return text
