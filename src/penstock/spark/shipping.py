"""What executors get from the driver: the package as one file, and settings that mean the same everywhere.

Executors may not have the package, or have another version of it.
"""

import hashlib
import importlib.util
import py_compile
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import penstock
from penstock.errors import Invalid
from penstock.settings import Settings
from penstock.spark.jvm import find_context
from penstock.spark.options import absolute_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_STREAMS = "streaming_job"  # the folder on the path of processes that plan streams: they do not read archives
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first time that a zip file can have: equal sources give equal archives


def ship(spark: "SparkSession") -> None:
    """Send the package to every executor, present and future, where it comes before an installed one.

    On Spark Connect the server gets it, for this session alone.
    """
    if find_context(spark) is None:
        with TemporaryDirectory(prefix="penstock-shipped-") as folder:
            spark.addArtifacts(str(build_archive(Path(folder))), pyfile=True)
        return
    from pyspark import SparkFiles

    root = Path(SparkFiles.getRootDirectory())  # lives as long as the session, which serves the file from it
    shipped = root / "shipped"
    shipped.mkdir(exist_ok=True)
    path = build_archive(shipped)
    spark.addArtifacts(str(path), pyfile=True)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(root / _STREAMS)
    # Spark puts the file on the driver's path too; the driver goes on with the package it was started with.
    here = str(root / path.name)
    sys.path[:] = [entry for entry in sys.path if entry != here]


def build_archive(folder: Path, package: Path | None = None) -> Path:
    """Write the package, sources and compiled files, into an archive in `folder`; return its path.

    The file's name has the version and a digest of the content. Compiled files make it quick: without them a
    worker compiles the sources each time it starts, because nothing can be cached beside an archive. Another
    version of Python uses the sources.
    """
    package = package or Path(penstock.__file__).parent
    files = sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    if not files:
        raise Invalid(
            f"package {package} has no files to ship; install Penstock as a folder, not as an archive"
        )
    digest = hashlib.sha256()
    unfinished = folder / "penstock.zip.part"
    with TemporaryDirectory(dir=folder) as scratch, zipfile.ZipFile(unfinished, "w") as archive:
        for path in files:
            name = f"{package.name}/{path.relative_to(package).as_posix()}"
            content = path.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
            _add(archive, name, content)
            if path.suffix == ".py":
                _add(archive, f"{name}c", _compile(path, name, Path(scratch, "compiled.pyc")))
    return unfinished.rename(folder / f"penstock-{penstock.__version__}-{digest.hexdigest()[:12]}.zip")


def _compile(path: Path, name: str, scratch: Path) -> bytes:
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH  # an archive has no times to compare
    py_compile.compile(str(path), str(scratch), dfile=name, doraise=True, invalidation_mode=mode)
    content = scratch.read_bytes()
    assert content.startswith(importlib.util.MAGIC_NUMBER)
    return content


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, compress_type=zipfile.ZIP_DEFLATED)


def for_executors(settings: Settings) -> Settings:
    """Return settings without what only this process has: the token's file, and paths relative to this
    process.

    Raises Invalid when storage cannot be shared, or the token cannot be read.
    """
    capture = settings.capture.model_copy(
        update={
            "storage": absolute_url(settings.capture.storage),
            "flight_token": settings.capture.read_flight_token(),
            "flight_token_path": None,
        }
    )
    return settings.model_copy(update={"capture": capture})
