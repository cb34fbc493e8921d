"""One Java process for each test process.

Fixtures are of a module's scope, because a session on another master takes the place of the one before.
"""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from support.spark import local_settings, shared_session, stop_session
from support.sparkcluster import SparkCluster, is_alive


@pytest.fixture(scope="session", autouse=True)
def _no_session_is_left() -> Iterator[None]:
    yield
    stop_session()


@pytest.fixture(autouse=True)
def _tracebacks_are_shown_again() -> Iterator[None]:
    """Code of workers, which end after an error, may have hidden them in the process of the tests."""
    yield
    os.environ.pop("SPARK_HIDE_TRACEBACK", None)


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    """The process's session on local[2]."""
    return shared_session(local_settings())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master and two workers, which stop with everything that they started; sessions on them end before."""
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
        members = running.processes()
        assert len(members) >= 6  # three servers, and the shell that watches over each
        stop_session()
    assert not any(map(is_alive, members)), "the cluster left processes behind"


@pytest.fixture(scope="module")
def cluster_spark(cluster: SparkCluster) -> SparkSession:
    """A session whose executors run on the cluster."""
    return shared_session(cluster.settings())
