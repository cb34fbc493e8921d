"""Reads snapshots of a table of some MiB, and prints what memory that took. Run by a test."""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from measured_flush import MIB, START, TABLE, peak

from penstock.eventstore import paths
from penstock.eventstore.manifest import ObjectInfo
from penstock.eventstore.manifest_log import ManifestLog
from penstock.eventstore.objects.object_file import ObjectWriter
from penstock.eventstore.read.partition import Partition, TableView
from penstock.eventstore.read.snapshot import plan_snapshot, read_snapshot
from penstock.eventstore.schema_version import SchemaVersion
from penstock.eventstore.sides import side_schema
from penstock.object_storage import StorageRef
from penstock.tables.keys import encode_handle

OBJECT_ROWS = 100_000  # about 80 MiB
NAME = "n" * 800


def written(storage: StorageRef, folder: Path, side: paths.Side, rows: pa.Table) -> ObjectInfo:
    writer = ObjectWriter(
        storage.open(),
        paths.table_root(1),
        side,
        kind="appendable",
        schema_version=1,
        schema=rows.schema,
        scratch=folder / "scratch",
    )
    with writer:
        for batch in rows.to_batches(max_chunksize=8192):
            writer.write(batch)
        info = writer.finish()
    assert info is not None
    return info


def data(first: int) -> pa.Table:
    numbers = range(first, first + OBJECT_ROWS)
    commit = np.full(OBJECT_ROWS, START + 1 + first)
    columns = [
        pa.array(numbers),
        pa.array([NAME] * OBJECT_ROWS),
        pa.array([encode_handle(number) for number in numbers]),
        pa.array(commit),
        pa.array(commit - 1),
        pa.array(np.zeros(OBJECT_ROWS, np.bool_)),
    ]
    return pa.Table.from_arrays(columns, schema=side_schema(TABLE, "data"))


def tombstones(ids: list[str], ts: int) -> pa.Table:
    """Every tenth row of each object is deleted."""
    offsets = np.arange(0, OBJECT_ROWS, 10)
    count = len(offsets) * len(ids)
    fixed = {
        "_object": np.repeat(sorted(ids), len(offsets)),
        "_offset": np.tile(offsets, len(ids)),
        "_commit_ts": np.full(count, ts),
        "_start_ts": np.full(count, ts - 1),
        "_handle": pa.array([b"h"] * count, pa.binary()),
        "_update": np.zeros(count, np.bool_),
    }
    schema = side_schema(TABLE, "tombstone")
    columns = [
        pa.array(fixed[field.name], field.type) if field.name in fixed else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def main(folder: Path, objects: int) -> None:
    storage = StorageRef(f"file://{folder}/objects")
    log = ManifestLog.open(storage.open(), paths.table_root(1), writer="w")
    infos = [written(storage, folder, "data", data(number * OBJECT_ROWS)) for number in range(objects)]
    ts = START + 1 + objects * OBJECT_ROWS
    infos.append(written(storage, folder, "tombstone", tombstones([info.id for info in infos], ts)))
    log.commit(add=infos, flushed_ts=ts, facts=[SchemaVersion(0, 1, TABLE).as_fact()])
    view = TableView("shop.items", (Partition(storage, 1),))
    seen: list[int] = []

    def read() -> None:
        seen.append(sum(batch.num_rows for batch in read_snapshot(view, ts)))

    def read_parts() -> None:
        parts = plan_snapshot(view, ts, partitions=4)
        seen.append(sum(batch.num_rows for part in parts for batch in part.read()))

    next(read_snapshot(view, ts, columns=["id"])).validate()  # threads and libraries are there from now on
    found = {"whole": peak(read), "parts": peak(read_parts), "seen": seen}
    sys.stdout.write(json.dumps({**found, "bytes": objects * OBJECT_ROWS * len(NAME) // MIB * MIB}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
