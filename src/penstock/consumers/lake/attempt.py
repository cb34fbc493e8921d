"""One attempt to commit: the files that it writes, and those that earlier ones left.

New files go to a folder that is named by the watermark on top of which they are put. What is there already,
and does not belong to the copy, is of attempts on top of the same version that came to nothing: some were
killed, others may still be writing. As soon as this one has committed, none of them can any more, and their
files go. Nothing is removed that was not there before the commit: whoever starts on top of it writes later.

Mends leave the watermark, so it tells nothing of their files: those have a folder of their own, in which
nothing is removed like that.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import pyarrow as pa

from penstock.consumers.lake.files import DataFile, WrittenFile
from penstock.consumers.lake.filewriting import FileWriter
from penstock.consumers.lake.table import LakeTable, LakeWatermark, Overtaken, Version
from penstock.errors import Fenced, PenstockError, Unavailable

__all__ = ["StagedCommit"]

_MENDS = "mends"

_log = logging.getLogger(__name__)


class StagedCommit:
    """A context that removes what was written when it comes to nothing.

    Raises Fenced when an iteration of a job was faster, Unavailable when somebody else was.
    """

    def __init__(
        self,
        table: LakeTable,
        base: Version | None,
        schema: pa.Schema,
        *,
        whole: bool,
        name: str,
        mends: bool = False,
    ) -> None:
        self._table = table
        self._base = base
        self.written: list[WrittenFile] = []
        with self._overtaken():
            self.staging = table.stage(base, schema, whole=whole)
        self.store = self.staging.open_store()
        self.there: list[DataFile] = table.files(base) if base else []
        """The files of the copy."""
        self.spread = False
        """Whether executors write: tasks that are tried again leave files of which only storage knows."""
        watermark = base.marks.watermark if base else 0
        self._folder = f"{table.folder}/{_MENDS if mends else watermark}"
        self._name = name
        known = {each.path for each in self.there}
        self._strays = [] if mends else [each for each in self.store.names(self._folder) if each not in known]
        self._decided = False

    @property
    def names(self) -> tuple[str, str]:
        """The folder of new files, and how their names begin."""
        return self._folder, self._name

    def writer(self) -> FileWriter:
        """Writes files that belong to the attempt."""
        schema = self.staging.file_schema
        return FileWriter(self.store, schema, folder=self._folder, name=self._name, written=self.written)

    def commit(self, marks: LakeWatermark, removed: Sequence[DataFile]) -> None:
        """Commit, and remove what earlier attempts left."""
        self._decided = True
        with self._overtaken():
            self.staging.commit(marks, self.written, removed)
        written = {each.path for each in self.written}
        self._remove(path for path in self._strays if path not in written)

    @contextmanager
    def _overtaken(self) -> Iterator[None]:
        try:
            yield
        except Overtaken as error:
            now, base = self._table.look(), self._base
            if now is not None and self._is_in(now):
                return
            self._decided = False
            if (now and now.marks) != (base and base.marks):
                raise Fenced(f"{self._table.place} was changed by another iteration of a job") from error
            raise Unavailable(
                f"{self._table.place} was changed by somebody else meanwhile; try again"
            ) from error

    def _is_in(self, version: Version) -> bool:
        """Whether a version has this attempt's files: then it was committed, and the answer was lost.

        The library's own second try met the first one, and took it for somebody else's.
        """
        written = {each.path for each in self.written}
        return any(each.path in written for each in self._table.files(version))

    def _mine(self) -> list[str]:
        return [
            path for path in self.store.names(self._folder) if path.startswith(f"{self._folder}/{self._name}")
        ]

    def _remove(self, paths: Iterable[str]) -> None:
        """Delete files of nothing; that this fails must neither undo what is done nor hide an error."""
        try:
            for path in paths:
                self.store.delete(path)
        except PenstockError as error:
            _log.warning("files that belong to nothing are left at %s: %s", self._table.place, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Remove what was written in vain, unless it is not known whether it was."""
        if not self._decided:
            self._remove(self._mine())
        elif kind is None and self.spread:
            known = {each.path for each in self.written}
            self._remove(path for path in self._mine() if path not in known)
