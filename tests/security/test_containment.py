"""What is below a place is the same everywhere: for targets of tenants, storage, and files of changefeeds."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.changefeeds.sink_uri import location_of
from penstock.errors import Unavailable
from penstock.object_storage import open_storage
from penstock.targets import Target, TenantRefused, TenantTargets, is_below


def may_tenant_write(folder: Path) -> bool:
    target = Target.of_storage("uri", f"file://{folder}/here", {})
    try:
        TenantTargets("ann", (f"file://{folder}",)).check(target)
    except TenantRefused:
        return False
    return True


def does_storage_write(folder: Path) -> bool:
    try:
        open_storage(f"file://{folder}").write("here/object", b"new")
    except Unavailable:
        return False
    return True


def does_location_contain(folder: Path) -> bool:
    outer = location_of(f"file://{folder}", follow_links=True)
    return outer.contains(location_of(f"file://{folder}/here", follow_links=True))


PLACES = [may_tenant_write, does_storage_write, does_location_contain]
FOLDERS = [
    ("ann/own", True),
    ("ann/own/deep", True),
    ("ann/own/../own", True),
    ("link-to-ann/own", True),
    ("annex", False),
    ("ann.old", False),
    ("ann ", False),
    ("Ann", False),
    ("an", False),
    ("bob", False),
    ("ann/../bob", False),
    ("ann/own/out", False),  # a link behind the link
    ("link-to-ann/own/out/deep", False),
    (".", False),
    ("/", False),
]


@pytest.mark.parametrize(("leads_to", "inside"), FOLDERS, ids=[folder for folder, _ in FOLDERS])
@pytest.mark.parametrize("place", PLACES)
def test_a_link_leads_nowhere_but_below_the_folder(
    tmp_path: Path, place: Callable[[Path], bool], leads_to: str, inside: bool
) -> None:
    for name in ("ann/own/deep", "annex", "ann.old", "ann ", "Ann", "an", "bob/deep"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "ann/own/out").symlink_to(tmp_path / "bob")
    (tmp_path / "link-to-ann").symlink_to("ann")
    folder = tmp_path / "ann"
    (folder / "here").symlink_to(os.path.join(tmp_path, leads_to))  # noqa: PTH118 - keeps the ..
    if inside:
        (folder / "own" / "out").unlink()  # a target of a tenant has no links that lead out, wherever
    assert place(folder) is inside


PREFIXES = [
    ("s3://lake/ann", "s3://lake/ann", True),
    ("s3://lake/ann", "s3://lake/ann/", True),
    ("s3://lake/ann", "s3://lake//ann//", True),
    ("s3://lake/ann/x", "s3://lake/%61nn", True),
    ("s3://lake/ann", "s3://lake", True),
    ("s3://lake/ann", "s3://lake/", True),
    ("s3://lake2/ann", "s3://lake", False),
    ("s3://lake/ann", "s3://lake2", False),
    ("s3://lake/annex", "s3://lake/ann", False),
    ("s3://lake/annex", "s3://lake/ann/", False),
    ("s3://lake/Ann", "s3://lake/ann", False),
    ("s3://lake/ann", "s3://lake/ann/x", False),
    ("s3://lake/ann", "s3://lake/ann%2Fx", False),
    ("gs://lake/ann", "s3://lake/ann", False),
    ("gs://lake/ann", "gcs://lake/ann", True),
    ("az://lake/ann", "azure://lake/ann", True),
]


@pytest.mark.parametrize(("url", "prefix", "inside"), PREFIXES)
def test_a_prefix_of_a_bucket_is_compared_step_by_step(url: str, prefix: str, inside: bool) -> None:
    assert is_below(Target.of_storage("uri", url, {}), prefix) is inside
    assert location_of(prefix).contains(location_of(url)) is inside


@pytest.mark.parametrize(
    "prefix",
    [
        "s3://lake/bob/../ann",
        "s3://lake/bob/%2e%2e/ann",
        "s3://lake/./ann",
        "s3://user@lake/ann",
        "s3://lake:443/ann",
        "s3://lake:x/ann",
        "s3://[lake/ann",
        "//lake/ann",
        "lake/ann",
        "",
    ],
)
def test_a_prefix_that_can_be_read_in_two_ways_has_nothing_below_it(prefix: str) -> None:
    assert not is_below(Target.of_storage("uri", "s3://lake/ann/x", {}), prefix)
