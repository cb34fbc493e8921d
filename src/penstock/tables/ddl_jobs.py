"""DDL jobs: finished ones as TiDB writes them into its history, and those of ours that still run."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Self

from penstock.errors import Corrupt
from penstock.tables.columns import SchemaState
from penstock.tables.schema import DatabaseInfo, TableInfo

JOB_VERSION = 1
_FINISHED = 4  # done, not yet known to every server
_SYNCED = 6
ROLLED_BACK = 3


class DdlAction(IntEnum):
    """What a job does: the actions that Penstock supports, by TiDB's numbers."""

    CREATE_SCHEMA = 1
    DROP_SCHEMA = 2
    CREATE_TABLE = 3
    DROP_TABLE = 4
    ADD_COLUMN = 5
    DROP_COLUMN = 6
    ADD_INDEX = 7
    DROP_INDEX = 8
    TRUNCATE_TABLE = 11
    MODIFY_COLUMN = 12
    RENAME_TABLE = 14


FLASHBACK_CLUSTER = 62
"""TiDB's number of the action that takes back the rows of all tables at once."""
_GONE = frozenset({DdlAction.DROP_SCHEMA, DdlAction.DROP_TABLE, DdlAction.DROP_COLUMN, DdlAction.DROP_INDEX})
_UNUSED = {
    **dict.fromkeys(("err", "raw_args", "reorg_meta", "multi_schema_info")),
    **dict.fromkeys(("err_count", "row_count", "snapshot_ver", "dependency_id", "priority"), 0),
}
_MEMBERS = (
    "id",
    "type",
    "schema_id",
    "table_id",
    "schema_name",
    "table_name",
    "state",
    "start_ts",
    "query",
    "binlog",
)


@dataclass(frozen=True, slots=True)
class DdlJob:
    """A DDL job. `type` is TiDB's number, which may be of an action that Penstock does not run itself.

    `table` is the table after the change, or before a drop. `tables` are the tables of a job that changes
    several. `schema_version` is the version after the change.
    """

    id: int
    type: int
    database_id: int
    table_id: int
    database_name: str
    table_name: str
    query: str
    start_ts: int
    schema_version: int
    database: DatabaseInfo | None = None
    table: TableInfo | None = None
    finished_ts: int = 0
    state: int = _SYNCED
    tables: tuple[TableInfo, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def error(self) -> str:
        """Why the job was rolled back; empty when it was not."""
        return str((self.extra.get("err") or {}).get("message") or "")

    @property
    def succeeded(self) -> bool:
        """Whether the job changed the schema; the history has cancelled jobs too."""
        return self.state in {_FINISHED, _SYNCED}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read TiDB's JSON; raise Corrupt when it is not a job. Its tables may be unreadable."""
        try:
            info = tree.get("binlog") or {}
            database, table = info.get("DBInfo"), info.get("TableInfo")
            return cls(
                id=tree["id"],
                type=tree["type"],
                database_id=tree["schema_id"],
                table_id=tree["table_id"],
                database_name=tree.get("schema_name") or "",
                table_name=tree.get("table_name") or "",
                query=tree.get("query") or "",
                start_ts=tree.get("start_ts", 0),
                schema_version=info.get("SchemaVersion", 0),
                database=DatabaseInfo.from_json(database) if database else None,
                table=_table(table) if table else None,
                finished_ts=info.get("FinishedTS", 0),
                state=tree.get("state", _SYNCED),
                tables=tuple(map(_table, info.get("MultipleTableInfos") or ())),
                extra={name: member for name, member in tree.items() if name not in _MEMBERS},
            )
        except (AttributeError, KeyError, TypeError) as error:
            number = tree.get("id") if isinstance(tree, Mapping) else "of the history"
            raise Corrupt(f"DDL job {number} is damaged: {error!r}") from error

    def to_json(self) -> dict[str, Any]:
        """Write TiDB's JSON of a finished job."""
        gone = self.type in _GONE
        return {
            **_UNUSED,
            "schema_state": int(SchemaState.NONE if gone else SchemaState.PUBLIC),
            "version": JOB_VERSION,
            **self.extra,
            "id": self.id,
            "type": int(self.type),
            "schema_id": self.database_id,
            "table_id": self.table_id,
            "schema_name": self.database_name,
            "table_name": self.table_name,
            "state": self.state,
            "start_ts": self.start_ts,
            "query": self.query,
            "binlog": {
                "SchemaVersion": self.schema_version,
                "DBInfo": self.database.to_json() if self.database else None,
                "TableInfo": self.table.to_json() if self.table else None,
                "FinishedTS": self.finished_ts,
                "MultipleTableInfos": [table.to_json() for table in self.tables] or None,
            },
        }


def _table(tree: Mapping[str, Any]) -> TableInfo:
    return TableInfo.describe(tree["id"], tree)


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A DDL job of Penstock that takes several transactions, as it is stored until it is finished.

    `state` is that of the elements it adds or drops: a column and indexes, by their ids. While it is
    WRITE_REORG, older rows are filled in from `position` on, a record key; `rows` were done. `error` says
    why the job is being rolled back.
    """

    id: int
    type: DdlAction
    database_id: int
    table_id: int
    query: str
    start_ts: int
    state: SchemaState
    column_id: int = 0
    index_ids: tuple[int, ...] = ()
    position: bytes = b""
    filled: bool = False
    rows: int = 0
    error: str = ""

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return cls(
            **{
                **tree,
                "type": DdlAction(tree["type"]),
                "state": SchemaState(tree["state"]),
                "index_ids": tuple(tree["index_ids"]),
                "position": bytes.fromhex(tree["position"]),
            }
        )

    def to_json(self) -> dict[str, Any]:
        """Return the form that is stored in the meta keys."""
        members = {name: getattr(self, name) for name in self.__slots__}
        return {**members, "position": self.position.hex(), "index_ids": list(self.index_ids)}

    @property
    def goes_back(self) -> bool:
        """Whether the elements go away: the job drops them, or it is rolled back."""
        return bool(self.error) or self.type is DdlAction.DROP_INDEX

    def roll_back(self, error: str) -> Self:
        """Return the job on its way back."""
        return replace(self, error=error, filled=False)


@dataclass(frozen=True, slots=True)
class SchemaDiff:
    """The schema element that a version of the schema changed."""

    version: int
    type: int
    database_id: int
    table_id: int
    old_table_id: int = 0
    old_database_id: int = 0

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read TiDB's JSON."""
        return cls(
            version=tree["version"],
            type=tree["type"],
            database_id=tree["schema_id"],
            table_id=tree["table_id"],
            old_table_id=tree.get("old_table_id", 0),
            old_database_id=tree.get("old_schema_id", 0),
        )

    def to_json(self) -> dict[str, Any]:
        """Write TiDB's JSON."""
        return {
            "version": self.version,
            "type": int(self.type),
            "schema_id": self.database_id,
            "table_id": self.table_id,
            "old_table_id": self.old_table_id,
            "old_schema_id": self.old_database_id,
            "regenerate_schema_map": False,
            "affected_options": None,
        }
