"""Targets of jobs, each read by the means of whoever made its format: not by ours.

What a job wrote is held against its source with readers that share no code with the consumers.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import lance
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from psycopg import sql
from psycopg.rows import dict_row
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from penstock.kv import Client
from penstock.tables import Catalog

__all__ = [
    "DeltaTarget",
    "Differences",
    "IcebergTarget",
    "KvTarget",
    "LanceTarget",
    "ParquetTarget",
    "PostgresTarget",
    "Reading",
    "Row",
    "Target",
    "differences",
]

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a target has: all of its rows, as they were at its own watermark."""

    ts: int
    rows: Sequence[Row]


class Target(Protocol):
    """A place that a job fills."""

    @property
    def options(self) -> dict[str, str]:
        """What the job is told."""

    def read(self) -> Reading | None:
        """Return what it has; None before the first iteration is complete."""

    def strays(self) -> list[str]:
        """Return the files that belong to no version that a reader sees or may have begun to read.

        Not what a killed process has half written, of which docs/jobs.md says that it goes later.
        """


@dataclass(frozen=True, slots=True)
class Differences:
    """How a target differs from its source, in numbers: no rows are shown."""

    missing: int
    extra: int
    different: int
    duplicates: int

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.different or self.duplicates)


def differences(expected: Sequence[Row], found: Sequence[Row], keys: Sequence[str]) -> Differences:
    """Compare complete contents, by key."""

    def by_key(rows: Sequence[Row]) -> dict[tuple[Any, ...], Row]:
        return {tuple(row[name] for name in keys): row for row in rows}

    wanted, there = by_key(expected), by_key(found)
    return Differences(
        missing=len(wanted.keys() - there.keys()),
        extra=len(there.keys() - wanted.keys()),
        different=sum(dict(wanted[key]) != dict(there[key]) for key in wanted.keys() & there.keys()),
        duplicates=len(found) - len(there),
    )


@dataclass(frozen=True, slots=True)
class LanceTarget:
    """An index, read by Lance. Columns that the index adds are left out."""

    folder: Path
    told: Mapping[str, str]

    @property
    def options(self) -> dict[str, str]:
        """Return the options of the consumer that writes this target."""
        return {"uri": str(self.folder), **self.told}

    def read(self) -> Reading | None:
        """Return the rows and the watermark of the target."""
        if not self.folder.exists():
            return None
        try:
            table = lance.dataset(str(self.folder)).to_table()
        except ValueError:  # files of a first build, and no version yet
            return None
        marker = json.loads(next(filter(None, table.column("_penstock").to_pylist())))
        if not marker["complete"]:
            return None
        kept = [name for name in table.column_names if not name.startswith("_")]
        rows = table.filter(pa.compute.is_null(table.column("_penstock"))).select(kept)
        return Reading(marker["watermark"], rows.to_pylist())

    def search(self, word: str, column: str) -> list[Any]:
        """Return what a search for a word finds, by a column."""
        hits = lance.dataset(str(self.folder)).to_table(columns=[column], full_text_query=word)
        return sorted(hits.column(column).to_pylist())

    def strays(self) -> list[str]:
        """Return nothing: Lance removes unused files itself, some days later."""
        return []


@dataclass(frozen=True, slots=True)
class DeltaTarget:
    """A Delta table, read by delta-rs."""

    folder: Path

    @property
    def options(self) -> dict[str, str]:
        """Return the options of the consumer that writes this target."""
        return {"uri": str(self.folder)}

    def read(self) -> Reading | None:
        """Return the rows and the watermark of the target."""
        if not DeltaTable.is_deltatable(str(self.folder)):
            return None
        table = DeltaTable(str(self.folder))
        ts = table.transaction_version("penstock/watermark")
        assert ts is not None, "a Delta table without a watermark"
        return Reading(ts, table.to_pyarrow_table().to_pylist())

    def strays(self) -> list[str]:
        """Return the files or tables that no reader needs."""
        named: set[str] = set()
        for log in (self.folder / "_delta_log").glob("*.json"):
            actions = map(json.loads, log.read_text().splitlines())
            named |= {each["path"] for action in actions if (each := action.get("add"))}
        return _others(self.folder, named, skip=("_delta_log", "staging/"))


@dataclass(frozen=True, slots=True)
class IcebergTarget:
    """An Iceberg table in a catalog of SQLite, read by pyiceberg."""

    folder: Path
    table: str = "copies.items"

    @property
    def _catalog(self) -> dict[str, str]:
        return {
            "name": "test",  # tables of a catalog are known by its name too
            "type": "sql",
            "uri": f"sqlite:///{self.folder}.db",
            "warehouse": f"file://{self.folder}",
        }

    @property
    def options(self) -> dict[str, str]:
        """Return the options of the consumer that writes this target."""
        return {"table": self.table, **{f"catalog.{name}": value for name, value in self._catalog.items()}}

    def read(self) -> Reading | None:
        """Return the rows and the watermark of the target."""
        with load_catalog(**self._catalog) as catalog:
            try:
                table = catalog.load_table(self.table)
            except NoSuchTableError:
                return None
            rows = table.scan().to_arrow().to_pylist()
            return Reading(int(table.properties["penstock.watermark"]), rows)

    def strays(self) -> list[str]:
        """Return the files or tables that no reader needs."""
        with load_catalog(**self._catalog) as catalog:
            table = catalog.load_table(self.table)
            named = set(table.inspect.all_files().column("file_path").to_pylist())
            return _others(Path(table.location().removeprefix("file://")) / "data", named, absolute=True)


@dataclass(frozen=True, slots=True)
class ParquetTarget:
    """Parquet files, by the manifest that names them."""

    folder: Path

    @property
    def options(self) -> dict[str, str]:
        """Return the options of the consumer that writes this target."""
        return {"uri": str(self.folder)}

    def _manifest(self) -> dict[str, Any] | None:
        path = self.folder / "_penstock.json"
        found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
        return found

    def read(self) -> Reading | None:
        """Return the rows and the watermark of the target."""
        manifest = self._manifest()
        if manifest is None:
            return None
        rows: list[Row] = []
        names = [column["name"] for column in manifest["columns"]]
        for file in manifest["files"]:
            found = pq.read_table(self.folder / file["path"], partitioning=None).to_pylist()
            rows += [{name: row.get(name) for name in names} for row in found]
        return Reading(int(manifest["watermark"]), rows)

    def strays(self) -> list[str]:
        """Return the files or tables that no reader needs."""
        manifest = self._manifest() or {"files": (), "retired": ()}
        named = {file["path"] for file in (*manifest["files"], *manifest["retired"])}
        return _others(self.folder, {*named, "_penstock.json"}, skip=("staging/",))


@dataclass(frozen=True, slots=True)
class PostgresTarget:
    """A table of PostgreSQL, read with SQL."""

    dsn: str
    table: str

    @property
    def options(self) -> dict[str, str]:
        """Return the options of the consumer that writes this target."""
        return {"dsn": self.dsn, "table": self.table}

    def read(self) -> Reading | None:
        """Return the rows and the watermark of the target."""
        with psycopg.connect(self.dsn, row_factory=dict_row) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            if not self._tables(connection).issuperset({self.table, "penstock_watermarks"}):
                return None
            marks = "SELECT ts FROM penstock_watermarks WHERE target = %s"
            mark = connection.execute(marks, (self.table,)).fetchone()
            if mark is None or not mark["ts"]:
                return None
            rows = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(self.table)))
            return Reading(mark["ts"], rows.fetchall())

    def strays(self) -> list[str]:
        """Return the files or tables that no reader needs."""
        with psycopg.connect(self.dsn, row_factory=dict_row) as connection:
            marked = connection.execute("SELECT target FROM penstock_watermarks").fetchall()
            targets = {row["target"] for row in marked}
            return sorted(self._tables(connection) - targets - {"penstock_watermarks"})

    @staticmethod
    def _tables(connection: psycopg.Connection[Any]) -> set[str]:
        query = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        return {row["relname"] for row in connection.execute(query).fetchall()}


@dataclass(frozen=True, slots=True)
class KvTarget:
    """Another table of the key-value store, read as any table is."""

    client: Client
    db: Catalog
    table: str

    @property
    def options(self) -> dict[str, str]:
        """Return the options of the consumer that writes this target."""
        return {"table": self.table}

    def read(self) -> Reading | None:
        """Return the rows and the watermark of the target."""
        at_ts = self.client.timestamp()
        mark = self.client.snapshot(at_ts).get(b"penstock/jobs/target/" + self.table.encode())
        ts = 0 if mark is None else json.loads(mark)["ts"]
        return Reading(ts, self.db.table(self.table).to_arrow(at_ts=at_ts).to_pylist()) if ts else None

    def strays(self) -> list[str]:
        """Return the files or tables that no reader needs."""
        database, name = self.table.split(".")
        there = {table.name for table in self.db.tables(database)}
        return sorted(path for path in there - {name} if path.startswith(name))


def _others(
    folder: Path, named: Collection[str], *, skip: tuple[str, ...] = (), absolute: bool = False
) -> list[str]:
    """Return files below a folder that are not named."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    there = {f"file://{file}" if absolute else str(file.relative_to(folder)) for file in files}
    return sorted(path for path in there - set(named) if not path.startswith(skip))
