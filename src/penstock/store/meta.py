"""The keys of the metadata column family."""

import struct

__all__ = [
    "CLUSTER_ID",
    "ETCD",
    "ETCD_REVISION",
    "EXTERNAL_TS",
    "GC",
    "IDS",
    "REGION",
    "STORE",
    "TSO",
    "after",
    "pack",
    "region_key",
    "store_key",
    "unpack",
]

CLUSTER_ID = b"cluster_id"
EXTERNAL_TS = b"external_ts"
IDS = b"ids"
TSO = b"tso"
GC = b"gc"
REGION = b"region/"
STORE = b"store/"
ETCD = b"etcd/"
ETCD_REVISION = b"etcd_revision"

_U64 = struct.Struct(">Q")


def region_key(region_id: int) -> bytes:
    return REGION + _U64.pack(region_id)


def store_key(store_id: int) -> bytes:
    return STORE + _U64.pack(store_id)


def after(prefix: bytes) -> bytes:
    """Return the first key after every key with `prefix`."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def pack(number: int) -> bytes:
    return _U64.pack(number)


def unpack(stored: bytes | None) -> int:
    """Return a stored number, 0 when nothing is stored."""
    return 0 if stored is None else int(_U64.unpack(stored)[0])
