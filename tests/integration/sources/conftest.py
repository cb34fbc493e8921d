"""A cluster of three stores and a client for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import eventloop
from penstock.kv import AsyncClient
from penstock.settings import StoreSettings
from penstock.store.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    settings = StoreSettings(
        data=tmp_path, pd_addr="127.0.0.1:0", stores=3, sync=False, resolved_ts_interval_ms=50, faults=True
    )
    cluster = eventloop.run(Cluster.start(settings))
    yield cluster
    eventloop.run(cluster.stop())


@pytest.fixture
def client(cluster: Cluster) -> Iterator[AsyncClient]:
    client = eventloop.run(AsyncClient.connect([cluster.pd_addr]))
    yield client
    eventloop.run(client.close())
