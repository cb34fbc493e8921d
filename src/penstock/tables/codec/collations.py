"""The bytes of a string in keys, and whether the row must keep what the key loses.

A collation in the order of bytes needs no table. The others replace each character by its weights, which
come from the tables in `weights/`; `tools/derive_collations.py` makes those tables and says from what.
Keys follow TiDB's new collation framework, its default since version 6.0.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.resources import files

from penstock.errors import Invalid
from penstock.tables.columns import FieldType, Tp

# Collations that ignore trailing spaces.
_PADDED = frozenset({"ascii_bin", "latin1_bin", "utf8_bin", "utf8mb4_bin"})
_EXACT = frozenset({"", "binary", "utf8mb4_0900_bin"})

_BMP_MAX = 0xFFFF
_REPLACEMENT = "\ufffd"
_UNKNOWN_IN_GBK = b"?"
_EURO, _PRIVATE = 0x20AC, range(0xE000, 0xF900)  # gb18030 has them, GBK does not
_HANGUL = range(0xAC00, 0xD7B0)
_JAMO_LEADING, _JAMO_VOWEL, _JAMO_TRAILING = 0x1100, 0x1161, 0x11A7
_VOWELS, _TRAILINGS = 21, 28


def sort_key(kind: FieldType, raw: bytes) -> bytes:
    """Return the bytes of a string in a key; raise Invalid for a collation that cannot be written."""
    if kind.collate in _PADDED:
        return raw.rstrip(b" ")
    if kind.collate in _EXACT:
        return raw
    weigh = _WEIGHED.get(kind.collate)
    if weigh is None:
        raise Invalid(
            f"collation {kind.collate} cannot be written in keys; use utf8mb4_bin, utf8mb4_general_ci, "
            "utf8mb4_unicode_ci, utf8mb4_0900_ai_ci, gbk_bin, gbk_chinese_ci or binary for indexed columns"
        )
    try:
        return weigh(raw.decode())
    except UnicodeDecodeError as error:
        raise Invalid("a text of an indexed column is not UTF-8, so it has no key; write it anew") from error


def pads(kind: FieldType) -> bool:
    """Return whether a key loses only the number of trailing spaces."""
    return kind.collate in _PADDED


def needs_restored(kind: FieldType) -> bool:
    """Return whether the string cannot be read back from a key."""
    if not kind.is_string or kind.collate in _EXACT:
        return False
    return kind.collate not in _PADDED or kind.tp in {Tp.VARCHAR, Tp.VAR_STRING}


def truncate(kind: FieldType, raw: bytes, length: int) -> bytes:
    """Return the first `length` characters of a string, the part that a prefix index has; -1 means all."""
    if length < 0 or len(raw) <= length:
        return raw
    if kind.charset in {"binary", "ascii", ""}:
        return raw[:length]
    return raw.decode(errors="surrogateescape")[:length].encode(errors="surrogateescape")


class _Weights(dict[int, str]):
    """Maps a character to its weights, each a 16-bit unit in a str; computes what the table does not have."""

    def __init__(self, name: str, implicit: Callable[["_Weights", int], str]) -> None:
        super().__init__(_read_runs(name))
        self._implicit = implicit

    def __missing__(self, character: int) -> str:
        weights = self._implicit(self, character)
        self[character] = weights
        return weights


def _read_runs(name: str) -> Iterator[tuple[int, str]]:
    """Yield characters and weights. A line has a range, its weights, and `+` if they grow by one each."""
    for line in _read_lines(name):
        where, *numbers = line.split(" ")
        first, _, last = where.partition("-")
        grows = line.endswith("+")
        weights = [int(number.rstrip("+"), 16) for number in numbers]
        low = int(first, 16)
        for character in range(low, int(last or first, 16) + 1):
            yield character, "".join(chr(weight + grows * (character - low)) for weight in weights)


def _read_lines(name: str) -> Iterator[str]:
    text = (files(__package__) / "weights" / f"{name}.txt").read_text(encoding="utf-8")
    return (line for line in text.split("\n") if line and not line.startswith("#"))


@cache
def _weights(name: str) -> _Weights:
    return _Weights(name, {"general_ci": _itself, "uca_4.0.0": _uca_4, "uca_9.0.0": _uca_9}[name])


def _itself(_: _Weights, character: int) -> str:
    return chr(character) if character <= _BMP_MAX else _REPLACEMENT


def _uca_4(_: _Weights, character: int) -> str:
    if character > _BMP_MAX:
        return _REPLACEMENT
    if 0x3400 <= character <= 0x4DB5:
        return _derive(0xFB80, character)
    han = 0x4E00 <= character <= 0x9FA5 or character in {0xFA0E, 0xFA0F}
    return _derive(0xFB40 if han else 0xFBC0, character)


def _uca_9(weights: _Weights, character: int) -> str:
    if character in _HANGUL:
        return "".join(weights[jamo][:1] for jamo in _jamos(character))
    if 0x17000 <= character <= 0x18AFF:  # Tangut
        return chr(0xFB00) + chr(character - 0x17000 | 0x8000)
    if 0x4E00 <= character <= 0x9FD5 or 0xFA0E <= character <= 0xFA29:
        return _derive(0xFB40, character)
    extension = (
        0x3400 <= character <= 0x4DB5
        or 0x20000 <= character <= 0x2A6D6
        or 0x2A700 <= character <= 0x2B734
        or 0x2B740 <= character <= 0x2B81D
        or 0x2B820 <= character <= 0x2CEA1
    )
    return _derive(0xFB80 if extension else 0xFBC0, character)


def _derive(base: int, character: int) -> str:
    """Return the two weights that UCA derives for a character without an entry."""
    return chr(base + (character >> 15)) + chr(character & 0x7FFF | 0x8000)


def _jamos(syllable: int) -> list[int]:
    at = syllable - _HANGUL.start
    leading, rest = divmod(at, _VOWELS * _TRAILINGS)
    vowel, trailing = divmod(rest, _TRAILINGS)
    jamos = [_JAMO_LEADING + leading, _JAMO_VOWEL + vowel]
    return [*jamos, _JAMO_TRAILING + trailing] if trailing else jamos


def _weigh(name: str, text: str) -> bytes:
    # A weight may have the number of a surrogate.
    return text.translate(_weights(name)).encode("utf-16-be", "surrogatepass")


def _weigh_padded(name: str, text: str) -> bytes:
    return _weigh(name, text.rstrip(" "))


def _gbk_bytes(text: str) -> bytes:
    return b"".join(map(_gbk_character, text.rstrip(" ")))


def _gbk_character(character: str) -> bytes:
    # Characters that GBK got later are not in Python's gbk; gb18030 has them with the same two bytes.
    if ord(character) == _EURO or ord(character) in _PRIVATE:
        return _UNKNOWN_IN_GBK
    encoded = character.encode("gb18030")
    return encoded if len(encoded) <= 2 else _UNKNOWN_IN_GBK


def _gbk_weights(text: str) -> bytes:
    weights = _gbk_order()
    return b"".join(weights.get(character, _UNKNOWN_IN_GBK) for character in text.rstrip(" "))


@cache
def _gbk_order() -> dict[str, bytes]:
    """Return the weight of each character. A line has a weight, and the characters from that weight on."""
    weights: dict[str, bytes] = {}
    for line in _read_lines("gbk_chinese_ci"):
        first, _, characters = line.partition(" ")
        for nth, character in enumerate(characters):
            weights[character] = (int(first, 16) + nth).to_bytes(len(first) // 2, "big")
    return {chr(code): bytes((code,)) for code in range(128)} | weights


_WEIGHED: dict[str, Callable[[str], bytes]] = {
    **dict.fromkeys(("utf8_general_ci", "utf8mb4_general_ci"), partial(_weigh_padded, "general_ci")),
    **dict.fromkeys(("utf8_unicode_ci", "utf8mb4_unicode_ci"), partial(_weigh_padded, "uca_4.0.0")),
    "utf8mb4_0900_ai_ci": partial(_weigh, "uca_9.0.0"),
    "gbk_bin": _gbk_bytes,
    "gbk_chinese_ci": _gbk_weights,
}
