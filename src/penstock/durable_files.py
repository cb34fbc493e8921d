"""Files that survive a loss of power, and that only the user of Penstock can read.

The bytes of a file and its name in a folder reach the disk separately, each when it is synced. A process can
read what a killed process left behind although it is not on the disk yet; it must sync it before it relies
on it.

Rows lie in data directories, logs and scratch files. Their folders have mode 0700 and their files 0600,
whatever the umask: files that we open get the mode here. Processes whose libraries open files themselves
(RocksDB) call `keep_files_private` first. Files of changefeeds and of job targets are for others to read:
they follow the umask.
"""

import errno
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal

__all__ = [
    "PRIVATE_FILE",
    "PRIVATE_FOLDER",
    "create_private",
    "is_content",
    "is_inside",
    "keep_files_private",
    "make_data_directory",
    "make_folder",
    "make_private_folder",
    "may_hold_code",
    "open_plain",
    "open_private",
    "replace_file",
    "sync_data",
    "sync_folder",
    "too_wide",
]

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
_BY_UMASK_FILE = 0o666
_PRIVATE_UMASK = 0o077
_ROOT = 0

_log = logging.getLogger(__name__)


def sync_data(handle: int) -> None:
    """Force the bytes and the length of an open file to the disk."""
    os.fdatasync(handle)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk, also renames and removals.

    Do nothing on a file system that does not support the call (some mounts, /proc).
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise
    finally:
        os.close(handle)


def is_inside(path: str | Path, root: str) -> bool:
    """Return whether a path leads to a root, or below it, once all links are followed.

    The root is one that `os.path.realpath` returned: its links are followed once, by who decides what it is.
    """
    real = os.path.realpath(path)
    return real == root or real.startswith(root.rstrip("/") + "/")


def make_folder(folder: Path, *, private: bool = True) -> None:
    """Make a folder and its parents. On return their names are on the disk, also those that existed.

    A folder that is not private follows the umask. One that exists keeps its mode.
    """
    if private:
        make_private_folder(folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)
    for above in folder.absolute().parents:
        with suppress(PermissionError):  # we cannot have made anything in a folder that we may not list
            sync_folder(above)


def make_private_folder(folder: Path) -> None:
    """Make a folder, and the parents that are missing, for this user only. One that exists keeps its mode."""
    try:
        folder.mkdir(mode=PRIVATE_FOLDER)
    except FileNotFoundError:
        make_private_folder(folder.parent)
        folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    except FileExistsError:
        if not folder.is_dir():
            raise


def make_data_directory(folder: Path, *, with_content: bool = True) -> None:
    """Make a folder that is Penstock's alone, as `make_folder` does; narrow one that others can read.

    Narrowing changes everything in the folder first and the folder last, so that a process that is killed in
    between begins again at its next start. Folders that everybody may write to (/tmp) and folders of other
    users stay as they are, with a warning: what Penstock makes in them is private.
    """
    make_folder(folder)
    found = folder.stat()
    if not too_wide(found.st_mode) or not os.access(folder, os.W_OK):  # its user fails, and says why
        return
    facts = {"folder": str(folder), "mode": f"{stat.S_IMODE(found.st_mode):03o}"}
    if found.st_mode & stat.S_ISVTX or found.st_uid != os.geteuid():
        _log.warning("other users can list a data directory; give Penstock one of its own", extra=facts)
        return
    entries = sum(_narrow(path) for path in _below(folder)) if with_content else 0
    folder.chmod(PRIVATE_FOLDER)
    _log.info("other users could read a data directory; narrowed it", extra=facts | {"entries": entries})


def is_content(mode: int) -> bool:
    """Return whether a mode is that of a file or a folder.

    To open anything else may take for ever (a FIFO that nobody writes), or have no end (a device).
    """
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def too_wide(mode: int) -> bool:
    """Return whether a mode lets anybody but the owner do something."""
    return bool(mode & 0o077)


def may_hold_code(path: Path) -> bool:
    """Return whether only this user, root and their groups can change a file or folder, so that we run it.

    What a file has when it is checked says nothing of what it has when it is run, if others can change it.
    One that does not exist is nobody's yet.
    """
    try:
        found = path.stat()
    except OSError:
        return True
    return found.st_uid in {os.geteuid(), _ROOT} and not found.st_mode & stat.S_IWOTH


def _narrow(path: Path) -> bool:
    """Take the rights of others from a file or folder; return whether they had any."""
    with suppress(FileNotFoundError, PermissionError):  # removed meanwhile, or another user's
        mode = path.lstat().st_mode
        if too_wide(mode) and not stat.S_ISLNK(mode):
            path.chmod(stat.S_IMODE(mode) & ~0o077)
            return True
    return False


def _below(folder: Path) -> Iterator[Path]:
    for above, folders, files in os.walk(folder):  # does not follow links
        for name in (*folders, *files):
            yield Path(above, name)


def open_private(path: Path, mode: Literal["xb", "wb", "a+b"], *, buffering: int = -1) -> IO[bytes]:
    """Open a file to write, which is not a link; a new one is for this user only."""
    return open_plain(path, mode, buffering=buffering)


def open_plain(
    path: Path, mode: Literal["xb", "wb", "a+b"], *, private: bool = True, buffering: int = -1
) -> IO[bytes]:
    """Open a file to write. Raises OSError when it is a symbolic link, whose target is not ours to change, or
    no file: nothing waits for a reader of a FIFO.

    A new file is for this user only, or follows the umask when it is not private.
    """
    rights = PRIVATE_FILE if private else _BY_UMASK_FILE

    def open_itself(name: str, flags: int) -> int:
        handle = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, rights)
        if not is_content(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "it is no regular file", name)
        return handle

    opened: IO[Any] = open(path, mode, buffering, opener=open_itself)  # noqa: SIM115 - `Path.open` takes no opener
    return opened


def create_private(path: Path) -> None:
    """Create an empty file and its folder for this user only; who writes the file then keeps its mode.

    Raises OSError when there is a symbolic link in its place: its target is not ours to write.
    """
    make_private_folder(path.parent)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, PRIVATE_FILE))


def keep_files_private() -> None:
    """Let every file that this process makes from now on be for this user only.

    For processes whose libraries make files of their own, and that write nothing for others.
    """
    os.umask(_PRIVATE_UMASK)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically. On return the new content is on the disk, for this user only.

    Only one writer at a time: the incomplete file lies beside the old one, under the same name with `.new`.
    """
    fresh = path.with_name(f"{path.name}.new")
    with suppress(FileNotFoundError):  # of a killed process; it may be for others to read
        fresh.unlink()
    with open_private(fresh, "xb") as file:
        file.write(data)
        file.flush()
        sync_data(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)
