"""Payloads of text, compressed so that one after the other they are one file."""

import gzip
from collections.abc import Callable

import pyarrow as pa

from penstock.changefeeds.codecs.options import Compression

_ZSTD_LEVEL = 3
_GZIP_LEVEL = 6

_COMPRESS: dict[Compression, Callable[[bytes], bytes]] = {
    "none": lambda payload: payload,
    "gzip": lambda payload: gzip.compress(payload, _GZIP_LEVEL, mtime=0),
    "zstd": lambda payload: pa.Codec("zstd", _ZSTD_LEVEL).compress(payload, asbytes=True),
}

SUFFIXES: dict[Compression, str] = {"none": "", "gzip": ".gz", "zstd": ".zst"}


def compressed(payload: bytes, compression: Compression) -> bytes:
    """A gzip member or a zstd frame of its own; the same payload gives the same bytes."""
    return _COMPRESS[compression](payload) if payload else payload
