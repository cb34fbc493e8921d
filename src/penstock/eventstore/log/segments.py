"""Files of the log: one is written at a time, any may be read again."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa

from penstock.durable_files import sync_data, sync_folder
from penstock.errors import Corrupt
from penstock.eventstore import paths
from penstock.eventstore.log import frames
from penstock.eventstore.log.frames import Frame, FrameKind

_log = logging.getLogger(__name__)

_VECTORS = 512  # buffers of one writev call; the kernel takes 1024

Sync = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class LogLocation:
    """Where a frame is, for reading it again."""

    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class Record:
    """A frame to be written."""

    kind: FrameKind
    table_id: int
    payload: pa.Buffer | bytes
    payload_sum: int


class SegmentFile:
    """The segment that is being written. Every group is on the disk when `write` returns."""

    def __init__(self, folder: Path, number: int, sync: Sync) -> None:
        self.number = number
        self._sync = sync
        self._file: IO[bytes] = paths.wal_segment(folder, number).open("xb", buffering=0)
        try:
            self._file.write(frames.segment_header(number))  # it is synced with the first group
            sync_folder(folder)
        except OSError:
            self._file.close()
            raise
        self.size = frames.SEGMENT_HEADER_BYTES

    def write(self, records: Sequence[Record], *, group: int) -> list[LogLocation]:
        """Write one group; return where its frames are. Raises OSError, after which nothing is certain."""
        places: list[LogLocation] = []
        vectors: list[pa.Buffer | bytes] = []
        for index, record in enumerate(records):
            length = len(record.payload)
            header = frames.encode_header(
                record.kind, record.table_id, length, record.payload_sum, group=group, first=index == 0
            )
            places.append(LogLocation(self.number, self.size))
            vectors += (header, record.payload, bytes(frames.padding(length)))
            self.size += len(header) + length + frames.padding(length)
        handle = self._file.fileno()
        for start in range(0, len(vectors), _VECTORS):
            _write_all(handle, vectors[start : start + _VECTORS])
        self._sync(handle)
        return places

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_segment(path: Path, number: int, *, last: bool) -> tuple[list[Frame], int] | None:
    """The frames of a segment and its size; None when its creation was cut short, and it is removed.

    The torn end of the last segment is cut off. On return the disk has what is returned: the process that
    wrote it may have been killed before it could sync it. Raises Corrupt for any other damage.
    """
    data = map_file(path)
    if not frames.has_segment_header(data, number):
        if not last:
            raise Corrupt(f"log segment {path} has no header; keep it for inspection")
        _log.warning("log segment without a header removed", extra={"path": str(path)})
        path.unlink()
        sync_folder(path.parent)  # else it may come back beside the next segment, and is not the last then
        return None
    scan = frames.scan_segment(data)
    torn = scan.end < data.size
    if torn and (scan.damaged or not last):
        raise Corrupt(f"log segment {path} is damaged at offset {scan.end}; keep it for inspection")
    with path.open("rb+") as file:
        if torn:
            file.truncate(scan.end)
        sync_data(file.fileno())
    if torn:
        _log.warning(
            "torn end of the log cut off",
            extra={"path": str(path), "offset": scan.end, "bytes": data.size - scan.end},
        )
    return scan.frames, scan.end


def map_file(path: Path) -> pa.Buffer:
    """A file's bytes as they are now; they stay readable when the file is removed."""
    if path.stat().st_size == 0:
        return pa.py_buffer(b"")
    with pa.memory_map(str(path), "r") as file:
        return file.read_buffer()


def _write_all(handle: int, vectors: list[pa.Buffer | bytes]) -> None:
    written = os.writev(handle, vectors)
    if written < sum(len(vector) for vector in vectors):  # a short write: go on with what is left
        rest = b"".join(bytes(vector) for vector in vectors)[written:]
        while rest:
            rest = rest[os.write(handle, rest) :]
