"""Rows in the old format, which is read and never written: column ids and values, one after the other."""

from penstock.tables.codec.datums import Datum, DatumFlag, DatumKind, encode_key
from penstock.tables.codec.ordered import encode_uvarint, encode_varint

__all__ = ["encode_value"]


def encode_value(datum: Datum) -> bytes:
    """Encode for a value, as the old row format does: what has no order to keep is shorter than in a key."""
    kind, value = datum
    if isinstance(value, bytes) and kind is DatumKind.BYTES:
        return bytes((DatumFlag.COMPACT_BYTES,)) + encode_varint(len(value)) + value
    if isinstance(value, int) and kind is DatumKind.INT:
        return bytes((DatumFlag.VARINT,)) + encode_varint(value)
    if isinstance(value, int) and kind is DatumKind.UINT:
        return bytes((DatumFlag.UVARINT,)) + encode_uvarint(value)
    return encode_key(datum)
