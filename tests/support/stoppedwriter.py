"""A process that writes a data file, its index and the checkpoint, and stops itself in between.

`python -m support.stoppedwriter WORK` does what a pickled `Writing` says. It stops by SIGSTOP at its moment:
before its data file, after it, or after it has read the index or the checkpoint that it is about to replace.
"""

import pickle
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from penstock.changefeeds.engines.engine import FileWork
from penstock.changefeeds.engines.files import write_files
from penstock.changefeeds.sinks.storage import layout
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.remote_files import RemoteFiles
from penstock.follow.ddl_events import DdlEvent
from penstock.object_storage import LocalStorage, ObjectStorage

Moment = Literal["nothing written", "data written", "index read", "checkpoint read"]


@dataclass(frozen=True)
class Writing:
    """What the process writes, and where it stops."""

    options: SinkOptions
    file: FileWork
    payload: bytes
    checkpoint_ts: int
    moment: Moment
    ddl: DdlEvent | None = None  # its schema file is all that the process writes


_stopped = False


def stop() -> None:
    """Stand still until somebody continues the process; once."""
    global _stopped  # noqa: PLW0603 - the process is what it is about
    if not _stopped:
        _stopped = True
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # by `kill`, this thread might go on a bit


def stop_at(moment: Moment) -> None:
    """Make every storage of this process stop it once, at its moment."""
    for kind in (ObjectStorage, LocalStorage):
        _wrap(kind, kind.advance, moment)
        if moment == "nothing written":
            _wrap_create(kind, kind.create)


Advance = Callable[..., None]


def _wrap(kind: type[ObjectStorage], real: Advance, moment: Moment) -> None:
    def advance(self: ObjectStorage, path: str, data: bytes, *, is_older: Callable[[bytes], bool]) -> None:
        what = "checkpoint read" if path == layout.METADATA_PATH else "index read"
        if moment == "data written" and what == "index read":
            stop()

        def judge(content: bytes) -> bool:
            if moment == what:
                stop()
            return is_older(content)

        real(self, path, data, is_older=judge)

    kind.advance = advance  # type: ignore[method-assign] # this process exists to be stopped


def _wrap_create(kind: type[ObjectStorage], real: Callable[..., bool]) -> None:
    def create(self: ObjectStorage, path: str, data: bytes) -> bool:
        stop()
        return real(self, path, data)

    kind.create = create  # type: ignore[method-assign] # this process exists to be stopped


def main() -> None:
    """Do the work of the command line."""
    work: Writing = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301 - the parent wrote it
    stop_at(work.moment)
    if work.ddl is not None:
        RemoteFiles(work.options.target.open(), work.options).write_ddl(work.ddl)
        return
    (result,) = write_files([work.file], lambda _: [work.payload], work.options.target, threads=1)
    if result.error:
        raise SystemExit(result.error)
    RemoteFiles(work.options.target.open(), work.options).write_checkpoint(work.checkpoint_ts)


if __name__ == "__main__":
    main()
