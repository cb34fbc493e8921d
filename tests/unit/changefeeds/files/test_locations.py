"""Targets that are one place, however they are spelled, and targets that are not."""

from pathlib import Path

import pytest

from penstock.changefeeds.sink_uri import location_of

MINIO = {"endpoint": "http://minio:9000"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("file:///data/f", "file:///data/f/"),
        ("file:///data/f", "file:///data/./f"),
        ("file:///data/f", "file:///data//f"),
        ("file:///data/f", "file:///data/x/../f"),
        ("file:///data/f", "file:///data/%66"),
        ("file:///data/f", "file:///data/%2e%2e/data/f"),
        ("file:///data/f", "FILE:///data/f"),
        ("s3://lake/f", "s3://lake//f/"),
        ("s3://lake/f", "s3://lake/x/../f"),
        ("s3://lake/f", "s3://lake/%2e/%66"),
        ("s3://lake/a/b", "s3://lake/a%2Fb"),
        ("s3://lake/f", "S3://LAKE/f"),
        ("s3://lake", "s3://lake/"),
        ("gs://lake/f", "gcs://lake/f"),
        ("az://box/f", "azblob://box/f"),
        ("https://hooks.example/in", "https://HOOKS.example:443/in/"),
        ("postgres://db/shop", "postgresql://u:p@db:5432/shop"),
    ],
)
def test_one_place_is_one_place_however_it_is_spelled(one: str, other: str) -> None:
    assert location_of(one) == location_of(other)
    assert str(location_of(one)) == str(location_of(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("file:///data/f", "file:///data/F"),
        ("file:///data/f", "file:///data/ff"),
        ("file:///data/f", "file://data/f"),
        ("file:///data/f", "file:///data/%2566"),
        ("file:///data/f", "file://localhost/data/f"),
        ("s3://lake/f", "s3://lake/%2566"),
        ("s3://lake/f", "s3://lake2/f"),
        ("s3://lake/f", "gs://lake/f"),
        ("https://hooks.example/in", "https://hooks.example:444/in"),
        ("https://hooks.example/in", "http://hooks.example/in"),
    ],
)
def test_other_places_are_others(one: str, other: str) -> None:
    assert not location_of(one).overlaps(location_of(other))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (MINIO, {"AWS_ENDPOINT": "HTTP://Minio:9000/"}, True),
        ({"endpoint": "https://s3.example"}, {"aws_endpoint_url": "https://s3.example:443"}, True),
        (MINIO, {**MINIO, "access_key_id": "a", "region": "eu-1"}, True),
        (MINIO, {"endpoint": "http://minio:9001"}, False),
        (MINIO, {}, False),
        ({"account_name": "a"}, {"azure_storage_account_name": "A"}, True),
        ({"account_name": "a"}, {"account_name": "b"}, False),
    ],
)
def test_a_bucket_is_one_of_its_server(one: dict[str, str], other: dict[str, str], same: bool) -> None:
    assert location_of("s3://lake/f", one).overlaps(location_of("s3://lake/f", other)) is same


def test_a_place_holds_what_is_below_it() -> None:
    outer, inner = location_of("s3://lake/shop"), location_of("s3://lake/shop/eu")
    assert outer.contains(inner)
    assert not inner.contains(outer)
    assert outer.overlaps(inner)
    assert inner.overlaps(outer)


def test_links_lead_to_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    through = f"file://{tmp_path}/link/../f"
    assert location_of(through, follow_links=True) == location_of(f"file://{tmp_path}/real/f")
    assert location_of(through) == location_of(f"file://{tmp_path}/f"), "as it is on every machine"
    monkeypatch.chdir(tmp_path)
    assert location_of("file://real/f") == location_of(f"file://{tmp_path}/real/f")


def test_no_secret_is_in_a_location() -> None:
    options = {"endpoint": "http://key:hush@minio:9000", "secret_access_key": "hush"}
    assert "hush" not in str(location_of("s3://lake/f", options))
    assert "hush" not in str(location_of("s3://lake/f", {"endpoint": "http://key:hush@minio:x"}))
    assert "hush" not in str(location_of("postgresql://ann:hush@db/shop?password=hush"))
