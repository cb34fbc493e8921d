"""Indexes on an S3 server: commits are conditional there too."""

from pathlib import Path

import pytest

from penstock.errors import Fenced, Unavailable
from support.indexworld import IndexWorld
from support.itemtables import item_table
from support.s3server import SECRET, Fault, FaultyS3, S3Bucket


def storage_of(bucket: S3Bucket) -> dict[str, str]:
    return {f"storage.{name}": value for name, value in bucket.options.items()}


@pytest.mark.parametrize(
    ("consumer", "more"),
    [("fulltext", {"text_columns": "name"}), ("vector", {"text_columns": "name", "dimension": "8"})],
)
def test_rows_and_watermark_are_one_conditional_commit(
    tmp_path: Path, s3_bucket: S3Bucket, consumer: str, more: dict[str, str]
) -> None:
    where = {"uri": f"{s3_bucket.url}/{consumer}", **storage_of(s3_bucket), **more}
    world = IndexWorld(tmp_path, consumer, item_table(), where)
    world.source.commit({"id": 1, "name": "green"}, {"id": 2, "name": "red"})
    world.catch_up()
    world.source.commit({"id": 2, "name": "green"}, {"id": 3, "name": "green"}, delete=[(1,)])
    given_up = world.changes()
    given_up.fault = lambda _: world.catch_up() if world.consumer().committed_ts() != given_up.to_ts else None
    with pytest.raises(Fenced):
        world.consumer().consume(given_up)
    assert sorted(world.search("green").rows.column("id").to_pylist()) == [2, 3]
    assert world.verifier().verify().same
    world.catch_up(resync=True)
    assert world.search("green").complete


@pytest.mark.parametrize("fault", [Fault.CONFLICT, Fault.LOST_ANSWER])
def test_a_commit_that_s3_refused_for_the_moment_or_did_not_answer_leaves_a_whole_index(
    tmp_path: Path, s3_bucket: S3Bucket, faulty_s3: FaultyS3, fault: Fault
) -> None:
    behind = faulty_s3.before(s3_bucket)
    where = {"uri": f"{behind.url}/{tmp_path.name}", **storage_of(behind), "text_columns": "name"}
    world = IndexWorld(tmp_path, "fulltext", item_table(), where)
    for number in range(1, 4):
        world.source.commit({"id": number, "name": "green"}, delete=[(number - 1,)] if number > 1 else ())
        faulty_s3.faults.append(fault)
        for _ in range(3):  # as a job does
            try:
                world.catch_up()
                break
            except (Fenced, Unavailable, OSError):
                faulty_s3.faults.clear()
        assert not faulty_s3.faults
        assert world.search("green").rows.column("id").to_pylist() == [number]
        assert world.verifier().verify().same


def test_the_secret_is_not_shown(tmp_path: Path, s3_bucket: S3Bucket) -> None:
    where = {**storage_of(s3_bucket), "uri": "s3://nowhere/x", "text_columns": "name"}
    world = IndexWorld(tmp_path, "fulltext", item_table(), where)
    consumer = world.consumer()
    assert SECRET not in repr(consumer._options)
    with pytest.raises(Exception, match="nowhere") as failed:
        consumer.committed_ts()
    assert SECRET not in str(failed.value)
