"""Files below the location of an Iceberg table, through the library's own access to storage."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType
from pyiceberg.io.pyarrow import PyArrowFileIO

from penstock.errors import Unavailable

__all__ = ["IcebergFiles"]


class IcebergFiles:
    """Implements FileStore. Paths are relative to the location; those that are not are taken as they are."""

    def __init__(self, properties: Mapping[str, str], location: str) -> None:
        self.io = PyArrowFileIO(dict(properties))
        self._root = location.rstrip("/")

    def relative(self, location: str) -> str:
        """The path of a file by its location."""
        return location.removeprefix(f"{self._root}/")

    def absolute(self, path: str) -> str:
        """The location of a file by its path."""
        return path if "://" in path or path.startswith("/") else f"{self._root}/{path}"

    def write(self, path: str, data: bytes) -> None:
        """See FileStore."""
        with (
            self._failures("write", path),
            self.io.new_output(self.absolute(path)).create(overwrite=True) as file,
        ):
            file.write(data)

    def open(self, path: str) -> pa.NativeFile:
        """See FileStore."""
        with self._failures("open", path):
            return cast("pa.NativeFile", self.io.new_input(self.absolute(path)).open())

    def names(self, folder: str) -> list[str]:
        """See FileStore."""
        scheme, netloc, root = PyArrowFileIO.parse_location(self._root, self.io.properties)
        with self._failures("list", folder):
            system = self.io.fs_by_scheme(scheme, netloc)
            below = FileSelector(f"{root}/{folder.rstrip('/')}", recursive=True, allow_not_found=True)
            found = system.get_file_info(below)
        return sorted(each.path.removeprefix(f"{root}/") for each in found if each.type is FileType.File)

    def delete(self, path: str) -> None:
        """See FileStore."""
        with self._failures("delete", path):
            try:
                self.io.delete(self.absolute(path))
            except FileNotFoundError:
                return

    @contextmanager
    def _failures(self, what: str, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = (error.strerror or str(error)).partition("\n")[0][:200]
            raise Unavailable(f"cannot {what} {path} at {self._root} ({reason}); try again") from error
