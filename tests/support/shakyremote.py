"""A remote that is slow, fails, hangs and loses answers, and processes that use it and can be killed."""

import asyncio
import random  # noqa: TID251 - only the type; the simulation's seed decides the numbers
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from obstore.store import MemoryStore

from penstock.changefeeds.sinks.storage.layout import number_digits, parse_file_name
from penstock.changefeeds.sinks.storage.remote_files import is_blank
from penstock.errors import Unavailable
from penstock.object_storage import ObjectStorage, StorageRef, StoredObject
from support.simloop import SimLoop

__all__ = ["Killed", "Process", "Remote", "Shaky", "ShakyRef", "Weather"]

T = TypeVar("T")


class Killed(Exception):
    """The process is gone; nothing that it still tries has an effect."""


class Remote(ObjectStorage):
    """Objects in memory, for ever as they were written; a listing tells in which order they came to be.

    Every path has one writer at a time, so that it is enough to know when it got its content last.
    """

    def __init__(self) -> None:
        super().__init__("memory:///remote", MemoryStore())
        self._objects: dict[str, bytes] = {}
        self._written: dict[str, int] = {}
        self._count = 0

    def read(self, path: str, *, bytes_max: int | None = None) -> bytes | None:
        """Return an object's bytes, or None."""
        found = self._objects.get(path)
        assert found is None or bytes_max is None or len(found) <= bytes_max, f"{path} is not small"
        return found

    def size(self, path: str) -> int | None:
        """Return the size of an object, or None."""
        found = self._objects.get(path)
        return None if found is None else len(found)

    def holds(self, path: str, data: bytes) -> bool:
        """Return whether an object has this very content."""
        return self._objects.get(path) == data

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return a range of an object."""
        return self._objects[path][start:end]

    def open(self, path: str) -> pa.NativeFile:
        """Open an object for reading."""
        if path not in self._objects:
            raise Unavailable(f"object {path} is not there")
        return pa.BufferReader(self._objects[path])

    def create(self, path: str, data: bytes) -> bool:
        """Write an object unless it exists."""
        if path in self._objects:
            return False
        self._check_seen_by_ticdc(path, data)
        self.write(path, data)
        return True

    def _check_seen_by_ticdc(self, path: str, data: bytes) -> None:
        """Check what TiCDC's consumer relies on at every moment: files have rows, and numbers no holes."""
        folder, _, last = path.rpartition("/")
        name = parse_file_name(last)
        if name is not None:
            assert not is_blank(name.extension, pa.BufferReader(data)), f"{path} has no rows"
            before = replace(name, number=name.number - 1).text(number_digits(last))
            assert name.number == 1 or f"{folder}/{before}" in self._objects, f"{path} is after a hole"

    def write(self, path: str, data: bytes | Path) -> None:
        """Write or replace an object; the same content again is no change."""
        assert isinstance(data, bytes), "files are written from memory here"
        if self._objects.get(path) != data:
            self._count += 1
            self._objects[path], self._written[path] = data, self._count

    def swap(self, path: str, data: bytes, *, seen: bytes | None) -> bool:
        """Replace an object unless its content is another than the one that was seen."""
        if self._objects.get(path) != seen:
            return False
        self.write(path, data)
        return True

    def advance(self, path: str, data: bytes, *, is_older: Callable[[bytes], bool]) -> None:
        """Write an object unless its content is newer."""
        if path not in self._objects or is_older(self._objects[path]):
            self.write(path, data)

    def names(self, folder: str, *, after: str = "") -> list[str]:
        """Return the paths of the objects in a folder."""
        inside = f"{folder}/" if folder else ""
        return sorted(path for path in self._objects if path.startswith(inside) and path > after)

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly below a folder."""
        inside = f"{folder.rstrip('/')}/"
        rest = [path.removeprefix(inside) for path in self._objects if path.startswith(inside)]
        return sorted({path.partition("/")[0] for path in rest if "/" in path})

    def list_objects(self, folder: str) -> list[StoredObject]:
        """Return the objects in a folder; `modified_ms` is the number of the write."""
        return [
            StoredObject(path, len(self._objects[path]), self._written[path]) for path in self.names(folder)
        ]

    def delete(self, path: str) -> None:
        """Remove an object."""
        self._objects.pop(path, None)
        self._written.pop(path, None)


@dataclass(slots=True)
class Weather:
    """How bad it is: chances of each call, and how long calls take. `calm` ends it.

    `late`: a write on a condition fails, and arrives nevertheless, up to minutes later.
    """

    mix: random.Random
    fails_before: float = 0.0
    fails_after: float = 0.0
    loses_answer: float = 0.0
    late: float = 0.0
    latency_s: float = 0.01
    outage_until: float = 0.0
    bad: bool = True
    struck: dict[str, int] = field(default_factory=dict)

    def calm(self) -> None:
        """From now on everything works, quickly."""
        self.bad = False
        self.latency_s = 0.01
        self.outage_until = 0.0

    def strikes(self, what: str, chance: float) -> bool:
        """Return whether it happens now."""
        if not self.bad or self.mix.random() >= chance:
            return False
        self.struck[what] = self.struck.get(what, 0) + 1
        return True


class Process:
    """Something that can be killed: by `kill`, or by itself after `fuse` more steps that others could see."""

    def __init__(self, loop: SimLoop, mix: random.Random, fuse: int = 0) -> None:
        self.loop = loop
        self.mix = mix
        self.fuse = fuse
        self.dead = False
        self.died = asyncio.Event()
        self._paused: dict[Hashable, None] = {}  # in the order in which they came

    def step(self) -> None:
        """Something happens that others could see. Raises Killed when the process is gone, or goes now."""
        if not self.dead and self.fuse:
            self.fuse -= 1
            if not self.fuse:
                self.kill()
        if self.dead:
            raise Killed

    def pause(self, seconds: float) -> None:
        """Wait, on a thread; raise Killed when the process is gone meanwhile."""
        worker = self.loop.worker
        if worker is not None and not self.dead:
            self._paused[worker] = None
            self.loop.pause(seconds)
            self._paused.pop(worker, None)
        if self.dead:
            raise Killed

    def kill(self) -> None:
        """End it here and now."""
        self.dead = True
        self.died.set()
        for worker in self._paused:
            self.loop.wake(worker)
        self._paused.clear()


class Shaky(ObjectStorage):
    """A remote as one process sees it.

    What a process that was killed had sent may still arrive: what has a condition up to minutes later, what
    replaces an object whatever it is at once.
    """

    def __init__(self, remote: Remote, weather: Weather, process: Process) -> None:
        super().__init__(remote.url, remote._store)
        self._remote = remote
        self._weather = weather
        self._process = process

    def read(self, path: str, *, bytes_max: int | None = None) -> bytes | None:
        """Return an object's bytes, or None."""
        return self._look(lambda: self._remote.read(path, bytes_max=bytes_max))

    def size(self, path: str) -> int | None:
        """Return the size of an object, or None."""
        return self._look(lambda: self._remote.size(path))

    def holds(self, path: str, data: bytes) -> bool:
        """Return whether an object has this very content."""
        return self._look(lambda: self._remote.holds(path, data))

    def open(self, path: str) -> pa.NativeFile:
        """Open an object for reading."""
        return self._look(lambda: self._remote.open(path))

    def names(self, folder: str, *, after: str = "") -> list[str]:
        """Return the paths of the objects in a folder."""
        return self._look(lambda: self._remote.names(folder, after=after))

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly below a folder."""
        return self._look(lambda: self._remote.folders(folder))

    def create(self, path: str, data: bytes) -> bool:
        """Write an object unless it exists."""
        made = self._change(lambda: self._remote.create(path, data), late=True)
        return made and not self._weather.strikes("answer lost", self._weather.loses_answer)

    def write(self, path: str, data: bytes | Path) -> None:
        """Write or replace an object."""
        self._change(lambda: self._remote.write(path, data), late=False)

    def swap(self, path: str, data: bytes, *, seen: bytes | None) -> bool:
        """Replace an object unless its content is another one when the request arrives."""
        return self._change(lambda: self._remote.swap(path, data, seen=seen), late=True)

    def advance(self, path: str, data: bytes, *, is_older: Callable[[bytes], bool]) -> None:
        """Write an object unless its content is newer when the request arrives."""
        self._change(lambda: self._remote.advance(path, data, is_older=is_older), late=True)

    def _look(self, look: Callable[[], T]) -> T:
        self._travel()
        self._fail("read", self._weather.fails_before / 4)
        return look()

    def _change(self, change: Callable[[], T], *, late: bool) -> T:
        if self._process.dead:
            raise Killed
        try:
            self._travel()
            self._process.step()
        except Killed:
            if self._process.mix.random() < 0.5:
                self._arrive(change, late=late)
            raise
        if late and self._weather.strikes("late", self._weather.late):
            self._arrive(change, late=True)
            raise Unavailable("the request took too long")
        self._fail("before", self._weather.fails_before)
        made = change()
        self._process.step()
        self._travel()
        self._fail("after", self._weather.fails_after)
        return made

    def _arrive(self, change: Callable[[], object], *, late: bool) -> None:
        if late:
            mix = self._process.mix
            self._process.loop.call_later(mix.choice([0.1, 5.0, 200.0]) * mix.random(), change)
        else:
            change()

    def _travel(self) -> None:
        now = self._process.loop.time()
        waits = self._process.mix.random() * self._weather.latency_s
        self._process.pause(max(self._weather.outage_until - now, 0.0) + waits)

    def _fail(self, what: str, chance: float) -> None:
        if self._weather.strikes(what, chance):
            raise Unavailable("the remote does not answer")


@dataclass(frozen=True)
class ShakyRef(StorageRef):
    """A reference to a remote that is there already."""

    storage: ObjectStorage = field(kw_only=True)

    def open(self) -> ObjectStorage:
        """Return the storage itself."""
        return self.storage
