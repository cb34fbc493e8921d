"""Rows with checksums, as TiDB writes them where it is asked to; Penstock only reads them."""

import zlib
from collections.abc import Mapping

from penstock.tables.codec.rows import CHECKSUM_OF_HANDLE, FLAG_CHECKSUM, encode

__all__ = ["encode_with_checksum"]

_FLAGS = 1  # the second byte of a row


def encode_with_checksum(cells: Mapping[int, bytes | None], handle: bytes) -> bytes:
    """Encode as a version 2 row that ends in a checksum over the row and its encoded handle."""
    body = bytearray(encode(cells))
    body[_FLAGS] |= FLAG_CHECKSUM
    body.append(CHECKSUM_OF_HANDLE)
    return bytes(body) + zlib.crc32(handle, zlib.crc32(body)).to_bytes(4, "little")
