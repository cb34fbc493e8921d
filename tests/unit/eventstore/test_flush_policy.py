"""When which table is flushed, by a table."""

import pytest

from penstock.eventstore.log.table_log import TableBacklog
from penstock.eventstore.objects.flush import FlushPolicy

POLICY = FlushPolicy(
    flush_bytes=100, flush_interval_s=60, idle_flush_interval_s=600, memory_bytes=1000, wal_bytes=10_000
)


def load(table_id: int, held: int = 10, **rest: object) -> TableBacklog:
    given: dict[str, object] = {"memory_bytes": held, "oldest_at": 1000.0, "flushable": True, "behind_s": 1.0}
    return TableBacklog(table_id=table_id, held_bytes=held, **(given | rest))


@pytest.mark.parametrize(
    ("loads", "wal", "chosen"),
    [
        pytest.param([load(1, 99)], 0, [], id="small and young waits"),
        pytest.param([load(1, 100)], 0, [1], id="size"),
        pytest.param([load(1, oldest_at=940.0)], 0, [1], id="age"),
        pytest.param([load(1, 500, flushable=False)], 0, [], id="nothing resolved, nothing to flush"),
        pytest.param([load(1, 0, flushable=False, behind_s=600.0)], 0, [1], id="idle and far behind"),
        pytest.param([load(1, 0, flushable=False, behind_s=599.0)], 0, [], id="idle and not far behind"),
        pytest.param(
            [load(table, 80 + table, memory_bytes=80 + table) for table in range(1, 10)], 0, [9, 8, 7, 6],
            id="memory: the largest, until half is free",
        ),
        pytest.param(
            [load(1, 90, oldest_at=999.0), load(2, 90, oldest_at=998.0)], 7600, [2, 1],
            id="disk: the oldest first",
        ),
        pytest.param(
            [load(1, 90, flushable=False), load(2, 10, memory_bytes=700), load(3, 50)], 0, [2],
            id="memory held by what cannot be flushed is freed by what can",
        ),
    ],
)  # fmt: skip
def test_tables_are_chosen_by_size_age_and_pressure(
    loads: list[TableBacklog], wal: int, chosen: list[int]
) -> None:
    assert POLICY.choose(loads, now=1000.0, wal_bytes=wal) == chosen


@pytest.mark.parametrize(
    ("flushable", "wal", "waits"), [(True, 10_001, True), (True, 10_000, False), (False, 10_001, False)]
)
def test_rows_wait_for_disk_only_while_a_flush_can_free_some(flushable: bool, wal: int, waits: bool) -> None:
    assert POLICY.must_wait([load(1, flushable=flushable)], wal_bytes=wal) is waits
