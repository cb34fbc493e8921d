"""The schema history: exact by commit timestamps, in whatever order and how often changes come."""

import json
from dataclasses import replace

import pytest

from penstock.errors import Unavailable
from penstock.eventstore.schema_history import META_RANGE, SchemaHistory
from penstock.tables.columns import Tp
from penstock.tables.define import define_table
from penstock.tables.keys import meta_hash_key, meta_string_key
from penstock.tables.meta import DATABASES, JOB_HISTORY, database_field, table_field
from penstock.tables.schema import DatabaseInfo, TableInfo
from support.metaevents import flashback_diff, flashback_job
from support.oddtables import UNKNOWN_TYPE, tidb_meta_changes, with_type
from support.rawbatches import Change, put, raw


def a_table(table_id: int, *columns: str, **rest: object) -> TableInfo:
    defined = define_table("t", [("id", "bigint primary key"), *((name, "int") for name in columns)])
    return replace(defined, id=table_id, **rest)


def described(ts: int, table: TableInfo, database_id: int = 1) -> Change:
    key = meta_hash_key(database_field(database_id), table_field(table.id))
    return put(ts, key, json.dumps(table.to_json()).encode())


def dropped(ts: int, table_id: int, database_id: int = 1) -> Change:
    return put(ts, meta_hash_key(database_field(database_id), table_field(table_id)), None)


def database(ts: int, database_id: int, name: str) -> Change:
    info = DatabaseInfo(id=database_id, name=name)
    return put(ts, meta_hash_key(DATABASES, database_field(database_id)), json.dumps(info.to_json()).encode())


def history(*changes: Change, resolved_ts: int = 100) -> SchemaHistory:
    made = SchemaHistory()
    if changes:
        assert not made.consume_kv_events(raw(changes), lambda: None)
    made.advance_resolved_ts(resolved_ts)
    return made


def versions(made: SchemaHistory, table_id: int, from_ts: int, to_ts: int) -> list[tuple[int, int]]:
    found = made.versions(table_id, from_ts, to_ts)
    return [(each.since_ts, len(each.table.columns)) for each in found]


@pytest.mark.parametrize(
    ("from_ts", "to_ts", "expected"),
    [
        pytest.param(0, 100, [(10, 1), (20, 2), (30, 3)], id="all, older rows with the oldest"),
        pytest.param(10, 19, [(10, 1)], id="between two changes"),
        pytest.param(18, 20, [(10, 1), (20, 2)], id="up to and including a change"),
        pytest.param(19, 25, [(20, 2)], id="the first row can be of the new version only"),
        pytest.param(20, 29, [(20, 2)], id="after a change"),
        pytest.param(40, 50, [(30, 3)], id="after all"),
    ],
)
def test_a_range_has_the_versions_in_force(from_ts: int, to_ts: int, expected: list[tuple[int, int]]) -> None:
    changes = [described(30, a_table(7, "a", "b")), described(10, a_table(7)), described(20, a_table(7, "a"))]
    assert versions(history(*changes, *changes), 7, from_ts, to_ts) == expected


@pytest.mark.parametrize("backwards", [False, True])
def test_a_database_that_comes_back_under_another_name_had_its_own_before(backwards: bool) -> None:
    changes = [
        database(5, 1, "shop"),
        described(10, a_table(7)),
        dropped(20, 7),
        database(30, 1, "again"),
        described(30, a_table(7)),
    ]
    made = history(*(reversed(changes) if backwards else changes))
    assert [version.name for version in made.versions(7, 0, 100)] == ["shop.t", "again.t"]
    assert made.names(7) == {("shop", "t"), ("again", "t")}
    assert [table.database for table in made.tables_ever()] == ["again"]


def test_the_first_known_name_of_a_database_counts_before_it() -> None:
    made = history(described(10, a_table(7)), database(20, 1, "shop"))
    assert [version.name for version in made.versions(7, 0, 15)] == ["shop.t"]


def test_nothing_is_said_beyond_what_is_complete() -> None:
    made = history(described(10, a_table(7)), resolved_ts=15)
    with pytest.raises(Unavailable, match="up to 15"):
        made.versions(7, 0, 16)
    made.advance_resolved_ts(12)
    assert made.resolved_ts() == 15


def test_an_unknown_table_is_waited_for() -> None:
    with pytest.raises(Unavailable, match="no schema"):
        history(described(10, a_table(7))).versions(8, 0, 50)
    with pytest.raises(Unavailable, match="no schema"):
        history(described(10, a_table(7))).versions(7, 0, 9)


def test_tables_are_listed_with_their_database_and_their_end() -> None:
    made = history(
        database(1, 1, "shop"), described(10, a_table(7)), described(11, a_table(8)), dropped(20, 8),
        described(200, a_table(9)),
    )  # fmt: skip
    assert [(each.physical_id, each.database, each.dropped_ts) for each in made.tables_ever()] == [
        (7, "shop", 0),
        (8, "shop", 20),
    ]
    assert versions(made, 8, 0, 50) == [(11, 1)]


@pytest.mark.parametrize("order", [1, -1])
def test_a_move_to_another_database_is_no_end(order: int) -> None:
    moves = [dropped(20, 7, 1), described(20, a_table(7), 2)][::order]
    made = history(database(1, 1, "old"), database(1, 2, "new"), described(10, a_table(7)), *moves)
    (table,) = made.tables_ever()
    assert (table.database, table.dropped_ts) == ("new", 0)
    assert made.ends(7, 0, 50) == []


def test_partitions_read_with_the_schema_of_their_table() -> None:
    parts = {"enable": True, "definitions": [{"id": 71}, {"id": 72}]}
    made = history(described(10, a_table(7, extra={"partition": parts})))
    assert [each.physical_id for each in made.tables_ever()] == [71, 72]
    assert versions(made, 72, 0, 50) == [(10, 1)]


def partitioned(table_id: int, *parts: int, columns: tuple[str, ...] = ()) -> TableInfo:
    partition = {"enable": True, "definitions": [{"id": each} for each in parts]}
    return a_table(table_id, *columns, extra={"partition": partition})


def ends(made: SchemaHistory) -> dict[int, int]:
    listed = [(each.physical_id, each.dropped_ts) for each in made.tables_ever()]
    assert len(dict(listed)) == len(listed), "an id is listed twice"
    assert {each: made.ended_ts(each) for each, _ in listed} == dict(listed)
    return dict(listed)


def test_a_partition_that_was_dropped_is_captured_to_its_end() -> None:
    made = history(
        described(10, partitioned(7, 71, 72)),
        described(20, partitioned(7, 72, 73)),
        described(30, partitioned(7, 72, 73, columns=("a",))),
    )
    assert ends(made) == {71: 20, 72: 0, 73: 0}
    assert versions(made, 71, 0, 50) == [(10, 1)]
    assert versions(made, 72, 0, 50) == [(10, 1), (20, 1), (30, 2)]
    assert [made.ends(each, 0, 50) for each in (71, 72, 73)] == [[20], [], []]


@pytest.mark.parametrize("order", [1, -1])
def test_a_table_that_is_dropped_and_recovered_has_ended_once_as_far_as_is_known(order: int) -> None:
    changes = [described(10, a_table(7)), dropped(20, 7), described(30, a_table(7)), dropped(40, 7)]
    made = history(*changes[::order], resolved_ts=35)
    assert made.ends(7, 0, 50) == [20]
    made.advance_resolved_ts(60)
    assert made.ends(7, 0, 50) == [20, 40]
    assert made.ends(7, 20, 39) == []


def test_a_partition_that_is_not_known_yet_has_not_ended() -> None:
    made = SchemaHistory()
    made.consume_kv_events(
        raw([described(10, partitioned(7, 71)), described(30, partitioned(7, 71, 72))]), lambda: None
    )
    made.advance_resolved_ts(20)
    assert [made.ended_ts(each) for each in (71, 72, 99)] == [0, 0, 0]


@pytest.mark.parametrize("order", [1, -1])
def test_a_table_exchanged_with_a_partition_lives_on_in_its_new_place(order: int) -> None:
    changes = [
        described(10, partitioned(7, 71)), described(11, a_table(8)),
        described(20, partitioned(7, 8)), dropped(20, 8), described(20, a_table(71)),
        described(30, partitioned(7, 8, columns=("a",))), dropped(40, 71),
    ]  # fmt: skip
    made = history(*changes[::order])
    assert ends(made) == {8: 0, 71: 40}
    assert [made.ends(each, 0, 50) for each in (8, 71)] == [[], [40]]
    assert versions(made, 8, 0, 50) == [(11, 1), (20, 1), (30, 2)]
    assert versions(made, 71, 0, 50) == [(10, 1), (20, 1)]


def with_geometry(table: TableInfo) -> TableInfo:
    """Return a table whose last column has a type without an Arrow form."""
    last = table.columns[-1]
    return replace(
        table, columns=(*table.columns[:-1], replace(last, type=replace(last.type, tp=Tp.GEOMETRY)))
    )


def test_a_version_that_cannot_be_kept_holds_its_table_back_until_one_follows_that_can() -> None:
    kept, odd = a_table(7, "a"), with_geometry(a_table(7, "a", "b"))
    made = history(
        described(10, kept), described(20, odd), described(30, odd), described(11, a_table(8)),
        described(200, kept), resolved_ts=100,
    )  # fmt: skip
    assert (made.storable_ts(7), made.storable_ts(8)) == (19, 100)
    assert [(each.physical_id, bool(each.refused)) for each in made.tables_ever()] == [(7, True), (8, False)]
    made.advance_resolved_ts(200)
    assert (made.storable_ts(7), made.storable_ts(8)) == (200, 200)
    assert [each.refused for each in made.tables_ever()] == ["", ""]
    assert versions(made, 7, 0, 40) == [(10, 2), (20, 2), (30, 2)]


def test_a_column_that_gets_another_name_has_it_from_when_it_could_not_be_kept() -> None:
    plain = replace(a_table(7, "a", "b"), name="after")
    odd = with_geometry(replace(a_table(7, "a", "odd"), name="before"))
    made = history(described(10, a_table(7, "a")), described(20, odd), described(30, plain))
    found = made.versions(7, 0, 25)
    assert [(each.since_ts, each.version, each.table.name) for each in found] == [
        (10, 10, "t"),
        (20, 20, "before"),
    ]
    assert [column.name for column in found[1].table.columns] == ["id", "a", "b"]


def spoiled(ts: int, table: TableInfo, value: bytes | None = None) -> Change:
    """Return a change to a description with a column type that nobody knows, or to other bytes."""
    tree = with_type(table.to_json(), "a")
    key = meta_hash_key(database_field(1), table_field(table.id))
    return put(ts, key, value or json.dumps(tree).encode())


@pytest.mark.parametrize("value", [None, b"{"], ids=["unknown type", "damaged"])
def test_a_version_that_cannot_be_read_costs_its_table_alone_until_one_follows_that_can(
    value: bytes | None,
) -> None:
    table = partitioned(7, 71, 72, columns=("a",))
    made = history(
        database(1, 1, "shop"), described(10, table), spoiled(20, table, value), described(11, a_table(8)),
        described(200, partitioned(7, 71, 72, columns=("b", "c"))), resolved_ts=100,
    )  # fmt: skip
    assert (made.storable_ts(71), made.storable_ts(8)) == (19, 100)
    found = [(each.physical_id, each.database, each.table.name) for each in made.tables_ever()]
    assert found == [(71, "shop", "t"), (72, "shop", "t"), (8, "shop", "t")]
    assert [bool(each.refused) for each in made.tables_ever()] == [True, True, False]
    made.advance_resolved_ts(200)
    assert (made.storable_ts(71), made.storable_ts(8)) == (200, 200)
    assert [each.refused for each in made.tables_ever()] == ["", "", ""]
    assert versions(made, 71, 0, 40) == [(10, 2), (20, 3)]
    assert not any(each.table.unreadable for each in made.versions(71, 0, 40))


def test_a_table_that_never_could_be_read_is_listed_with_the_reason() -> None:
    made = history(database(1, 1, "shop"), spoiled(10, a_table(7, "a")), spoiled(10, a_table(8, "a"), b"{"))
    listed = [(each.physical_id, each.table.name, each.refused.split(";")[0]) for each in made.tables_ever()]
    assert listed == [
        (7, "t", f"column a: type {UNKNOWN_TYPE} is unknown"),
        (8, "", "a schema of the meta keys is not JSON"),
    ]


def test_a_damaged_database_keeps_its_name() -> None:
    damaged = put(5, meta_hash_key(DATABASES, database_field(1)), b"{")
    made = history(database(1, 1, "shop"), damaged, described(10, a_table(7)))
    assert [each.database for each in made.tables_ever()] == ["shop"]


def test_the_whole_bootstrap_and_history_of_a_tidb_is_taken() -> None:
    changes = list(tidb_meta_changes())
    made = history(*changes, resolved_ts=changes[-1][0])
    listed = list(made.tables_ever())
    assert [each.table.name for each in listed if each.table.unreadable] == []
    assert {each.table.kind for each in listed} == {"table"}
    assert {("d1", "types"), ("mysql", "user")} <= {(each.database, each.table.name) for each in listed}


def test_views_hold_no_rows() -> None:
    assert list(history(described(10, a_table(7, extra={"view": {"x": 1}}))).tables_ever()) == []


def test_other_meta_keys_are_passed_over() -> None:
    made = history(
        put(5, meta_string_key(b"SchemaVersionKey"), b"1"),
        put(5, meta_hash_key(JOB_HISTORY, b"x" * 8), b"{}"),
        put(5, meta_hash_key(database_field(1), b"TID:7"), b"40"),
    )
    assert list(made.tables_ever()) == []
    assert META_RANGE == (b"m", b"n")


def test_a_flashback_of_the_cluster_is_known_before_rows_go_back_and_unless_it_was_cancelled() -> None:
    begun = put(40, *flashback_diff(7))
    changes = [described(10, a_table(7)), described(50, a_table(8)), begun, begun]
    assert history(*changes).flashback(7, 39) == 40
    assert history(*changes).flashback(7, 40) == 0
    assert history(*changes).flashback(8, 0) == 0  # it was created later
    assert history(*changes, resolved_ts=39).flashback(7, 0) == 0
    done = [put(60, *flashback_diff(8, ends=True)), put(61, *flashback_job(99, 35, state=6))]
    assert history(*changes, *done).flashback(7, 0) == 40
    assert history(*changes, *done).flashback(7, 40) == 60
    cancelled = put(61, *flashback_job(99, 35, state=5))
    assert history(*changes, cancelled).flashback(7, 0) == 0
    assert history(*changes, cancelled, put(70, *flashback_diff(9))).flashback(7, 0) == 70
