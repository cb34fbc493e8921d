"""The doctor's probe of a bucket."""

from penstock.cli.doctor import storage
from penstock.cli.doctor.findings import CheckResult
from penstock.object_storage import StorageRef, open_storage
from support.s3server import S3Bucket


def test_a_bucket_is_written_to_on_conditions_and_left_as_it_was(s3_bucket: S3Bucket) -> None:
    found = storage.check_storage("capture.storage", StorageRef(f"{s3_bucket.url}/shop", s3_bucket.options))
    assert (found.verdict, "on conditions too" in found.what) == (CheckResult.OK, True)
    assert open_storage(s3_bucket.url, s3_bucket.options).names("") == []


def test_a_bucket_that_is_not_there_is_told(s3_bucket: S3Bucket) -> None:
    found = storage.check_storage("capture.storage", StorageRef("s3://ocean/shop", s3_bucket.options))
    assert (found.verdict, "s3://ocean/shop" in found.what) == (CheckResult.BAD, True)
