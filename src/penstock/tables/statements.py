"""Schema changes as SQL statements."""

from penstock.tables.columns import INTEGER_BITS, ColumnInfo, FieldType, Tp
from penstock.tables.schema import HandleKind, IndexInfo, TableInfo

_INTEGERS = {
    Tp.TINY: "tinyint",
    Tp.SHORT: "smallint",
    Tp.INT24: "mediumint",
    Tp.LONG: "int",
    Tp.LONGLONG: "bigint",
}
_SIZED = {Tp.STRING: "char", Tp.VARCHAR: "varchar", Tp.VAR_STRING: "varchar", Tp.BIT: "bit"}
_BINARY = {Tp.STRING: "binary", Tp.VARCHAR: "varbinary", Tp.VAR_STRING: "varbinary"}
_TEXTS = {Tp.TINY_BLOB: "tiny", Tp.BLOB: "", Tp.MEDIUM_BLOB: "medium", Tp.LONG_BLOB: "long"}
_TIMES = {Tp.DATETIME: "datetime", Tp.TIMESTAMP: "timestamp", Tp.DURATION: "time"}
_PLAIN = {
    Tp.FLOAT: "float",
    Tp.DOUBLE: "double",
    Tp.DATE: "date",
    Tp.YEAR: "year",
    Tp.JSON: "json",
    Tp.NULL: "null",
    Tp.UNSPECIFIED: "unspecified",
    Tp.GEOMETRY: "geometry",
}


def quote(name: str) -> str:
    """Return a name as SQL writes it."""
    return "`" + name.replace("`", "``") + "`"


def type_text(kind: FieldType) -> str:
    """Return a column type as SQL writes it."""
    if kind.tp in INTEGER_BITS:
        return _INTEGERS[kind.tp] + (" unsigned" if kind.unsigned else "")
    if kind.tp in _TEXTS:
        return _TEXTS[kind.tp] + ("blob" if kind.is_binary else "text")
    if kind.tp in _SIZED:
        return f"{(_BINARY if kind.is_binary else _SIZED)[kind.tp]}({kind.flen})"
    if kind.tp in _TIMES:
        return _TIMES[kind.tp] + (f"({kind.fsp})" if kind.fsp else "")
    if kind.tp is Tp.NEW_DECIMAL:
        return f"decimal({kind.precision},{kind.scale})"
    if kind.tp in {Tp.ENUM, Tp.SET}:
        return f"{kind.tp.name.lower()}({','.join(map(_literal, kind.elems))})"
    if kind.tp is Tp.VECTOR_FLOAT32:
        return f"vector({kind.flen})" if kind.flen > 0 else "vector"
    return _PLAIN[kind.tp]


def column_text(column: ColumnInfo) -> str:
    """Return a column's definition without its name; `parse_definition` reads it back."""
    kind = column.type
    words = [type_text(kind)]
    if kind.is_string and not kind.is_binary and kind.collate != "utf8mb4_bin":
        words.append(f"COLLATE {kind.collate}")
    if kind.not_null:
        words.append("NOT NULL")
    if column.auto_increment:
        words.append("AUTO_INCREMENT")
    elif column.default is not None:
        words.append(f"DEFAULT {_default(column)}")
    if column.comment:
        words.append(f"COMMENT {_literal(column.comment)}")
    return " ".join(words)


def _default(column: ColumnInfo) -> str:
    if isinstance(column.default, str) and column.default.startswith("CURRENT_TIMESTAMP"):
        return column.default
    return _literal(str(column.default))


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def create_table(table: TableInfo) -> str:
    """Return the statement that creates a table."""
    lines = [f"{quote(column.name)} {column_text(column)}" for column in table.columns]
    if table.primary_key:
        clustered = "NONCLUSTERED" if table.handle_kind is HandleKind.ROWID else "CLUSTERED"
        lines.append(f"PRIMARY KEY ({_primary(table)}) {clustered}")
    lines += [
        f"{'UNIQUE ' if index.unique else ''}KEY {quote(index.name)} ({_parts(index)})"
        for index in table.indexes
        if not index.primary
    ]
    tail = f" COMMENT={_literal(table.comment)}" if table.comment else ""
    return f"CREATE TABLE {quote(table.name)} ({', '.join(lines)}) COLLATE={table.collate}{tail}"


def _primary(table: TableInfo) -> str:
    if table.primary_index is not None:
        return _parts(table.primary_index)
    return ", ".join(quote(column.name) for column in table.primary_key)


def _parts(index: IndexInfo) -> str:
    return ", ".join(
        quote(part.name) + (f"({part.length})" if part.length >= 0 else "") for part in index.columns
    )


def alter_column(verb: str, table: TableInfo, column: ColumnInfo, place: str = "") -> str:
    """Return the statement that adds or modifies a column."""
    return f"ALTER TABLE {quote(table.name)} {verb} COLUMN {quote(column.name)} {column_text(column)}{place}"
