"""Checks folders that parts write to, and the storage of the event store and of changefeeds.

Storage must support conditional writes: two writers may both believe that they own a table or a file number,
and only storage can stop one of them, by refusing to create an object that exists. Some services claim to
refuse and do not.
"""

import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.changefeeds.sink_uri import split_uri
from penstock.changefeeds.sinks.storage.options import sink_options
from penstock.cli.doctor.findings import Finding, bad, from_error, ok, warn
from penstock.cli.doctor.network import has_store
from penstock.cli.output import GIB, format_size
from penstock.clock import SYSTEM, Clock
from penstock.durable_files import too_wide
from penstock.errors import Invalid, PenstockError
from penstock.object_storage import STAGING, ObjectStorage, StorageRef, open_storage
from penstock.secret_references import UnresolvedReference
from penstock.settings import Settings

__all__ = [
    "check_folder",
    "check_privacy",
    "check_storage",
    "data_folders",
    "judge_space",
    "local_folder",
    "private_folders",
    "probe_storage",
    "storage_refs",
]


SPACE_MIN, SPACE_ENOUGH = GIB, 10 * GIB


def private_folders(settings: Settings) -> Iterator[tuple[str, Path]]:
    """Yield the folders of this machine that are Penstock's alone, with their keys."""
    if has_store(settings):
        yield "store.data", settings.store.data
    yield "capture.data", settings.capture.data
    yield "jobs.data", settings.jobs.data
    yield "up.data", settings.up.data
    yield "secrets_dir", settings.secrets_dir
    events = local_folder(settings.capture.storage)
    if events is not None:
        yield "capture.storage", events


def data_folders(settings: Settings) -> Iterator[tuple[str, Path]]:
    """Yield the folders of this machine in the settings, with their keys; remote storage is left out."""
    yield from private_folders(settings)
    for name, feed in settings.changefeeds.items():
        try:
            path = local_folder(split_uri(feed.sink_uri.get_secret_value()).url)
        except Invalid:  # the storage check reports it
            continue
        if path is not None:
            yield f"changefeeds.{name}.sink_uri", path


def local_folder(url: str) -> Path | None:
    """Return the folder of a file:// URL; None for another URL."""
    parts = urlsplit(url)
    return Path(unquote(parts.netloc + parts.path)).absolute() if parts.scheme == "file" else None


def check_folder(key: str, path: Path) -> Finding:
    """Check that a folder exists or can be created, can be written to, and has enough space."""
    existing = path.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        return bad(f"folder {key}", f"{existing} is not a folder", f"remove it, or change {key}")
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
        free = shutil.disk_usage(existing).free
    except OSError as error:
        what = f"{existing} cannot be written to ({error.strerror})"
        return bad(f"folder {key}", what, f"give the user of Penstock write permission, or change {key}")
    return judge_space(key, path, free)


def check_privacy(key: str, path: Path) -> list[Finding]:
    """Check that only its owner can read a data directory; nothing is found where there is none yet."""
    try:
        mode = path.stat().st_mode
    except OSError:  # `check_folder` reports it
        return []
    if not too_wide(mode):
        return []
    what = f"{path} has mode {stat.S_IMODE(mode):03o}: other users of the machine can read rows in it"
    if mode & stat.S_ISVTX:
        return [bad(f"folder {key}", what, f"change {key} to a folder that only Penstock uses")]
    return [bad(f"folder {key}", what, f"chmod -R go= {path}, or start Penstock, which does so")]


def judge_space(key: str, path: Path, free_bytes: int) -> Finding:
    """Judge the free space of a folder."""
    what = f"{format_size(free_bytes)} free at {path}"
    if free_bytes >= SPACE_ENOUGH:
        return ok(f"folder {key}", what)
    remedy = f"free some space, or move {key} to a larger disk"
    if free_bytes < SPACE_MIN:
        return bad(f"folder {key}", what, remedy)
    return warn(f"folder {key}", what, remedy)


_FIRST, _SECOND, _THIRD = b"first", b"second", b"third"
_CONDITIONAL = "use storage that supports If-None-Match and If-Match on writes, or upgrade it"


def storage_refs(settings: Settings) -> Iterator[tuple[str, StorageRef | PenstockError]]:
    """Yield the storage of the settings by key, or the error of a wrong sink URI."""
    yield "capture.storage", StorageRef(settings.capture.storage, settings.capture.storage_options)
    for name, feed in settings.changefeeds.items():
        try:
            yield f"changefeeds.{name}.sink_uri", sink_options(feed).target
        except (Invalid, UnresolvedReference) as error:
            yield f"changefeeds.{name}.sink_uri", error


def check_storage(key: str, ref: StorageRef | PenstockError, *, clock: Clock = SYSTEM) -> Finding:
    """Check storage by writing an object, as captures and changefeeds do, and deleting it."""
    name = f"storage {key}"
    if isinstance(ref, PenstockError):
        return from_error(name, ref)
    if ref.url.startswith("memory:"):
        return warn(name, f"{ref.url} belongs to one process and ends with it", f"give {key} durable storage")
    local = local_folder(ref.url)
    if local is not None and not local.exists():
        return ok(name, f"{ref.url} will be created")
    staging = local / STAGING if local is not None else None
    created_here = staging is not None and not staging.exists()
    try:
        return probe_storage(name, open_storage(ref.url, ref.options, shared=True, clock=clock), clock=clock)
    except PenstockError as error:
        return from_error(name, error)
    finally:
        if staging is not None and created_here:
            with suppress(OSError):  # nothing was written there, or another process uses it now
                (staging / "lock").unlink(missing_ok=True)
                staging.rmdir()


def probe_storage(name: str, opened: ObjectStorage, *, clock: Clock = SYSTEM) -> Finding:
    """Check that storage creates and replaces objects on conditions, and refuses when they do not hold."""
    path = f"penstock-doctor-{clock.unique_id()}"
    try:
        finding = _try_writes(name, opened, path)
    except PenstockError:
        with suppress(PenstockError):  # the first error says more
            opened.delete(path)
        raise
    opened.delete(path)
    return finding


def _try_writes(name: str, opened: ObjectStorage, path: str) -> Finding:
    opened.create(path, _FIRST)
    if opened.create(path, _SECOND) or opened.read(path) != _FIRST:
        what = f"{opened.url} overwrites an object instead of refusing to create it"
        return bad(name, f"{what}: two writers could lose rows", _CONDITIONAL)
    if opened.swap(path, _SECOND, seen=_THIRD) or not opened.swap(path, _SECOND, seen=_FIRST):
        return bad(name, f"{opened.url} does not replace an object on a condition", _CONDITIONAL)
    return ok(name, f"{opened.url} can be written to, on conditions too")
