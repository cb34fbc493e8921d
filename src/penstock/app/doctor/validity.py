"""When a certificate is valid, from its bytes alone. Pure.

X.509 is DER: each value is a tag, a length, and its content. The dates are the fifth field of the first field
of a certificate (the fourth, where the version is left out).
"""

import ssl
from datetime import UTC, datetime

__all__ = ["periods"]

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION, _SEQUENCE, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x30, 0x17, 0x18
_FIELDS_BEFORE = 3  # serial number, algorithm, issuer

Period = tuple[datetime, datetime]


def periods(pem: str) -> list[Period]:
    """From when to when each certificate of a PEM file is valid; ValueError when there is none."""
    found = [f"{_BEGIN}{part.split(_END)[0]}{_END}\n" for part in pem.split(_BEGIN)[1:]]
    if not found:
        raise ValueError("it has no certificate")
    return [_period(ssl.PEM_cert_to_DER_cert(each)) for each in found]


def _period(certificate: bytes) -> Period:
    _, whole, _ = _value(certificate, 0)
    _, signed, _ = _value(whole, 0)
    tag, _, after_version = _value(signed, 0)
    at = after_version if tag == _VERSION else 0
    for _ in range(_FIELDS_BEFORE):
        _, _, at = _value(signed, at)
    tag, dates, _ = _value(signed, at)
    if tag != _SEQUENCE:
        raise ValueError("it is no certificate")
    tag, begin, at = _value(dates, 0)
    end_tag, end, _ = _value(dates, at)
    return _moment(tag, begin), _moment(end_tag, end)


def _value(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Tag and content of the value at a place, and the place behind it."""
    if at + 2 > len(data):
        raise ValueError("it is cut off")
    tag, length = data[at], data[at + 1]
    start = at + 2
    if length & 0x80:
        count = length & 0x7F
        length = int.from_bytes(data[start : start + count])
        start += count
    end = start + length
    if end > len(data):
        raise ValueError("it is cut off")
    return tag, data[start:end], end


def _moment(tag: int, text: bytes) -> datetime:
    shown = text.decode("ascii")
    if tag == _UTC_TIME:  # two digits of the year: up to 49 they are of this century
        shown = ("20" if int(shown[:2]) < 50 else "19") + shown
    elif tag != _GENERALIZED_TIME:
        raise ValueError("its dates are of no known kind")
    return datetime.strptime(shown, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
