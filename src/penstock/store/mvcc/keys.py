r"""Keys of the column families.

Locks are kept under the raw key. Versions and long values are kept under the escaped key followed
by the inverted timestamp, so that the versions of a key are neighbours, newest first, and keys keep
their order. Escaping (`\0` becomes `\0\xff`, and `\0\0` ends the key) is one call of the interpreter
either way, where the memcomparable groups of the wire would need a loop for each row of a scan.
"""

import struct

from penstock.clock import TS_MAX
from penstock.store.bounds import KeyBounds

_TS = struct.Struct(">Q")
ZERO, ESCAPED, END = b"\0", b"\0\xff", b"\0\0"
TS_BYTES = _TS.size
TAIL_BYTES = len(END) + TS_BYTES


def escape(key: bytes) -> bytes:
    """Return the prefix shared by the versions of `key`."""
    return key.replace(ZERO, ESCAPED) + END


def unescape(versioned: bytes) -> bytes:
    """Return the raw key of a versioned one."""
    return versioned[:-TAIL_BYTES].replace(ESCAPED, ZERO)


def suffix(ts: int) -> bytes:
    """Return the end of a versioned key; a later timestamp gives a smaller suffix."""
    return _TS.pack(TS_MAX - ts)


def versioned(key: bytes, ts: int) -> bytes:
    """Return where the version of `key` at `ts` is kept."""
    return escape(key) + _TS.pack(TS_MAX - ts)


def ts_of(versioned: bytes) -> int:
    """Return the timestamp of a versioned key."""
    inverted: int = _TS.unpack_from(versioned, len(versioned) - TS_BYTES)[0]
    return TS_MAX - inverted


def span(bounds: KeyBounds) -> tuple[bytes, bytes]:
    """Return the range of versioned keys that holds the raw keys of `bounds`."""
    return escape(bounds.start) if bounds.start else b"", escape(bounds.end) if bounds.end else b""
