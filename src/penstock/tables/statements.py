"""Schema changes as SQL statements."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.tables.columns import (
    CURRENT_DATE,
    CURRENT_TIMESTAMP,
    INTEGER_BITS,
    UNSPECIFIED,
    ColumnFlag,
    ColumnInfo,
    FieldType,
    SchemaState,
    Tp,
    name_from_json,
)
from penstock.tables.portable_sql import portable_statement
from penstock.tables.schema import HandleKind, IndexColumn, IndexInfo, TableInfo

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
    if column.clock_default == CURRENT_DATE:
        return f"({CURRENT_DATE})"
    if column.clock_default is not None:
        return str(column.default)
    return _literal(str(column.default))


_ESCAPES = str.maketrans({"\\": "\\\\", "'": "''", "\0": "\\0", "\n": "\\n", "\r": "\\r"})


def _literal(text: str) -> str:
    return f"'{text.translate(_ESCAPES)}'"


def create_table(table: TableInfo) -> str:
    """Return the statement that creates a table, as TiDB shows it.

    TiDB, MySQL and MariaDB run it: what only TiDB knows stands in its special comments. TTL is off, because
    the statement makes copies: deletes of expired rows arrive as changes. It does not tell the next row id.
    """
    lines = [
        f"{quote(column.name)} {_definition(table, column)}"
        for column in table.columns
        if column.state is SchemaState.PUBLIC and not column.hidden
    ]
    if table.pk_is_handle:
        keys = ",".join(quote(column.name) for column in table.primary_key)
        lines.append(f"PRIMARY KEY ({keys}) /*T![clustered_index] CLUSTERED */")
    lines += [_index(table, index) for index in table.indexes if index.state is SchemaState.PUBLIC]
    lines += map(_foreign_key, table.extra.get("fk_info") or ())
    lines += [
        f"CONSTRAINT {quote(name_from_json(check['constraint_name']))} CHECK (({check['expr_string']}))"
        + ("" if check.get("enforced", True) else " /*!80016 NOT ENFORCED */")
        for check in table.extra.get("constraint_info") or ()
        if check.get("state", SchemaState.PUBLIC) == SchemaState.PUBLIC
    ]
    body = ",\n  ".join(lines)
    parts = "\n" + _partitions(table.extra["partition"]) if is_partitioned(table) else ""
    statement = (
        f"CREATE TABLE {quote(table.name)} (\n  {body}\n) ENGINE=InnoDB{_options(table)}{_ttl(table)}{parts}"
    )
    return portable_statement(statement)


def is_partitioned(table: TableInfo) -> bool:
    """Return whether a table has partitions."""
    partition = table.extra.get("partition")
    return bool(partition and partition.get("enable"))


def _definition(table: TableInfo, column: ColumnInfo) -> str:
    kind = column.type
    words = [_shown_type(kind)]
    if _has_charset(kind):
        if kind.charset != table.charset:
            words.append(f"CHARACTER SET {kind.charset}")
        if kind.collate != table.collate or kind.collate != _DEFAULT_COLLATIONS.get(kind.charset):
            words.append(f"COLLATE {kind.collate}")
    if column.generated_expr:
        stored = "STORED" if column.generated_stored else "VIRTUAL"
        words.append(f"GENERATED ALWAYS AS ({column.generated_expr}) {stored}")
    if column.auto_increment:
        words.append("NOT NULL AUTO_INCREMENT")
    else:
        if kind.not_null:
            words.append("NOT NULL")
        if not kind.flag & ColumnFlag.NO_DEFAULT_VALUE and not column.generated_expr:
            words += _shown_default(column)
        if kind.flag & ColumnFlag.ON_UPDATE_NOW:
            words.append(f"ON UPDATE CURRENT_TIMESTAMP{_fsp(kind)}")
    if _is_auto_random(table, column):
        bits, width = table.extra["auto_random_bits"], table.extra.get("auto_random_range_bits") or 64
        words.append(f"/*T![auto_rand] AUTO_RANDOM({bits}{'' if width == 64 else f', {width}'}) */")
    if column.comment:
        words.append(f"COMMENT {_literal(column.comment)}")
    return " ".join(words)


_DEFAULT_COLLATIONS = {
    "utf8mb4": "utf8mb4_bin",
    "utf8": "utf8_bin",
    "binary": "binary",
    "gbk": "gbk_chinese_ci",
} | {
    "ascii": "ascii_bin",
    "latin1": "latin1_bin",
    "gb18030": "gb18030_chinese_ci",
}
_WIDTHS = {Tp.TINY: 4, Tp.SHORT: 6, Tp.INT24: 9, Tp.LONG: 11, Tp.LONGLONG: 20}
_ZEROFILL = 64


def _shown_type(kind: FieldType) -> str:
    """Return a type as TiDB shows it: with the width of integers, and with digits where they were given."""
    if kind.tp in INTEGER_BITS:
        width = kind.flen if kind.flen != UNSPECIFIED else _WIDTHS[kind.tp]
        return f"{_INTEGERS[kind.tp]}({width}){_signs(kind)}"
    text = type_text(kind)
    if kind.tp in {Tp.FLOAT, Tp.DOUBLE} and kind.decimal > 0:
        text += f"({kind.flen},{kind.decimal})"
    if kind.tp is Tp.YEAR:
        text += f"({kind.flen if kind.flen > 0 else 4})"
    return text + (_signs(kind) if kind.tp in {Tp.FLOAT, Tp.DOUBLE, Tp.NEW_DECIMAL} else "")


def _signs(kind: FieldType) -> str:
    return (" unsigned" if kind.unsigned else "") + (" zerofill" if kind.flag & _ZEROFILL else "")


def _has_charset(kind: FieldType) -> bool:
    return (kind.is_string and not kind.is_binary) or kind.tp in {Tp.ENUM, Tp.SET}


def _shown_default(column: ColumnInfo) -> list[str]:
    kind, default = column.type, column.default
    if default is None:
        if kind.not_null:
            return []
        return ["NULL", "DEFAULT NULL"] if kind.tp is Tp.TIMESTAMP else ["DEFAULT NULL"]
    text = str(default)
    if column.clock_default == CURRENT_TIMESTAMP:
        return [f"DEFAULT CURRENT_TIMESTAMP{_fsp(kind)}"]
    if column.clock_default == CURRENT_DATE or column.default_is_expr:
        return [f"DEFAULT ({text})"]
    if kind.tp is Tp.BIT and isinstance(default, int):
        return [f"DEFAULT b'{default:b}'"]
    return [f"DEFAULT {_literal(text)}"]


def _fsp(kind: FieldType) -> str:
    return f"({kind.decimal})" if kind.decimal > 0 else ""


def _is_auto_random(table: TableInfo, column: ColumnInfo) -> bool:
    return bool(table.extra.get("auto_random_bits")) and bool(table.primary_key[:1] == (column,))


def _index(table: TableInfo, index: IndexInfo) -> str:
    parts = ",".join(_part(table, part) for part in index.columns)
    head = "PRIMARY KEY " if index.primary else f"{'UNIQUE ' if index.unique else ''}KEY {quote(index.name)} "
    words = [f"{head}({parts})"]
    if index.extra.get("is_invisible"):
        words.append("/*!80000 INVISIBLE */")
    if index.extra.get("comment"):
        words.append(f"COMMENT {_literal(index.extra['comment'])}")
    if index.primary:
        # A plain word: `portable_statement` puts it into a comment, or into the one around a global key.
        words.append("NONCLUSTERED" if table.handle_kind is HandleKind.ROWID else "CLUSTERED")
    text = " ".join(words)
    if index.extra.get("condition_expr_string"):
        return f"{text} WHERE {index.extra['condition_expr_string']}"
    if index.extra.get("vector_index") or index.extra.get("columnar"):
        return text.replace("KEY", "VECTOR INDEX", 1)
    return f"{text} GLOBAL" if index.is_global else text


def foreign_indexes(table: TableInfo) -> dict[str, str]:
    """Return the indexes that not every database has, by names in lower case, each with its comment.

    `portable_statement` leaves them out where they cannot be, so their changes have to be left out there too.
    """
    comments = ((index.name.lower(), _comment_for(table, index)) for index in table.indexes)
    return {name: comment for name, comment in comments if comment}


def _comment_for(table: TableInfo, index: IndexInfo) -> str:
    if index.extra.get("condition_expr_string") or index.extra.get("vector_index"):
        return "/*T!"
    if index.is_global and (index.unique or index.primary):
        return "/*T![global_index]"
    return "/*!80013" if any(table.columns[part.offset].hidden for part in index.columns) else ""


def _part(table: TableInfo, part: IndexColumn) -> str:
    column = table.columns[part.offset]
    if column.hidden:
        return f"({column.generated_expr})"
    return quote(part.name) + (f"({part.length})" if part.length >= 0 else "")


def _foreign_key(key: Mapping[str, Any]) -> str:
    columns, referred = (_names(key.get(member) or ()) for member in ("cols", "ref_cols"))
    schema = name_from_json(key.get("ref_schema"))
    table = (quote(schema) + "." if schema else "") + quote(name_from_json(key["ref_table"]))
    name = quote(name_from_json(key["fk_name"]))
    text = f"CONSTRAINT {name} FOREIGN KEY ({columns}) REFERENCES {table} ({referred})"
    for event in ("delete", "update"):
        action = _REFERENCE_ACTIONS.get(key.get(f"on_{event}", 0))
        text += f" ON {event.upper()} {action}" if action else ""
    return text


_REFERENCE_ACTIONS = {1: "RESTRICT", 2: "CASCADE", 3: "SET NULL", 4: "NO ACTION", 5: "SET DEFAULT"}


def _names(names: Iterable[Any]) -> str:
    return ",".join(quote(name_from_json(name)) for name in names)


def _options(table: TableInfo) -> str:
    collate = f" COLLATE={table.collate}" if table.collate and table.collate != "binary" else ""
    text = f" DEFAULT CHARSET={table.charset}{collate}"
    extra = table.extra
    for member, option in (("auto_id_cache", "AUTO_ID_CACHE"), ("ShardRowIDBits", "SHARD_ROW_ID_BITS")):
        text += f" {option}={extra[member]}" if extra.get(member) else ""
    if extra.get("pre_split_regions"):
        text += f" PRE_SPLIT_REGIONS={extra['pre_split_regions']}"
    text += f" COMMENT={_literal(table.comment)}" if table.comment else ""
    return text + _placement(extra)


def _placement(tree: Mapping[str, Any]) -> str:
    policy = tree.get("policy_ref_info")
    return f" PLACEMENT POLICY={quote(name_from_json(policy['name']))}" if policy else ""


def _ttl(table: TableInfo) -> str:
    ttl = table.extra.get("ttl_info")
    if not ttl:
        return ""
    unit = _TIME_UNITS.get(ttl.get("interval_time_unit"), "DAY")
    column = quote(name_from_json(ttl["column"]))
    text = f" TTL={column} + INTERVAL {ttl['interval_expr']} {unit} TTL_ENABLE='OFF'"
    return text + (f" TTL_JOB_INTERVAL={_literal(ttl['job_interval'])}" if ttl.get("job_interval") else "")


_TIME_UNITS = dict(
    enumerate(("MICROSECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR"), start=1)
)
_RANGE, _HASH, _LIST, _KEY = 1, 2, 3, 4
_PARTITION_KINDS = {_RANGE: "RANGE", _HASH: "HASH", _LIST: "LIST", _KEY: "KEY"}


def _partitions(tree: Mapping[str, Any]) -> str:
    kind, definitions = tree["type"], tree.get("definitions") or ()
    columns = "" if tree.get("is_empty_columns") else _names(tree.get("columns") or ())
    by = (
        f" COLUMNS({columns})"
        if columns and kind in {_RANGE, _LIST}
        else f" ({columns or tree.get('expr', '')})"
    )
    text = f"PARTITION BY {_PARTITION_KINDS[kind]}{by}"
    names = [name_from_json(part["name"]) for part in definitions]
    plain = not any(part.get("comment") or part.get("policy_ref_info") for part in definitions)
    if kind in {_HASH, _KEY} and plain and names == [f"p{at}" for at in range(len(names))]:
        return f"{text} PARTITIONS {len(names)}"
    return text + "\n(" + ",\n ".join(_partition(kind, part) for part in definitions) + ")"


def _partition(kind: int, part: Mapping[str, Any]) -> str:
    text = f"PARTITION {quote(name_from_json(part['name']))}"
    if kind == _RANGE:
        text += f" VALUES LESS THAN ({','.join(part['less_than'])})"
    elif kind == _LIST:
        values = part.get("in_values") or [["DEFAULT"]]
        listed = ",".join(f"({','.join(row)})" if len(row) > 1 else row[0] for row in values)
        text += " DEFAULT" if listed.upper() == "DEFAULT" else f" VALUES IN ({listed})"
    text += f" COMMENT {_literal(part['comment'])}" if part.get("comment") else ""
    return text + _placement(part)


def add_index(table: TableInfo, index: IndexInfo) -> str:
    """Return the statement that adds an index."""
    return portable_statement(f"ALTER TABLE {quote(table.name)} ADD {_index(table, index)}")


def drop_index(table: TableInfo, index: IndexInfo) -> str:
    """Return the statement that drops an index."""
    return f"ALTER TABLE {quote(table.name)} DROP INDEX {quote(index.name)}"


def rename_column(table: TableInfo, name: str, new_name: str) -> str:
    """Return the statement that renames a column."""
    return f"ALTER TABLE {quote(table.name)} RENAME COLUMN {quote(name)} TO {quote(new_name)}"


def alter_column(verb: str, table: TableInfo, column: ColumnInfo, place: str = "") -> str:
    """Return the statement that adds or modifies a column."""
    return f"ALTER TABLE {quote(table.name)} {verb} COLUMN {quote(column.name)} {column_text(column)}{place}"


def alter_table(before: TableInfo, after: TableInfo) -> str:
    """Return the statement that makes one description of a table from another, as far as readers see them.

    Empty when the difference does not say which statement it was: more than columns, indexes and partitions
    differ, or the columns have another order that no single move explains.
    """
    if before.name != after.name or _rest_of_table(before) != _rest_of_table(after):
        return ""
    try:
        clauses = [*_column_clauses(before, after), *_index_clauses(before, after)]
        divided = _partition_clauses(before, after, rewritten=bool(clauses))
    except _UndeterminedError:
        return ""
    if not clauses and not divided:
        return ""
    # Clauses of partitions stand alone in MySQL; they come with others only in PARTITION BY.
    text = ", ".join([*clauses, *divided])
    return portable_statement(
        f"ALTER TABLE {quote(after.name)} {text}", foreign_indexes=foreign_indexes(before)
    )


class _UndeterminedError(Exception):
    """Two descriptions do not say which statement led from one to the other."""


def _rest_of_table(table: TableInfo) -> tuple[Any, ...]:
    """Return what a statement can change besides columns, indexes and partitions."""
    extra = table.extra
    return _options(table), _ttl(table), extra.get("fk_info") or (), extra.get("constraint_info") or ()


def _shown_columns(table: TableInfo) -> list[ColumnInfo]:
    return [column for column in table.columns if column.state is SchemaState.PUBLIC and not column.hidden]


def _column_clauses(before: TableInfo, after: TableInfo) -> list[str]:
    old = {column.id: column for column in _shown_columns(before)}
    new = {column.id: column for column in _shown_columns(after)}
    heirs = _heirs(before, old, new)  # id of a column before -> id of the same column after
    clauses = [f"DROP COLUMN {quote(column.name)}" for key, column in old.items() if key not in heirs]
    earlier = {heir: old[key] for key, heir in heirs.items()}
    moved = _find_moved([heirs[key] for key in old if key in heirs], [key for key in new if key in earlier])
    place = "FIRST"
    ahead = len(new)
    while ahead and list(new)[ahead - 1] not in earlier:
        ahead -= 1  # the columns behind the last one that was there before: they are added at the end
    for at, (key, column) in enumerate(new.items()):
        definition = f"{quote(column.name)} {_definition(after, column)}"
        known = earlier.get(key)
        if known is None:
            clauses.append(f"ADD COLUMN {definition}" + ("" if at >= ahead else f" {place}"))
        elif known.name != column.name or key == moved or _differs(before, known, after, column):
            same = known.name == column.name
            verb = "MODIFY COLUMN" if same else f"CHANGE COLUMN {quote(known.name)}"
            clauses.append(f"{verb} {definition}" + (f" {place}" if key == moved else ""))
        place = f"AFTER {quote(column.name)}"
    return clauses


def _differs(before: TableInfo, old: ColumnInfo, after: TableInfo, new: ColumnInfo) -> bool:
    return old.id != new.id or _definition(before, old) != _definition(after, new)


def _heirs(before: TableInfo, old: Mapping[int, ColumnInfo], new: Mapping[int, ColumnInfo]) -> dict[int, int]:
    """Return which column is which: those of one id, and those that took the place of rewritten ones."""
    found = {key: key for key in old if key in new}
    for column in before.columns:
        if column.id in new and column.replaces_another and column.changes_from is not None:
            replaced = before.columns[column.changes_from]
            if replaced.id in old and replaced.id not in new:
                found[replaced.id] = column.id
    names = {column.name.lower(): key for key, column in new.items() if key not in found.values()}
    for key, column in old.items():
        if key not in found and column.name.lower() in names:
            found[key] = names[column.name.lower()]
    known = {column.id for column in before.columns}
    if len(found) < len(old) and not known.union(found.values()).issuperset(new):
        raise _UndeterminedError  # a column that is gone may be the one that nobody has seen coming
    return found


def _find_moved(old: Sequence[int], new: Sequence[int]) -> int | None:
    """Return the one column that has another place among the others; None when all are in order."""
    if list(old) == list(new):
        return None
    for key in new:
        if [each for each in old if each != key] == [each for each in new if each != key]:
            return key
    raise _UndeterminedError


def _index_clauses(before: TableInfo, after: TableInfo) -> list[str]:
    old, new = (
        {index.id: index for index in table.indexes if index.state is SchemaState.PUBLIC}
        for table in (before, after)
    )
    gone = [index for key, index in old.items() if key not in new]
    come = [index for key, index in new.items() if key not in old]
    # MODIFY COLUMN builds the indexes of its column again, with other ids.
    again = {_index(before, index) for index in gone} & {_index(after, index) for index in come}
    columns = {column.name for column in _shown_columns(after)}
    dropped = [
        "DROP PRIMARY KEY" if index.primary else f"DROP INDEX {quote(index.name)}"
        for index in gone
        if _index(before, index) not in again
        and any(before.columns[part.offset].hidden or part.name in columns for part in index.columns)
    ]
    added = [f"ADD {_index(after, index)}" for index in come if _index(after, index) not in again]
    return dropped + added


def _partition_clauses(before: TableInfo, after: TableInfo, *, rewritten: bool) -> list[str]:
    if before.physical_ids == after.physical_ids:
        return []
    old, new = _division(before), _division(after)
    if rewritten or (old is None and new is None):
        raise _UndeterminedError
    if new is None:
        return ["REMOVE PARTITIONING"]
    if old is None or _kind_of(old) != _kind_of(new):
        return [_partitions(new).replace("\n", " ")]
    return [_division_change(old, new)]


def _division(table: TableInfo) -> Mapping[str, Any] | None:
    """Return the partitioning of a table; None while it has, or still has, one part for all its rows."""
    tree = table.extra.get("partition")
    return tree if tree and tree.get("enable") and tree.get("type") in _PARTITION_KINDS else None


def _kind_of(tree: Mapping[str, Any]) -> tuple[Any, ...]:
    return tree["type"], tree.get("expr") or "", _names(tree.get("columns") or ())


_REORGANIZES = 64


def _division_change(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    kind = new["type"]
    before, after = ({name_from_json(part["name"]): part for part in _parts(tree)} for tree in (old, new))
    kept = [name for name in before if name in after and before[name]["id"] == after[name]["id"]]
    gone = [name for name in before if name not in kept]
    come = [name for name in after if name not in kept]
    if kind in {_HASH, _KEY} and len(before) != len(after):
        count = len(after) - len(before)
        return f"ADD PARTITION PARTITIONS {count}" if count > 0 else f"COALESCE PARTITION {-count}"
    same = gone == come and all(
        _partition(kind, before[name]) == _partition(kind, after[name]) for name in gone
    )
    if same and new.get("ddl_action") != _REORGANIZES:
        return f"TRUNCATE PARTITION {','.join(map(quote, gone))}"
    if kind in {_HASH, _KEY}:
        raise _UndeterminedError
    if not come:
        return f"DROP PARTITION {','.join(map(quote, gone))}"
    definitions = f"({', '.join(_partition(kind, after[name]) for name in come)})"
    if not gone:
        return f"ADD PARTITION {definitions}"
    return f"REORGANIZE PARTITION {','.join(map(quote, gone))} INTO {definitions}"


def _parts(tree: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return tree.get("definitions") or ()
