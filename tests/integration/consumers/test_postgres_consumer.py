"""The postgres consumer against a server that the tests start."""

import random  # noqa: TID251 - seeded
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from penstock.clock import SystemClock
from penstock.consumers.postgres import Postgres
from penstock.errors import Fenced, Invalid, Unavailable
from penstock.jobs.error_codes import TargetDiffers
from penstock.jobs.job import JobId
from penstock.tables import alter
from penstock.tables.define import define_table
from penstock.tables.schema import TableInfo
from penstock.testing.consumers import SourceModel, job_context
from penstock.verify.compare import Comparison, Counts
from support.everytype import EVERY_CELL, EVERY_TYPE
from support.postgres import shared_server

ITEMS = replace(
    define_table("items", [("id", "bigint primary key"), ("name", "varchar(20)"), ("price", "decimal(8,2)")]),
    id=1,
)


@pytest.fixture
def dsn() -> str:
    return shared_server().new_database()


@pytest.fixture
def target(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


class Job:
    """A job whose consumer is made anew for each iteration, as the runner does."""

    def __init__(
        self,
        folder: Path,
        dsn: str,
        *,
        job_id: int = 1,
        job: str = "job",
        columns: Any = None,
        **options: str,
    ) -> None:
        self.context = job_context(
            folder, "postgres", {"dsn": dsn, **options}, job_id=job_id, job=job, columns=columns
        )

    def consume(self, data: Any) -> None:
        consumer = Postgres(self.context)
        try:
            consumer.consume(data)
        finally:
            consumer.close()

    def committed_ts(self) -> int:
        consumer = Postgres(self.context)
        try:
            return consumer.committed_ts()
        finally:
            consumer.close()


@pytest.fixture
def job(tmp_path: Path, dsn: str) -> Job:
    return Job(tmp_path, dsn)


def rows(
    target: psycopg.Connection[Any], columns: str = "id, name, price", table: str = "items"
) -> list[Any]:
    return sorted(target.execute(f"SELECT {columns} FROM {table}").fetchall())


def item(number: int, name: str | None = "a", price: str = "1.00") -> dict[str, Any]:
    return {"id": number, "name": name, "price": Decimal(price)}


def test_a_first_sync_makes_the_table_and_a_tail_follows(job: Job, target: psycopg.Connection[Any]) -> None:
    source = SourceModel(ITEMS)
    source.commit(item(1), item(2), item(3, None))
    first = source.ts
    assert job.committed_ts() == 0
    job.consume(source.retriever(0, first))
    assert rows(target) == [(1, "a", Decimal("1.00")), (2, "a", Decimal("1.00")), (3, None, Decimal("1.00"))]
    assert job.committed_ts() == first
    source.commit(item(2, "b"), item(4), delete=[(1,)])
    source.commit(item(5), delete=[(4,)])
    source.commit(delete=[(5,)])
    job.consume(source.retriever(first, source.ts))
    assert rows(target) == [(2, "b", Decimal("1.00")), (3, None, Decimal("1.00"))]
    assert job.committed_ts() == source.ts


def test_a_tail_that_is_repeated_is_fenced_and_changes_nothing(
    job: Job, target: psycopg.Connection[Any]
) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    second = source.commit(item(1, "b"))
    third = source.commit(item(1, "c"))
    job.consume(source.retriever(0, first))
    job.consume(source.retriever(first, second))
    job.consume(source.retriever(second, third))
    with pytest.raises(Fenced):
        job.consume(source.retriever(first, second))
    assert rows(target, "name") == [("c",)]
    assert job.committed_ts() == third


def test_every_type_arrives_as_it_is(job: Job, target: psycopg.Connection[Any]) -> None:
    table = alter.add_column(EVERY_TYPE, "direction", "vector(2)")
    table = alter.add_column(table, "long_bits", "bit(64)")
    source = SourceModel(table)
    source.commit({**EVERY_CELL, "direction": [1.5, -0.25], "long_bits": Decimal((1 << 64) - 2)})
    source.commit(dict.fromkeys(EVERY_CELL) | {"id": 1, "direction": None, "long_bits": None})
    job.consume(source.retriever(0, source.ts))
    target.execute("SET timezone = 'Asia/Tokyo'")
    (found, empty) = target.execute("SELECT * FROM items ORDER BY id").fetchall()
    assert found == (
        *(-5, -1, Decimal((1 << 64) - 1), 0.5, 0.25, Decimal("12.50"), Decimal("1.5000000000")),
        *(date(2026, 2, 28), datetime(2026, 2, 28, 1, 2, 3, 4), datetime(2026, 2, 28, 1, 2, 3, tzinfo=UTC)),
        *(
            timedelta(hours=-1),
            2026,
            "00000101",
            "ü",
            b"\x00\xff",
            {"a": 1},
            "b",
            [1.5, -0.25],
            "1" * 63 + "0",
        ),
    )
    assert empty == (1, *[None] * 18)
    types = target.execute(
        "SELECT string_agg(format_type(atttypid, atttypmod), ', ' ORDER BY attnum) FROM pg_attribute"
        " WHERE attrelid = 'items'::regclass AND attnum > 0"
    ).fetchone()
    assert types == (
        "bigint, smallint, numeric(20,0), real, double precision, numeric(12,2), numeric(60,10), date,"
        " timestamp without time zone, timestamp with time zone, interval, smallint, bit(8), text, bytea,"
        " jsonb, text, real[], bit(64)",
    )


@pytest.mark.parametrize(
    "text",
    ["", "\\N", "\\.", "a\tb", "a\nb\r\n", "\\", '"q"', "tab\\t", "\x01\x7f", "日本語", "🚰", " padded "],
)
def test_texts_arrive_as_they_are(job: Job, target: psycopg.Connection[Any], text: str) -> None:
    table = replace(define_table("items", [("name", "varchar(20) primary key"), ("note", "text")]), id=1)
    source = SourceModel(table)
    first = source.commit({"name": text, "note": text})
    job.consume(source.retriever(0, first))
    assert rows(target, "name, note") == [(text, text)]
    source.commit(delete=[(text,)])
    job.consume(source.retriever(first, source.ts))
    assert rows(target, "name, note") == []


def test_edges_of_times_and_numbers_arrive_as_they_are(job: Job, target: psycopg.Connection[Any]) -> None:
    columns = [
        ("id", "bigint primary key"),
        ("d", "date"),
        ("at", "datetime(6)"),
        ("span", "time(6)"),
        ("x", "double"),
    ]
    source = SourceModel(replace(define_table("items", columns), id=1))
    low = {"id": -(1 << 63), "d": date(1, 1, 1), "at": datetime(1, 1, 1), "x": 5e-324}
    high = {
        "id": (1 << 63) - 1,
        "d": date(9999, 12, 31),
        "at": datetime(9999, 12, 31, 23, 59, 59, 999999),
        "x": -1.7976931348623157e308,
    }
    span = timedelta(hours=838, minutes=59, seconds=59)
    source.commit({**low, "span": -span}, {**high, "span": span})
    job.consume(source.retriever(0, source.ts))
    found = target.execute("SELECT id, d, at, x, span FROM items ORDER BY id").fetchall()
    assert found == [(*low.values(), -span), (*high.values(), span)]


def test_a_table_without_a_key_has_the_handle_as_one(job: Job, target: psycopg.Connection[Any]) -> None:
    source = SourceModel(replace(define_table("items", [("name", "varchar(20)")]), id=1))
    first = source.commit({"name": "a"}, {"name": "a"})
    job.consume(source.retriever(0, first))
    assert rows(target, "name") == [("a",), ("a",)]
    gone = next(iter(source.at(first)))
    source.commit(delete=[gone])
    job.consume(source.retriever(first, source.ts))
    assert rows(target, "name") == [("a",)]


def test_a_table_of_keys_alone_follows(job: Job, target: psycopg.Connection[Any]) -> None:
    table = replace(
        define_table("items", [("a", "bigint"), ("b", "varchar(9)")], primary_key=["b", "a"]), id=1
    )
    source = SourceModel(table)
    first = source.commit({"a": 1, "b": "x"}, {"a": 2, "b": "x"})
    job.consume(source.retriever(0, first))
    source.commit({"a": 1, "b": "x"}, {"a": 3, "b": "x"}, delete=[("x", 2)])
    job.consume(source.retriever(first, source.ts))
    assert rows(target, "a, b") == [(1, "x"), (3, "x")]


def test_a_first_sync_that_fails_leaves_what_was_there(job: Job, target: psycopg.Connection[Any]) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(*(item(number) for number in range(40)))
    data = source.retriever(0, first, batch_rows=10)

    def fault(_: str) -> None:
        if data.given == 2:
            raise Unavailable("the source is away")

    data.fault = fault
    with pytest.raises(Unavailable, match="source is away"):
        job.consume(data)
    assert target.execute("SELECT to_regclass('items')").fetchone() == (None,)
    assert job.committed_ts() == 0
    job.consume(data.again())
    assert len(rows(target)) == 40


def test_a_resync_replaces_what_differs_and_keeps_indexes_and_views(
    job: Job, target: psycopg.Connection[Any]
) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1), item(2), item(3))
    job.consume(source.retriever(0, first))
    target.execute("CREATE INDEX by_name ON items (name); CREATE VIEW cheap AS SELECT id FROM items")
    kept = target.execute("SELECT xmin FROM items WHERE id = 3").fetchone()
    source.commit(item(2, "b"), item(4), delete=[(1,)])
    job.consume(source.retriever(0, source.ts))
    assert rows(target, "id, name") == [(2, "b"), (3, "a"), (4, "a")]
    assert rows(target, "id", "cheap") == [(2,), (3,), (4,)]
    assert target.execute("SELECT xmin FROM items WHERE id = 3").fetchone() == kept
    assert job.committed_ts() == source.ts


def test_only_the_newest_first_sync_commits(job: Job, target: psycopg.Connection[Any]) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    old = source.retriever(0, first)
    source.commit(item(1, "b"))
    newest = source.retriever(0, source.ts)

    def overtaken(_: str) -> None:
        old.fault = lambda _: None
        job.consume(newest)

    old.fault = overtaken
    with pytest.raises(Fenced):
        job.consume(old)
    assert rows(target, "name") == [("b",)]
    assert job.committed_ts() == source.ts


def test_a_first_sync_that_was_given_up_before_it_began_does_not_begin(
    job: Job, target: psycopg.Connection[Any]
) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    given_up = Postgres(job.context)
    assert given_up.committed_ts() == 0
    job.consume(source.retriever(0, first))
    job.consume(source.retriever(first, source.commit(item(1, "b"))))
    with pytest.raises(Fenced):
        given_up.consume(source.retriever(0, first))
    given_up.close()
    assert rows(target, "name") == [("b",)]
    assert job.committed_ts() == source.ts


def test_a_table_that_is_not_ours_is_refused(job: Job, target: psycopg.Connection[Any]) -> None:
    target.execute("CREATE TABLE items (id bigint); INSERT INTO items VALUES (7)")
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    with pytest.raises(Invalid, match=r"public\.items was not made by Penstock"):
        job.consume(source.retriever(0, first))
    with pytest.raises(Fenced):
        job.consume(source.retriever(first, first))
    assert rows(target, "id") == [(7,)]


def test_a_table_of_another_job_is_refused_and_one_of_the_same_name_taken_over(
    tmp_path: Path, dsn: str, target: psycopg.Connection[Any]
) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    earlier = Job(tmp_path, dsn, job_id=1)
    earlier.consume(source.retriever(0, first))
    with pytest.raises(Invalid, match=r"is kept by job shop\.items/job; give shop\.items/other a target"):
        Job(tmp_path, dsn, job="other").consume(source.retriever(0, first))
    again = Job(tmp_path, dsn, job_id=2)
    assert again.committed_ts() == 0
    source.commit(item(2))
    again.consume(source.retriever(0, source.ts))
    assert rows(target, "id") == [(1,), (2,)]
    with pytest.raises(Fenced):
        earlier.consume(source.retriever(first, source.ts))
    assert earlier.committed_ts() == 0


@pytest.mark.parametrize("looked", ["before", "after"])
def test_a_job_that_was_unregistered_does_not_replace_the_table_of_its_successor(
    tmp_path: Path, dsn: str, target: psycopg.Connection[Any], looked: str
) -> None:
    source = SourceModel(ITEMS)
    old = source.retriever(0, source.commit(item(1)))
    stopped, successor = Postgres(Job(tmp_path, dsn).context), Job(tmp_path, dsn, job_id=2)
    with closing(stopped):
        if looked == "before":
            assert stopped.committed_ts() == 0
        successor.consume(source.retriever(0, source.commit(item(2))))
        if looked == "after":
            assert stopped.committed_ts() == 0
        with pytest.raises(TargetDiffers, match=r"kept by a newer job shop\.items/job"):
            stopped.consume(old)
    assert rows(target, "id") == [(1,), (2,)]
    assert successor.committed_ts() == source.ts


def test_a_job_whose_source_was_renamed_keeps_its_target(job: Job, target: psycopg.Connection[Any]) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    job.consume(source.retriever(0, first))
    job.context = replace(
        job.context,
        id=JobId("shop", "things", "job"),
        info=job.context.info.model_copy(update={"options": {**job.context.info.options, "table": "items"}}),
    )
    job.consume(source.retriever(0, source.commit(item(2))))
    assert rows(target, "id") == [(1,), (2,)]
    assert rows(target, "job", "penstock_watermarks") == [("shop.things/job",)]


def test_a_target_that_was_dropped_has_no_watermark(job: Job, target: psycopg.Connection[Any]) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    job.consume(source.retriever(0, first))
    target.execute("DROP TABLE items")
    assert job.committed_ts() == 0
    job.consume(source.retriever(0, first))
    assert rows(target, "id") == [(1,)]


def test_a_target_may_have_another_name_and_schema(
    tmp_path: Path, dsn: str, target: psycopg.Connection[Any]
) -> None:
    target.execute('CREATE SCHEMA "Shop"')
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    Job(tmp_path, dsn, schema="Shop", table='odd "name"').consume(source.retriever(0, first))
    assert rows(target, "id", '"Shop"."odd ""name"""') == [(1,)]
    assert rows(target, "target", '"Shop".penstock_watermarks') == [('odd "name"',)]


def _altered(source: SourceModel, table: TableInfo) -> TableInfo:
    source.alter(table)
    return table


def test_an_added_column_has_its_default_in_rows_from_before(
    job: Job, target: psycopg.Connection[Any]
) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    job.consume(source.retriever(0, first))
    table = alter.add_column(ITEMS, "stock", "int not null default 5", after="id")
    table = alter.add_column(table, "note", "varchar(9)")
    _altered(source, alter.add_column(table, "code", "varbinary(9) default 'x\\\\y'"))
    second = source.commit({**item(2), "stock": 7, "note": "new", "code": b"z"})
    job.consume(source.retriever(first, second))
    assert rows(target, "id, stock, note, code") == [(1, 5, None, b"x\\y"), (2, 7, "new", b"z")]
    assert target.execute("SELECT count(*) FROM pg_attrdef WHERE adrelid = 'items'::regclass").fetchone() == (
        0,
    )


def test_an_added_date_that_may_not_be_null_is_null_in_rows_from_before(
    job: Job, target: psycopg.Connection[Any]
) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    job.consume(source.retriever(0, first))
    table = alter.add_column(ITEMS, "day", "date not null")  # older rows have 0000-00-00
    table = alter.add_column(table, "size", "decimal(50,2) not null default 1.5")
    _altered(source, alter.add_column(table, "at", "timestamp(3) not null"))
    added = {"day": date(2024, 2, 29), "size": "2.50", "at": datetime(2024, 2, 29, 1, tzinfo=UTC)}
    second = source.commit({**item(2), **added})
    job.consume(source.retriever(first, second))
    assert rows(target, "id, day, size::text, at") == [(1, None, "1.50", None), (2, *added.values())]


def test_a_dropped_column_stays_and_becomes_null(job: Job, target: psycopg.Connection[Any]) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1), item(2))
    job.consume(source.retriever(0, first))
    table = _altered(source, alter.drop_column(ITEMS, "name"))
    second = source.commit({"id": 2, "price": Decimal(2)}, {"id": 3, "price": Decimal(3)})
    job.consume(source.retriever(first, second))
    assert rows(target, "id, name, price::int") == [(1, "a", 1), (2, None, 2), (3, None, 3)]
    _altered(source, alter.add_column(table, "name", "varchar(20) default 'again'"))
    job.consume(source.retriever(second, source.ts))
    assert rows(target, "id, name") == [(1, "again"), (2, "again"), (3, "again")]


def test_a_renamed_column_keeps_its_values(job: Job, target: psycopg.Connection[Any]) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1, "a", "2.00"))
    job.consume(source.retriever(0, first))
    number, name, price = ITEMS.columns
    swapped = replace(
        ITEMS,
        columns=(replace(number, name="number"), replace(name, name="price"), replace(price, name="name")),
    )
    model = SourceModel(swapped)
    model.ts = source.ts
    second = model.commit({"number": 2, "price": "b", "name": Decimal(3)})
    job.consume(model.retriever(first, second))
    assert rows(target, "number, price, name::int") == [(1, "a", 2), (2, "b", 3)]


def test_a_widened_column_is_widened(job: Job, target: psycopg.Connection[Any]) -> None:
    table = alter.add_column(ITEMS, "stock", "int")
    source = SourceModel(table)
    first = source.commit({**item(1), "stock": 1})
    job.consume(source.retriever(0, first))
    wider = alter.modify_column(alter.modify_column(table, "stock", "bigint"), "name", "varchar(99)")
    _altered(source, wider)
    second = source.commit({**item(2, "n" * 99), "stock": 1 << 40})
    job.consume(source.retriever(first, second))
    assert rows(target, "id, stock") == [(1, 1), (2, 1 << 40)]


def test_an_incompatible_column_is_refused_until_the_target_is_rebuilt(
    job: Job, target: psycopg.Connection[Any]
) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1, "a"))
    job.consume(source.retriever(0, first))
    other = SourceModel(replace(define_table("items", [("id", "bigint primary key"), ("name", "int")]), id=1))
    other.ts = first
    second = other.commit({"id": 1, "name": 9})
    with pytest.raises(Invalid, match=r"column name is text in the target and needs integer now; rebuild"):
        job.consume(other.retriever(first, second))
    assert rows(target, "id, name") == [(1, "a")]
    assert job.committed_ts() == first
    job.consume(other.retriever(0, second))
    assert rows(target, "*") == [(1, 9)]
    assert job.committed_ts() == second
    third = other.commit({"id": 1, "name": 10}, {"id": 2, "name": 11})
    job.consume(other.retriever(second, third))
    assert rows(target, "*") == [(1, 10), (2, 11)]


def test_a_rebuild_that_something_depends_on_says_so(job: Job, target: psycopg.Connection[Any]) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    job.consume(source.retriever(0, first))
    target.execute("CREATE VIEW v AS SELECT name FROM items")
    other = SourceModel(replace(define_table("items", [("id", "bigint primary key"), ("name", "int")]), id=1))
    second = other.commit({"id": 1, "name": 9})
    with pytest.raises(Invalid, match="cannot drop table items because other objects depend on it"):
        job.consume(other.retriever(0, second))
    assert rows(target, "id, name") == [(1, "a")]


def test_a_rebuild_waits_for_readers(job: Job, target: psycopg.Connection[Any], dsn: str) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    job.consume(source.retriever(0, first))
    other = SourceModel(replace(define_table("items", [("id", "bigint primary key"), ("name", "int")]), id=1))
    second = other.commit({"id": 1, "name": 9})
    with psycopg.connect(dsn) as reader:
        reader.execute("SELECT * FROM items")

        class LetGo(SystemClock):
            def pause(self, seconds: float) -> None:
                reader.rollback()

        job.context = replace(job.context, clock=LetGo())
        job.consume(other.retriever(0, second))
    assert rows(target, "*") == [(1, 9)]


def test_a_column_that_was_left_out_needs_a_rebuild(
    tmp_path: Path, dsn: str, target: psycopg.Connection[Any]
) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    job = Job(tmp_path, dsn, columns=["name"])
    job.consume(source.retriever(0, first, columns=["name"]))
    assert [each.name for each in target.execute("SELECT * FROM items").description or ()] == ["id", "name"]
    second = source.commit(item(2))
    with pytest.raises(Invalid, match="column price was left out until now"):
        job.consume(source.retriever(first, second))
    job.consume(source.retriever(0, second))
    assert rows(target, "id, price::int") == [(1, 1), (2, 1)]


@pytest.mark.parametrize(("column", "value"), [("name", "a\0b"), ("doc", '{"a": "x\\u0000\\u0000y"}')])
def test_nul_characters_are_refused_or_replaced(
    tmp_path: Path, dsn: str, target: psycopg.Connection[Any], column: str, value: str
) -> None:
    source = SourceModel(alter.add_column(ITEMS, "doc", "json"))
    harmless = '{"a": "\\\\u0000"}'
    first = source.commit({**item(1), "doc": harmless})
    job = Job(tmp_path, dsn)
    job.consume(source.retriever(0, first))
    second = source.commit({**item(2), "doc": None, column: value}, {**item(3), "doc": harmless})
    with pytest.raises(Invalid, match=rf"column {column} has the character U\+0000"):
        job.consume(source.retriever(first, second))
    Job(tmp_path, dsn, nul="replace").consume(source.retriever(first, second))
    wanted = ("a\ufffdb", None) if column == "name" else ("a", {"a": "x\ufffd\ufffdy"})
    assert rows(target, "id, name, doc")[1] == (2, *wanted)
    assert rows(target, "id, doc")[0::2] == [(1, {"a": "\\u0000"}), (3, {"a": "\\u0000"})]


def test_a_key_without_form_is_refused(job: Job) -> None:
    source = SourceModel(replace(define_table("items", [("day", "date primary key")]), id=1))
    first = source.commit({"day": None})
    with pytest.raises(Invalid, match="key column day has a value that PostgreSQL does not have"):
        job.consume(source.retriever(0, first))


def test_messages_show_no_values(job: Job, target: psycopg.Connection[Any]) -> None:
    source = SourceModel(alter.add_column(ITEMS, "doc", "json"))
    first = source.commit({**item(1), "doc": None})
    job.consume(source.retriever(0, first))
    target.execute("ALTER TABLE items ADD CONSTRAINT brief CHECK (name <> 'hush')")
    refused = source.retriever(first, source.commit({**item(1, "hush"), "doc": None}))
    with pytest.raises(Invalid, match=r'violates check constraint "brief"') as caught:
        job.consume(refused)
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    broken = source.retriever(first, source.commit({**item(1), "doc": "hush, no document"}))
    with pytest.raises(Invalid, match="InvalidTextRepresentation in column doc") as caught:
        job.consume(broken)
    assert "hush" not in str(caught.value)


def test_a_connection_that_breaks_is_temporary_and_nothing_is_half_done(
    job: Job, target: psycopg.Connection[Any], dsn: str
) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    job.consume(source.retriever(0, first))
    second = source.commit(*(item(number, "b") for number in range(100)))
    data = source.retriever(first, second, batch_rows=10)
    consumer = Postgres(job.context)
    assert consumer.committed_ts() == first
    shared_server().end_connections(dsn)
    with pytest.raises(Unavailable):
        consumer.consume(data)
    consumer.consume(data.again())
    consumer.close()
    with psycopg.connect(dsn) as connection:
        assert len(rows(connection)) == 100


def test_a_process_that_stands_still_in_the_middle_does_not_hold_its_successor_up(
    job: Job, target: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SourceModel(ITEMS)
    source.commit(item(1))
    first = source.ts
    job.consume(source.retriever(0, first))
    source.commit(item(2))
    early = source.retriever(first, source.ts)
    source.commit(item(3), delete=[(1,)])
    monkeypatch.setattr("penstock.consumers.postgres.consumer._IDLE_MS", 300)
    holds, goes_on = threading.Event(), threading.Event()
    zombie = Postgres(job.context)
    upsert = zombie._table.upsert

    def stand_still(*given: Any, **named: Any) -> None:
        holds.set()
        assert goes_on.wait(60)
        upsert(*given, **named)

    monkeypatch.setattr(zombie._table, "upsert", stand_still)
    with ThreadPoolExecutor(1) as pool, closing(zombie):
        writing = pool.submit(zombie.consume, early)
        try:
            assert holds.wait(60)
            job.consume(source.retriever(first, source.ts))
        finally:
            goes_on.set()
        with pytest.raises(Unavailable):
            writing.result(60)
    assert rows(target, "id") == [(2,), (3,)]
    assert job.committed_ts() == source.ts


def test_a_server_that_is_away_is_temporary_and_no_secret_is_shown(tmp_path: Path) -> None:
    job = Job(tmp_path, "postgresql://user:hush@127.0.0.1:1/db?connect_timeout=2")
    with pytest.raises(Unavailable, match="Connection refused") as caught:
        job.committed_ts()
    assert "hush" not in str(caught.value)


def test_a_password_that_is_wrong_is_said_without_it(tmp_path: Path, dsn: str) -> None:
    job = Job(tmp_path, dsn.replace("user=postgres", "user=nobody_here password=hush"))
    with pytest.raises(Unavailable, match='role "nobody_here" does not exist') as caught:
        job.committed_ts()
    assert "hush" not in str(caught.value)


KEYED = {
    "every type": alter.add_column(EVERY_TYPE, "direction", "vector(2)"),
    "numbers": define_table(
        "items",
        [("a", "bigint unsigned"), ("b", "decimal(9,2)"), ("c", "bit(9)"), ("v", "float")],
        primary_key=["c", "a", "b"],
    ),
    "texts": define_table(
        "items", [("a", "varchar(9)"), ("b", "varbinary(9)"), ("v", "json")], primary_key=["b", "a"]
    ),
    "times": define_table(
        "items", [("a", "datetime(3)"), ("b", "timestamp"), ("v", "time")], primary_key=["a", "b"]
    ),
    "no key": define_table("items", [("name", "varchar(20)"), ("v", "double")]),
}


def compared(consumer: Postgres, data: Any, folder: Path) -> tuple[Counts, pa.Table, pa.Table]:
    """How a target differs from a snapshot; the rows it should get, and the keys that have to go first."""
    shape = consumer.expected(pa.RecordBatch.from_pylist([], data.columns)).schema
    rows = [inserts.select(data.columns.names) for inserts, _ in data.batches]
    counts, put, removed = Counts(), [], []
    with Comparison(shape, len(data.keys), folder) as comparison:
        removed.append(comparison.key_schema.empty_table())
        comparison.find(consumer.present(data.to_ts))
        comparison.expect(map(consumer.expected, rows))
        for part in comparison.differences():
            counts += part.counts
            removed.append(part.removed)
            put += [each.filter(pa.array(np.isin(comparison.key_hashes(each), part.put))) for each in rows]
    return counts, pa.Table.from_batches(put, data.columns), pa.concat_tables(removed)


@pytest.mark.parametrize("kind", KEYED)
def test_a_target_is_compared_and_mended(
    job: Job, target: psycopg.Connection[Any], tmp_path: Path, kind: str
) -> None:
    source = SourceModel(replace(KEYED[kind], id=1))
    source.churn(random.Random(3), commits=30)
    if kind == "every type":
        source.commit({**EVERY_CELL, "direction": [0.1, -0.0], "single": 0.1, "real_": -0.0})
        source.commit(dict.fromkeys(EVERY_CELL) | {"id": 1000, "direction": None})
    data = source.retriever(0, source.ts)
    job.consume(data)
    consumer = Postgres(job.context)
    assert compared(consumer, data.again(), tmp_path / "files")[0] == Counts()
    some = "ctid = (SELECT max(ctid) FROM items)"
    if kind == "every type":
        target.execute("UPDATE items SET real_ = 0 WHERE id = -5; DELETE FROM items WHERE id = 1000")
        target.execute("INSERT INTO items (id) VALUES (10000)")
        wanted = Counts(missing=1, different=1, extra=1)
    else:
        value = "'[9]'" if kind == "texts" else "'9 days'" if kind == "times" else "1e9"
        target.execute(f"DELETE FROM items WHERE {some}")
        target.execute(f"UPDATE items SET v = {value} WHERE {some}")
        wanted = Counts(missing=1, different=1)
    counts, put, removed = compared(consumer, data.again(), tmp_path / "files")
    assert counts == wanted
    for at_ts in (source.ts - 1, source.ts + 1):
        with pytest.raises(Fenced):
            list(consumer.present(at_ts))
        with pytest.raises(Fenced):
            consumer.repair(put, removed, at_ts)
    consumer.repair(data.columns.empty_table(), removed, source.ts)
    consumer.repair(put, removed.slice(0, 0), source.ts)
    assert compared(consumer, data.again(), tmp_path / "files")[0] == Counts()
    assert consumer.committed_ts() == source.ts
    consumer.close()


def test_a_target_with_other_columns_than_wanted_is_not_compared(job: Job) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    job.consume(source.retriever(0, first, columns=["name"]))
    consumer = Postgres(job.context)
    with pytest.raises(Invalid, match="other columns than its job selects now; rebuild it"):
        consumer.expected(pa.RecordBatch.from_pylist([], source.retriever(0, first).columns))
    consumer.close()


def test_comparing_reads_one_moment_while_the_target_goes_on(job: Job) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1), item(2))
    job.consume(source.retriever(0, first))
    consumer = Postgres(job.context)
    found = consumer.present(first)
    batch = next(found)
    job.consume(source.retriever(first, source.commit(item(3))))
    assert batch.num_rows + sum(each.num_rows for each in found) == 2
    with pytest.raises(Fenced):
        next(consumer.present(first))
    consumer.close()
