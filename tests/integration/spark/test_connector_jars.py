"""Jars of connectors: the real Ivy fetches them from a repository in a folder; they are kept and checked."""

import hashlib
import logging
import os
import shutil
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.cli.doctor import machine
from penstock.cli.doctor.findings import CheckResult
from penstock.errors import Invalid, Unavailable
from penstock.settings import SparkSettings
from penstock.spark import connectors
from penstock.spark.connectors import Connector, Jar, fetch_jars, missing_jars, select_connectors

_POM = """<project><modelVersion>4.0.0</modelVersion><groupId>{group}</groupId>
<artifactId>{artifact}</artifactId><version>{version}</version></project>"""
_IVY = """<ivysettings><settings defaultResolver="ours"/><resolvers>
<ibiblio name="ours" m2compatible="true" root="{root}"/></resolvers></ivysettings>"""
CONTENT = b"a jar of the repository"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
LAKE = Jar("org.example:delta-spark_9.9:1.0", SHA256)
HELPER = Jar("org.example:helper:2.0", SHA256)


class Repository:
    """A Maven repository in a folder, and the Ivy settings that name it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repository"
        self.settings = folder / "ivysettings.xml"
        self.settings.write_text(_IVY.format(root=self.root.as_uri()))

    def publish(self, jar: Jar, content: bytes = CONTENT) -> None:
        group, artifact, version = jar.coordinates.split(":")
        place = self.root.joinpath(*group.split("."), artifact, version)
        place.mkdir(parents=True, exist_ok=True)
        pom = _POM.format(group=group, artifact=artifact, version=version)
        (place / f"{artifact}-{version}.pom").write_text(pom)
        (place / jar.file_name).write_bytes(content)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path)
    for jar in (LAKE, HELPER):
        made.publish(jar)
    return made


@pytest.fixture
def wanted(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SparkSettings:
    """Settings with a connector that only the repository has."""
    lake = Connector("delta", "delta-spark", "org.example.Extension", "org.example.Catalog", (LAKE, HELPER))
    monkeypatch.setattr(connectors, "CONNECTORS", {connectors.spark_version(): (lake,)})
    conf = {"spark.jars.ivySettings": str(repository.settings)}
    return SparkSettings(connectors=("delta",), connectors_dir=tmp_path / "cache" / "jars", conf=conf)


def folder_of(wanted: SparkSettings) -> Path:
    return connectors.jar_folder(wanted)


def test_jars_are_fetched_once_and_then_found_without_the_repository(
    repository: Repository, wanted: SparkSettings, caplog: pytest.LogCaptureFixture
):
    before = machine.check_connectors(wanted)
    assert (before.verdict, "--fix" in before.remedy) == (CheckResult.WARN, True)
    assert machine.check_connectors(wanted, fix=True).verdict is CheckResult.OK

    folder = folder_of(wanted)
    assert caplog.messages == ["fetching jars of Spark's connectors, once"]
    assert sorted(path.name for path in folder.iterdir()) == [".lock", LAKE.file_name, HELPER.file_name]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    shutil.rmtree(repository.root)
    assert machine.check_connectors(wanted).verdict is CheckResult.OK
    assert connectors.session_conf(wanted) == {
        "spark.jars": f"{folder / LAKE.file_name},{folder / HELPER.file_name}",
        "spark.sql.extensions": "org.example.Extension",
        "spark.sql.catalog.spark_catalog": "org.example.Catalog",
    }
    assert len(caplog.records) == 1


def test_a_damaged_jar_is_fetched_anew_and_what_a_killed_process_left_goes(
    repository: Repository, wanted: SparkSettings
):
    folder = folder_of(wanted)
    connectors.session_conf(wanted)
    (folder / LAKE.file_name).write_bytes(CONTENT[:-1])
    (folder / ".fetch-killed" / "ivy").mkdir(parents=True)
    assert missing_jars([LAKE, HELPER], folder) == [LAKE]

    connectors.session_conf(wanted)
    assert (folder / LAKE.file_name).read_bytes() == CONTENT
    assert not list(folder.glob(".fetch-*"))


def test_a_jar_with_another_content_is_refused_and_not_kept(repository: Repository, wanted: SparkSettings):
    repository.publish(HELPER, b"somebody else's code")
    with pytest.raises(
        Invalid, match=r"org.example:helper:2.0 was fetched with SHA-256 .* is expected"
    ) as no:
        connectors.session_conf(wanted)
    assert "\n" not in str(no.value)
    assert missing_jars([HELPER], folder_of(wanted)) == [HELPER]
    assert not list(folder_of(wanted).glob(".fetch-*"))


def test_jars_that_cannot_be_had_are_told_in_one_line_with_the_remedy(
    repository: Repository, wanted: SparkSettings
):
    shutil.rmtree(repository.root)
    with pytest.raises(Unavailable, match=r"cannot be fetched \(.*not found.*\); .*ivySettings") as no:
        connectors.session_conf(wanted)
    assert "\n" not in str(no.value)
    found = machine.check_connectors(wanted, fix=True)
    assert (found.verdict, str(folder_of(wanted)) in found.remedy) == (CheckResult.BAD, True)


@pytest.mark.parametrize("place", [".", LAKE.file_name])
def test_a_jar_that_everybody_may_change_is_not_used(
    repository: Repository, wanted: SparkSettings, place: str
):
    connectors.session_conf(wanted)
    open_to_all = folder_of(wanted) / place
    open_to_all.chmod(0o777)
    with pytest.raises(Invalid, match=r"everybody may change .*; run chmod o-w ") as no:
        connectors.session_conf(wanted)
    assert "\n" not in str(no.value)
    assert machine.check_connectors(wanted).verdict is CheckResult.BAD
    open_to_all.chmod(0o700)
    assert machine.check_connectors(wanted).verdict is CheckResult.OK


def test_a_cache_folder_that_another_user_made_has_no_jars_for_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = tmp_path / "penstock"
    made.mkdir()
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    assert connectors.jar_folder(SparkSettings(), environ) == made / "jars"
    made.chmod(0o777)
    with pytest.raises(Invalid, match=r"no cache folder of its own; .*spark.connectors_dir"):
        connectors.jar_folder(SparkSettings(), environ)
    made.chmod(0o755)
    owner = made.stat().st_uid
    monkeypatch.setattr(Path, "stat", _owned_by(owner + 4711, Path.stat))
    with pytest.raises(Invalid, match=r"no cache folder of its own"):
        connectors.jar_folder(SparkSettings(), environ)


def _owned_by(uid: int, stat_path: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
    """Return `Path.stat` in a world in which somebody else owns everything; only root can make one."""

    def stat_theirs(path: Path, **more: bool) -> os.stat_result:
        found = list(stat_path(path, **more))
        found[stat.ST_UID] = uid
        return os.stat_result(found)

    return stat_theirs


def test_a_folder_that_cannot_be_made_is_told(repository: Repository, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid, match=r"cannot be kept in .*file/jars.*spark.connectors_dir"):
        fetch_jars([LAKE], tmp_path / "file" / "jars", str(repository.settings))


def test_several_processes_at_once_fetch_once(
    repository: Repository, wanted: SparkSettings, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    folder, settings = folder_of(wanted), str(repository.settings)
    with ThreadPoolExecutor(4) as pool:  # each opens the lock itself, as a process of its own does
        for fetching in [pool.submit(fetch_jars, [LAKE, HELPER], folder, settings) for _ in range(4)]:
            fetching.result(timeout=120)
    assert missing_jars([LAKE, HELPER], folder) == []
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.jars", "/opt/jars/delta-spark_4.1_2.13-4.0.0.jar"),
        ("spark.jars.packages", "io.delta:delta-spark_4.1_2.13:4.0.0"),
    ],
)
def test_jars_of_the_user_win(wanted: SparkSettings, key: str, value: str):
    conf = {
        **wanted.conf,
        key: value,
        "spark.sql.extensions": "mine",
        "spark.sql.catalog.spark_catalog": "my",
    }
    given = connectors.session_conf(wanted.model_copy(update={"conf": conf}))
    assert given.get("spark.jars", value) == value
    assert given["spark.sql.extensions"] == "mine,org.example.Extension"
    assert given["spark.sql.catalog.spark_catalog"] == "my"
    assert not folder_of(wanted).exists()


@pytest.mark.parametrize("path", ["/opt/jars/mine.jar", "/opt/delta-spark/my-delta-spark-udfs.jar"])
def test_other_jars_of_the_user_stay_beside_ours(wanted: SparkSettings, path: str):
    conf = {**wanted.conf, "spark.jars": path}
    first, *ours = connectors.session_conf(wanted.model_copy(update={"conf": conf}))["spark.jars"].split(",")
    assert first == path
    assert [Path(path).name for path in ours] == [LAKE.file_name, HELPER.file_name]


def test_a_connector_that_does_not_exist_for_this_spark_is_told_with_those_that_have_it():
    with pytest.raises(Invalid, match=r"no iceberg connector for Spark 4.3; install pyspark 4.1, or remove"):
        select_connectors(["iceberg"], "4.3")
    assert [one.name for one in select_connectors(["iceberg", "delta"], "4.1")] == ["iceberg", "delta"]
    assert connectors.session_conf(SparkSettings()) == {}


def test_the_folder_is_the_users_cache_unless_the_settings_name_one(tmp_path: Path):
    assert connectors.jar_folder(SparkSettings(), {"XDG_CACHE_HOME": "/c"}) == Path("/c/penstock/jars")
    ignored = connectors.jar_folder(SparkSettings(), {"XDG_CACHE_HOME": "relative"})
    assert ignored == Path.home() / ".cache" / "penstock" / "jars"
    assert connectors.jar_folder(SparkSettings(connectors_dir=tmp_path)) == tmp_path
