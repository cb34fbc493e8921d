"""A recorded history of TiDB in the cluster and in the event store: at every point, every table is TiDB's.

PENSTOCK_TIDB_HISTORY names the folder of another record.
"""

from collections.abc import Iterator

import pytest

from support.historyworld import HistoryWorld
from support.tidb_history import is_golden

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HistoryWorld]:
    """A history with a capture from its first transaction on, which is killed once in the middle."""
    with HistoryWorld(tmp_path_factory.mktemp("history")) as made:
        made.start_capture()
        points = made.record.points
        made.replay(points[len(points) // 2])
        made.stop_capture(flush=False)
        made.start_capture()
        made.replay()
        made.catch_up()
        yield made


def test_the_record_is_replayed_whole(world: HistoryWorld) -> None:
    assert [point for point, _ in world.points] == list(world.record.points)
    if is_golden():
        assert any(txn.source for txn in world.record.txns), (
            "a TiKV does not send what MODIFY COLUMN backfills"
        )
    times = [ts for _, ts in world.points]
    assert times == sorted(set(times))


def test_tables_read_from_the_cluster_are_tidbs_at_every_point(world: HistoryWorld) -> None:
    assert world.compare(world.read_cluster) == []


def test_the_event_store_has_tidbs_tables_at_every_point(world: HistoryWorld) -> None:
    assert world.compare(world.read_event_store) == []


def test_the_event_store_has_them_after_flushes_merges_and_a_crash(world: HistoryWorld) -> None:
    capture = world.capture
    assert capture is not None
    for table_id in capture.tables:
        assert capture.store.flush(table_id)
    merges = sum(capture.store.merge(table_id) for table_id in capture.tables)
    assert merges > 0 or not is_golden()
    assert world.compare(world.read_event_store, world.checked_again) == []
    world.stop_capture(flush=False)
    world.start_capture()
    world.catch_up()
    assert world.compare(world.read_event_store, world.points[-1:]) == []


def test_a_capture_that_comes_after_it_all_has_them_too(world: HistoryWorld) -> None:
    world.stop_capture(flush=True)
    world.start_capture("late")
    world.catch_up()
    assert world.compare(world.read_event_store, world.checked_again) == []
