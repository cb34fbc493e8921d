"""Checks the machine: Python, packages, Java, connectors of Spark, memory, open files."""

import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from penstock.cli.doctor.findings import Finding, bad, from_error, ok, warn
from penstock.cli.doctor.network import has_store
from penstock.cli.output import GIB, MIB, format_size
from penstock.errors import Invalid, PenstockError
from penstock.settings import Settings, SparkSettings
from penstock.spark import connectors
from penstock.spark.class_archive import archive_options, archive_path, build_archive
from penstock.spark.defaults import with_defaults
from penstock.spark.jvm import (
    DRIVER_JAVA_OPTIONS,
    JAVA_MIN,
    fast_start_environment,
    find_java,
    parse_master,
    quick_home,
    require_java,
    shown_master,
)
from penstock.spark.session import is_standalone, require_secret

__all__ = [
    "PACKAGES",
    "check_class_archive",
    "check_connectors",
    "check_descriptors",
    "check_java",
    "check_memory",
    "check_packages",
    "check_python",
    "check_spark_secret",
    "judge_descriptors",
    "judge_memory",
    "judge_packages",
    "judge_python",
    "needed_bytes",
]

PYTHON_MIN = (3, 11)
PACKAGES = (
    "deltalake",
    "fastapi",
    "google.protobuf",
    "grpc",
    "lance",
    "numpy",
    "obstore",
    "opentelemetry.sdk",
    "pandas",
    "prometheus_client",
    "psycopg",
    "pyarrow.flight",
    "pyiceberg",
    "pyspark",
    "rocksdict",
    "sqlglot",
    "uvicorn",
)
_IMPORT_SCRIPT = """
import importlib, sys
for name in sys.argv[1:]:
    print(name, flush=True)
    try:
        importlib.import_module(name)
    except Exception as error:
        print("!", type(error).__name__, flush=True)
"""
_IMPORT_TIMEOUT_S = 120.0
_INSTALL = "install Penstock again: pip install --force-reinstall penstock, or `make clean setup` in a clone"

DESCRIPTORS_MIN, DESCRIPTORS_ENOUGH = 256, 4096
_MEMORY_MIN = 2 * GIB
_UNITS = {"m": MIB, "g": GIB, "t": 1024 * GIB}
_PART_BYTES = 400 * MIB
"""An estimate of the memory of a part beside its settings: Python, libraries, connections."""


def check_python() -> Finding:
    """Check the version of this interpreter."""
    return judge_python(sys.version_info[:3])


def judge_python(version: Sequence[int]) -> Finding:
    """Judge whether a Python version is new enough."""
    text = ".".join(map(str, version))
    if tuple(version[:2]) >= PYTHON_MIN:
        return ok("python", f"Python {text}")
    minimum = ".".join(map(str, PYTHON_MIN))
    return bad("python", f"this is Python {text}", f"install Python {minimum} or newer")


def check_java(environ: Mapping[str, str] = os.environ) -> Finding:
    """Check the Java that Spark would use."""
    try:
        require_java(environ)
    except Invalid as error:
        return from_error("java", error)
    return ok("java", f"Java {JAVA_MIN} or newer")


def check_connectors(wanted: SparkSettings, *, fix: bool = False) -> Finding:
    """Check that sessions find the jars of their connectors; with `fix`, fetch those that are missing."""
    if not wanted.connectors:
        return ok("connectors", "none; sessions get those that spark.connectors names")
    try:
        if fix:
            connectors.session_conf(wanted)
        jars = connectors.needed_jars(wanted)
        folder = connectors.jar_folder(wanted)
        missing = connectors.missing_jars(jars, folder)
    except PenstockError as error:
        return from_error("connectors", error)
    if missing:
        what = f"{len(missing)} of {len(jars)} jars are not in {folder}"
        return warn("connectors", what, "`penstock doctor --fix` fetches them, else the first session does")
    return ok("connectors", f"{', '.join(wanted.connectors)} in {folder}")


def check_spark_secret(wanted: SparkSettings, environ: Mapping[str, str] = os.environ) -> Finding:
    """Check that a standalone master is used with a secret."""
    try:
        found = with_defaults(wanted, environ)
        master = parse_master(found.master)
        require_secret(found, master)
    except PenstockError as error:
        return from_error("spark secret", error)
    if not is_standalone(master):
        return ok("spark secret", f"{shown_master(found.master)} needs none of Penstock's settings")
    if found.insecure:
        what = f"{shown_master(found.master)} may be used without a secret: spark.insecure is true"
        return warn("spark secret", what, "give the cluster a secret, and spark.conf the same one")
    return ok("spark secret", f"{shown_master(found.master)} is used with the secret of its cluster")


def check_class_archive(*, fix: bool = False, environ: Mapping[str, str] = os.environ) -> Finding:
    """Check whether Java has an archive of Spark's classes; with `fix`, make one. Spark starts without it."""
    try:
        java, home = find_java(environ), Path(quick_home())
        path = archive_path(home, java)
        if fix and not path.exists():
            build_archive(home, java)
    except PenstockError as error:
        return from_error("spark start", error)
    if not path.exists():
        return ok(
            "spark start", "`penstock doctor --fix` makes it faster, with an archive of Spark's classes"
        )
    variables = " ".join(f"{name}={value}" for name, value in fast_start_environment(environ).items())
    options = archive_options(home, java)
    own = f"; for a session of your own: {variables} and {DRIVER_JAVA_OPTIONS}={options}"
    return ok("spark start", f"with the archive of Spark's classes in {home}{own if variables else ''}")


def check_packages(names: Sequence[str] = PACKAGES) -> Finding:
    """Check that the packages can be imported, in another process because a broken one may end it."""
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", _IMPORT_SCRIPT, *names],
            capture_output=True,
            text=True,
            timeout=_IMPORT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return warn(
            "packages", "importing the packages takes more than two minutes", "check the speed of the disk"
        )
    return judge_packages(done.stdout.splitlines(), died=done.returncode != 0)


def judge_packages(lines: Sequence[str], *, died: bool) -> Finding:
    """Judge the output of the imports: a line for each package, and one that begins with ! for a failure."""
    failed: list[str] = []
    last = ""
    for line in lines:
        if line.startswith("! "):
            failed.append(f"{last} ({line[2:]})")
        else:
            last = line
    if died:
        failed.append(f"{last} (ends the process)")
    if failed:
        return bad("packages", f"cannot be imported: {', '.join(failed)}", _INSTALL)
    return ok("packages", f"{len(lines)} packages can be imported")


def check_memory(settings: Settings) -> Finding:
    """Check the memory of the machine, or of the container."""
    return judge_memory(_memory_bytes(), needed_bytes(settings))


def needed_bytes(settings: Settings) -> int:
    """Estimate the memory that all parts of a deployment need together, by their settings."""
    up, capture = settings.up, settings.capture
    work = capture.flush_threads + capture.upkeep.threads
    one_capture = (
        capture.memory_bytes
        + 2 * capture.wal_queue_bytes
        + work * (capture.sort_bytes + capture.large_txn_bytes + 100 * MIB)
        + _PART_BYTES
    )
    heap = int(settings.spark.driver_memory[:-1]) * _UNITS[settings.spark.driver_memory[-1]]
    store = has_store(settings)
    others = [
        _PART_BYTES * store,
        (heap + _PART_BYTES) * up.changefeeds,
        (heap + _PART_BYTES) * up.jobs,
        _PART_BYTES * up.api,
    ]
    return one_capture * up.captures + sum(others)


def judge_memory(total_bytes: int | None, need_bytes: int) -> Finding:
    """Judge whether there is enough memory; `total_bytes` is None when unknown."""
    if total_bytes is None:
        return warn(
            "memory",
            "the machine does not report its memory",
            f"make sure that it has {format_size(need_bytes)}",
        )
    what = f"{format_size(total_bytes)}; all parts under load may need {format_size(need_bytes)}"
    if total_bytes >= need_bytes:
        return ok("memory", what)
    remedy = "lower spark.driver_memory and capture.memory_bytes, or run parts on several machines"
    return bad("memory", what, remedy) if total_bytes < _MEMORY_MIN else warn("memory", what, remedy)


def _memory_bytes() -> int | None:
    limits: list[int] = []
    with suppress(ValueError, OSError):  # a system without these names
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such limit; the text `max` means none
            continue
    return min(limits, default=None)


def check_descriptors() -> Finding:
    """Check how many files and connections a process may have open."""
    return judge_descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def judge_descriptors(limit: int) -> Finding:
    """Judge whether a limit of open files is high enough."""
    if limit == resource.RLIM_INFINITY or limit >= DESCRIPTORS_ENOUGH:
        text = "without limit" if limit == resource.RLIM_INFINITY else f"up to {limit:,}"
        return ok("open files", text)
    what = f"a process may open only {limit:,}"
    remedy = "raise the limit: `ulimit -n 65536`, or LimitNOFILE=65536 in a systemd unit"
    return bad("open files", what, remedy) if limit < DESCRIPTORS_MIN else warn("open files", what, remedy)
