"""A history of DDLs is as long as what is needed of it, however long it goes on."""

import pytest

from penstock.errors import StaleRead
from penstock.follow.ddl_history import DdlHistory
from support.metaevents import a_table, partitioned_table, put_database, put_table, remove_table
from support.rawbatches import Change, raw


def fed(made: DdlHistory, upto_ts: int, *changes: Change) -> DdlHistory:
    if changes:
        made.consume_kv_events(raw(changes), lambda: None)
    made.advance_resolved_ts(upto_ts)
    return made


def test_what_is_in_force_and_what_comes_after_stays() -> None:
    made = DdlHistory(job_wait_ms=0)
    fed(
        made, 90, put_database(1, 1, "shop"), put_table(10, a_table(7)), put_table(20, a_table(7, "a")),
        put_table(10, a_table(8, name="u")), remove_table(30, 8),
        put_table(50, a_table(7)), remove_table(60, 7),
    )  # fmt: skip
    made.forget(40)
    assert [each.commit_ts for each in made.ddls(40, 90)] == [50, 60]
    assert [each.since_ts for each in made.tables(40)] == [20]
    assert made.schema_of(7, 45).since_ts == 20
    assert made.schema_of(7, 55).since_ts == 50
    assert made.ddls(40, 90)[0].tables[0].before == made.schema_of(7, 45)
    with pytest.raises(StaleRead, match="is gone"):
        made.ddls(39, 90)
    with pytest.raises(StaleRead, match="is gone"):
        made.tables(39)
    made.forget(30)  # an older one changes nothing
    assert [each.commit_ts for each in made.ddls(40, 90)] == [50, 60]


def test_a_table_that_comes_back_is_known_again() -> None:
    made = DdlHistory(job_wait_ms=0)
    fed(made, 40, put_database(1, 1, "shop"), put_table(10, a_table(7)), remove_table(20, 7))
    made.forget(30)
    fed(made, 60, put_table(50, a_table(7)))
    (event,) = made.ddls(30, 60)
    assert (event.tables[0].before, event.tables[0].after.name) == (None, "shop.t")
    assert made.schema_of(7, 55).since_ts == 50


def test_days_of_churn_end_with_what_they_began() -> None:
    made = fed(DdlHistory(job_wait_ms=0), 5, put_database(1, 1, "shop"), put_table(2, a_table(7)))
    made.forget(5)
    begun = made.kept_count
    for ts in range(10, 5000, 10):
        table = partitioned_table(1000 + ts, 100_000 + ts, 200_000 + ts, name=f"t{ts}")
        fed(made, ts + 5, put_table(ts, table), remove_table(ts + 3, 1000 + ts))
        made.forget(ts)
    made.forget(5000 - 5)
    assert made.kept_count == begun
