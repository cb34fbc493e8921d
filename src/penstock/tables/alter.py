"""Changes of a table's columns, from one schema to the next. Pure.

A change takes effect at once and rewrites no row, so every stored row must stay readable: a column may be
added, dropped or widened.
"""

from dataclasses import replace

from penstock.errors import Invalid
from penstock.tables.columns import INTEGER_BITS, ColumnFlag, FieldType, Tp
from penstock.tables.define import define_column, with_origin_default
from penstock.tables.schema import TableInfo

_KEPT_FLAGS = ColumnFlag.PRI_KEY | ColumnFlag.UNIQUE_KEY | ColumnFlag.MULTIPLE_KEY
_TEXTS = (Tp.TINY_BLOB, Tp.BLOB, Tp.MEDIUM_BLOB, Tp.LONG_BLOB)


def add_column(table: TableInfo, name: str, definition: str, *, after: str | None = None) -> TableInfo:
    """Return the table with one more column, last or after another; raise Invalid if the name is taken."""
    if any(column.name.lower() == name.lower() for column in table.columns):
        raise Invalid(f"table {table.name} already has a column {name}; choose another name")
    column, primary, unique = define_column(name, definition, column_id=table.max_column_id + 1)
    if primary or unique or column.auto_increment:
        raise Invalid(f"column {name} cannot be added to {table.name} as a key; add it without the key")
    columns = list(table.columns)
    at = len(columns) if after is None else table.column(after).offset + 1
    columns.insert(at, with_origin_default(column))
    return replace(table.with_columns(columns), max_column_id=column.id)


def drop_column(table: TableInfo, name: str) -> TableInfo:
    """Return the table without a column; raise Invalid when it is the last one or an index needs it."""
    dropped = table.column(name)
    if len(table.stored_columns) == 1:
        raise Invalid(f"{dropped.name} is the last column of {table.name}; drop the table instead")
    users = [index.name for index in table.indexes for part in index.columns if part.offset == dropped.offset]
    if dropped in table.primary_key or users:
        which = "the primary key" if dropped in table.primary_key else f"index {users[0]}"
        raise Invalid(f"column {dropped.name} of {table.name} is part of {which}; it cannot be dropped")
    return table.with_columns([column for column in table.columns if column is not dropped])


def modify_column(table: TableInfo, name: str, definition: str) -> TableInfo:
    """Return the table with another definition of a column; raise Invalid unless every stored row fits it."""
    old = table.column(name)
    new, primary, unique = define_column(old.name, definition, column_id=old.id)
    if primary or unique or new.auto_increment != old.auto_increment:
        raise Invalid(
            f"column {old.name} of {table.name} cannot become another kind of key; create a new table"
        )
    indexed = any(part.offset == old.offset for index in table.indexes for part in index.columns)
    in_keys = indexed and old.type.tp is Tp.NEW_DECIMAL  # keys contain a decimal's precision too
    if not _widens(old.type, new.type) or in_keys:
        raise Invalid(
            f"column {old.name} of {table.name} cannot take that type without rewriting its rows; "
            f"add a column of the new type, copy the values and drop the old one"
        )
    kind = replace(new.type, flag=new.type.flag | old.type.flag & _KEPT_FLAGS)
    if old in table.primary_key:
        kind = replace(kind, flag=kind.flag | ColumnFlag.NOT_NULL)
    changed = replace(new, offset=old.offset, type=kind, origin_default=old.origin_default)
    return table.with_columns([changed if column is old else column for column in table.columns])


def _widens(old: FieldType, new: FieldType) -> bool:
    """Return whether every stored value of the old type is a value of the new type, byte for byte."""
    if new.not_null and not old.not_null:
        return False  # stored rows may have NULLs
    if old.tp in INTEGER_BITS and new.tp in INTEGER_BITS:
        return INTEGER_BITS[old.tp] <= INTEGER_BITS[new.tp] and old.unsigned == new.unsigned
    if (old.charset, old.collate) != (new.charset, new.collate):
        return False
    if old.tp in _TEXTS and new.tp in _TEXTS:
        return _TEXTS.index(old.tp) <= _TEXTS.index(new.tp)
    if old.tp is not new.tp:
        return old.tp is Tp.FLOAT and new.tp is Tp.DOUBLE
    if old.tp is Tp.NEW_DECIMAL:
        return old.scale <= new.scale and old.precision - old.scale <= new.precision - new.scale
    if old.tp in {Tp.ENUM, Tp.SET}:
        return new.elems[: len(old.elems)] == old.elems
    if old.tp is Tp.STRING and old.is_binary:
        return old.flen == new.flen
    if old.is_string or old.tp is Tp.BIT:
        return old.flen <= new.flen
    if old.tp is Tp.VECTOR_FLOAT32:
        return new.flen in {old.flen, -1}
    return old.fsp <= new.fsp
