"""JSON byte for byte as Go's encoder writes it, which checksums of schema files depend on. Pure."""

import json
import re
from typing import Any

# Go escapes these within strings, so that JSON can be put into HTML and JavaScript. Outside of strings they
# do not occur. A lone surrogate stands for a byte that is no UTF-8, and Go writes U+FFFD for it.
_ESCAPED = re.compile("[<>&\u2028\u2029]|[\ud800-\udfff]")


def dumps(tree: Any) -> bytes:
    """The tree with an indent of four spaces; members stay in their order."""
    text = json.dumps(tree, indent=4, ensure_ascii=False)
    return _ESCAPED.sub(_escape, text).encode()


def text_of(raw: bytes) -> str:
    """Bytes as a Go string, which need not be UTF-8."""
    return raw.decode("utf-8", "surrogateescape")


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return "\\ufffd" if 0xD800 <= code <= 0xDFFF else f"\\u{code:04x}"
