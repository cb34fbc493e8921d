"""A column as a schema file describes it, from TiDB's description and back. Pure."""

from dataclasses import dataclass
from typing import Any, Self

from penstock.changefeeds.sinks.storage import gojson
from penstock.errors import Corrupt
from penstock.tables.columns import ColumnInfo
from penstock.tables.fieldtypes import (
    BLOBS,
    INTEGER_BITS,
    NO_FLAGS,
    STRINGS,
    UNSPECIFIED,
    ColumnFlag,
    FieldType,
    Tp,
)

_TYPE_NAMES = {
    Tp.TINY: "TINYINT",
    Tp.SHORT: "SMALLINT",
    Tp.INT24: "MEDIUMINT",
    Tp.LONG: "INT",
    Tp.LONGLONG: "BIGINT",
    Tp.FLOAT: "FLOAT",
    Tp.DOUBLE: "DOUBLE",
    Tp.NEW_DECIMAL: "DECIMAL",
    Tp.NULL: "NULL",
    Tp.TIMESTAMP: "TIMESTAMP",
    Tp.DATETIME: "DATETIME",
    Tp.DATE: "DATE",
    Tp.DURATION: "TIME",
    Tp.YEAR: "YEAR",
    Tp.BIT: "BIT",
    Tp.JSON: "JSON",
    Tp.ENUM: "ENUM",
    Tp.SET: "SET",
    Tp.STRING: "CHAR",
    Tp.VARCHAR: "VARCHAR",
    Tp.VAR_STRING: "VAR_STRING",
    Tp.TINY_BLOB: "TINYTEXT",
    Tp.BLOB: "TEXT",
    Tp.MEDIUM_BLOB: "MEDIUMTEXT",
    Tp.LONG_BLOB: "LONGTEXT",
    Tp.VECTOR_FLOAT32: "VECTOR",
    Tp.GEOMETRY: "GEOMETRY",
}
_BINARY_NAMES = {tp: _TYPE_NAMES[tp].replace("TEXT", "BLOB") for tp in BLOBS} | {
    tp: _TYPE_NAMES[tp].replace("CHAR", "BINARY") for tp in (Tp.STRING, Tp.VARCHAR)
}
_TYPES = {name: tp for names in (_TYPE_NAMES, _BINARY_NAMES) for tp, name in names.items()}
_UNSIGNED = " UNSIGNED"
_DEFAULT_LENGTHS = (
    {Tp.BIT: 1, Tp.TINY: 4, Tp.SHORT: 6, Tp.INT24: 9, Tp.LONG: 11, Tp.LONGLONG: 20}
    | {Tp.FLOAT: 12, Tp.DOUBLE: 22, Tp.NEW_DECIMAL: 10, Tp.YEAR: 4}
    | {Tp.STRING: 1, Tp.VARCHAR: 5, Tp.VAR_STRING: 5}
    | {Tp.TINY_BLOB: 255, Tp.BLOB: 65_535, Tp.MEDIUM_BLOB: 16_777_215, Tp.LONG_BLOB: 4_294_967_295}
)
_WITH_LENGTH = STRINGS | frozenset({*INTEGER_BITS, Tp.BIT, Tp.YEAR})
_APPROXIMATE = frozenset({Tp.FLOAT, Tp.DOUBLE})
_TIMES = frozenset({Tp.TIMESTAMP, Tp.DATETIME, Tp.DURATION})
_MEMBERS = (
    *("ColumnId", "ColumnName", "ColumnType", "ColumnDefault", "ColumnPrecision", "ColumnScale"),
    *("ColumnNullable", "ColumnIsPk", "ColumnElems"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaColumn:
    """One column. Everything but the default is text; what is empty is not written."""

    name: str
    type: str
    id: str = ""
    default: Any = None
    precision: str = ""
    scale: str = ""
    not_null: bool = False
    primary: bool = False
    elems: tuple[str, ...] = ()

    @classmethod
    def of(cls, column: ColumnInfo, *, with_id: bool, primary: bool = False) -> Self:
        """A column of a table; `primary`: it is known to be of the primary key, whatever its flags say."""
        kind = column.type
        return cls(
            name=column.name,
            type=_type_name(kind),
            id=str(column.id) if with_id else "",
            default=_default(column),
            precision=_precision(kind),
            scale=_scale(kind),
            not_null=kind.not_null,
            primary=primary or bool(kind.flag & ColumnFlag.PRI_KEY),
            elems=kind.elems if kind.tp in {Tp.ENUM, Tp.SET} else (),
        )

    def to_json(self) -> dict[str, Any]:
        """Its members, in the order of the file."""
        values = (
            *(self.id, self.name, self.type, self.default, self.precision, self.scale),
            *("false" if self.not_null else "", "true" if self.primary else "", list(self.elems)),
        )
        members = zip(_MEMBERS, values, strict=True)
        return {name: value for name, value in members if name in _ALWAYS or _is_written(name, value)}

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Self:
        """Read a column of a schema file; raise Corrupt when it is none."""
        try:
            return cls(
                name=str(tree["ColumnName"]),
                type=str(tree["ColumnType"]),
                id=str(tree.get("ColumnId", "")),
                default=tree.get("ColumnDefault"),
                precision=str(tree.get("ColumnPrecision", "")),
                scale=str(tree.get("ColumnScale", "")),
                not_null=tree.get("ColumnNullable") == "false",
                primary=tree.get("ColumnIsPk") == "true",
                elems=tuple(map(str, tree.get("ColumnElems") or ())),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise Corrupt("a column of a schema file lacks its name or its type") from error

    def column_info(self, offset: int, mock_id: int) -> ColumnInfo:
        """The column for a reader of data files; Corrupt when its type or a size is not understood."""
        name = self.type.removesuffix(_UNSIGNED)
        if name not in _TYPES:
            raise Corrupt(f"column {self.name} of a schema file has the unknown type {self.type!r}")
        flags = NO_FLAGS
        flags |= ColumnFlag.UNSIGNED if self.type.endswith(_UNSIGNED) else NO_FLAGS
        flags |= ColumnFlag.NOT_NULL if self.not_null else NO_FLAGS
        flags |= ColumnFlag.PRI_KEY if self.primary else NO_FLAGS
        charset = ("utf8mb4", "utf8mb4_bin") if _is_text(name) else ("binary", "binary")
        sizes = (_size(self.precision, self.name), _size(self.scale, self.name))
        kind = FieldType(_TYPES[name], flags, *sizes, *charset, self.elems)
        return ColumnInfo(int(self.id or mock_id), self.name, offset, kind, default=self.default)


_ALWAYS = frozenset({"ColumnName", "ColumnType"})


def _is_written(name: str, value: Any) -> bool:
    return value is not None if name == "ColumnDefault" else bool(value)


def _type_name(kind: FieldType) -> str:
    names = _BINARY_NAMES if kind.charset == "binary" and kind.tp in _BINARY_NAMES else _TYPE_NAMES
    return names[kind.tp] + (_UNSIGNED if kind.unsigned else "")


def _is_text(name: str) -> bool:
    return name in {"ENUM", "SET"} or any(word in name for word in ("CHAR", "TEXT", "VAR_STRING"))


def _precision(kind: FieldType) -> str:
    if kind.tp not in _WITH_LENGTH | _APPROXIMATE and kind.tp is not Tp.NEW_DECIMAL:
        return ""
    return str(kind.flen if kind.flen != UNSPECIFIED else _DEFAULT_LENGTHS[kind.tp])


def _scale(kind: FieldType) -> str:
    if kind.tp is Tp.NEW_DECIMAL:
        return str(kind.scale)
    given = kind.tp in _TIMES | _APPROXIMATE and kind.decimal not in {0, UNSPECIFIED}
    return str(kind.decimal) if given else ""


def _default(column: ColumnInfo) -> Any:
    if column.type.tp is Tp.BIT and isinstance(column.default, int):
        raw = column.default.to_bytes(max((column.type.flen + 7) // 8, 1), "big")
        return gojson.text_of(raw)
    return column.default


def _size(text: str, column: str) -> int:
    if not text:
        return UNSPECIFIED
    if not text.isdigit():
        raise Corrupt(f"column {column} of a schema file has a damaged size")
    return int(text)
