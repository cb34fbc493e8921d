"""Puts on a condition that S3 answers as it may: refused for the moment, or done and not answered."""

import pytest

from penstock.clock import SYSTEM
from penstock.errors import Unavailable
from penstock.eventstore.manifest_log import ManifestLog, Ownership, load
from penstock.object_storage import ObjectStorage, open_storage
from penstock.testing.clock import ManualClock
from support.s3server import Fault, FaultyS3, S3Bucket

CONFLICTS = [Fault.CONFLICT, Fault.CONFLICT]
LOST = [Fault.LOST_ANSWER]
MIXED = [Fault.CONFLICT, Fault.LOST_ANSWER]
FAULTS = pytest.mark.parametrize("faults", [CONFLICTS, LOST, MIXED], ids=["conflicts", "lost", "mixed"])


@pytest.fixture
def storage(s3_bucket: S3Bucket, faulty_s3: FaultyS3, request: pytest.FixtureRequest) -> ObjectStorage:
    bucket = faulty_s3.before(s3_bucket)
    return open_storage(f"{bucket.url}/{request.node.name}", bucket.options)


@FAULTS
def test_an_object_is_created_or_said_to_be_there_with_its_content(
    storage: ObjectStorage, faulty_s3: FaultyS3, faults: list[Fault]
) -> None:
    faulty_s3.faults.extend(faults)
    made = storage.create("f/a", b"mine")
    assert made is (Fault.LOST_ANSWER not in faults)
    assert storage.read("f/a") == b"mine"
    faulty_s3.faults.extend(CONFLICTS)
    assert not storage.create("f/a", b"another's")
    assert storage.read("f/a") == b"mine"


@FAULTS
def test_an_object_is_swapped_through_conflicts_and_lost_answers(
    storage: ObjectStorage, faulty_s3: FaultyS3, faults: list[Fault]
) -> None:
    faulty_s3.faults.extend(faults)
    assert storage.swap("f/m", b"one", seen=None)
    faulty_s3.faults.extend(faults)
    assert storage.swap("f/m", b"two", seen=b"one")
    assert not storage.swap("f/m", b"three", seen=b"one")
    assert storage.read("f/m") == b"two"


@FAULTS
def test_an_object_advances_through_conflicts_and_lost_answers(
    storage: ObjectStorage, faulty_s3: FaultyS3, faults: list[Fault]
) -> None:
    for number in (3, 7):
        faulty_s3.faults.extend(faults)
        storage.advance("f/m", b"%d" % number, is_older=lambda content: int(content) < number)  # noqa: B023 - at once
        assert storage.read("f/m") == b"%d" % number
    storage.advance("f/m", b"5", is_older=lambda content: int(content) < 5)
    assert storage.read("f/m") == b"7"


@FAULTS
def test_a_manifest_takes_entries_through_conflicts_and_lost_answers(
    storage: ObjectStorage, faulty_s3: FaultyS3, faults: list[Fault]
) -> None:
    faulty_s3.faults.extend(faults)
    log = ManifestLog.open(storage, "t", writer="a")
    for ts in (5, 6):
        faulty_s3.faults.extend(faults)
        assert log.commit(flushed_ts=ts).flushed_ts == ts
    assert not faulty_s3.faults
    assert load(storage, "t").seq == 3


def test_storage_that_refuses_for_ever_is_unavailable_and_the_owner_goes_on_later(
    s3_bucket: S3Bucket, faulty_s3: FaultyS3
) -> None:
    bucket = faulty_s3.before(s3_bucket)
    storage = open_storage(f"{bucket.url}/refused", bucket.options, clock=ManualClock())
    ownership = Ownership(storage, 1, writer="a", clock=SYSTEM)
    faulty_s3.faults.extend([Fault.CONFLICT] * 100)
    with pytest.raises(Unavailable, match="cannot create"):
        ownership.commit(flushed_ts=5)
    faulty_s3.faults.clear()
    assert ownership.settle().flushed_ts == 0
    assert ownership.commit(flushed_ts=5).flushed_ts == 5
