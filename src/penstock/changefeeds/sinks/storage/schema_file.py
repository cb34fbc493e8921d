"""Schema files: the columns of one version of a table, and the DDL that led to it. Pure.

The checksum in a file's name covers names and columns, whatever their order, but not the version or the DDL.
It depends on the JSON being byte for byte what Go's encoder writes. Readers of TiCDC check it, and they know
different members: pingcap/ticdc has `ColumnElems`, the elements of ENUM and SET; pingcap/tiflow has not. By
default they stand in a member that both ignore, outside of the checksum, so that both read the files.
"""

import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from penstock.changefeeds.codecs.canal_json import MYSQL_TYPE_NAMES
from penstock.changefeeds.filters import selected_columns
from penstock.changefeeds.sinks.storage.layout import SchemaPath, parse_schema_path, schema_path
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.errors import Corrupt
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.ddl_events import DdlEvent, DdlScope, OtherAction, TableChange
from penstock.follow.ddl_statements import rename_statement
from penstock.tables.columns import (
    BLOBS,
    INTEGER_BITS,
    NO_FLAGS,
    STRINGS,
    UNSPECIFIED,
    ColumnFlag,
    ColumnInfo,
    FieldType,
    SchemaState,
    Tp,
)
from penstock.tables.ddl_jobs import DdlAction
from penstock.tables.schema import IndexColumn, IndexInfo, TableInfo
from penstock.tables.statements import create_table, quote

FORMAT_VERSION = 1
_MOCK_COLUMN_ID = 100  # of the first column, in files without column ids
# Go escapes these within strings, so that JSON can be embedded in HTML and JavaScript. Outside of strings
# they do not occur. A lone surrogate represents a byte that is no UTF-8, and Go writes U+FFFD for it.
_ESCAPED = re.compile("[<>&\u2028\u2029]|[\ud800-\udfff]")
_NO_UTF8 = re.compile("[\udc80-\udcff]")
_TYPE_NAMES = {tp: name.upper() for tp, name in MYSQL_TYPE_NAMES.items()}
_BINARY_NAMES = {tp: _TYPE_NAMES[tp].replace("TEXT", "BLOB") for tp in BLOBS} | {
    tp: _TYPE_NAMES[tp].replace("CHAR", "BINARY") for tp in (Tp.STRING, Tp.VARCHAR)
}
_TYPES = {name: tp for names in (_TYPE_NAMES, _BINARY_NAMES) for tp, name in names.items()}
_UNSIGNED = " UNSIGNED"
SCHEMA_FILE_BYTES_MAX = 16 * 1024 * 1024
"""A larger file is refused: what lies there may be a tenant's."""
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
    *("ColumnNullable", "ColumnIsPk"),
)
_TICDC_ELEMS = "ColumnElems"
_OTHER_ELEMS = "ColumnElements"
_REQUIRED_MEMBERS = frozenset({"ColumnName", "ColumnType"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaColumn:
    """One column. Everything except the default is text; an empty member is not written.

    `ticdc_elems`: elements are written as pingcap/ticdc writes them, and the checksum covers them.
    """

    name: str
    type: str
    id: str = ""
    default: Any = None
    precision: str = ""
    scale: str = ""
    not_null: bool = False
    primary: bool = False
    elems: tuple[str, ...] = ()
    ticdc_elems: bool = False

    @classmethod
    def of(
        cls, column: ColumnInfo, *, with_id: bool, primary: bool | None = None, ticdc_elems: bool = False
    ) -> Self:
        """Describe a column of a table; `primary`: it belongs to the primary key; None: as its flag says.

        The flag stays while the key is being dropped.
        """
        kind = column.type
        return cls(
            name=column.name,
            type=_type_name(kind),
            id=str(column.id) if with_id else "",
            default=_default(column),
            precision=_precision(kind),
            scale=_scale(kind),
            not_null=kind.not_null,
            primary=bool(kind.flag & ColumnFlag.PRI_KEY) if primary is None else primary,
            elems=kind.elems if kind.tp in {Tp.ENUM, Tp.SET} else (),
            ticdc_elems=ticdc_elems,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the members in the order of the file."""
        other = {_OTHER_ELEMS: list(self.elems)} if self.elems and not self.ticdc_elems else {}
        return {**self.covered, **other}

    @property
    def covered(self) -> dict[str, Any]:
        """The members that the checksum covers, in the order of the file."""
        values = (
            *(self.id, self.name, self.type, self.default, self.precision, self.scale),
            *("false" if self.not_null else "", "true" if self.primary else ""),
        )
        members = zip(_MEMBERS, values, strict=True)
        written = {
            name: value for name, value in members if name in _REQUIRED_MEMBERS or _is_written(name, value)
        }
        return {**written, **({_TICDC_ELEMS: list(self.elems)} if self.elems and self.ticdc_elems else {})}

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Self:
        """Read a column of a schema file; raise Corrupt when it is damaged."""
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
                elems=tuple(map(str, tree.get(_TICDC_ELEMS) or tree.get(_OTHER_ELEMS) or ())),
                ticdc_elems=bool(tree.get(_TICDC_ELEMS)),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise Corrupt("a column of a schema file has no name or no type; keep the file") from error

    def column_info(self, offset: int, mock_id: int) -> ColumnInfo:
        """Return the column for a reader of data files; raise Corrupt for an unknown type or a wrong size."""
        name = self.type.removesuffix(_UNSIGNED)
        if name not in _TYPES:
            raise Corrupt(
                f"column {self.name} of a schema file has the unknown type {self.type!r}; keep the file"
            )
        flags = NO_FLAGS
        flags |= ColumnFlag.UNSIGNED if self.type.endswith(_UNSIGNED) else NO_FLAGS
        flags |= ColumnFlag.NOT_NULL if self.not_null else NO_FLAGS
        flags |= ColumnFlag.PRI_KEY if self.primary else NO_FLAGS
        charset = ("utf8mb4", "utf8mb4_bin") if _is_text(name) else ("binary", "binary")
        sizes = (_size(self.precision, self.name), _size(self.scale, self.name))
        kind = FieldType(_TYPES[name], flags, *sizes, *charset, self.elems)
        return ColumnInfo(
            int(self.id or mock_id), self.name, offset, kind, default=_read_default(kind, self.default)
        )


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
        return _readable_text(raw)
    return column.default


def _read_default(kind: FieldType, default: Any) -> Any:
    """Return a default as a column has it. Of bits, TiCDC keeps only bytes below 128: others are unknown."""
    if kind.tp is not Tp.BIT or not isinstance(default, str):
        return default
    return int.from_bytes(default.encode("ascii"), "big") if default.isascii() else None


def _size(text: str, column: str) -> int:
    if not text:
        return UNSPECIFIED
    if not text.isdigit():
        raise Corrupt(f"column {column} of a schema file has a damaged size; keep the file")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFile:
    """A schema file. Without columns it is a database's."""

    schema: str
    table: str = ""
    version: int
    query: str = ""
    type: int = 0
    columns: tuple[SchemaColumn, ...] = ()

    @classmethod
    def of(
        cls,
        schema: SchemaVersion,
        version: int,
        *,
        columns: Iterable[str] | None = None,
        with_ids: bool = False,
        ticdc_elems: bool = False,
        query: str = "",
        type: int = 0,  # noqa: A002 - the file's own word
    ) -> Self:
        """Return the file of a table; `columns` are those that are sent, None for all."""
        sent = None if columns is None else set(columns)
        table = schema.table
        keys = {column.id for column in table.primary_key}
        leaving = any(index.primary and index.state is not SchemaState.PUBLIC for index in table.indexes)
        described = tuple(
            SchemaColumn.of(
                column,
                with_id=with_ids,
                primary=column.id in keys if keys or leaving else None,
                ticdc_elems=ticdc_elems,
            )
            for column in schema.table.stored_columns
            if sent is None or column.name in sent
        )
        return cls(
            schema=schema.database,
            table=schema.table.name,
            version=version,
            query=query,
            type=type,
            columns=described,
        )

    def to_json(self) -> bytes:
        """Return the content of the file."""
        return dump_go_json(
            {
                "Table": self.table,
                "Schema": self.schema,
                "Version": FORMAT_VERSION,
                "TableVersion": self.version,
                "Query": self.query,
                "Type": self.type,
                "TableColumns": [column.to_json() for column in self.columns] or None,
                "TableColumnsTotal": len(self.columns),
            }
        )

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Parse a file's content; raise Corrupt when it is no schema file."""
        try:
            tree = json.loads(data)
            columns = tuple(map(SchemaColumn.from_json, tree["TableColumns"] or ()))
            total = int(tree["TableColumnsTotal"])
            file = cls(
                schema=str(tree["Schema"]),
                table=str(tree["Table"]),
                version=int(tree["TableVersion"]),
                query=str(tree.get("Query", "")),
                type=int(tree.get("Type", 0)),
                columns=columns,
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise Corrupt("a schema file is damaged; a member is missing or wrong") from error
        if total != len(columns):
            raise Corrupt(f"a schema file is damaged; it has {len(columns)} columns instead of {total}")
        return file

    @property
    def checksum(self) -> int:
        """The CRC-32 of names and columns, which is part of the file's name."""
        ordered = sorted(self.columns, key=lambda column: column.name)
        covered: dict[str, Any] = {
            "Table": self.table,
            "Schema": self.schema,
            "Version": 0,
            "TableColumns": [column.covered for column in ordered],
            "TableColumnsTotal": len(ordered),
        }
        return zlib.crc32(dump_go_json(covered))

    def path(self, table_id: int = 0) -> str:
        """Return the file's path; give `table_id` when table ids are the paths of tables."""
        return schema_path(self.path_parts(table_id))

    def path_parts(self, table_id: int = 0) -> SchemaPath:
        """Return the parts of the file's path."""
        of_table = {"table_id": table_id} if table_id else {}
        return SchemaPath(
            schema=self.schema, table=self.table, version=self.version, checksum=self.checksum, **of_table
        )

    def table_info(self, table_id: int = 0) -> TableInfo:
        """Return the table for a reader of its data files."""
        columns = tuple(
            column.column_info(offset, _MOCK_COLUMN_ID + offset) for offset, column in enumerate(self.columns)
        )
        keys = [offset for offset, column in enumerate(self.columns) if column.primary]
        return TableInfo(
            table_id,
            self.table,
            columns,
            indexes=(_primary_index(columns, keys),) if keys else (),
            is_common_handle=bool(keys),
        )


def check_path(path: str, file: SchemaFile, *, table_id_as_path: bool = False) -> None:
    """Raise Corrupt when a file's content is not what its path promises."""
    named = parse_schema_path(path, table_id_as_path=table_id_as_path)
    if named is None or (named.version, named.checksum) != (file.version, file.checksum):
        raise Corrupt(
            f"schema file {path} holds version {file.version} with checksum {file.checksum:010d}; keep the"
            " directory"
        )


@dataclass(frozen=True, slots=True)
class VersionChoice:
    """What to do for a version without a file of its own: use `version`, or write the file when it is None.

    `stale`: a later file has the same columns, so its readers have gone past what would be written.
    """

    version: int | None
    stale: bool = False


def choose_version(
    found: Iterable[str], wanted: SchemaPath, *, table_id_as_path: bool = False
) -> VersionChoice:
    """Decide by the paths in a table's meta folder; those that are no schema files do not count."""
    parsed = (parse_schema_path(path, table_id_as_path=table_id_as_path) for path in found)
    same = [path.version for path in parsed if path is not None and path.checksum == wanted.checksum]
    newest = max(same, default=None)
    return VersionChoice(newest, stale=newest is not None and newest > wanted.version)


def ddl_files(event: DdlEvent, options: SinkOptions) -> list[tuple[str, SchemaFile]]:
    """Return the schema files of a DDL with their paths: one per table, as it is after the DDL or was before.

    A database has one file, or none where table ids are the paths; tables that come back with it have theirs.
    A statement on several tables is in the first file only, unless it divides into one for each table: a
    consumer runs every statement once.
    """
    files: list[tuple[str, SchemaFile]] = []
    tables = _subject_first(event)
    if event.scope is DdlScope.DATABASE or not event.tables:
        # TiCDC's consumer does not select the database before it creates it, which it knows by the type.
        kind = int(DdlAction.CREATE_SCHEMA) if event.recovers else event.type
        file = SchemaFile(schema=event.database, version=event.commit_ts, query=event.query, type=kind)
        files += [] if options.use_table_id_as_path else [(file.path(), file)]
        tables = tables if event.recovers else []
    for change, (query, kind) in zip(tables, _statements(event, tables), strict=True):
        schema = change.after or change.before
        assert schema is not None, "the table of a DDL exists before or after it"
        file = SchemaFile.of(
            schema,
            event.commit_ts,
            columns=selected_columns(schema, options.column_selectors),
            with_ids=options.output_column_id,
            ticdc_elems=options.schema_files == "ticdc",
            query=query,
            type=kind,
        )
        files.append((file.path(schema.table.id if options.use_table_id_as_path else 0), file))
    return files


def _subject_first(event: DdlEvent) -> list[TableChange]:
    """Return the tables; of an exchange the partitioned one is first, because the statement alters it."""
    if event.type != OtherAction.EXCHANGE_PARTITION:
        return list(event.tables)
    return sorted(event.tables, key=lambda change: not _is_partitioned(change.after or change.before))


def _is_partitioned(schema: SchemaVersion | None) -> bool:
    return schema is not None and schema.table.physical_ids != (schema.table.id,)


def _statements(event: DdlEvent, tables: Sequence[TableChange]) -> list[tuple[str, int]]:
    creates = event.type == OtherAction.CREATE_TABLES or event.scope is DdlScope.DATABASE
    if creates and all(change.after is not None for change in tables):
        kind = OtherAction.RECOVER_TABLE if event.recovers else DdlAction.CREATE_TABLE
        return [(create_table(change.after.table), kind) for change in tables if change.after is not None]
    arrives = any(change.before is None for change in tables)
    leaves = not event.query and any(change.after is None for change in tables)
    if event.type in _RENAMES and (arrives or leaves):
        return [_rename_among_arrivals(change) for change in tables]
    if len(tables) > 1 and _renames_apart(tables):
        return [(rename_statement([change]), DdlAction.RENAME_TABLE) for change in tables]
    first = (event.query, event.type)
    if not event.query:  # it named tables of another account
        first = (rename_statement(tables), DdlAction.RENAME_TABLE) if event.type in _RENAMES else ("", 0)
    return [first, *[("", 0)] * (len(tables) - 1)]


_RENAMES = frozenset({int(DdlAction.RENAME_TABLE), int(OtherAction.RENAME_TABLES)})


def _rename_among_arrivals(change: TableChange) -> tuple[str, int]:
    """Return the statement for one of several tables, some of which come from outside or go there.

    Those that come are created; those that go are dropped.
    """
    if change.before is None and change.after is not None:
        return create_table(change.after.table), DdlAction.RENAME_TABLE
    if change.after is None and change.before is not None:
        name = f"{quote(change.before.database)}.{quote(change.before.table.name)}"
        return f"DROP TABLE {name}", DdlAction.DROP_TABLE
    return rename_statement([change]), DdlAction.RENAME_TABLE


def _renames_apart(tables: Sequence[TableChange]) -> bool:
    """Return whether a DDL only renames tables, to names that none of them had: in any order."""
    if any(change.before is None or change.after is None for change in tables):
        return False
    pairs = [(change.before.name, change.after.name) for change in tables if change.before and change.after]
    return {old for old, _ in pairs}.isdisjoint(new for _, new in pairs)


def _primary_index(columns: tuple[ColumnInfo, ...], keys: list[int]) -> IndexInfo:
    parts = tuple(IndexColumn(columns[offset].name, offset) for offset in keys)
    return IndexInfo(1, "PRIMARY", parts, unique=True, primary=True)


def dump_go_json(tree: Any) -> bytes:
    """Return the tree as Go's encoder writes it, with an indent of four spaces; members stay in order."""
    text = json.dumps(tree, indent=4, ensure_ascii=False)
    return _ESCAPED.sub(_escape, text).encode()


def _readable_text(raw: bytes) -> str:
    """Return bytes as text, with U+FFFD for each byte that is no UTF-8.

    TiCDC keeps such bytes, and writes U+FFFD as an escape: its consumer then reads a character that is not
    escaped when it is written again, so that the checksum is another one, and it ends.
    """
    return _NO_UTF8.sub("\ufffd", raw.decode("utf-8", "surrogateescape"))


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return "\\ufffd" if 0xD800 <= code <= 0xDFFF else f"\\u{code:04x}"
