"""A place where processes wait in the middle of their work, for tests that kill some of them there."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from penstock.clock import SYSTEM
from penstock.object_storage import ObjectStorage, StorageRef

__all__ = ["Gate", "GatedStorage", "LateStorage"]

_OPEN = "open"
_WAIT_S = 120.0
_LOOK_S = 0.05


@dataclass(frozen=True)
class Gate:
    """Closed until `open` is called. Its folder is all that processes share; can be pickled."""

    folder: Path
    first_only: bool = False
    """Whether everybody but the first passes: the first try of a task is slow, and others are not."""

    def wait(self) -> None:
        """Wait until it is open; raise TimeoutError when that takes minutes."""
        if self.first_only and not self._is_first():
            return
        mark = self.folder / str(os.getpid())
        mark.touch()
        deadline = SYSTEM.monotonic() + _WAIT_S
        while not (self.folder / _OPEN).exists():
            if SYSTEM.monotonic() > deadline:
                mark.unlink()
                raise TimeoutError("nobody opens the gate")
            SYSTEM.pause(_LOOK_S)
        mark.unlink()

    def _is_first(self) -> bool:
        try:
            (self.folder / "first").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def waiting(self) -> list[int]:
        """Ids of the processes that came and did not get through, be it because they were killed."""
        return [int(path.name) for path in self.folder.glob("[0-9]*")]

    def open(self) -> None:
        """Let everybody through from now on, until it is closed again."""
        (self.folder / _OPEN).touch()

    def close(self) -> None:
        """Stop those who come from now on; call it when nobody waits."""
        (self.folder / _OPEN).unlink(missing_ok=True)

    def batches(self, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches, each after a wait: for mapInArrow."""
        for batch in given:
            self.wait()
            yield batch


@dataclass(frozen=True)
class GatedStorage(StorageRef):
    """Storage whose users wait at the gate after they have written an object, or created one."""

    gate: Gate = field(kw_only=True)
    after: str = field(kw_only=True)  # "write" or "create"

    def open(self) -> ObjectStorage:
        """Return the storage, with the gate in it."""
        return _Gated(super().open(), self)


@dataclass(frozen=True)
class LateStorage(StorageRef):
    """Storage that takes `open_s` more to open, and `create_s` more to create paths that contain `part`."""

    open_s: float = field(default=0.0, kw_only=True)
    create_s: float = field(default=0.0, kw_only=True)
    part: str = field(default="", kw_only=True)

    def open(self) -> ObjectStorage:
        """Return the storage, late."""
        SYSTEM.pause(self.open_s)
        return _Late(super().open(), self)


class _Late(ObjectStorage):
    def __init__(self, storage: ObjectStorage, ref: LateStorage) -> None:
        super().__init__(storage.url, storage._store)
        self._ref = ref

    def create(self, path: str, data: bytes) -> bool:
        if self._ref.part in path:
            SYSTEM.pause(self._ref.create_s)
        return super().create(path, data)


class _Gated(ObjectStorage):
    def __init__(self, storage: ObjectStorage, ref: GatedStorage) -> None:
        super().__init__(storage.url, storage._store)
        self._storage = storage
        self._ref = ref

    def write(self, path: str, data: bytes | Path) -> None:
        super().write(path, data)
        self._wait_after("write")

    def create(self, path: str, data: bytes) -> bool:
        made = super().create(path, data)
        self._wait_after("create")
        return made

    def advance(self, path: str, data: bytes, *, is_older: Callable[[bytes], bool]) -> None:
        self._storage.advance(path, data, is_older=is_older)

    def _wait_after(self, how: str) -> None:
        if self._ref.after == how:
            self._ref.gate.wait()
