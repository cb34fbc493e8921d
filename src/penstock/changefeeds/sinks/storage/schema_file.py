"""Schema files: the columns of one version of a table, and the DDL that led to it. Pure.

The checksum in a file's name covers names and columns, whatever their order; not the version or the DDL.
"""

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from penstock.changefeeds.sinks.storage import gojson
from penstock.changefeeds.sinks.storage.layout import SchemaPath, parse_schema_path, schema_path
from penstock.changefeeds.sinks.storage.schemacolumns import SchemaColumn
from penstock.errors import Corrupt
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.columns import ColumnInfo
from penstock.tables.schema import IndexColumn, IndexInfo, TableInfo

FORMAT_VERSION = 1
_MOCK_COLUMN_ID = 100  # of the first column, where files do not say ids


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFile:
    """One file. Without columns it is a database's."""

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
        query: str = "",
        type: int = 0,  # noqa: A002 - the file's own word
    ) -> Self:
        """That of a table; `columns` are those that are sent, None for all."""
        sent = None if columns is None else set(columns)
        keys = {column.id for column in schema.table.primary_key}
        described = tuple(
            SchemaColumn.of(column, with_id=with_ids, primary=column.id in keys)
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
        """The content of the file."""
        return gojson.dumps(
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
        """Read a file's content; raise Corrupt when it is no schema file."""
        try:
            tree = json.loads(data)
            columns = tuple(map(SchemaColumn.from_json, tree["TableColumns"] or ()))
            total = int(tree["TableColumnsTotal"])
            read = cls(
                schema=str(tree["Schema"]),
                table=str(tree["Table"]),
                version=int(tree["TableVersion"]),
                query=str(tree.get("Query", "")),
                type=int(tree.get("Type", 0)),
                columns=columns,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt("a schema file is damaged; it lacks a member or has a wrong one") from error
        if total != len(columns):
            raise Corrupt(f"a schema file is damaged; it has {len(columns)} columns instead of {total}")
        return read

    @property
    def checksum(self) -> int:
        """CRC-32 of names and columns, as it stands in the file's name."""
        ordered = sorted(self.columns, key=lambda column: column.name)
        covered: dict[str, Any] = {
            "Table": self.table,
            "Schema": self.schema,
            "Version": 0,
            "TableColumns": [column.to_json() for column in ordered],
            "TableColumnsTotal": len(ordered),
        }
        return zlib.crc32(gojson.dumps(covered))

    def path(self, table_id: int = 0) -> str:
        """Where the file is; `table_id` is given when table ids are the paths of tables."""
        return schema_path(self.place(table_id))

    def place(self, table_id: int = 0) -> SchemaPath:
        """The parts of its path."""
        of_table = {"table_id": table_id} if table_id else {}
        return SchemaPath(
            schema=self.schema, table=self.table, version=self.version, checksum=self.checksum, **of_table
        )

    def table_info(self, table_id: int = 0) -> TableInfo:
        """The table for a reader of its data files."""
        columns = tuple(
            column.column_info(offset, _MOCK_COLUMN_ID + offset) for offset, column in enumerate(self.columns)
        )
        keys = [at for at, column in enumerate(self.columns) if column.primary]
        return TableInfo(
            table_id,
            self.table,
            columns,
            indexes=(_primary(columns, keys),) if keys else (),
            is_common_handle=bool(keys),
        )


def check_named(path: str, file: SchemaFile, *, table_id_as_path: bool = False) -> None:
    """Raise Corrupt when a file's content is not what its path promises."""
    named = parse_schema_path(path, table_id_as_path=table_id_as_path)
    if named is None or (named.version, named.checksum) != (file.version, file.checksum):
        raise Corrupt(f"schema file {path} holds version {file.version} with checksum {file.checksum:010d}")


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of a version whose own file is not there: `version` to use, None to write the file.

    `stale`: a later file says the same, so that whoever reads has gone past what would be written.
    """

    version: int | None
    stale: bool = False


def choose_version(found: Iterable[str], wanted: SchemaPath, *, table_id_as_path: bool = False) -> Choice:
    """Decide by the files of a table's meta folder; those that are no schema files do not count."""
    parsed = (parse_schema_path(path, table_id_as_path=table_id_as_path) for path in found)
    same = [each.version for each in parsed if each is not None and each.checksum == wanted.checksum]
    newest = max(same, default=None)
    return Choice(newest, stale=newest is not None and newest > wanted.version)


def _primary(columns: tuple[ColumnInfo, ...], keys: list[int]) -> IndexInfo:
    parts = tuple(IndexColumn(columns[at].name, at) for at in keys)
    return IndexInfo(1, "PRIMARY", parts, unique=True, primary=True)
