"""The layouts of a stored row: version 2 for writing and reading, version 1 for reading.

Version 2: 0x80, flags, counts, the ids of the columns that have a value and of those that are NULL (each
ascending), the end offsets of the values, the values, and maybe a checksum. A *cell* is the bytes of one
value; the type of the column says what they mean.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import Corrupt
from penstock.tables.codec import datums
from penstock.tables.codec.datums import Datum, DatumKind
from penstock.tables.codec.ordered import encode_float

VERSION_2 = 0x80
FLAG_LARGE = 1
FLAG_CHECKSUM = 2
# The version that TiDB writes today. Version 1 covered the whole key, version 0 the columns' own form.
CHECKSUM_OF_HANDLE = 2
_CHECKSUM_VERSION_MASK = 0b0111
_CHECKSUM_EXTRA = 0b1000
_CHECKSUM_VERSION_MAX = 2
_HEAD = struct.Struct("<BBHH")
_U32 = struct.Struct("<I")
_SMALL_ID_MAX = 0xFF
_SMALL_DATA_MAX = 0xFFFF
_EMPTY_V1 = b"\x00"


@dataclass(frozen=True, slots=True)
class Checksum:
    """What follows the data of a row: a version and one or two CRC-32."""

    version: int
    crc: int
    extra: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one row by column id; None is NULL, a missing id was never written."""

    cells: dict[int, bytes | None]
    checksum: Checksum | None = None


def encode(cells: Mapping[int, bytes | None]) -> bytes:
    """Encode cells by column id as a version 2 row."""
    filled = sorted((column, cell) for column, cell in cells.items() if cell is not None)
    empty = sorted(column for column, cell in cells.items() if cell is None)
    data = b"".join(cell for _, cell in filled)
    ends, end = [], 0
    for _, cell in filled:
        end += len(cell)
        ends.append(end)
    ids = [column for column, _ in filled] + empty
    large = len(data) > _SMALL_DATA_MAX or any(column > _SMALL_ID_MAX for column in ids)
    layout = f"<{len(ids)}I{len(ends)}I" if large else f"<{len(ids)}B{len(ends)}H"
    head = _HEAD.pack(VERSION_2, FLAG_LARGE if large else 0, len(filled), len(empty))
    return head + struct.pack(layout, *ids, *ends) + data


def decode(encoded: bytes) -> Row:
    """Decode a row of either version; raise Corrupt when it is damaged."""
    if not encoded or encoded[0] != VERSION_2:
        return Row({column: cell_of(datum) for column, datum in decode_v1(encoded).items()})
    try:
        _, flags, filled, empty = _HEAD.unpack_from(encoded)
        count = filled + empty
        layout = f"<{count}I{filled}I" if flags & FLAG_LARGE else f"<{count}B{filled}H"
        numbers = struct.unpack_from(layout, encoded, _HEAD.size)
    except struct.error as error:
        raise Corrupt("a row is cut short in its head; keep it for inspection") from error
    start = _HEAD.size + struct.calcsize(layout)
    ends = numbers[count:]
    if any(after < before for before, after in zip((0, *ends), ends, strict=False)):
        raise Corrupt("the offsets of a row go backwards; keep it for inspection")
    data_end = start + (ends[-1] if ends else 0)
    if data_end > len(encoded):
        raise Corrupt("a row is shorter than its offsets say; keep it for inspection")
    cells: dict[int, bytes | None] = {}
    before = start
    for column, end in zip(numbers[:filled], ends, strict=True):
        cells[column] = encoded[before : start + end]
        before = start + end
    cells.update(dict.fromkeys(numbers[filled:count]))
    return Row(cells, _checksum(encoded, data_end) if flags & FLAG_CHECKSUM else None)


def _checksum(encoded: bytes, at: int) -> Checksum:
    try:
        header = encoded[at]
        crc = _U32.unpack_from(encoded, at + 1)[0]
        extra = _U32.unpack_from(encoded, at + 5)[0] if header & _CHECKSUM_EXTRA else None
    except (IndexError, struct.error) as error:
        raise Corrupt("the checksum of a row is cut short; keep the row for inspection") from error
    if header & _CHECKSUM_VERSION_MASK > _CHECKSUM_VERSION_MAX:
        raise Corrupt(f"checksum version {header & _CHECKSUM_VERSION_MASK} of a row is unknown; keep the row")
    return Checksum(header & _CHECKSUM_VERSION_MASK, crc, extra)


def verify(encoded: bytes, key: bytes, handle: bytes) -> bool:
    """Return whether the row's checksum is right. Rows without one, or with a column checksum, pass."""
    checksum = decode(encoded).checksum
    if checksum is None or checksum.version == 0:
        return True
    covered = encoded[: len(encoded) - (8 if checksum.extra is not None else 4)]
    salt = handle if checksum.version == CHECKSUM_OF_HANDLE else key
    return zlib.crc32(salt, zlib.crc32(covered)) == checksum.crc


def decode_v1(encoded: bytes) -> dict[int, Datum]:
    """Decode an old row: column id and value in turn, each a datum."""
    if encoded in {b"", _EMPTY_V1}:
        return {}
    flat = datums.decode_all(encoded)
    if len(flat) % 2 or any(datum.kind is not DatumKind.INT for datum in flat[::2]):
        raise Corrupt("an old row is not column ids and values in turn; keep it for inspection")
    return {int(column.value or 0): value for column, value in zip(flat[::2], flat[1::2], strict=True)}


def upgrade(encoded: bytes) -> bytes:
    """Rewrite an old row as version 2; the column types are not needed."""
    return encode({column: cell_of(datum) for column, datum in decode_v1(encoded).items()})


def cell_of(datum: Datum) -> bytes | None:
    """Return the cell that version 2 stores for a datum."""
    kind, value = datum
    if value is None:
        return None
    if isinstance(value, bytes):
        return value
    if kind is DatumKind.UINT and isinstance(value, int):
        return uint_cell(value)
    return encode_float(value) if isinstance(value, float) else int_cell(value)


def int_cell(value: int) -> bytes:
    """Return a signed integer in the fewest of 1, 2, 4 or 8 bytes."""
    folded = value if value >= 0 else ~value
    size = 1 if folded < 1 << 7 else 2 if folded < 1 << 15 else 4 if folded < 1 << 31 else 8
    return value.to_bytes(size, "little", signed=True)


def uint_cell(value: int) -> bytes:
    """Return an unsigned integer in the fewest of 1, 2, 4 or 8 bytes."""
    size = 1 if value < 1 << 8 else 2 if value < 1 << 16 else 4 if value < 1 << 32 else 8
    return value.to_bytes(size, "little")


def cell_int(cell: bytes) -> int:
    """Read back what `int_cell` wrote."""
    return int.from_bytes(_check_size(cell), "little", signed=True)


def cell_uint(cell: bytes) -> int:
    """Read back what `uint_cell` wrote."""
    return int.from_bytes(_check_size(cell), "little")


def _check_size(cell: bytes) -> bytes:
    if len(cell) not in {1, 2, 4, 8}:
        raise Corrupt(f"an integer of a row takes {len(cell)} bytes; keep the row for inspection")
    return cell
