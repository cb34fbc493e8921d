"""Changes of a table's columns and indexes, from one schema to the next. Pure.

Some take effect at once, because every stored row stays readable: a column is added, dropped, renamed or
widened. Others begin with hidden elements, a new index or a column of another type, which go through the
online states until the older rows have them too.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from penstock.errors import Invalid
from penstock.tables.columns import (
    INTEGER_BITS,
    ColumnFlag,
    ColumnInfo,
    FieldType,
    SchemaState,
    Tp,
    name_from_json,
)
from penstock.tables.conversion import can_convert
from penstock.tables.define import (
    Index,
    check_name,
    define_column,
    with_index,
    with_index_flags,
    with_origin_default,
)
from penstock.tables.partitions import check_unique
from penstock.tables.schema import IndexColumn, TableInfo

_KEPT_FLAGS = ColumnFlag.PRI_KEY | ColumnFlag.UNIQUE_KEY | ColumnFlag.MULTIPLE_KEY
_TEXTS = (Tp.TINY_BLOB, Tp.BLOB, Tp.MEDIUM_BLOB, Tp.LONG_BLOB)


def add_column(
    table: TableInfo, name: str, definition: str, *, after: str | None = None, start_ts: int | None = None
) -> TableInfo:
    """Return the table with one more column, last or after another; raise Invalid if the name is taken.

    Existing rows read a default of CURRENT_TIMESTAMP as the time of `start_ts`, that of the change.
    """
    if any(column.name.lower() == name.lower() for column in table.columns):
        raise Invalid(f"table {table.name} already has a column {name}; choose another name")
    column, primary, unique = define_column(name, definition, column_id=table.max_column_id + 1)
    if primary or unique or column.auto_increment:
        raise Invalid(f"column {name} cannot be added to {table.name} as a key; add it without the key")
    columns = list(table.columns)
    at = len(columns) if after is None else table.column(after).offset + 1
    columns.insert(at, with_origin_default(column, start_ts=start_ts))
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
    _check_not_in_expressions(table, dropped)
    return table.with_columns([column for column in table.columns if column is not dropped])


def modify_column(table: TableInfo, name: str, definition: str) -> TableInfo:
    """Return the table with another definition of a column; raise Invalid unless every stored row fits it."""
    changed = widen_column(table, name, definition)
    if changed is None:
        raise Invalid(f"column {name} of {table.name} cannot take that type without rewriting its rows")
    return changed


def widen_column(table: TableInfo, name: str, definition: str) -> TableInfo | None:
    """Return the table with another definition of a column; None unless every stored row fits it as it is.

    Raise Invalid when the column would become another kind of key.
    """
    old = table.column(name)
    new, primary, unique = define_column(old.name, definition, column_id=old.id)
    if primary or unique or new.auto_increment != old.auto_increment:
        raise Invalid(
            f"column {old.name} of {table.name} cannot become another kind of key; create a new table"
        )
    indexed = any(part.offset == old.offset for index in table.indexes for part in index.columns)
    in_keys = indexed and old.type.tp is Tp.NEW_DECIMAL  # keys contain a decimal's precision too
    if not _widens(old.type, new.type) or in_keys:
        return None
    kind = replace(new.type, flag=new.type.flag | old.type.flag & _KEPT_FLAGS)
    if old in table.primary_key:
        kind = replace(kind, flag=kind.flag | ColumnFlag.NOT_NULL)
    changed = replace(new, offset=old.offset, type=kind, origin_default=old.origin_default)
    return table.with_columns([changed if column is old else column for column in table.columns])


def rename_column(table: TableInfo, name: str, new_name: str) -> TableInfo:
    """Return the table with another name of a column; raise Invalid when it is taken or needed elsewhere."""
    old = table.column(name)
    check_name("column", new_name, dots=True)
    if any(column.name.lower() == new_name.lower() and column is not old for column in table.columns):
        raise Invalid(f"table {table.name} already has a column {new_name}; choose another name")
    _check_not_in_expressions(table, old)
    columns = tuple(replace(column, name=new_name) if column is old else column for column in table.columns)
    indexes = tuple(
        replace(
            index,
            columns=tuple(
                replace(part, name=new_name) if part.offset == old.offset else part for part in index.columns
            ),
        )
        for index in table.indexes
    )
    return replace(table, columns=columns, indexes=indexes)


def _check_not_in_expressions(table: TableInfo, column: ColumnInfo) -> None:
    partition = table.extra.get("partition") or {}
    named = {name_from_json(name).lower() for name in partition.get("columns") or ()}
    texts = {
        "a generated column": [other.generated_expr for other in table.columns],
        "the condition of an index": [index.condition for index in table.indexes],
        "the partitions": [partition.get("expr") or "", *(f"`{name}`" for name in named)],
        "a check constraint": [
            check.get("expr_string") or "" for check in table.extra.get("constraint_info") or ()
        ],
        "a foreign key": [
            f"`{name_from_json(name)}`"
            for key in table.extra.get("fk_info") or ()
            for name in key.get("cols") or ()
        ],
        "the time to live of rows": [
            f"`{name_from_json((table.extra.get('ttl_info') or {}).get('column'))}`",
        ],
    }
    for what, expressions in texts.items():
        if any(f"`{column.name.lower()}`" in expression.lower() for expression in expressions):
            raise Invalid(f"column {column.name} of {table.name} is used by {what}; change it through TiDB")


def begin_index(table: TableInfo, index: Index) -> tuple[TableInfo, int]:
    """Return the table with an index that is delete-only, and the index's id."""
    added = with_index(table, index).indexes[-1]
    if table.physical_ids != (table.id,):
        check_unique(table, added)
    waiting = replace(added, state=SchemaState.DELETE_ONLY)
    return replace(table, indexes=(*table.indexes, waiting), max_index_id=added.id), added.id


def begin_rewrite(table: TableInfo, name: str, definition: str) -> tuple[TableInfo, int, tuple[int, ...]]:
    """Return the table with a hidden column of the new type and hidden indexes on it, and the ids of both.

    Raise Invalid for a column that cannot be rewritten, or whose values cannot be converted.
    """
    old = table.column(name)
    new, primary, unique = define_column(old.name, definition, column_id=table.max_column_id + 1)
    if primary or unique or new.auto_increment or old.auto_increment or old in table.primary_key:
        raise Invalid(
            f"column {old.name} of {table.name} is a key, or would become one, and cannot take that type; "
            "create a new table"
        )
    _check_not_in_expressions(table, old)
    if not can_convert(old.type, new.type):
        raise Invalid(
            f"column {old.name} of {table.name} cannot be converted to that type; add a column of the new "
            "type, copy the values and drop the old one"
        )
    taken = {column.name.lower() for column in table.columns}
    hidden_name = next(
        f"_Col$_{old.name}_{number}"
        for number in count()
        if f"_col$_{old.name.lower()}_{number}" not in taken
    )
    hidden = replace(
        new,
        name=hidden_name,
        offset=len(table.columns),
        state=SchemaState.DELETE_ONLY,
        extra={"change_state_info": {"relative_col_offset": old.offset}},
    )
    affected = [index for index in table.indexes if any(part.offset == old.offset for part in index.columns)]
    copies = tuple(
        replace(
            index,
            id=table.max_index_id + 1 + nth,
            name=f"_Idx$_{index.name}_0",
            state=SchemaState.DELETE_ONLY,
            columns=tuple(_move_part(part, old, hidden) for part in index.columns),
        )
        for nth, index in enumerate(affected)
    )
    changed = replace(
        table,
        columns=(*table.columns, hidden),
        indexes=(*table.indexes, *copies),
        max_column_id=hidden.id,
        max_index_id=table.max_index_id + len(copies),
    )
    return changed, hidden.id, tuple(copy.id for copy in copies)


def _move_part(part: IndexColumn, old: ColumnInfo, new: ColumnInfo) -> IndexColumn:
    return replace(part, name=new.name, offset=new.offset) if part.offset == old.offset else part


def finish_rewrite(table: TableInfo, column_id: int, index_ids: Sequence[int]) -> tuple[TableInfo, list[int]]:
    """Return the table with the hidden column in the old one's place, and the ids of indexes that go."""
    hidden = next(column for column in table.columns if column.id == column_id)
    assert hidden.changes_from is not None
    old = table.columns[hidden.changes_from]
    kind = replace(hidden.type, flag=hidden.type.flag | old.type.flag & _KEPT_FLAGS)
    extra = {name: member for name, member in hidden.extra.items() if name != "change_state_info"}
    public = replace(
        hidden, name=old.name, offset=old.offset, state=SchemaState.PUBLIC, type=kind, extra=extra
    )
    copies = [index for index in table.indexes if index.id in index_ids]
    replaced = [index for index in table.indexes if f"_Idx$_{index.name}_0" in {copy.name for copy in copies}]
    by_name = {copy.name: copy for copy in copies}
    indexes = []
    for index in table.indexes:
        if index in replaced:
            copy = by_name[f"_Idx$_{index.name}_0"]
            parts = tuple(_move_part(part, hidden, public) for part in copy.columns)
            indexes.append(replace(copy, name=index.name, state=SchemaState.PUBLIC, columns=parts))
        elif index not in copies:
            indexes.append(index)
    columns = [public if column is old else column for column in table.columns if column is not hidden]
    changed = replace(table, columns=tuple(columns), indexes=tuple(indexes))
    return with_index_flags(changed.with_columns(columns)), [index.id for index in replaced]


def set_state(table: TableInfo, column_id: int, index_ids: Sequence[int], state: SchemaState) -> TableInfo:
    """Return the table with a column and indexes in another state; NONE takes them away."""
    indexes = tuple(
        replace(index, state=state) if index.id in index_ids else index
        for index in table.indexes
        if index.id not in index_ids or state is not SchemaState.NONE
    )
    columns = [
        replace(column, state=state) if column.id == column_id else column
        for column in table.columns
        if column.id != column_id or state is not SchemaState.NONE
    ]
    changed = replace(table, columns=tuple(columns), indexes=indexes)
    return with_index_flags(changed.with_columns(columns) if state is SchemaState.NONE else changed)


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
