"""Copies of a table in each format, as a test needs them: made, read by somebody else's reader, and killed.

world = LakeWorld("delta", tmp_path)
world.consumer().consume(model.retriever(0, model.ts))
assert world.rows(("id",)) == model.at(model.ts)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from penstock.consumers.lake.consumer import LakeConsumer
from penstock.consumers.lake.delta import Delta
from penstock.consumers.lake.files import DataFile, FileStore, WrittenFile
from penstock.consumers.lake.iceberg import Iceberg
from penstock.consumers.lake.parquet import ParquetCopy, live_files
from penstock.consumers.lake.table import LakeTable, LakeWatermark, Staging, Version
from penstock.object_storage import open_storage
from penstock.testing.consumers import job_context, rows_by_key
from penstock.testing.versions import Snapshot

__all__ = ["FORMATS", "Killed", "LakeWorld", "Mortal", "as_copied"]

FORMATS: dict[str, type[LakeConsumer]] = {"delta": Delta, "iceberg": Iceberg, "parquet": ParquetCopy}
_ICEBERG_TABLE = "shop.items"


class Killed(BaseException):
    """The process is gone: nothing that it would do afterwards happens."""


@dataclass
class LakeWorld:
    """One target. `more` are options beside the place, as for a server of storage."""

    format: str
    folder: Path
    url: str = ""
    more: Mapping[str, str] = field(default_factory=dict)
    columns: Sequence[str] | None = None
    spark: Any = None
    """A session, for large copies."""
    opened: list[LakeConsumer] = field(default_factory=list)

    @property
    def options(self) -> dict[str, str]:
        """What a user would write."""
        place = self.url or f"file://{self.folder}/lake"
        if self.format != "iceberg":
            return {"uri": place, **{f"storage.{name}": value for name, value in self.more.items()}}
        self.folder.mkdir(parents=True, exist_ok=True)
        catalog = {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": place,
            **self.more,
        }
        return {"table": _ICEBERG_TABLE, **{f"catalog.{name}": value for name, value in catalog.items()}}

    def consumer(self, *, job: str = "job", job_id: int = 1, **options: str) -> LakeConsumer:
        """Return a consumer as an iteration gets it; `close` closes it."""
        context = job_context(
            self.folder,
            self.format,
            {**self.options, **options},
            columns=self.columns,
            spark=self.spark,
            job=job,
            job_id=job_id,
        )
        made = FORMATS[self.format](context)
        self.opened.append(made)
        return made

    def mortal(self, steps: int) -> LakeConsumer:
        """Return a consumer that is killed at some step."""
        made = self.consumer()
        made.table = Mortal(made.table, steps)
        return made

    def table(self) -> pa.Table:
        """Return the target as others read it."""
        if self.format == "delta":
            return DeltaTable(self.options["uri"], storage_options=dict(self.more)).to_pyarrow_table()
        if self.format == "iceberg":
            properties = {name.removeprefix("catalog."): value for name, value in self.options.items()}
            catalog = load_catalog("penstock", **properties)
            try:
                return catalog.load_table(_ICEBERG_TABLE).scan().to_arrow()
            finally:
                catalog.close()
        _, files = live_files(self.options["uri"], dict(self.more))
        storage = open_storage(self.options["uri"], self.more)
        paths = [path.removeprefix(f"{self.options['uri']}/") for path in files]
        parts = [pq.read_table(pa.BufferReader(storage.read(path) or b"")) for path in paths]
        return pa.concat_tables(parts, promote_options="default") if parts else pa.table({})

    def rows(self, keys: Sequence[str]) -> Snapshot:
        """Return the target's rows by key; fails when a key is there twice."""
        return rows_by_key(self.table(), keys)

    def committed_ts(self) -> int:
        """Return the watermark, asked by a consumer of its own."""
        return self.consumer().committed_ts()

    def close(self) -> None:
        """Close every consumer that was made."""
        for reader in self.opened:
            reader.close()
        self.opened.clear()


def as_copied(rows: Snapshot) -> Snapshot:
    """Return rows of a source as a copy has them: times are microseconds."""
    return {
        tuple(map(_as_copied, key)): {name: _as_copied(cell) for name, cell in row.items()}
        for key, row in rows.items()
    }


def _as_copied(cell: Any) -> Any:
    return cell // timedelta(microseconds=1) if isinstance(cell, timedelta) else cell


class Mortal:
    """A LakeTable whose user is killed at some step: a write, a removal, a listing, around a commit."""

    def __init__(self, table: LakeTable, steps: int) -> None:
        self._table = table
        self._left = steps
        self.dialect = table.dialect
        self.folder = table.folder
        self.place = table.place

    def step(self) -> None:
        """Live on, or not."""
        self._left -= 1
        if self._left < 0:
            raise Killed

    def latest(self) -> Version | None:
        """Return the latest version."""
        return self._table.latest()

    def files(self, version: Version) -> list[DataFile]:
        """Return the files of a version."""
        return self._table.files(version)

    def read(self, version: Version, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Read the rows of a file."""
        return self._table.read(version, file)

    def stage(self, base: Version | None, schema: pa.Schema, *, whole: bool) -> "_MortalStaging":
        """Stage a commit, unless killed."""
        self.step()
        return _MortalStaging(self._table.stage(base, schema, whole=whole), self.step)

    def maintain(self) -> None:
        """Maintain the table, unless killed."""
        self.step()
        self._table.maintain()

    def close(self) -> None:
        """Close the table."""
        self._table.close()


class _MortalStaging:
    def __init__(self, staging: Staging, step: Callable[[], None]) -> None:
        self._staging = staging
        self._step = step
        self.file_schema = staging.file_schema

    def open_store(self) -> "_MortalStore":
        return _MortalStore(self._staging.open_store(), self._step)

    def commit(
        self, marks: LakeWatermark, written: Sequence[WrittenFile], removed: Sequence[DataFile]
    ) -> None:
        self._step()
        self._staging.commit(marks, written, removed)
        self._step()


class _MortalStore:
    def __init__(self, store: FileStore, step: Callable[[], None]) -> None:
        self._store = store
        self._step = step

    def write(self, path: str, data: bytes) -> None:
        self._step()
        self._store.write(path, data)

    def open(self, path: str) -> pa.NativeFile:
        return self._store.open(path)

    def names(self, folder: str) -> list[str]:
        self._step()
        return self._store.names(folder)

    def delete(self, path: str) -> None:
        self._step()
        self._store.delete(path)
