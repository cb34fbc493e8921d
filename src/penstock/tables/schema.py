"""Databases, tables, columns and indexes as TiDB describes them in JSON.

Values are frozen. Members that Penstock does not use are kept in `extra` and written back, so that rewriting
a schema loses nothing.

A description that cannot be read costs its own table alone: `TableInfo.describe` then returns a table without
columns whose `unreadable` has the reason.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import IntEnum
from functools import cached_property
from typing import Any, Self

from penstock.clock import physical_ms
from penstock.errors import Corrupt, Invalid
from penstock.tables.columns import (
    CURRENT_DATE,
    PACKED_TIMES,
    UNSPECIFIED,
    ColumnFlag,
    ColumnInfo,
    SchemaState,
    Tp,
    name_from_json,
    name_to_json,
    rest_of,
)

__all__ = ["ROWID_COLUMN", "DatabaseInfo", "HandleKind", "IndexColumn", "IndexInfo", "TableInfo"]

ROWID_COLUMN = "_tidb_rowid"
ROWID_ID = -1
TABLE_VERSION = 5


class HandleKind(IntEnum):
    """The kind of a row's handle, which identifies it in its key."""

    INT = 0  # the integer primary key
    COMMON = 1  # the encoded primary key columns
    ROWID = 2  # an implicit number


@dataclass(frozen=True, slots=True)
class IndexColumn:
    """A column of an index. `length` limits a string to its first characters; -1 means no limit."""

    name: str
    offset: int
    length: int = UNSPECIFIED
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read TiDB's JSON."""
        extra = rest_of(tree, ("name", "offset", "length"))
        return cls(name_from_json(tree["name"]), tree["offset"], tree.get("length", UNSPECIFIED), extra)

    def to_json(self) -> dict[str, Any]:
        """Write TiDB's JSON."""
        name = name_to_json(self.name)
        return {**self.extra, "name": name, "offset": self.offset, "length": self.length}


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """One index."""

    id: int
    name: str
    columns: tuple[IndexColumn, ...]
    unique: bool = False
    primary: bool = False
    is_global: bool = False
    state: SchemaState = SchemaState.PUBLIC
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read TiDB's JSON."""
        return cls(
            id=tree["id"],
            name=name_from_json(tree["idx_name"]),
            columns=tuple(map(IndexColumn.from_json, tree.get("idx_cols") or ())),
            unique=tree.get("is_unique", False),
            primary=tree.get("is_primary", False),
            is_global=tree.get("is_global", False),
            state=SchemaState(tree.get("state", SchemaState.PUBLIC)),
            extra=rest_of(tree, _INDEX_MEMBERS),
        )

    def to_json(self) -> dict[str, Any]:
        """Write TiDB's JSON."""
        return {
            **_INDEX_DEFAULTS,
            **self.extra,
            "id": self.id,
            "idx_name": name_to_json(self.name),
            "idx_cols": [column.to_json() for column in self.columns],
            "state": int(self.state),
            "is_unique": self.unique,
            "is_primary": self.primary,
            "is_global": self.is_global,
        }

    @property
    def keeps_partition_in_key(self) -> bool:
        """Whether entries of a global index that end their key with a handle name its partition there too."""
        return self.is_global and int(self.extra.get("global_index_version") or 0) >= 1

    @property
    def condition(self) -> str:
        """The condition that a row must fulfil to have an entry; empty when every row has one."""
        return str(self.extra.get("condition_expr_string") or "")

    @property
    def written(self) -> bool:
        """Whether the key-value store has entries of the index."""
        columnar = any(self.extra.get(kind) for kind in ("vector_index", "inverted_index", "full_text_index"))
        return self.state is not SchemaState.NONE and not columnar


_BTREE = 1
_COUNTS_APART_VERSION = 5
_INDEX_DEFAULTS = {"tbl_name": {"O": "", "L": ""}, "comment": "", "index_type": _BTREE, "is_invisible": False}
_INDEX_MEMBERS = ("id", "idx_name", "idx_cols", "state", "is_unique", "is_primary", "is_global")


@dataclass(frozen=True)
class TableInfo:
    """One table: its columns in the order of the schema, its indexes, and what identifies a row.

    When `unreadable` is not empty, it says why the description cannot be read. Only the id is known then,
    and the name and the partitions as far as the description has them; the rest of it is in `extra`.
    """

    id: int
    name: str
    columns: tuple[ColumnInfo, ...]
    indexes: tuple[IndexInfo, ...] = ()
    state: SchemaState = SchemaState.PUBLIC
    pk_is_handle: bool = False
    is_common_handle: bool = False
    common_handle_version: int = 0
    charset: str = "utf8mb4"
    collate: str = "utf8mb4_bin"
    comment: str = ""
    max_column_id: int = 0
    max_index_id: int = 0
    update_ts: int = 0
    version: int = TABLE_VERSION
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    unreadable: str = ""

    @classmethod
    def describe(cls, table_id: int, tree: Any) -> Self:
        """Read TiDB's JSON of the table with that id; `unreadable` says why when that is impossible."""
        if not isinstance(tree, Mapping):
            return cls.without_columns(table_id, {}, "its description is no JSON object")
        try:
            table = cls.from_json(tree)
            if table.id != table_id or not table.name or not all(map(_is_id, table.physical_ids)):
                return cls.without_columns(table_id, tree, "its id, its name or a partition is not valid")
            _ = table.primary_key  # it fails when an index names a column that is not there
        except Corrupt as error:
            return cls.without_columns(table_id, tree, str(error))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            return cls.without_columns(table_id, tree, f"its description is damaged: {error!r}")
        return table

    @classmethod
    def without_columns(cls, table_id: int, tree: Mapping[str, Any], reason: str) -> Self:
        """Return what is known of a table whose description cannot be read for some reason."""
        name = tree.get("name")
        name = name.get("O") if isinstance(name, Mapping) else name
        extra = rest_of(tree, ("id", "name"))
        table = cls(table_id, name if isinstance(name, str) else "", (), extra=extra, unreadable=reason)
        try:
            named = all(map(_is_id, table.physical_ids))
        except (AttributeError, LookupError, TypeError):
            named = False
        return table if named else replace(table, extra=rest_of(extra, ("partition",)))

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read TiDB's JSON; raise Corrupt when it is not a table, or has a column of unknown type."""
        try:
            table = cls(
                id=tree["id"],
                name=name_from_json(tree["name"]),
                columns=tuple(_columns(tree)),
                indexes=tuple(map(IndexInfo.from_json, tree.get("index_info") or ())),
                state=SchemaState(tree.get("state", SchemaState.PUBLIC)),
                pk_is_handle=tree.get("pk_is_handle", False),
                is_common_handle=tree.get("is_common_handle", False),
                common_handle_version=tree.get("common_handle_version", 0),
                charset=tree.get("charset") or "",
                collate=tree.get("collate") or "",
                comment=tree.get("comment") or "",
                max_column_id=tree.get("max_col_id", 0),
                max_index_id=tree.get("max_idx_id", 0),
                update_ts=tree.get("update_timestamp", 0),
                version=tree.get("version", 0),
                extra=rest_of(tree, _TABLE_MEMBERS),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"the schema of table {tree.get('id')} is damaged: {error!r}") from error
        untyped = [column.name for column in table.columns if column.type.tp is Tp.UNSPECIFIED]
        if untyped and table.is_base_table:
            raise Corrupt(f"column {untyped[0]}: type 0 is unknown; upgrade Penstock to read this table")
        return table

    def to_json(self) -> dict[str, Any]:
        """Write TiDB's JSON; that of an unreadable table as it was."""
        if self.unreadable:
            return {**self.extra, "id": self.id, "name": name_to_json(self.name)}
        return {
            **_TABLE_DEFAULTS,
            **self.extra,
            "id": self.id,
            "name": name_to_json(self.name),
            "charset": self.charset,
            "collate": self.collate,
            "cols": [column.to_json() for column in self.columns],
            "index_info": [index.to_json() for index in self.indexes],
            "state": int(self.state),
            "pk_is_handle": self.pk_is_handle,
            "is_common_handle": self.is_common_handle,
            "common_handle_version": self.common_handle_version,
            "comment": self.comment,
            "max_col_id": self.max_column_id,
            "max_idx_id": self.max_index_id,
            "update_timestamp": self.update_ts,
            "version": self.version,
        }

    @property
    def handle_kind(self) -> HandleKind:
        """What identifies a row in its key."""
        if self.pk_is_handle:
            return HandleKind.INT
        return HandleKind.COMMON if self.is_common_handle else HandleKind.ROWID

    @property
    def is_base_table(self) -> bool:
        """Whether the store has its rows, unlike those of a view, a sequence or a temporary table."""
        return self.kind == "table"

    @property
    def kind(self) -> str:
        """What it is, for people: a table, a view, a sequence or a temporary table."""
        if self.extra.get("view"):
            return "view"
        if self.extra.get("sequence"):
            return "sequence"
        return "temporary table" if self.extra.get("temp_table_type") else "table"

    @cached_property
    def stored_columns(self) -> tuple[ColumnInfo, ...]:
        """The columns that a reader sees: public, not hidden, not computed on read."""
        return tuple(column for column in self.columns if column.is_seen)

    @property
    def settled_column_id(self) -> int:
        """The greatest id up to which readers see every column that they will ever see.

        A column that an online change adds has an id before readers see it.
        """
        coming = [column.id for column in self.columns if column.state is not SchemaState.PUBLIC]
        return min(coming, default=self.max_column_id + 1) - 1

    @cached_property
    def kept_columns(self) -> tuple[ColumnInfo, ...]:
        """The columns whose values rows may have: those that a reader sees, then those that it does not.

        A column that is being added, dropped or rewritten is not seen, and rows have its values already.
        """
        hidden = (column for column in self.columns if not column.is_seen and not column.is_virtual)
        return (*self.stored_columns, *hidden)

    @cached_property
    def is_rewriting(self) -> bool:
        """Whether rows are being written again because the type of a column changes.

        The column with the new type has an id of its own, and is not public before all rows have its value.
        """
        return any(column.replaces_another for column in self.columns)

    @property
    def is_changing(self) -> bool:
        """Whether a job still runs that adds, drops or rewrites a column, an index or a partition."""
        columns = {column.state for column in self.columns}
        indexes = {index.state for index in self.indexes}
        division = (self.extra.get("partition") or {}).get("ddl_state") or SchemaState.PUBLIC
        return bool({self.state, division, *columns, *indexes} - {SchemaState.PUBLIC})

    @cached_property
    def primary_index(self) -> IndexInfo | None:
        """The index of the primary key, if there is one. An index that is being added or dropped is none."""
        public = (index for index in self.indexes if index.state is SchemaState.PUBLIC)
        return next((index for index in public if index.primary), None)

    @cached_property
    def primary_key(self) -> tuple[ColumnInfo, ...]:
        """The columns of the primary key in its order; empty when there is none."""
        if self.pk_is_handle:
            return tuple(column for column in self.columns if column.type.flag & ColumnFlag.PRI_KEY)[:1]
        if self.primary_index is None:
            return ()
        return tuple(self.columns[part.offset] for part in self.primary_index.columns)

    @cached_property
    def handle_columns(self) -> tuple[ColumnInfo, ...]:
        """The columns that the handle encodes."""
        return () if self.handle_kind is HandleKind.ROWID else self.primary_key

    @cached_property
    def unique_keys(self) -> tuple[tuple[ColumnInfo, ...], ...]:
        """The columns of each unique key that is not the handle: its values may go from one row to another.

        Indexes count in every state: TiDB keeps values unique before an index is public, and after it.
        """
        clustered = self.handle_kind is not HandleKind.ROWID
        return tuple(
            tuple(self.columns[part.offset] for part in index.columns)
            for index in self.indexes
            if index.unique and not (index.primary and clustered)
        )

    @cached_property
    def physical_ids(self) -> tuple[int, ...]:
        """The ids that occur in keys: the table's own, or its partitions'."""
        partition = self.extra.get("partition")
        if not partition or not partition.get("enable"):
            return (self.id,)
        return tuple(part["id"] for part in partition.get("definitions") or ())

    def counter_database_id(self, database_id: int) -> int:
        """Return the database that has the counter of row ids: the one in which the table was created."""
        return int(self.extra.get("old_schema_id") or database_id)

    @property
    def counts_apart(self) -> bool:
        """Whether auto-increment values and row ids have counters of their own: with AUTO_ID_CACHE=1."""
        return self.version >= _COUNTS_APART_VERSION and self.extra.get("auto_id_cache") == 1

    @cached_property
    def auto_increment(self) -> ColumnInfo | None:
        """The auto-increment column, if there is one."""
        return next((column for column in self.columns if column.auto_increment), None)

    @cached_property
    def _by_name(self) -> dict[str, ColumnInfo]:
        return {column.name.lower(): column for column in self.stored_columns}

    def column(self, name: str) -> ColumnInfo:
        """Return the column of that name in any case; raise Invalid when there is none."""
        try:
            return self._by_name[name.lower()]
        except KeyError:
            names = ", ".join(column.name for column in self.stored_columns)
            raise Invalid(f"table {self.name} has no column {name!r}; it has {names}") from None

    def has_column(self, name: str) -> bool:
        """Return whether there is a column of that name in any case."""
        return name.lower() in self._by_name

    def find_index(self, name: str) -> IndexInfo | None:
        """Return the index of that name in any case, None when there is none."""
        return next((index for index in self.indexes if index.name.lower() == name.lower()), None)

    def index(self, name: str) -> IndexInfo:
        """Return the index of that name in any case; raise Invalid when there is none."""
        index = self.find_index(name)
        if index is not None:
            return index
        names = ", ".join(index.name for index in self.indexes) or "none"
        raise Invalid(f"table {self.name} has no index {name!r}; it has {names}")

    def with_columns(self, columns: Sequence[ColumnInfo]) -> Self:
        """Return the same table with other columns; update their offsets, also in the indexes."""
        placed = tuple(replace(column, offset=at) for at, column in enumerate(columns))
        offsets = {column.name.lower(): column.offset for column in placed}
        indexes = tuple(
            replace(
                index,
                columns=tuple(replace(part, offset=offsets[part.name.lower()]) for part in index.columns),
            )
            for index in self.indexes
        )
        return replace(self, columns=placed, indexes=indexes)


def _columns(tree: Mapping[str, Any]) -> Iterator[ColumnInfo]:
    """Yield the columns of TiDB's JSON of a table.

    Of a column that was added with DEFAULT (CURRENT_DATE), TiDB keeps the expression: older rows read as the
    day of the query, in the time zone of the session. Here they read as the day of the table's last DDL, in
    UTC.
    """
    for column in map(ColumnInfo.from_json, tree.get("cols") or ()):
        if column.origin_default == CURRENT_DATE and column.type.tp in PACKED_TIMES:
            changed_at = datetime.fromtimestamp(physical_ms(tree.get("update_timestamp", 0)) / 1000, UTC)
            yield replace(column, origin_default=changed_at.date().isoformat())
        else:
            yield column


def _is_id(physical_id: object) -> bool:
    return isinstance(physical_id, int)


_TABLE_DEFAULTS = {
    **dict.fromkeys(("constraint_info", "fk_info", "partition", "view", "sequence")),
    **dict.fromkeys(("auto_inc_id", "auto_id_cache", "auto_rand_id", "ShardRowIDBits"), 0),
}
_TABLE_MEMBERS = (
    *("id", "name", "charset", "collate", "cols", "index_info", "state", "pk_is_handle", "is_common_handle"),
    *("common_handle_version", "comment", "max_col_id", "max_idx_id", "update_timestamp", "version"),
)


@dataclass(frozen=True, slots=True)
class DatabaseInfo:
    """One database."""

    id: int
    name: str
    charset: str = "utf8mb4"
    collate: str = "utf8mb4_bin"
    state: SchemaState = SchemaState.PUBLIC
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read TiDB's JSON; raise Corrupt when it is not a database."""
        try:
            return cls(
                id=tree["id"],
                name=name_from_json(tree["db_name"]),
                charset=tree.get("charset") or "",
                collate=tree.get("collate") or "",
                state=SchemaState(tree.get("state", SchemaState.PUBLIC)),
                extra=rest_of(tree, ("id", "db_name", "charset", "collate", "state")),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            number = tree.get("id") if isinstance(tree, Mapping) else "of the list"
            raise Corrupt(f"the schema of database {number} is damaged: {error!r}") from error

    def to_json(self) -> dict[str, Any]:
        """Write TiDB's JSON."""
        return {
            "policy_ref_info": None,
            **self.extra,
            "id": self.id,
            "db_name": name_to_json(self.name),
            "charset": self.charset,
            "collate": self.collate,
            "state": int(self.state),
        }
