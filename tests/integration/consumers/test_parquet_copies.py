"""Plain copies: the manifest, the files that it names, and those that it does not name any more."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from penstock.consumers.lake.parquet import ParquetCopy, live_files
from penstock.errors import Corrupt, Invalid
from penstock.object_storage import open_storage
from penstock.tables.alter import add_column
from penstock.testing.clock import ManualClock
from penstock.testing.consumers import SourceModel, job_context, rows_by_key
from support.itemtables import item_table
from support.lakeworld import LakeWorld

KEY = ("id",)
HOUR_S = 3600.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LakeWorld]:
    made = LakeWorld("parquet", tmp_path)
    yield made
    made.close()


@pytest.fixture
def source() -> SourceModel:
    model = SourceModel(replace(item_table("integer"), id=1))
    model.commit(*({"id": number, "name": f"n{number}"} for number in range(20)))
    return model


def consume(world: LakeWorld, source: SourceModel, clock: ManualClock) -> None:
    context = replace(world.consumer(history="2h").job, clock=clock)
    ParquetCopy(context).consume(source.retriever(world.committed_ts(), source.ts))


def folder(world: LakeWorld) -> Path:
    return world.folder / "lake"


def data_files(world: LakeWorld) -> list[str]:
    return sorted(str(path.relative_to(folder(world))) for path in folder(world).rglob("*.parquet"))


def test_readers_who_list_the_manifest_see_one_moment(world: LakeWorld, source: SourceModel) -> None:
    world.consumer().consume(source.retriever(0, source.ts))
    before, files = live_files(str(folder(world)))
    assert before == source.ts
    source.commit({"id": 1, "name": "later"}, delete=[(2,)])
    world.consumer().consume(source.retriever(before, source.ts))
    read = ds.dataset([path.removeprefix("file://") for path in files]).to_table()
    assert rows_by_key(read, KEY) == source.at(before)
    assert live_files(str(folder(world)))[0] == source.ts
    assert world.rows(KEY) == source.at(source.ts)


def test_files_go_when_the_time_for_their_readers_is_over(world: LakeWorld, source: SourceModel) -> None:
    clock = ManualClock()
    consume(world, source, clock)
    first = data_files(world)
    source.commit({"id": 1, "name": "x"})
    consume(world, source, clock)
    assert set(data_files(world)) > set(first)
    clock.advance(1.5 * HOUR_S)
    source.commit({"id": 1, "name": "y"})
    consume(world, source, clock)
    assert set(data_files(world)) > set(first)
    clock.advance(1 * HOUR_S)
    source.commit({"id": 1, "name": "z"})
    consume(world, source, clock)
    assert not set(data_files(world)) & set(first)
    assert world.rows(KEY) == source.at(source.ts)
    manifest = json.loads((folder(world) / "_penstock.json").read_bytes())
    known = [each["path"] for each in manifest["files"] + manifest["retired"]]
    assert sorted(known) == data_files(world)


def test_files_of_nobody_go_when_they_are_old(world: LakeWorld, source: SourceModel) -> None:
    world.consumer().consume(source.retriever(0, source.ts))
    stray = folder(world) / "data" / "77" / "0123456789ab-00000.parquet"
    stray.parent.mkdir()
    stray.write_bytes(b"of a zombie")
    world.consumer().table.maintain()
    assert stray.exists()
    late = ManualClock(wall_ms=int(stray.stat().st_mtime * 1000) + 3 * 86_400_000)
    ParquetCopy(replace(world.consumer().job, clock=late)).table.maintain()
    assert not stray.exists()
    assert world.rows(KEY) == source.at(source.ts)


def test_few_changes_write_few_files(world: LakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.consumers.lake.files.GROUP_BYTES", 1 << 10)
    monkeypatch.setattr("penstock.columnar.key_order.CHUNK_BYTES", 1 << 10)
    monkeypatch.setattr("penstock.consumers.lake.files.FILE_BYTES", 16 << 10)
    model = SourceModel(replace(item_table("integer"), id=1))
    model.commit(*({"id": number, "name": "x" * 50} for number in range(2000)))
    world.consumer().consume(model.retriever(0, model.ts, batch_rows=100))
    before = data_files(world)
    model.commit({"id": 1000, "name": "changed"})
    world.consumer().consume(model.retriever(world.committed_ts(), model.ts))
    _, files = live_files(str(folder(world)))
    assert len(files) == len(before) > 4
    assert len(set(data_files(world)) - set(before)) == 1


def test_all_files_have_the_same_columns(world: LakeWorld, source: SourceModel) -> None:
    world.consumer().consume(source.retriever(0, source.ts))
    source.alter(add_column(source.table, "more", "int"))
    source.commit({"id": 1_000_000, "name": "far away", "more": 1})
    world.consumer().consume(source.retriever(world.committed_ts(), source.ts))
    _, files = live_files(str(folder(world)))
    schemas = {tuple(pq.read_schema(path.removeprefix("file://")).names) for path in files}
    assert schemas == {("id", "name", "more")}


def test_a_directory_of_somebody_else_is_refused(world: LakeWorld, source: SourceModel) -> None:
    folder(world).mkdir()
    (folder(world) / "mine.csv").write_text("1,2")
    with pytest.raises(Invalid, match="has files that are not Penstock's; give an empty place"):
        world.consumer().consume(source.retriever(0, source.ts))
    (folder(world) / "mine.csv").unlink()
    (folder(world) / "data").mkdir()
    (folder(world) / "data" / "mine.parquet").write_bytes(b"")
    with pytest.raises(Invalid, match="has files that are not Penstock's"):
        world.committed_ts()


def test_a_damaged_manifest_stops_the_job(world: LakeWorld, source: SourceModel) -> None:
    world.consumer().consume(source.retriever(0, source.ts))
    (folder(world) / "_penstock.json").write_text("{")
    with pytest.raises(Corrupt, match="damaged"):
        world.committed_ts()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs the option uri"),
        ({"uri": "s3://b/x?access-key=a"}, "give credentials and settings as storage"),
        ({"uri": "s3://key:secret@b/x"}, "give credentials and settings as storage"),
        ({"uri": "x", "history": "soon"}, "write a duration"),
    ],
)
def test_options_are_checked_at_once(tmp_path: Path, options: dict[str, str], words: str) -> None:
    with pytest.raises(Invalid, match=words) as caught:
        ParquetCopy(job_context(tmp_path, "parquet", options))
    assert "secret" not in str(caught.value)


def test_there_is_nothing_to_read_where_no_copy_is(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="there is no copy at"):
        live_files(str(tmp_path))


def test_a_place_may_have_any_name(tmp_path: Path, source: SourceModel) -> None:
    place = tmp_path / "a place% with ünïcode"
    ParquetCopy(job_context(tmp_path, "parquet", {"uri": str(place)})).consume(source.retriever(0, source.ts))
    assert (place / "_penstock.json").exists()
    (url,) = live_files(str(place))[1]
    with open_storage(place.as_uri()).open(url.removeprefix(f"{place.as_uri()}/")) as file:
        assert pq.read_table(file).num_rows == 20
