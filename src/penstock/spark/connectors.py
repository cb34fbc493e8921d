"""Spark's connectors for Delta, Iceberg and Kafka: which jars fit which Spark, and how they get here.

`CONNECTORS` is the table. A jar is fetched once, by its coordinates, with the Ivy that Spark itself uses:
from Maven Central, or from the mirror of an Ivy settings file. It is kept in a folder of ours and used only
when it has the SHA-256 of the table, because a jar is code. Once the folder has it, nobody needs a network.
"""

import fcntl
import hashlib
import logging
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

from penstock.durable_files import PRIVATE_FILE, make_private_folder, open_private, sync_data, sync_folder
from penstock.errors import Invalid, Unavailable
from penstock.settings import SparkSettings
from penstock.spark.class_archive import user_cache
from penstock.spark.jvm import find_java

__all__ = [
    "CONNECTORS",
    "Connector",
    "Jar",
    "add_to_java",
    "connector_conf",
    "fetch_jars",
    "jar_folder",
    "missing_jars",
    "needed_jars",
    "select_connectors",
    "session_conf",
    "spark_version",
]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Jar:
    """A jar by its Maven coordinates (group:artifact:version), and the only content that is accepted."""

    coordinates: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Its name in the folder."""
        _, artifact, version = self.coordinates.split(":")
        return f"{artifact}-{version}.jar"


@dataclass(frozen=True, slots=True)
class Connector:
    """A connector for one version of Spark, with what it needs that Spark does not include."""

    name: str
    artifact: str
    """What the names of all its versions begin with."""
    extension: str | None
    """Its entry of `spark.sql.extensions`, if it has one."""
    catalog: str | None
    """What `spark_catalog` has to be; None where the user names catalogs, as with Iceberg."""
    jars: tuple[Jar, ...]


_DELTA_NEEDS = (
    Jar("io.delta:delta-storage:4.4.0", "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
    Jar(
        "io.delta:delta-kernel-api:4.4.0", "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11"
    ),
    Jar(
        "io.delta:delta-kernel-defaults:4.4.0",
        "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    ),
    Jar(
        "io.delta:delta-kernel-unitycatalog:4.4.0",
        "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
    ),
    Jar(
        "io.unitycatalog:unitycatalog-client:0.6.0",
        "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19",
    ),
    Jar(
        "io.unitycatalog:unitycatalog-hadoop:0.6.0",
        "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150",
    ),
)


def _delta(jar: Jar) -> Connector:
    return Connector(
        "delta",
        "delta-spark",
        "io.delta.sql.DeltaSparkSessionExtension",
        "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        (jar, *_DELTA_NEEDS),
    )


def _iceberg(jar: Jar) -> Connector:
    extension = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    return Connector("iceberg", "iceberg-spark-runtime", extension, None, (jar,))


_KAFKA = Connector(
    "kafka",
    "spark-sql-kafka",
    None,
    None,
    (
        Jar(
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
            "cb31ffd9c8f5527dba061db8af671d295562092e4f3f5ff42fc249fab8a8fde6",
        ),
        Jar(
            "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
            "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
        ),
        Jar(
            "org.apache.kafka:kafka-clients:3.9.1",
            "7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9",
        ),
        Jar(
            "org.apache.commons:commons-pool2:2.12.1",
            "5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef",
        ),
    ),
)


CONNECTORS: Mapping[str, tuple[Connector, ...]] = {
    "4.1": (
        _delta(
            Jar(
                "io.delta:delta-spark_4.1_2.13:4.4.0",
                "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
            )
        ),
        _iceberg(
            Jar(
                "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
                "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
            )
        ),
        _KAFKA,
    ),
    "4.2": (
        _delta(
            Jar(
                "io.delta:delta-spark_4.2_2.13:4.4.0",
                "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
            )
        ),
    ),
    "4.3": (),
}
"""The connectors of each version of Spark that Penstock supports, as Maven Central has them."""


def spark_version() -> str:
    """Return the minor version of the installed PySpark, such as 4.1."""
    return ".".join(installed_version("pyspark").split(".")[:2])


def select_connectors(names: Iterable[str], spark: str) -> tuple[Connector, ...]:
    """Return the named connectors for a version of Spark; raise Invalid when one does not exist."""
    known = {connector.name: connector for connector in CONNECTORS.get(spark, ())}
    chosen = []
    for name in dict.fromkeys(names):
        if name not in known:
            fits = [version for version, row in CONNECTORS.items() if name in {each.name for each in row}]
            raise Invalid(
                f"there is no {name} connector for Spark {spark}; install pyspark {' or '.join(fits)},"
                f" or remove {name} from spark.connectors"
            )
        chosen.append(known[name])
    return tuple(chosen)


def jar_folder(wanted: SparkSettings, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the jars: `connectors_dir`, else one in the user's cache folder.

    Raises Invalid when the user has none.
    """
    if wanted.connectors_dir is not None:
        return wanted.connectors_dir.absolute()
    cache = user_cache(environ)
    if cache is None:
        raise Invalid(
            "this user has no cache folder of its own; set spark.connectors_dir to a folder that only this"
            " user can write to"
        )
    return cache / "jars"


def missing_jars(jars: Iterable[Jar], folder: Path) -> list[Jar]:
    """Return the jars that the folder does not have, or has with another content.

    Raises Invalid when everybody may change a jar after this look at it. A folder of another user is the
    operator's choice, who has named it.
    """
    wanted = list(jars)
    for path in (folder, *(folder / jar.file_name for jar in wanted)):
        if path.exists() and path.stat().st_mode & stat.S_IWOTH:
            raise Invalid(f"everybody may change {path}, and jars are code; run chmod o-w {path}")
    return [jar for jar in wanted if _sha256(folder / jar.file_name) != jar.sha256]


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Invalid(f"{path} cannot be read ({error.strerror}); correct spark.connectors_dir") from error


_FETCH_S = 900.0
_NETWORK_OPTIONS = (
    "-Dsun.net.client.defaultConnectTimeout=10000",
    "-Dsun.net.client.defaultReadTimeout=60000",
)
"""Java waits without bound otherwise."""
_REASONS = ("not found", "refused", "timed out", "error", "failed")


def fetch_jars(jars: Sequence[Jar], folder: Path, ivy_settings: str | None = None) -> None:
    """Put the jars that are missing into the folder, each whole or not at all, for this user only.

    Several processes may do so at once: one fetches, the others wait for it. Raises Unavailable when a jar
    cannot be fetched, Invalid when it is not the jar of the table or the folder cannot be written to.
    """
    try:
        make_private_folder(folder)
        with _only_one(folder):
            missing = missing_jars(jars, folder)
            if not missing:
                return
            names = ", ".join(jar.file_name for jar in missing)
            # A warning, because whoever starts a session waits for it.
            _log.warning(
                "fetching jars of Spark's connectors, once", extra={"jars": names, "to": str(folder)}
            )
            with TemporaryDirectory(prefix=_UNFINISHED, dir=folder) as scratch:
                _run_ivy(missing, Path(scratch), folder, ivy_settings)
                for jar in missing:
                    _accept(jar, Path(scratch, jar.file_name), folder)
            sync_folder(folder)
    except OSError as error:
        raise Invalid(
            f"the jars of connectors cannot be kept in {folder} ({error.strerror});"
            " set spark.connectors_dir to a folder of this user"
        ) from error


_UNFINISHED = ".fetch-"


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Wait until no other process fetches; remove what one that was killed left behind."""
    with open_private(folder / ".lock", "a+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the process that has it
        for left in folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left)
        yield


def _run_ivy(jars: Sequence[Jar], scratch: Path, folder: Path, ivy_settings: str | None) -> None:
    """Have Ivy fetch the jars into `scratch`, without those that they depend on: the table has all."""
    module = ElementTree.Element("ivy-module", version="2.0")
    ElementTree.SubElement(module, "info", organisation="penstock", module="connectors")
    ElementTree.SubElement(ElementTree.SubElement(module, "configurations"), "conf", name="default")
    dependencies = ElementTree.SubElement(module, "dependencies")
    for jar in jars:
        group, artifact, version = jar.coordinates.split(":")
        facts = {"org": group, "name": artifact, "rev": version, "transitive": "false"}
        ElementTree.SubElement(dependencies, "dependency", facts, conf="default->master")
    wanted = scratch / "ivy.xml"
    wanted.write_bytes(ElementTree.tostring(module))
    main = [find_java(os.environ), *_NETWORK_OPTIONS, "-cp", str(_ivy_jar()), "org.apache.ivy.Main"]
    places = ["-cache", str(scratch / "ivy"), "-retrieve", f"{scratch}/[artifact]-[revision].[ext]"]
    mirror = ["-settings", ivy_settings] if ivy_settings else []
    remedy = (
        f"let this machine reach Maven Central, name a mirror with spark.jars.ivySettings in spark.conf,"
        f" or copy the jars to {folder}"
    )
    try:
        done = subprocess.run(  # noqa: S603 - Ivy, which is part of Spark
            [*main, *mirror, "-ivy", str(wanted), *places, "-types", "jar", "-warn"],
            capture_output=True,
            text=True,
            timeout=_FETCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"the jars of connectors did not come in {_FETCH_S:.0f} s; {remedy}") from error
    if done.returncode != 0:
        said = (line.strip(" :\t") for line in (done.stdout + done.stderr).splitlines())
        reason = next((line for line in said if any(word in line.lower() for word in _REASONS)), "Ivy failed")
        raise Unavailable(f"the jars of connectors cannot be fetched ({reason}); {remedy}")


def _ivy_jar() -> Path:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    jars = sorted(Path(found.origin).parent.glob("jars/ivy-*.jar"))
    if not jars:
        raise Invalid("the installed pyspark has no jars of Spark; install pyspark, not pyspark-client")
    return jars[0]


def _accept(jar: Jar, fetched: Path, folder: Path) -> None:
    """Move a fetched jar into the folder if it is the one of the table."""
    found = _sha256(fetched)
    if found != jar.sha256:
        raise Invalid(
            f"{jar.coordinates} was fetched with SHA-256 {found}, and {jar.sha256} is expected;"
            " check the mirror that spark.jars.ivySettings names, or your proxy"
        )
    fetched.chmod(PRIVATE_FILE)
    with fetched.open("rb") as file:
        sync_data(file.fileno())
    fetched.replace(folder / jar.file_name)


_JARS = "spark.jars"
_PACKAGES = "spark.jars.packages"
_EXTENSIONS = "spark.sql.extensions"
_SESSION_CATALOG = "spark.sql.catalog.spark_catalog"
_IVY_SETTINGS = "spark.jars.ivySettings"


def session_conf(wanted: SparkSettings) -> dict[str, str]:
    """Return what a session needs for the connectors of the settings; fetch the jars that are missing.

    What `wanted.conf` says wins: a connector among its jars or packages is not given another time, and its
    own extensions and catalog stay. Raises Invalid when a connector does not exist for this Spark,
    Unavailable when its jars cannot be fetched.
    """
    if not wanted.connectors:
        return {}
    chosen = select_connectors(wanted.connectors, spark_version())
    jars = needed_jars(wanted)
    folder = jar_folder(wanted)
    if missing_jars(jars, folder):
        fetch_jars(jars, folder, wanted.conf.get(_IVY_SETTINGS))
    conf = {
        _JARS: _join_lists(wanted.conf.get(_JARS), [str(folder / jar.file_name) for jar in jars]),
        _EXTENSIONS: _join_lists(
            wanted.conf.get(_EXTENSIONS), filter(None, (connector.extension for connector in chosen))
        ),
    }
    for connector in chosen:
        if connector.catalog is not None:
            conf[_SESSION_CATALOG] = wanted.conf.get(_SESSION_CATALOG, connector.catalog)
    return {key: value for key, value in conf.items() if value}


def needed_jars(wanted: SparkSettings) -> list[Jar]:
    """Return the jars of the settings' connectors, without connectors that `wanted.conf` has itself.

    Raises Invalid when a connector does not exist for this Spark.
    """
    chosen = select_connectors(wanted.connectors, spark_version())
    return [jar for connector in chosen if not _is_given(connector, wanted.conf) for jar in connector.jars]


def _is_given(connector: Connector, conf: Mapping[str, str]) -> bool:
    """Return whether the connector, of whatever version, is among the jars or packages of a configuration."""
    files = (urlsplit(path.strip()).path.rpartition("/")[2] for path in conf.get(_JARS, "").split(","))
    artifacts = (name.split(":")[1] for name in conf.get(_PACKAGES, "").split(",") if name.count(":") > 1)
    name = re.compile(rf"{re.escape(connector.artifact)}([-_]\d.*|\.jar)?")
    return any(name.fullmatch(given) for given in (*files, *artifacts))


def session_keys() -> tuple[str, ...]:
    """Return the entries of a configuration that `session_conf` adds to."""
    return _JARS, _PACKAGES, _EXTENSIONS, _SESSION_CATALOG


def absent_connectors(wanted: SparkSettings, conf: Mapping[str, str]) -> list[str]:
    """Return the settings' connectors that a session with such a configuration does not have.

    Raises Invalid when a connector does not exist for this Spark.
    """
    extensions = conf.get(_EXTENSIONS, "").split(",")
    return [
        connector.name
        for connector in select_connectors(wanted.connectors, spark_version())
        if (connector.extension not in extensions if connector.extension else not _is_given(connector, conf))
    ]


def _join_lists(given: str | None, ours: Iterable[str]) -> str:
    return ",".join(dict.fromkeys([*filter(None, (given or "").split(",")), *ours]))


def connector_conf(*names: str) -> dict[str, str]:
    """Return what a session that you build yourself needs for connectors: `delta`, `iceberg`, `kafka`.

    For example `SparkSession.builder.config(map=connector_conf("delta"))`. Raises Invalid when a
    connector does not exist for this Spark, Unavailable when its jars cannot be fetched.
    """
    return session_conf(SparkSettings.model_validate({"connectors": names}))


def add_to_java(gateway: Any, conf: Mapping[str, str]) -> None:
    """Let a Java process that runs already find the jars of a configuration.

    Spark's start script does so only for the first session of a Java process.
    """
    loader = gateway.jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for path in filter(None, conf.get(_JARS, "").split(",")):
        loader.addURL(gateway.jvm.java.io.File(path).toURI().toURL())
