"""Files that outlive a loss of power.

The bytes of a file and its name in a folder reach the disk separately, each when it is synced. What a killed
process left behind can be read by the next one, and is not on the disk yet: who builds on it syncs it first.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path

__all__ = ["make_folder", "replace_file", "sync_data", "sync_folder"]


def sync_data(handle: int) -> None:
    """Force the bytes of an open file to the disk, and its length with them."""
    os.fdatasync(handle)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk: those that came, changed and went.

    A file system that knows no such call (some mounts, /proc) has nothing to force.
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
    """Make a folder and those above it. On return their names are on the disk, whoever made them."""
    folder.mkdir(parents=True, exist_ok=True)
    for above in folder.absolute().parents:
        with suppress(PermissionError):  # in a folder that we may not even list we have made nothing
            sync_folder(above)


def replace_file(path: Path, data: bytes) -> None:
    """Put a file in place of what is there, at once or not at all; on return it is on the disk.

    One writer at a time: what is not complete yet is beside it, under the same name with `.new`.
    """
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        sync_data(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)
