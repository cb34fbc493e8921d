"""Frames of the write-ahead log, as bytes. No files, no threads.

A segment is a header and then frames, each padded to 8 bytes. Frames are written in *groups*: one group is
forced to the disk before the first byte of the next is written. So a frame that cannot be read is the torn
end of the last group, unless a readable frame of a later group follows it; then it was acknowledged and is
damaged.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pyarrow as pa

from penstock.errors import Corrupt
from penstock.tables.raw import RAW_SCHEMA

_SEGMENT = struct.Struct("<8sQ")
_SEGMENT_MAGIC = b"PENSWAL1"
SEGMENT_HEADER_BYTES = _SEGMENT.size

# payload length, checksum, magic, kind, first of its group, group, table id
_FRAME = struct.Struct("<IIHBBIQ")
_SUMMED_FROM = 8  # the checksum covers the payload, then the header from here
_FRAME_MAGIC = 0x9E57
_ALIGN = 8
_MARK_BYTES = 16
FRAME_HEADER_BYTES = _FRAME.size


class FrameKind(IntEnum):
    """What a frame records."""

    ROWS = 1  # a raw batch of one table: an Arrow IPC record batch message without its schema
    RESOLVED = 2  # resolved timestamps of many tables: pairs of u64
    FORGET = 3  # all earlier frames of the table are void
    CUT = 4  # timestamps up to which changes of tables may be missing: pairs of u64


_KINDS = frozenset(FrameKind)


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame that was read whole."""

    kind: FrameKind
    table_id: int
    group: int
    first: bool
    offset: int
    end: int
    payload: pa.Buffer


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """The frames of a segment, where they end, and whether acknowledged frames lie beyond that."""

    frames: list[Frame]
    end: int
    damaged: bool


def segment_header(number: int) -> bytes:
    """Return the first bytes of a segment."""
    return _SEGMENT.pack(_SEGMENT_MAGIC, number)


def has_segment_header(data: pa.Buffer, number: int) -> bool:
    """Return whether a segment begins with its header."""
    return _first_bytes(data) == segment_header(number)


def is_unfinished(data: pa.Buffer, number: int) -> bool:
    """Return whether the creation of a segment without its header was cut short, so that it never counted.

    Then the disk has a part of the header or nothing, and no frame of a second group. Anything else is
    damage to frames that may have been acknowledged.
    """
    found = _first_bytes(data)
    partial = segment_header(number).startswith(found.rstrip(b"\0"))
    return partial and not _later_group_follows(data, SEGMENT_HEADER_BYTES - _ALIGN, [])


def _first_bytes(data: pa.Buffer) -> bytes:
    found: bytes = data.slice(0, min(SEGMENT_HEADER_BYTES, data.size)).to_pybytes()
    return found


def padding(length: int) -> int:
    """Return the number of bytes that pad a payload of some length."""
    return -length % _ALIGN


def encode_header(
    kind: FrameKind, table_id: int, length: int, payload_sum: int, *, group: int, first: bool
) -> bytes:
    """Return the header of a frame whose payload has the given length and `zlib.crc32`."""
    wrapped = group & 0xFFFFFFFF
    header = _FRAME.pack(length, 0, _FRAME_MAGIC, kind, first, wrapped, table_id)
    summed = zlib.crc32(header[_SUMMED_FROM:], payload_sum)
    return _FRAME.pack(length, summed, _FRAME_MAGIC, kind, first, wrapped, table_id)


def read_frame(data: pa.Buffer, offset: int) -> Frame | None:
    """Read the frame at an offset; return None when no whole frame with the right checksum is there.

    Raises Corrupt for a sound frame of a kind that this version does not know.
    """
    start = offset + FRAME_HEADER_BYTES
    if start > data.size:
        return None
    header = data.slice(offset, FRAME_HEADER_BYTES).to_pybytes()
    length, summed, magic, kind, first, group, table_id = _FRAME.unpack(header)
    if magic != _FRAME_MAGIC or start + length > data.size:
        return None
    payload = data.slice(start, length)
    if zlib.crc32(header[_SUMMED_FROM:], zlib.crc32(payload)) != summed:
        return None
    if kind not in _KINDS:
        raise Corrupt(
            f"the frame at offset {offset} has the unknown kind {kind}; upgrade Penstock to read it"
        )
    end = start + length + padding(length)
    return Frame(FrameKind(kind), table_id, group, bool(first), offset, end, payload)


def scan_segment(data: pa.Buffer) -> SegmentScan:
    """Read every frame up to the first one that is not whole."""
    frames: list[Frame] = []
    offset = SEGMENT_HEADER_BYTES
    while offset < data.size:
        frame = read_frame(data, offset)
        if frame is None:
            return SegmentScan(frames, offset, damaged=_later_group_follows(data, offset, frames))
        frames.append(frame)
        offset = frame.end
    return SegmentScan(frames, min(offset, data.size), damaged=False)


def _later_group_follows(data: pa.Buffer, offset: int, before: list[Frame]) -> bool:
    """Return whether a sound frame beyond `offset` belongs to a later group than the unreadable one there."""
    known = before[-1].group if before else None
    for candidate in _candidates(data, offset + _ALIGN):
        frame = read_frame(data, candidate)
        if frame is None:
            continue
        # The unreadable frame is of group `known` or of the one after it. A first frame closes whatever
        # came before it; so does any frame two groups on.
        if frame.first or (known is not None and frame.group > known + 1):
            return True
    return False


def _candidates(data: pa.Buffer, start: int) -> list[int]:
    """Return the aligned offsets from `start` on that have a frame's magic number."""
    count = (data.size - start) // _ALIGN
    if count <= 0:
        return []
    words = np.frombuffer(data, dtype="<u2", count=count * 4, offset=start).reshape(count, 4)
    header_at = np.flatnonzero(words[:, 0] == _FRAME_MAGIC) - 1  # the magic is the header's second word
    return [start + int(index) * _ALIGN for index in header_at if index >= 0]


def encode_rows(batch: pa.RecordBatch) -> pa.Buffer:
    """Return the payload of a ROWS frame."""
    return batch.serialize()


def decode_rows(frame: Frame) -> pa.RecordBatch:
    """Return the raw batch of a ROWS frame, without copying it; raise Corrupt when it has none."""
    try:
        batch = pa.ipc.read_record_batch(frame.payload, RAW_SCHEMA)
        batch.validate(full=True)  # else offsets that lead out of the frame would be followed
        if not batch.num_rows or any(
            column.null_count
            for column, field in zip(batch.columns, RAW_SCHEMA, strict=True)
            if not field.nullable
        ):
            raise pa.ArrowInvalid("no rows, or rows without a key or a time")
    except (pa.ArrowException, EOFError, OSError) as error:
        raise Corrupt(
            f"the log frame at offset {frame.offset} is sound but holds no rows; keep the log for inspection"
        ) from error
    return batch


def encode_marks(marks: Mapping[int, int]) -> bytes:
    """Return the payload of a RESOLVED or CUT frame."""
    return np.array(list(marks.items()), dtype="<u8").tobytes()


def decode_marks(frame: Frame) -> dict[int, int]:
    """Return the timestamps of a RESOLVED or CUT frame, by table; raise Corrupt when it has none."""
    if frame.payload.size % _MARK_BYTES:
        raise Corrupt(
            f"the log frame at offset {frame.offset} is sound but holds no marks; keep the log for inspection"
        )
    pairs = np.frombuffer(frame.payload, dtype="<u8").reshape(-1, 2)
    return dict(pairs.tolist())
