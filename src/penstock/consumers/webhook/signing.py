"""Who sent a request: a signature over its time, its headers that count, and its body. Pure.

    Penstock-Signature: t=1780000000,v1=<hex of HMAC-SHA256>

What is signed: the time, then the values of the headers of SIGNED (empty where one is missing), each with a
line break behind it, then the body.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping

HEADER = "Penstock-Signature"
SIGNED = (
    *("Idempotency-Key", "Penstock-Job", "Penstock-Source", "Penstock-Kind", "Penstock-From-Ts"),
    *("Penstock-To-Ts", "Penstock-Sequence", "Penstock-Last", "Content-Type"),
)

_FORM = re.compile(r"t=(\d{1,20}),v1=([0-9a-f]{64})")


def signature(secret: str, headers: Mapping[str, str], body: bytes, *, at_s: int) -> str:
    """The value of the header."""
    return f"t={at_s},v1={_digest(secret, headers, body, str(at_s))}"


def is_signed(
    secret: str, headers: Mapping[str, str], body: bytes, *, now_s: float, tolerance_s: float = 300
) -> bool:
    """Whether a request was signed with this secret, and not long ago; for those who receive it."""
    found = _FORM.fullmatch(headers.get(HEADER, ""))
    if found is None or abs(now_s - int(found[1])) > tolerance_s:
        return False
    return hmac.compare_digest(found[2], _digest(secret, headers, body, found[1]))


def _digest(secret: str, headers: Mapping[str, str], body: bytes, at: str) -> str:
    head = "".join(f"{value}\n" for value in (at, *(headers.get(name, "") for name in SIGNED)))
    return hmac.new(secret.encode(), head.encode() + body, hashlib.sha256).hexdigest()
