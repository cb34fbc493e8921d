"""Async tests run on the process's one event loop, beside the blocking facade they may test."""

import gc
import inspect
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from penstock import eventloop

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("penstock", deadline=None)
hypothesis.settings.load_profile("penstock")

_MEMORY = Path("/dev/shm")
_MEMORY_BYTES_MIN = 8 << 30


def _keep_files_in_memory() -> None:
    """Have temporary folders in memory where there is enough: tests force thousands of files to the disk.

    A process that is killed leaves the same files there; a loss of power is a double's, on any disk.
    """
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK | os.X_OK):
        return
    room = os.statvfs(_MEMORY)
    if not room.f_flag & os.ST_NOEXEC and room.f_bavail * room.f_frsize >= _MEMORY_BYTES_MIN:
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None  # it is looked for again


_keep_files_in_memory()

pytest_plugins = ("support.s3server",)

LONGEST = (
    "integration/spark/test_cluster_reads.py",
    "integration/changefeeds/endtoend/test_killed_at_any_moment.py",
    "integration/jobs/test_killed_runners.py",
    "acceptance/test_first_minutes.py",
    "acceptance/cli/up/test_up_command.py",
    "integration/spark/test_streaming.py",
    "acceptance/jobs/test_jobs_end_to_end.py",
    "acceptance/docs/test_pages_run.py",
    "integration/jobs/test_killed_first_syncs.py",
    "integration/spark/test_bulk_jobs.py",
    "integration/spark/test_event_store_reads.py",
    "acceptance/changefeeds/test_changefeed_run.py",
    "properties/eventstore/test_store_against_a_dict.py",
)
"""Files that take longest begin first: else one core waits at the end for what the other is busy with."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(item.path, len(first)))
    for item in items:
        if _uses_spark(item):
            item.add_marker(LEFT_OPEN)


LEFT_OPEN = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
"""PySpark 4.1 leaves the sockets of its results to the garbage collector."""


def _uses_spark(item: pytest.Item) -> bool:
    return any("spark" in name for name in (item.nodeid, *getattr(item, "fixturenames", ())))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Close what Spark has left open before a test that has nothing to do with Spark."""
    if _uses_spark(item) and (nextitem is None or not _uses_spark(nextitem)):
        gc.collect()


LEFTOVERS = frozenset({"no timestamps for now", "the low-resolution timestamp is stale"})
"""Lines that a client logs whose store has ended."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    eventloop.run(pyfuncitem.obj(**wanted))
    return True


@pytest.fixture(autouse=True, scope="session")
def _secrets_have_a_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let all deployments of tests, also those in other processes, seal secrets with one key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_SEAL_KEY", str(tmp_path_factory.mktemp("secrets") / "seal.key"))
        yield


@pytest.fixture(autouse=True)
def _logs_are_nobodys() -> Iterator[None]:
    """Commands that run in this process send logs to a stream that is closed when their test has ended."""
    log = logging.getLogger("penstock")
    log.handlers, log.propagate = [], True
    log.setLevel(logging.NOTSET)
    yield
    log.handlers, log.propagate = [], True
    log.setLevel(logging.NOTSET)


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Leave out what clients of earlier tests log: they outlived their stores, and ask for timestamps."""

    def is_of_this_test(record: logging.LogRecord) -> bool:
        return record.getMessage() not in LEFTOVERS

    caplog.handler.addFilter(is_of_this_test)
    yield caplog
    caplog.handler.removeFilter(is_of_this_test)
