"""The machine and what is installed on it: Python, packages, Java, memory, open files."""

import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from penstock.cli.doctor.findings import Finding, bad, ok, refused, warn
from penstock.cli.doctor.network import has_store
from penstock.cli.output import GIB, MIB, size
from penstock.errors import Invalid
from penstock.settings import Settings
from penstock.spark.jvm import JAVA_MIN, require_java

__all__ = [
    "PACKAGES",
    "descriptors",
    "java",
    "judge_descriptors",
    "judge_memory",
    "judge_packages",
    "judge_python",
    "memory",
    "needed_bytes",
    "packages",
    "python",
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
_IMPORTING = """
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
"""About what a part takes beside what its settings say: Python, its libraries, its connections."""


def python() -> Finding:
    """The interpreter that runs this."""
    return judge_python(sys.version_info[:3])


def judge_python(version: Sequence[int]) -> Finding:
    """Whether a version is new enough."""
    told = ".".join(map(str, version))
    if tuple(version[:2]) >= PYTHON_MIN:
        return ok("python", f"Python {told}")
    wanted = ".".join(map(str, PYTHON_MIN))
    return bad("python", f"this is Python {told}", f"install Python {wanted} or newer")


def java(environ: Mapping[str, str] = os.environ) -> Finding:
    """The Java that Spark would take."""
    try:
        require_java(environ)
    except Invalid as error:
        return refused("java", error)
    return ok("java", f"Java {JAVA_MIN} or newer")


def packages(names: Sequence[str] = PACKAGES) -> Finding:
    """Whether what Penstock is built on can be imported: in another process, since some end it if not."""
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", _IMPORTING, *names],
            capture_output=True,
            text=True,
            timeout=_IMPORT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return warn("packages", "importing them takes more than two minutes", "look at the disk's speed")
    return judge_packages(done.stdout.splitlines(), died=done.returncode != 0)


def judge_packages(lines: Sequence[str], *, died: bool) -> Finding:
    """Read what the imports said: a line for each package, another that begins with ! when it failed."""
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


def memory(settings: Settings) -> Finding:
    """Memory of the machine, or of the container that this runs in."""
    return judge_memory(_memory_bytes(), needed_bytes(settings))


def needed_bytes(settings: Settings) -> int:
    """About what all parts of a deployment may take together, by their settings."""
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


def judge_memory(total_bytes: int | None, wanted_bytes: int) -> Finding:
    """Whether there is enough; None: nobody knows how much there is."""
    if total_bytes is None:
        return warn("memory", "the machine does not say how much it has", f"have {size(wanted_bytes)}")
    what = f"{size(total_bytes)}; all parts under load may take {size(wanted_bytes)}"
    if total_bytes >= wanted_bytes:
        return ok("memory", what)
    remedy = "lower spark.driver_memory and capture.memory_bytes, or run parts on several machines"
    return bad("memory", what, remedy) if total_bytes < _MEMORY_MIN else warn("memory", what, remedy)


def _memory_bytes() -> int | None:
    found: list[int] = []
    with suppress(ValueError, OSError):  # a system that does not know the names
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found.append(int(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such limit; `max` stands for none
            continue
    return min(found, default=None)


def descriptors() -> Finding:
    """How many files and connections a process may have open."""
    return judge_descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def judge_descriptors(limit: int) -> Finding:
    """Whether that is enough."""
    if limit == resource.RLIM_INFINITY or limit >= DESCRIPTORS_ENOUGH:
        told = "without limit" if limit == resource.RLIM_INFINITY else f"up to {limit:,}"
        return ok("open files", told)
    what = f"a process may have {limit:,} open"
    remedy = "raise it: `ulimit -n 65536`, or LimitNOFILE=65536 of a systemd unit"
    return bad("open files", what, remedy) if limit < DESCRIPTORS_MIN else warn("open files", what, remedy)
