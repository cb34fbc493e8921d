"""Columns and their types as TiDB describes them in JSON, and what other schema elements share with them."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import Any, Self

from penstock.errors import Corrupt

UNSPECIFIED = -1


class Tp(IntEnum):
    """MySQL's type codes. `UNSPECIFIED` is that of a view's columns, which have no type of their own."""

    UNSPECIFIED = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    DURATION = 11
    DATETIME = 12
    YEAR = 13
    VARCHAR = 15
    BIT = 16
    VECTOR_FLOAT32 = 225
    JSON = 245
    NEW_DECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


class ColumnFlag(IntFlag):
    """MySQL's column flags."""

    NOT_NULL = 1
    PRI_KEY = 2
    UNIQUE_KEY = 4
    MULTIPLE_KEY = 8
    BLOB = 16
    UNSIGNED = 32
    ZEROFILL = 64
    BINARY = 128
    ENUM = 256
    AUTO_INCREMENT = 512
    TIMESTAMP = 1024
    SET = 2048
    NO_DEFAULT_VALUE = 4096
    ON_UPDATE_NOW = 8192
    PREVENT_NULL_INSERT = 1 << 20  # the column becomes NOT NULL; it already refuses NULL


NO_FLAGS = ColumnFlag(0)
# Plain numbers, because every value tests them and an IntFlag is slow.
_UNSIGNED, _NOT_NULL = ColumnFlag.UNSIGNED.value, ColumnFlag.NOT_NULL.value
INTEGER_BITS = {Tp.TINY: 8, Tp.SHORT: 16, Tp.INT24: 24, Tp.LONG: 32, Tp.LONGLONG: 64}
BLOBS = frozenset({Tp.TINY_BLOB, Tp.BLOB, Tp.MEDIUM_BLOB, Tp.LONG_BLOB})
STRINGS = frozenset({Tp.VARCHAR, Tp.VAR_STRING, Tp.STRING, *BLOBS})
PACKED_TIMES = frozenset({Tp.DATE, Tp.DATETIME, Tp.TIMESTAMP})
_MEMBERS = ("Tp", "Flag", "Flen", "Decimal", "Charset", "Collate", "Elems")


@dataclass(frozen=True, slots=True)
class FieldType:
    """The type of a column: code, flags, sizes, charset, and the elements of an enum or a set.

    `flen` is the length of a string, the precision of a decimal, the bits of a BIT, the dimension
    of a vector; `decimal` the scale of a decimal and the fractional digits of a time. -1 is
    "not given".
    """

    tp: Tp
    flag: ColumnFlag = NO_FLAGS
    flen: int = UNSPECIFIED
    decimal: int = UNSPECIFIED
    charset: str = "binary"
    collate: str = "binary"
    elems: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read TiDB's JSON; raise Corrupt for an unknown type code."""
        try:
            code = Tp(tree["Tp"])
        except (KeyError, ValueError) as error:
            raise Corrupt(
                f"type {tree.get('Tp')!r} is unknown; upgrade Penstock to read this table"
            ) from error
        return cls(
            tp=code,
            flag=ColumnFlag(tree.get("Flag", 0)),
            flen=tree.get("Flen", UNSPECIFIED),
            decimal=tree.get("Decimal", UNSPECIFIED),
            charset=tree.get("Charset") or "",
            collate=tree.get("Collate") or "",
            elems=tuple(tree.get("Elems") or ()),
            extra={name: member for name, member in tree.items() if name not in _MEMBERS},
        )

    def to_json(self) -> dict[str, Any]:
        """Write TiDB's JSON."""
        return {
            **self.extra,
            "Tp": int(self.tp),
            "Flag": int(self.flag),
            "Flen": self.flen,
            "Decimal": self.decimal,
            "Charset": self.charset,
            "Collate": self.collate,
            "Elems": list(self.elems) or None,
        }

    @property
    def unsigned(self) -> bool:
        """Whether an integer has no sign."""
        return self.flag.value & _UNSIGNED != 0

    @property
    def not_null(self) -> bool:
        """Whether NULL is refused."""
        return self.flag.value & _NOT_NULL != 0

    @property
    def is_string(self) -> bool:
        """Whether the column is a string or a blob."""
        return self.tp in STRINGS

    @property
    def is_binary(self) -> bool:
        """Whether the column has bytes rather than text."""
        return self.is_string and self.charset in {"binary", ""} and self.collate in {"binary", ""}

    @property
    def fsp(self) -> int:
        """Digits of a second."""
        return max(self.decimal, 0)

    @property
    def precision(self) -> int:
        """Digits of a decimal; MySQL's default is 10."""
        return self.flen if self.flen > 0 else 10

    @property
    def scale(self) -> int:
        """Digits of a decimal after its point."""
        return max(self.decimal, 0)


CURRENT_DATE = "CURRENT_DATE"
CURRENT_TIMESTAMP = "CURRENT_TIMESTAMP"
COLUMN_VERSION = 2  # from 1 on, defaults of timestamps are in UTC


class SchemaState(IntEnum):
    """The state of a schema element during an online change."""

    NONE = 0
    DELETE_ONLY = 1
    WRITE_ONLY = 2
    WRITE_REORG = 3
    DELETE_REORG = 4
    PUBLIC = 5
    REPLICA_ONLY = 6
    GLOBAL_TXN_ONLY = 7


def name_to_json(name: str) -> dict[str, str]:
    """Return a name with its lower-case form, as TiDB stores it."""
    return {"O": name, "L": name.lower()}


def name_from_json(tree: Any) -> str:
    """Return a name from either form that TiDB stores."""
    return str(tree["O"]) if isinstance(tree, Mapping) else str(tree or "")


def rest_of(tree: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """Return the members of a tree that are not modelled, to be written back as they are."""
    return {name: member for name, member in tree.items() if name not in known}


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """One column. Rows that were written before it existed read as `origin_default`."""

    id: int
    name: str
    offset: int
    type: FieldType
    default: Any = None
    origin_default: Any = None
    default_is_expr: bool = False
    generated_expr: str = ""
    generated_stored: bool = False
    state: SchemaState = SchemaState.PUBLIC
    comment: str = ""
    hidden: bool = False
    version: int = COLUMN_VERSION
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read TiDB's JSON; raise Corrupt when the column's type is unknown."""
        try:
            kind = FieldType.from_json(tree["type"])
        except Corrupt as error:
            raise Corrupt(f"column {name_from_json(tree['name'])}: {error}") from error
        return cls(
            id=tree["id"],
            name=name_from_json(tree["name"]),
            offset=tree["offset"],
            type=kind,
            default=_default_from_json(kind, tree, "default"),
            origin_default=_default_from_json(kind, tree, "origin_default"),
            default_is_expr=tree.get("default_is_expr", False),
            generated_expr=tree.get("generated_expr_string") or "",
            generated_stored=tree.get("generated_stored", False),
            state=SchemaState(tree.get("state", SchemaState.PUBLIC)),
            comment=tree.get("comment") or "",
            hidden=tree.get("hidden", False),
            version=tree.get("version", 0),
            extra=rest_of(tree, _COLUMN_MEMBERS),
        )

    def to_json(self) -> dict[str, Any]:
        """Write TiDB's JSON."""
        return {
            "dependences": None,
            "change_state_info": None,
            **self.extra,
            "id": self.id,
            "name": name_to_json(self.name),
            "offset": self.offset,
            **_default_to_json(self.type, self.origin_default, "origin_default"),
            **_default_to_json(self.type, self.default, "default"),
            "default_is_expr": self.default_is_expr,
            "generated_expr_string": self.generated_expr,
            "generated_stored": self.generated_stored,
            "type": self.type.to_json(),
            "state": int(self.state),
            "comment": self.comment,
            "hidden": self.hidden,
            "version": self.version,
        }

    @property
    def is_virtual(self) -> bool:
        """Whether the column is computed on read, and so never stored."""
        return bool(self.generated_expr) and not self.generated_stored

    @property
    def is_seen(self) -> bool:
        """Whether a reader of the table sees the column: it is public, not hidden, not computed on read."""
        return self.state is SchemaState.PUBLIC and not self.hidden and not self.is_virtual

    @property
    def replaces_another(self) -> bool:
        """Whether the column is not public yet, and takes another one's place when all rows have it."""
        return self.state is not SchemaState.PUBLIC and bool(self.extra.get("change_state_info"))

    @property
    def changes_from(self) -> int | None:
        """The offset of the column that this hidden one will replace, while MODIFY COLUMN rewrites rows."""
        change = self.extra.get("change_state_info")
        return None if change is None or self.state is SchemaState.PUBLIC else change["relative_col_offset"]

    @property
    def clock_default(self) -> str | None:
        """CURRENT_TIMESTAMP or CURRENT_DATE, if that is the default; a text column has only the word."""
        if self.type.tp not in PACKED_TIMES or not isinstance(self.default, str):
            return None
        word = self.default.partition("(")[0].upper()
        return word if word in {CURRENT_TIMESTAMP, CURRENT_DATE} else None

    @property
    def auto_increment(self) -> bool:
        """Whether the column is auto-increment."""
        return bool(self.type.flag & ColumnFlag.AUTO_INCREMENT)


_COLUMN_MEMBERS = (
    *("id", "name", "offset", "type", "default", "default_bit", "origin_default", "origin_default_bit"),
    *(
        "default_is_expr",
        "generated_expr_string",
        "generated_stored",
        "state",
        "comment",
        "hidden",
        "version",
    ),
)


def _default_from_json(kind: FieldType, tree: Mapping[str, Any], member: str) -> Any:
    bits = tree.get(f"{member}_bit")
    if kind.tp is Tp.BIT and bits is not None:
        return int.from_bytes(base64.b64decode(bits), "big")
    return tree.get(member)


def _default_to_json(kind: FieldType, value: Any, member: str) -> dict[str, Any]:
    if kind.tp is Tp.BIT and isinstance(value, int):
        raw = value.to_bytes(max((kind.flen + 7) // 8, 1), "big")
        return {member: raw.decode("latin-1"), f"{member}_bit": base64.b64encode(raw).decode()}
    return {member: value, f"{member}_bit": None}
