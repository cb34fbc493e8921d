"""Iceberg tables beside what others do with them."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from penstock.consumers.lake import iceberg_metadata
from penstock.consumers.lake.iceberg import Iceberg
from penstock.errors import Invalid, Unavailable
from penstock.testing.consumers import SourceModel, job_context
from support.itemtables import item_table
from support.lakeworld import LakeWorld

KEY = ("id",)
WAIT_S = 10.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LakeWorld]:
    made = LakeWorld("iceberg", tmp_path)
    yield made
    made.close()


@pytest.fixture
def source() -> SourceModel:
    model = SourceModel(replace(item_table("integer"), id=1))
    model.commit(*({"id": number, "name": f"n{number}"} for number in range(20)))
    return model


@contextmanager
def table(world: LakeWorld, *, made_of: pa.Schema | None = None) -> Iterator[Table]:
    """The table as others have it."""
    properties = {name.removeprefix("catalog."): value for name, value in world.options.items()}
    catalog = load_catalog("penstock", **properties)
    try:
        if made_of is not None:
            catalog.create_namespace("shop")
            catalog.create_table("shop.items", made_of)
        yield catalog.load_table("shop.items")
    finally:
        catalog.close()


def first(world: LakeWorld, source: SourceModel) -> None:
    world.consumer().consume(source.retriever(0, source.ts))


def change(world: LakeWorld, source: SourceModel, number: int) -> None:
    source.commit({"id": number, "name": f"changed {source.ts}"})
    world.consumer().consume(source.retriever(world.committed_ts(), source.ts))


def test_a_table_of_somebody_else_is_refused(world: LakeWorld, source: SourceModel) -> None:
    with table(world, made_of=pa.schema([("id", pa.int64())])):
        pass
    with pytest.raises(Invalid, match="is not Penstock's"):
        world.committed_ts()
    with pytest.raises(Invalid, match="is not Penstock's"):
        first(world, source)


def test_rows_and_watermark_are_one_snapshot(world: LakeWorld, source: SourceModel) -> None:
    first(world, source)
    change(world, source, 1)
    with table(world) as found:
        snapshots = found.snapshots()
        assert len(snapshots) == 2
        summary = snapshots[-1].summary
        assert summary is not None
        assert summary["penstock.watermark"] == str(source.ts)
        assert found.properties["penstock.watermark"] == str(source.ts)
        assert found.properties.get("commit.retry.num-retries") is None  # others may retry


def test_others_may_write_snapshots_between_commits(world: LakeWorld, source: SourceModel) -> None:
    first(world, source)
    with table(world) as found:
        found.overwrite(found.scan().to_arrow())  # as a compaction does
    change(world, source, 3)
    assert world.rows(KEY) == source.at(source.ts)
    with table(world) as found:
        found.delete("id = 5")
    source.commit(delete=[(5,)])
    change(world, source, 6)
    assert world.rows(KEY) == source.at(source.ts)


def test_a_snapshot_of_others_meanwhile_makes_it_try_again(world: LakeWorld, source: SourceModel) -> None:
    first(world, source)
    slow = world.consumer()
    slow.committed_ts()
    with table(world) as found:
        found.overwrite(found.scan().to_arrow())
    begin = source.ts
    data = source.retriever(begin, source.commit({"id": 1, "name": "x"}))
    with pytest.raises(Unavailable, match="by another writer"):
        slow.consume(data)
    world.consumer().consume(data.again())
    assert world.rows(KEY) == source.at(source.ts)


def test_a_table_that_others_partitioned_is_refused(world: LakeWorld, source: SourceModel) -> None:
    first(world, source)
    with table(world) as found, found.update_spec() as update:
        update.add_field("name", IdentityTransform())
    with pytest.raises(Invalid, match="another program partitioned"):
        world.committed_ts()


def test_commits_do_not_gather_manifests(world: LakeWorld, source: SourceModel) -> None:
    first(world, source)
    for number in range(12):
        change(world, source, number)
    with table(world) as found:
        current = found.current_snapshot()
        assert current is not None
        assert len(current.manifests(found.io)) <= 3


def test_too_many_snapshots_go_however_young(
    world: LakeWorld, source: SourceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg_metadata, "SNAPSHOTS_MAX", 6)
    monkeypatch.setattr(iceberg_metadata, "_SNAPSHOTS_KEPT", 4)
    monkeypatch.setattr("penstock.consumers.lake.iceberg.SNAPSHOTS_MAX", 6)
    first(world, source)
    for number in range(20):
        change(world, source, number)
    with table(world) as found:
        assert 4 <= len(found.snapshots()) <= 8
        for snapshot in found.snapshots():
            assert found.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == 20
    files = list((world.folder / "lake").rglob("*.parquet"))
    assert len(files) <= 8
    assert world.rows(KEY) == source.at(source.ts)


def test_snapshots_that_somebody_tagged_stay(world: LakeWorld, source: SourceModel) -> None:
    world.consumer(history="0s").consume(source.retriever(0, source.ts))
    with table(world) as found:
        current = found.current_snapshot()
        assert current is not None
        found.manage_snapshots().create_tag(current.snapshot_id, "audited").commit()
    change(world, source, 1)
    world.consumer(history="0s").table.maintain()
    with table(world) as found:
        assert len(found.snapshots()) == 2
        assert found.scan(snapshot_id=current.snapshot_id).to_arrow().num_rows == 20


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs the option table"),
        ({"table": "items"}, "write namespace.table"),
        ({"table": "a.b", "warehouse": "x"}, "has no option warehouse"),
    ],
)
def test_options_are_checked_at_once(tmp_path: Path, options: dict[str, str], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        Iceberg(job_context(tmp_path, "iceberg", options))


def test_a_catalog_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    consumer = Iceberg(job_context(tmp_path, "iceberg", {"table": "a.b", "catalog.type": "nothing"}))
    with pytest.raises(Invalid, match=r"check catalog\.\*"):
        consumer.committed_ts()


def test_a_table_does_not_wait_for_the_silent_catalog_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers = threading.Event(), threading.Event()

    def load(name: str, **properties: Any) -> Catalog:
        if name == "silent":
            asked.set()
            assert answers.wait(2 * WAIT_S), "nobody lets the catalog answer"
        return load_catalog(name, **properties)

    monkeypatch.setattr("penstock.consumers.lake.iceberg.load_catalog", load)
    silent = LakeWorld("iceberg", tmp_path / "a", more={"name": "silent"})
    healthy = LakeWorld("iceberg", tmp_path / "b")
    with ThreadPoolExecutor(2) as threads:
        waits = threads.submit(silent.committed_ts)
        try:
            assert asked.wait(WAIT_S), "nobody opens the catalog"
            assert threads.submit(healthy.committed_ts).result(WAIT_S) == 0
            assert not waits.done()
        finally:
            answers.set()
        assert waits.result(WAIT_S) == 0
    silent.close()
    healthy.close()
