"""What the sink wrote of an event store's table, its consumer reads: the same rows, at every checkpoint."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.changefeeds.codecs.decoder import FileOptions
from penstock.changefeeds.codecs.options import CsvOptions
from penstock.changefeeds.directory.listing import DirectoryLayout
from penstock.changefeeds.engines.local import LocalEngine
from penstock.changefeeds.sinks.sink import DmlEvent
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.changefeeds.sinks.storage.remote_files import RemoteFiles
from penstock.changefeeds.sinks.storage.sink import StorageSink
from penstock.eventloop import shared_loop
from penstock.follow.ddl_events import DdlEvent, TableChange
from penstock.object_storage import StorageRef
from penstock.tables import alter
from penstock.testing.directory import Replica
from support.itemtables import item, item_table
from support.sinkparts import KeptInMemory
from support.slices import slice_of
from support.tableworld import START, TableWorld

CSV = CsvOptions(include_commit_ts=True, output_old_value=True)


def write_history(world: TableWorld, kind: str) -> None:
    """Inserts, updates, deletes, and keys that change hands."""
    for number in range(1, 40):
        world.commit(item(kind, number, f"name {number}"))
    world.commit(*(item(kind, number, f"again {number}") for number in range(1, 11)))
    world.commit(delete=[world.key(item(kind, number, "")) for number in range(20, 25)])
    if kind == "not clustered":
        world.commit(item(kind, 500, "moved", rowid=30), item(kind, 30, "taken", rowid=600))


@pytest.mark.parametrize("kind", ["integer", "composite", "not clustered"])
@pytest.mark.parametrize(
    "options",
    [
        {"protocol": "canal-json", "enable_tidb_extension": True},
        {"protocol": "csv", "csv": CSV, "compression": "gzip", "date_separator": "none"},
        {"protocol": "parquet", "use_table_id_as_path": True},
        {"protocol": "debezium", "enable_table_across_nodes": True, "date_separator": "year"},
    ],
    ids=lambda options: options["protocol"],
)
async def test_a_reader_of_the_directory_has_the_rows_of_the_source(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    target = StorageRef(f"file://{tmp_path}/out")
    given = SinkOptions(target=target, file_size=1024, **options)
    files = RemoteFiles(target.open(), given)
    sink = StorageSink(LocalEngine(target), files, KeptInMemory(), given, changefeed="feed")
    running = shared_loop().create_task(sink.run())
    replica = Replica(
        target.open(),
        files=FileOptions(csv=given.csv),
        layout=DirectoryLayout(given.date_separator, given.use_table_id_as_path),
        cut_commits=True,
    )
    with TableWorld(tmp_path / "store", item_table(kind)) as world:
        world.alter(item_table(kind))  # a version that is not 0

        async def send(from_ts: int) -> int:
            world.resolve()
            event = DmlEvent(replace(slice_of(world, from_ts, world.ts), nbytes=10_000))
            sink.add_dml_event(event)
            spec = event.slice.dispatcher
            ddl = DdlEvent(commit_ts=world.ts + 1, type=0, query="", database="shop")
            await sink.pass_block_event(spec, ddl)
            files.write_checkpoint(world.ts)
            replica.catch_up()
            found = list(replica.tables["shop.items"].values())
            wanted = list(world.versions.at(world.ts).values())
            assert sorted(map(str, found)) == sorted(map(str, wanted))
            return world.ts

        write_history(world, kind)
        sent = await send(START)
        before = world.table.schemas[-1]
        wider = alter.add_column(before.table, "tag", "varchar(9) not null default 'none'")
        ts = world.alter(wider)
        change = TableChange(before, world.table.schemas[-1])
        await sink.write_block_event(
            DdlEvent(commit_ts=ts, type=5, query="ALTER TABLE", database="shop", tables=(change,))
        )
        world.commit(item(kind, 77, "after", tag="new"), delete=[world.key(item(kind, 1, "", tag=""))])
        await send(max(sent, ts - 1))
    await sink.close()
    await running
    replica.check()
    assert len(list((tmp_path / "out").rglob("CDC*0*.*"))) >= 3
