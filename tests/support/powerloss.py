"""A disk that forgets, when the power goes, what was not synced. The files are real, only the loss is made.

The bytes of a file are on this disk once they are synced, a name once its folder is. Of all else luck decides
what is left: each name by itself, and of what was appended to a file any beginning.
"""

import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from unittest import mock

__all__ = ["Disk", "Luck", "everything_survives", "nothing_survives"]

Luck = Callable[[], float]
"""Numbers from 0 to 1; a change that was not synced is lost when its number is below one half."""


def nothing_survives() -> float:
    """Lose everything that was not synced."""
    return 0.0


def everything_survives() -> float:
    """Lose nothing: the kernel had written everything by itself."""
    return 1.0


@dataclass(slots=True)
class _Node:
    """A file or folder as it was last synced. `handle` keeps its number from being given to another."""

    handle: int
    folder: bool
    data: bytes = b""
    names: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Image:
    """What is on the disk after a loss of power."""

    data: bytes = b""
    names: "dict[str, _Image] | None" = None


class Disk:
    """Everything below one folder, which is on the disk as it is now. Syncs of all threads are seen.

    Use it as a context manager. Close what has files open before `restart`.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._nodes: dict[int, _Node] = {}
        self._syncs_left: int | None = None
        self._luck: Luck | None = None
        self._image: _Image | None = None
        self._refused = False
        self._patches = [mock.patch.object(os, name, self._sync) for name in ("fsync", "fdatasync")]

    def __enter__(self) -> Self:
        self._keep_tree(self._root)
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()
        self._forget()

    def kill_at(self, syncs: int) -> None:
        """Kill the process when it asks for one more sync than so many. Files stay as they are then."""
        with self._lock:
            self._syncs_left = syncs

    def lose_power_at(self, syncs: int, luck: Luck) -> None:
        """Lose the power when the process asks for one more sync than so many; `restart` shows the rest."""
        with self._lock:
            self._syncs_left, self._luck = syncs, luck

    @property
    def dead(self) -> bool:
        """Whether that moment has come."""
        return self._refused

    def restart(self) -> None:
        """Start the machine again after a loss of power, or the process alone after a kill."""
        with self._lock:
            if self._luck is not None:
                image = self._image or self._after_loss(self._luck)
                self._forget()
                for path in self._root.iterdir():
                    _remove(path)
                _install(self._root, image)
                self._keep_tree(self._root)
            self._syncs_left = self._luck = self._image = None
            self._refused = False

    def lose_power(self, luck: Luck = nothing_survives) -> None:
        """Lose the power now, and start the machine again."""
        self.lose_power_at(0, luck)
        self.restart()

    def _sync(self, file: Any) -> None:
        handle = file if isinstance(file, int) else file.fileno()
        if not Path(f"/proc/self/fd/{handle}").readlink().is_relative_to(self._root):
            return
        with self._lock:
            if self._syncs_left == 0:
                self._refused = True
                if self._luck is not None and self._image is None:
                    self._image = self._after_loss(self._luck)
                raise OSError(errno.EIO, "the power is gone")
            self._keep(handle)
            if self._syncs_left is not None:
                self._syncs_left -= 1

    def _keep(self, handle: int) -> None:
        """Remember a file or folder as it is now."""
        path = Path(f"/proc/self/fd/{handle}").readlink()
        node = self._node(path)
        if not node.folder:
            node.data = _content(node.handle)
            return
        found = {child.name: child for child in path.iterdir()}
        for child in found.values():
            self._node(child)  # so that its number stays its own
        node.names = {name: child.lstat().st_ino for name, child in found.items()}
        self._prune()

    def _keep_tree(self, folder: Path) -> None:
        """Take everything in a folder for synced."""
        for path in folder.iterdir():
            if path.is_dir():
                self._keep_tree(path)
            else:
                with _open_file(path) as handle:
                    self._keep(handle)
        with _open_file(folder) as handle:
            self._keep(handle)

    def _node(self, path: Path) -> _Node:
        number = path.lstat().st_ino
        node = self._nodes.get(number)
        if node is None:
            node = self._nodes[number] = _Node(os.open(path, os.O_RDONLY), path.is_dir())
        return node

    def _prune(self) -> None:
        """Forget what has no name any more, neither now nor on the disk."""
        named = {number for node in self._nodes.values() for number in node.names.values()}
        for number, node in list(self._nodes.items()):
            if number not in named and os.fstat(node.handle).st_nlink == 0:
                os.close(self._nodes.pop(number).handle)

    def _forget(self) -> None:
        for node in self._nodes.values():
            os.close(node.handle)
        self._nodes.clear()

    def _after_loss(self, luck: Luck) -> _Image:
        return self._folder_after_loss(self._nodes[self._root.stat().st_ino], self._root, luck)

    def _folder_after_loss(self, node: _Node | None, folder: Path | None, luck: Luck) -> _Image:
        """Return what is left of a folder, which is None when it is removed but on the disk."""
        synced = node.names if node else {}
        now = {path.name: path for path in folder.iterdir()} if folder else {}
        names: dict[str, _Image] = {}
        for name in sorted(synced.keys() | now.keys()):
            path = now.get(name)
            number = path.lstat().st_ino if path else None
            if number != synced.get(name) and luck() < 0.5:
                number, path = synced.get(name), None
            if number is not None:
                names[name] = self._left_of(number, path, luck)
        return _Image(names=names)

    def _left_of(self, number: int, path: Path | None, luck: Luck) -> _Image:
        """Return what is left of the file or folder with a number; its path is None when its name is gone."""
        node = self._nodes.get(number)
        if node.folder if node else path is not None and path.is_dir():
            return self._folder_after_loss(node, path, luck)
        synced = node.data if node else b""
        current = path.read_bytes() if path else _content(node.handle) if node else b""
        if current == synced:
            return _Image(synced)
        kept = luck()
        if current.startswith(synced):  # appended to: any beginning may be there
            return _Image(current[: len(synced) + int(kept * (len(current) - len(synced)))])
        return _Image(synced if kept < 0.5 else current)


def _content(handle: int) -> bytes:
    return os.pread(handle, os.fstat(handle).st_size, 0)


@contextmanager
def _open_file(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if stat.S_ISDIR(path.lstat().st_mode):
        shutil.rmtree(path)
    else:
        path.unlink()


def _install(folder: Path, image: _Image) -> None:
    for name, child in (image.names or {}).items():
        path = folder / name
        if child.names is None:
            path.write_bytes(child.data)
        else:
            path.mkdir()
            _install(path, child)
