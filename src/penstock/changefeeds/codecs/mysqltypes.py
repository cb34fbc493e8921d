"""What consumers are told of a column's type: MySQL's name of it, and Java's number. Pure."""

from typing import NamedTuple

from penstock.tables.fieldtypes import BLOBS, ColumnFlag, FieldType, Tp

_NAMES = {
    Tp.TINY: "tinyint",
    Tp.SHORT: "smallint",
    Tp.INT24: "mediumint",
    Tp.LONG: "int",
    Tp.LONGLONG: "bigint",
    Tp.FLOAT: "float",
    Tp.DOUBLE: "double",
    Tp.NULL: "null",
    Tp.TIMESTAMP: "timestamp",
    Tp.DATE: "date",
    Tp.DURATION: "time",
    Tp.DATETIME: "datetime",
    Tp.YEAR: "year",
    Tp.VARCHAR: "varchar",
    Tp.BIT: "bit",
    Tp.VECTOR_FLOAT32: "vector",
    Tp.JSON: "json",
    Tp.NEW_DECIMAL: "decimal",
    Tp.ENUM: "enum",
    Tp.SET: "set",
    Tp.TINY_BLOB: "tinytext",
    Tp.MEDIUM_BLOB: "mediumtext",
    Tp.LONG_BLOB: "longtext",
    Tp.BLOB: "text",
    Tp.VAR_STRING: "var_string",
    Tp.STRING: "char",
    Tp.GEOMETRY: "geometry",
}

_BIT, _TINYINT, _BIGINT, _CHAR, _DECIMAL, _INTEGER, _SMALLINT = -7, -6, -5, 1, 3, 4, 5
_REAL, _DOUBLE, _VARCHAR, _DATE, _TIME, _TIMESTAMP, _BLOB, _CLOB = 7, 8, 12, 91, 92, 93, 2004, 2005
_JAVA = {
    **dict.fromkeys((Tp.BIT, Tp.SET), _BIT),
    **dict.fromkeys((Tp.INT24, Tp.LONG, Tp.ENUM), _INTEGER),
    **dict.fromkeys((Tp.DATETIME, Tp.TIMESTAMP), _TIMESTAMP),
    **dict.fromkeys(BLOBS, _CLOB),
    Tp.TINY: _TINYINT,
    Tp.SHORT: _SMALLINT,
    Tp.LONGLONG: _BIGINT,
    Tp.STRING: _CHAR,
    Tp.NEW_DECIMAL: _DECIMAL,
    Tp.FLOAT: _REAL,
    Tp.DOUBLE: _DOUBLE,
    Tp.DATE: _DATE,
    Tp.DURATION: _TIME,
}


class Promotion(NamedTuple):
    """Values of an unsigned column above `above` do not fit its type, and say this one instead."""

    above: int
    java_type: int


_PROMOTIONS = {
    Tp.TINY: Promotion((1 << 7) - 1, _SMALLINT),
    Tp.SHORT: Promotion((1 << 15) - 1, _INTEGER),
    Tp.LONG: Promotion((1 << 31) - 1, _BIGINT),
    Tp.LONGLONG: Promotion((1 << 63) - 1, _DECIMAL),
}


def mysql_type(kind: FieldType) -> str:
    """MySQL's name of a type without its size, such as `bigint unsigned`."""
    name = _NAMES[kind.tp]
    if kind.charset == "binary":
        name = name.replace("text", "blob") if kind.tp in BLOBS else name
        name = name.replace("char", "binary") if kind.tp in {Tp.STRING, Tp.VARCHAR} else name
    if kind.unsigned and kind.tp not in {Tp.BIT, Tp.YEAR}:
        name += " unsigned"
    return name + (" zerofill" if kind.flag & ColumnFlag.ZEROFILL and kind.tp is not Tp.YEAR else "")


def java_type(kind: FieldType) -> int:
    """The number in java.sql.Types."""
    return _BLOB if kind.is_binary else _JAVA.get(kind.tp, _VARCHAR)


def promotion(kind: FieldType) -> Promotion | None:
    """What large values of an unsigned column say; None when all of them fit."""
    return _PROMOTIONS.get(kind.tp) if kind.unsigned else None
