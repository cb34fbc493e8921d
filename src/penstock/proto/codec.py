"""Memcomparable bytes: an encoding whose order is the order of what it encodes.

Groups of 8 bytes, zero-padded, each followed by a marker 0xFF - padding; the last group always
has padding, so that no encoding is a prefix of another.
"""

from penstock.errors import Invalid

_GROUP = 8
_MARKER_FULL = 0xFF
_PADS = tuple(bytes(n) + bytes([_MARKER_FULL - n]) for n in range(_GROUP + 1))


def encode_bytes(raw: bytes) -> bytes:
    """Encode so that encodings compare as the raw bytes do."""
    full, rest = divmod(len(raw), _GROUP)
    groups = [raw[i * _GROUP : (i + 1) * _GROUP] + b"\xff" for i in range(full)]
    groups.append(raw[full * _GROUP :] + _PADS[_GROUP - rest])
    return b"".join(groups)


def decode_bytes(encoded: bytes) -> bytes:
    """Decode one encoded value that fills the whole of `encoded`."""
    raw, end = decode_prefix(encoded)
    if end != len(encoded):
        raise Invalid(f"memcomparable bytes end at {end} of {len(encoded)}; this is no encoded key")
    return raw


def decode_prefix(encoded: bytes, start: int = 0) -> tuple[bytes, int]:
    """Decode one encoded value at `start`; return it and where it ends."""
    groups = []
    at = start
    while at + _GROUP < len(encoded):
        marker = encoded[at + _GROUP]
        if marker == _MARKER_FULL:
            groups.append(encoded[at : at + _GROUP])
            at += _GROUP + 1
            continue
        padding = _MARKER_FULL - marker
        if padding > _GROUP or encoded[at + _GROUP - padding : at + _GROUP + 1] != _PADS[padding]:
            break
        groups.append(encoded[at : at + _GROUP - padding])
        return b"".join(groups), at + _GROUP + 1
    raise Invalid(f"memcomparable bytes are cut short or wrong at offset {at}; this is no encoded key")
