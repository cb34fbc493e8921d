"""Column definitions as people write them: `bigint unsigned not null default 5 comment 'so many'`."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import Invalid
from penstock.tables.fieldtypes import BLOBS, INTEGER_BITS, NO_FLAGS, ColumnFlag, FieldType, Tp
from penstock.tables.values import VECTOR_DIMENSION_MAX

CHARSET, COLLATE = "utf8mb4", "utf8mb4_bin"
_TOKEN = re.compile(r"\s*(?:(?P<quoted>'(?:[^'\\]|\\.|'')*')|(?P<word>[\w.+-]+)|(?P<mark>[(),]))")
_COLLATIONS = {"binary": "binary"} | {name: f"{name}_bin" for name in ("utf8mb4", "utf8", "ascii", "latin1")}
_TEXT_BYTES = {"tiny": 255, "": 65_535, "medium": 16_777_215, "long": 4_294_967_295}
_TEXT_TYPES = {"tiny": Tp.TINY_BLOB, "": Tp.BLOB, "medium": Tp.MEDIUM_BLOB, "long": Tp.LONG_BLOB}
_INT_WIDTHS = {Tp.TINY: (4, 3), Tp.SHORT: (6, 5), Tp.INT24: (9, 8), Tp.LONG: (11, 10), Tp.LONGLONG: (20, 20)}
_INTEGERS = {
    "tinyint": Tp.TINY,
    "smallint": Tp.SHORT,
    "mediumint": Tp.INT24,
    "int": Tp.LONG,
    "integer": Tp.LONG,
    "bigint": Tp.LONGLONG,
    "bool": Tp.TINY,
    "boolean": Tp.TINY,
}
_TIMES = {"datetime": (Tp.DATETIME, 19), "timestamp": (Tp.TIMESTAMP, 19), "time": (Tp.DURATION, 10)}


@dataclass(slots=True)
class Definition:
    """A parsed column definition."""

    type: FieldType
    default: Any = None
    comment: str = ""
    primary: bool = False
    unique: bool = False


def parse_definition(text: str) -> Definition:
    """Parse a column definition; Invalid says what is not understood."""
    tokens = _Tokens(text)
    definition = Definition(_type(tokens))
    while not tokens.done:
        _attribute(tokens, definition)
    kind = definition.type
    if kind.not_null and definition.default is None and not kind.flag & ColumnFlag.AUTO_INCREMENT:
        definition.type = _flagged(kind, ColumnFlag.NO_DEFAULT_VALUE)
    return definition


class _Tokens:
    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens: list[str] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if not found:
                raise Invalid(f"column definition {text!r} is not understood from {text[at:].strip()!r} on")
            self._tokens.append(found[0].strip())
            at = found.end()
        self._tokens.reverse()

    @property
    def done(self) -> bool:
        return not self._tokens

    def peek(self) -> str:
        return self._tokens[-1].lower() if self._tokens else ""

    def next(self) -> str:
        if not self._tokens:
            raise Invalid(f"column definition {self.text!r} ends too early")
        return self._tokens.pop()

    def accept(self, *wanted: str) -> bool:
        if [token.lower() for token in reversed(self._tokens[-len(wanted) :])] != list(wanted):
            return False
        del self._tokens[-len(wanted) :]
        return True

    def arguments(self) -> list[str]:
        found: list[str] = []
        if not self.accept("("):
            return found
        while not self.accept(")"):
            found.append(self.next())
            self.accept(",")
        return found


def _type(tokens: _Tokens) -> FieldType:
    name = tokens.next().lower()
    arguments = tokens.arguments()
    if name in _INTEGERS:
        return FieldType(_INTEGERS[name], ColumnFlag.BINARY, _INT_WIDTHS[_INTEGERS[name]][0], 0)
    if name in _TIMES:
        code, width = _TIMES[name]
        fsp = _number(tokens, arguments, 0, 0, 6)
        return FieldType(code, ColumnFlag.BINARY, width + (fsp and fsp + 1), fsp)
    text = re.fullmatch(r"(tiny|medium|long|)(text|blob)", name)
    if text:
        charset = ("binary", "binary") if text[2] == "blob" else (CHARSET, COLLATE)
        return FieldType(_TEXT_TYPES[text[1]], NO_FLAGS, _TEXT_BYTES[text[1]], 0, *charset)
    if name not in _TYPES:
        raise Invalid(f"column type {name!r} in {tokens.text!r} is unknown; use a MySQL type such as bigint")
    return _TYPES[name](tokens, arguments)


def _number(tokens: _Tokens, arguments: list[str], default: int, low: int, high: int) -> int:
    given = arguments[0] if arguments else str(default)
    if not given.isdigit() or not low <= int(given) <= high:
        raise Invalid(f"size {given} in column definition {tokens.text!r} must be {low} to {high}")
    return int(given)


def _decimal(tokens: _Tokens, arguments: list[str]) -> FieldType:
    precision = _number(tokens, arguments, 10, 1, 65)
    scale = _number(tokens, arguments[1:], 0, 0, min(30, precision))
    return FieldType(Tp.NEW_DECIMAL, ColumnFlag.BINARY, precision, scale)


def _string(code: Tp, charset: str, collate: str, longest: int) -> Callable[[_Tokens, list[str]], FieldType]:
    def build(tokens: _Tokens, arguments: list[str]) -> FieldType:
        if code is Tp.VARCHAR and not arguments:
            raise Invalid(f"column definition {tokens.text!r} needs a length, such as varchar(64)")
        return FieldType(code, NO_FLAGS, _number(tokens, arguments, 1, 0, longest), 0, charset, collate)

    return build


def _elements(code: Tp) -> Callable[[_Tokens, list[str]], FieldType]:
    def build(tokens: _Tokens, arguments: list[str]) -> FieldType:
        elems = tuple(map(_unquote, arguments))
        if not elems or (code is Tp.SET and len(elems) > 64):
            raise Invalid(
                f"column definition {tokens.text!r} needs elements, such as enum('a','b'); a set at most 64"
            )
        width = max(map(len, elems)) if code is Tp.ENUM else sum(map(len, elems)) + len(elems) - 1
        return FieldType(code, NO_FLAGS, width, 0, CHARSET, COLLATE, elems)

    return build


_TYPES: dict[str, Callable[[_Tokens, list[str]], FieldType]] = {
    "decimal": _decimal,
    "numeric": _decimal,
    "float": lambda *_: FieldType(Tp.FLOAT, ColumnFlag.BINARY, 12, -1),
    "double": lambda *_: FieldType(Tp.DOUBLE, ColumnFlag.BINARY, 22, -1),
    "date": lambda *_: FieldType(Tp.DATE, ColumnFlag.BINARY, 10, 0),
    "year": lambda *_: FieldType(
        Tp.YEAR, ColumnFlag.BINARY | ColumnFlag.UNSIGNED | ColumnFlag.ZEROFILL, 4, 0
    ),
    "json": lambda *_: FieldType(Tp.JSON, ColumnFlag.BINARY, 4_294_967_295, 0),
    "bit": lambda tokens, args: FieldType(Tp.BIT, ColumnFlag.UNSIGNED, _number(tokens, args, 1, 1, 64), 0),
    "vector": lambda tokens, args: FieldType(
        Tp.VECTOR_FLOAT32, NO_FLAGS, _number(tokens, args, 0, 1, VECTOR_DIMENSION_MAX) if args else -1, 0
    ),
    "char": _string(Tp.STRING, CHARSET, COLLATE, 255),
    "varchar": _string(Tp.VARCHAR, CHARSET, COLLATE, 16_383),
    "binary": _string(Tp.STRING, "binary", "binary", 255),
    "varbinary": _string(Tp.VARCHAR, "binary", "binary", 65_535),
    "enum": _elements(Tp.ENUM),
    "set": _elements(Tp.SET),
}


def _attribute(tokens: _Tokens, definition: Definition) -> None:
    kind = definition.type
    if tokens.accept("unsigned"):
        width = _INT_WIDTHS.get(kind.tp, (0, kind.flen))[1]
        definition.type = replace(_flagged(kind, ColumnFlag.UNSIGNED), flen=width)
    elif tokens.accept("not", "null"):
        definition.type = _flagged(kind, ColumnFlag.NOT_NULL)
    elif tokens.accept("null"):
        pass
    elif tokens.accept("primary", "key"):
        definition.primary = True
        definition.type = _flagged(kind, ColumnFlag.NOT_NULL)
    elif tokens.accept("unique", "key") or tokens.accept("unique"):
        definition.unique = True
    elif tokens.accept("auto_increment"):
        if kind.tp not in INTEGER_BITS:
            raise Invalid(f"column definition {tokens.text!r}: only an integer can be auto_increment")
        definition.type = _flagged(kind, ColumnFlag.AUTO_INCREMENT | ColumnFlag.NOT_NULL)
    elif tokens.accept("default"):
        definition.default = _default(tokens)
    elif tokens.accept("comment"):
        definition.comment = _unquote(tokens.next())
    elif tokens.accept("collate"):
        definition.type = _collated(tokens, kind, tokens.next().lower())
    elif tokens.accept("character", "set") or tokens.accept("charset"):
        charset = tokens.next().lower()
        definition.type = _collated(tokens, kind, _COLLATIONS.get(charset, charset))
    else:
        raise Invalid(f"{tokens.peek()!r} in column definition {tokens.text!r} is not understood")


def _default(tokens: _Tokens) -> str | None:
    token = tokens.next()
    if token.lower() == "null":
        return None
    if token.lower() == "current_timestamp":
        arguments = tokens.arguments()
        return f"CURRENT_TIMESTAMP({arguments[0]})" if arguments else "CURRENT_TIMESTAMP"
    return {"true": "1", "false": "0"}.get(token.lower(), _unquote(token))


def _collated(tokens: _Tokens, kind: FieldType, collate: str) -> FieldType:
    if not kind.is_string and kind.tp not in {Tp.ENUM, Tp.SET}:
        raise Invalid(f"column definition {tokens.text!r}: only strings have a collation")
    charset = "binary" if collate == "binary" else collate.partition("_")[0]
    if kind.tp in BLOBS and charset == "binary":
        raise Invalid(f"column definition {tokens.text!r}: use blob for binary text")
    return replace(kind, charset=charset, collate=collate)


def _flagged(kind: FieldType, flag: ColumnFlag) -> FieldType:
    return replace(kind, flag=kind.flag | flag)


def _unquote(token: str) -> str:
    if not token.startswith("'"):
        return token
    return re.sub(r"\\(.)|''", lambda found: found[1] or "'", token[1:-1])
