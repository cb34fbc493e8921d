"""One supervisor a folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import Invalid

__all__ = ["folder_lock"]

_NAME = "lock"


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Have a folder to oneself; the lock ends with the process at the latest.

    Raises Invalid when somebody else has it, or it cannot be written to.
    """
    path = folder / _NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="ascii")
    except OSError as error:
        raise Invalid(f"{path} cannot be written ({error.strerror}); check up.data, or --data") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(20).strip()
            raise Invalid(
                f"another `penstock up`{f' (process {holder})' if holder else ''} runs in {folder};"
                " stop it first, or choose another folder with --data"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
