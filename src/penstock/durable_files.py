"""Files that survive a loss of power.

The bytes of a file and its name in a folder reach the disk separately, each when it is synced. A process can
read what a killed process left behind although it is not on the disk yet; it must sync it before it relies
on it.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path

__all__ = ["make_folder", "replace_file", "sync_data", "sync_folder"]


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


def make_folder(folder: Path) -> None:
    """Make a folder and its parents. On return their names are on the disk, also those that existed."""
    folder.mkdir(parents=True, exist_ok=True)
    for above in folder.absolute().parents:
        with suppress(PermissionError):  # we cannot have made anything in a folder that we may not list
            sync_folder(above)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically. On return the new content is on the disk.

    Only one writer at a time: the incomplete file lies beside the old one, under the same name with `.new`.
    """
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        sync_data(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)
