"""Every command and snippet of README and the guides, run as a reader would run it."""

from pathlib import Path

import pytest

from penstock import settings
from support.docblocks import blocks_of
from support.docworld import DocWorld
from support.s3server import S3Server
from support.spark import SMALL

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parent.parent.parent.parent
DOCS = ROOT / "docs"
GUIDES = DOCS / "guides"
QUICK = {"interval_s": 0.5, "lease_ttl_s": 2}
INTERPRETED = {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.codegen.wholeStage": "false"}
"""Compiling what runs for some rows costs more than it saves."""
SPARK = {"master": "local[2]", "driver_memory": "1g", "conf": {**SMALL, **INTERPRETED}}
FIRST = (
    ROOT / "README.md",
    DOCS / "quickstart.md",
    GUIDES / "first-changefeed.md",
    GUIDES / "first-index.md",
    GUIDES / "reading-changes.md",
    GUIDES / "monitoring.md",
)
TOGETHER = ("own-consumer.md", "own-trigger.md", "backups.md")
ALONE = ("security.md", "spark-cluster.md", "tikv-cluster.md", "troubleshooting.md", "upgrades.md")


def test_the_first_minutes_and_what_goes_on_from_them(tmp_path: Path) -> None:
    with DocWorld(tmp_path, settings={"jobs": QUICK, "spark": SPARK}) as world:
        for page in FIRST:
            assert world.follow(page)


def test_every_guide_is_run() -> None:
    names = {path.name for path in GUIDES.glob("*.md")}
    assert names == {page.name for page in FIRST[2:]} | {*TOGETHER, *ALONE, "s3.md"}


def test_guides_with_code_of_ones_own_and_a_backup(tmp_path: Path) -> None:
    with DocWorld(tmp_path, settings={"engine": "local", "jobs": QUICK}) as world:
        for name in TOGETHER:
            assert world.follow(GUIDES / name)


def test_the_guide_to_object_storage(tmp_path: Path, s3_server: S3Server) -> None:
    buckets = [s3_server.bucket(name) for name in ("penstock-events", "penstock-lake")]
    s3 = {"AWS_ENDPOINT_URL": buckets[0].endpoint, "AWS_ALLOW_HTTP": "true"}
    with DocWorld(tmp_path, environment=s3, settings={"engine": "local", "jobs": QUICK}) as world:
        assert world.follow(GUIDES / "s3.md")


@pytest.mark.parametrize("name", ALONE)
def test_a_guide_that_starts_nothing(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with DocWorld(tmp_path) as world:
        world.follow(GUIDES / name)
    for variable in ("PENSTOCK_ADMIN_TOKEN", "PENSTOCK_FLIGHT_TOKEN"):
        monkeypatch.setenv(variable, world.environment.get(variable, ""))
    monkeypatch.setenv("SPARK_SECRET", "of the cluster")
    for block in blocks_of((GUIDES / name).read_text()):
        if block.file is not None and "pd_addrs" in block.text:
            assert settings.load(tmp_path / block.file)
