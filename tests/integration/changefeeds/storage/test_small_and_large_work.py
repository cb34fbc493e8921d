"""Which of two engines does what, and that files are the same whoever wrote them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.changefeeds.engines.encode import encode_part
from penstock.changefeeds.engines.engine import Chunk, EncodeWork, FileWork, WriteResult
from penstock.changefeeds.engines.local import LocalEngine
from penstock.changefeeds.engines.sized import SizedEngine
from penstock.errors import Unavailable
from penstock.object_storage import STAGING, StorageRef
from support.enginefaults import EngineFaults
from support.slices import slice_of
from support.tableworld import START, TableWorld

SPARK_ROWS = 150  # of the table's 200
OPTIONS = EncoderOptions(chunk_bytes=1_000)


class SparkDouble(LocalEngine):
    """Another engine in this process in place of Spark: it has its own segments only."""

    local_payloads: Mapping[int, Sequence[bytes]]

    async def write(
        self, files: Sequence[FileWork], local_payloads: Mapping[int, Sequence[bytes]] | None = None
    ) -> list[WriteResult]:
        self.local_payloads = local_payloads or {}
        return await super().write(files, local_payloads)


class World:
    """Both engines, and one large and one small slice, of which the small one follows."""

    def __init__(self, folder: Path, table: TableWorld, **more: int) -> None:
        target = StorageRef(f"file://{folder}/remote")
        self.storage = target.open()
        self.opened = 0
        numbers = count(1)
        self.faults = EngineFaults()
        self.local = LocalEngine(target, numbers=numbers)
        self.spark = SparkDouble(target, at=self.faults, numbers=numbers)
        self.engine = SizedEngine(self.local, self.open_spark, **{"spark_rows": SPARK_ROWS, **more})
        table.flush()  # slices know how many rows objects have
        middle = list(table.moments())[SPARK_ROWS]
        self.large, self.small = (
            EncodeWork(slice_of(table, low, high), OPTIONS)
            for low, high in ((START, middle), (middle, table.ts))
        )
        assert self.small.slice.rows < SPARK_ROWS <= self.large.slice.rows

    def open_spark(self) -> SparkDouble:
        self.opened += 1
        return self.spark

    async def encoded(self, work: EncodeWork) -> list[Chunk]:
        (chunks,) = await self.engine.encode([work])
        assert len(chunks) > 2
        return chunks


def payloads(*work: EncodeWork) -> list[bytes]:
    """What encoding gives."""
    return [
        encoded.payload
        for each in work
        for number in range(len(each.slice.parts))
        for encoded in encode_part(each.slice, number, each.options)
    ]


def file_of(name: str, chunks: Sequence[Chunk]) -> FileWork:
    return FileWork(
        dispatcher_id=name, chunks=tuple(chunks), data_path=f"{name}.json", index_path=f"{name}.index"
    )


async def test_few_rows_stay_here_and_many_do_not(tmp_path: Path, table: TableWorld) -> None:
    world = World(tmp_path, table)
    small = await world.encoded(world.small)
    assert not (await world.engine.write([file_of("small", small)]))[0].error
    assert world.opened == 0, "what nobody needs is not started"
    large = await world.encoded(world.large)
    assert world.local.segments == (small[0].segment,)
    assert world.spark.segments == (large[0].segment,)
    together = await world.engine.encode([world.large, world.small])
    assert world.local.segments == (small[0].segment,), "what is few rows by itself is many with the others"
    assert (len(together), world.opened) == (2, 1)
    await world.engine.close()
    assert (world.local.segments, world.spark.segments) == ((), ())


async def test_nothing_stays_here_when_that_is_what_was_asked_for(tmp_path: Path, table: TableWorld) -> None:
    world = World(tmp_path, table, spark_rows=0)
    await world.encoded(world.small)
    assert (len(world.local.segments), len(world.spark.segments)) == (0, 1)
    await world.engine.close()


async def test_what_turns_out_to_be_many_rows_does_not_stay_here(tmp_path: Path, table: TableWorld) -> None:
    world = World(tmp_path, table)
    unknown = replace(world.large, slice=replace(world.large.slice, rows=0, nbytes=0))  # no object has them
    chunks = await world.encoded(unknown)
    assert (world.local.segments, world.local.held_bytes) == ((), 0)
    assert world.spark.segments == (chunks[0].segment,)
    assert sum(chunk.rows for chunk in chunks) >= SPARK_ROWS
    await world.engine.close()


async def test_no_more_is_held_here_than_there_is_room(tmp_path: Path, table: TableWorld) -> None:
    world = World(tmp_path, table, held_bytes_max=1)
    first, second = await world.encoded(world.small), await world.encoded(world.small)
    assert world.local.segments == (first[0].segment,)
    assert world.spark.segments == (second[0].segment,)
    await world.engine.release(first[0].segment)
    await world.engine.release(second[0].segment)
    assert (world.local.segments, world.spark.segments) == ((), ())
    await world.encoded(world.small)
    assert len(world.local.segments) == 1
    await world.engine.close()


async def test_files_are_the_same_whoever_has_their_chunks(tmp_path: Path, table: TableWorld) -> None:
    world = World(tmp_path, table)
    large, small = await world.encoded(world.large), await world.encoded(world.small)
    files = [
        file_of("small", small[1:]),
        file_of("both", [large[-1], small[0]]),
        file_of("large", large[:-1]),
    ]
    written = await world.engine.write(files)
    assert [(each.data_path, each.error) for each in written] == [(file.data_path, "") for file in files]
    assert list(world.spark.local_payloads) == [small[0].segment], (
        "only what a file needs that has chunks of both"
    )
    contents = [world.storage.read(name) for name in ("large.json", "both.json", "small.json")]
    assert b"".join(each or b"" for each in contents) == b"".join(payloads(world.large, world.small))
    assert world.storage.read("both.index") == b"both.json\n"
    await world.engine.close()


async def test_a_failure_of_one_is_told_when_the_other_has_ended(tmp_path: Path, table: TableWorld) -> None:
    world = World(tmp_path, table)
    large, small = await world.encoded(world.large), await world.encoded(world.small)
    world.faults.failures["write"] = Unavailable("no executors")
    with pytest.raises(Unavailable, match="no executors"):
        await world.engine.write([file_of("large", large), file_of("small", small)])
    names = [name for name in world.storage.names("") if not name.startswith(STAGING)]
    assert names == ["small.index", "small.json"]
    await world.engine.close()
