"""The kv consumer against the embedded store, in a process of its own."""

import random  # noqa: TID251 - seeded
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.consumers.kv import KvTable
from penstock.errors import Conflict, Fenced, Invalid, Unavailable
from penstock.jobs.error_codes import TargetDiffers
from penstock.jobs.job import JobId
from penstock.kv import Client
from penstock.kv.cluster_ref import ClusterRef
from penstock.settings import Settings
from penstock.tables import Catalog, Index, alter, impossible_dates
from penstock.tables.arrow import arrow_type
from penstock.tables.columns import ColumnInfo
from penstock.tables.define import define_table
from penstock.testing.consumers import SourceModel, job_context
from penstock.verify.compare import Comparison, Counts
from support.everytype import EVERY_CELL, EVERY_TYPE
from support.warmstore import WarmStore

ITEMS = replace(
    define_table("items", [("id", "bigint primary key"), ("name", "varchar(20)"), ("price", "decimal(8,2)")]),
    id=1,
)
_databases = count(1)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    data: Path = tmp_path_factory.mktemp("kvconsumer") / "store"
    with WarmStore.start(data, stores=1) as store:
        found = Settings(pd_addrs=(store.pd_addr,))
        yield found
        ClusterRef.of(found).close()


@pytest.fixture
def client(settings: Settings) -> Client:
    return ClusterRef.of(settings).client()


@pytest.fixture
def db(client: Client) -> Catalog:
    return Catalog(client)


@pytest.fixture
def copies(db: Catalog) -> str:
    """A database for targets."""
    name = f"copies{next(_databases)}"
    db.create_database(name)
    return name


class Job:
    """A job whose consumer is made anew for each iteration, as the runner does."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        table: str,
        *,
        job_id: int = 1,
        job: str = "job",
        table_id: int = 1,
        **options: str,
    ) -> None:
        given = {"table": table, **options}
        self.context = job_context(
            folder, "kv", given, job_id=job_id, job=job, settings=settings, table_id=table_id
        )

    def consume(self, data: Any) -> None:
        consumer = KvTable(self.context)
        consumer.consume(data)
        consumer.close()

    def committed_ts(self) -> int:
        return KvTable(self.context).committed_ts()


@pytest.fixture
def job(tmp_path: Path, settings: Settings, copies: str) -> Job:
    return Job(tmp_path, settings, f"{copies}.items")


def rows(db: Catalog, database: str, *columns: str, table: str = "items") -> list[Any]:
    found = db.table(f"{database}.{table}").to_arrow(columns=columns or None).to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def item(number: int, name: str | None = "a", price: str = "1.00") -> dict[str, Any]:
    return {"id": number, "name": name, "price": Decimal(price)}


def test_a_first_sync_makes_the_table_and_a_tail_follows(job: Job, db: Catalog, copies: str) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1), item(2), item(3, None))
    assert job.committed_ts() == 0
    data = source.retriever(0, first)
    job.consume(data)
    assert len(data.watermarks) == 1
    assert rows(db, copies) == [
        (1, "a", Decimal("1.00")),
        (2, "a", Decimal("1.00")),
        (3, None, Decimal("1.00")),
    ]
    assert job.committed_ts() == first
    source.commit(item(2, "b"), item(4), delete=[(1,)])
    source.commit(item(5), delete=[(4,)])
    source.commit(delete=[(5,)])
    job.consume(source.retriever(first, source.ts))
    assert rows(db, copies, "id", "name") == [(2, "b"), (3, None)]
    assert job.committed_ts() == source.ts


def test_rows_and_watermark_are_one_transaction(job: Job, db: Catalog, copies: str) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    job.consume(source.retriever(0, first))
    data = source.retriever(first, source.commit(item(1, "b")))
    job.consume(data)
    (txn,) = data.watermarks
    at = txn.commit_ts
    assert db.table(f"{copies}.items").get(1, at_ts=at - 1) == item(1)
    assert db.table(f"{copies}.items").get(1, at_ts=at) == item(1, "b")


def test_a_job_that_is_not_this_iterations_any_more_changes_nothing(
    job: Job, db: Catalog, copies: str
) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    job.consume(source.retriever(0, first))
    data = source.retriever(first, source.commit(item(1, "b")))

    def fenced(name: str) -> None:
        if name == "update_watermark":
            raise Fenced("somebody else")

    data.fault = fenced
    with pytest.raises(Fenced, match="somebody else"):
        job.consume(data)
    assert rows(db, copies, "name") == [("a",)]
    assert job.committed_ts() == first


def test_a_tail_that_is_repeated_is_fenced_and_changes_nothing(job: Job, db: Catalog, copies: str) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    second = source.commit(item(1, "b"))
    third = source.commit(item(1, "c"))
    for from_ts, to_ts in ((0, first), (first, second), (second, third)):
        job.consume(source.retriever(from_ts, to_ts))
    with pytest.raises(Fenced):
        job.consume(source.retriever(first, second))
    assert rows(db, copies, "name") == [("c",)]


@pytest.mark.parametrize(
    "columns",
    [
        [("a", "bigint unsigned primary key"), ("b", "int")],
        [("a", "varchar(9) primary key"), ("b", "int")],
        [("a", "varbinary(9) primary key"), ("b", "int")],
        [("a", "decimal(20,2) primary key")],
        [("a", "varchar(9)"), ("b", "double")],
    ],
)
def test_keys_of_any_kind_follow(job: Job, db: Catalog, copies: str, columns: list[tuple[str, str]]) -> None:
    source = SourceModel(replace(define_table("items", columns), id=1))
    mix = random.Random(5)
    for data in source.iterations(mix, count=4, commits=6):
        job.consume(data)
        names = [name for name, _ in columns]
        wanted = [tuple(row[name] for name in names) for row in source.at(data.to_ts).values()]
        assert rows(db, copies, *names) == sorted(wanted, key=repr)


def test_a_key_that_changes_its_case_stays_one_row(job: Job, db: Catalog, copies: str) -> None:
    table = define_table("items", [("a", "varchar(9) primary key")])
    (key,) = table.columns
    folded = replace(key, type=replace(key.type, collate="utf8mb4_general_ci"))
    source = SourceModel(replace(table, id=1, columns=(folded,)))
    first = source.commit({"a": "x"}, {"a": "y "})
    job.consume(source.retriever(0, first))
    source.commit({"a": "X"}, {"a": "y"}, delete=[("x",), ("y ",)])
    job.consume(source.retriever(first, source.ts))
    assert rows(db, copies) == [("X",), ("y",)]


def test_every_type_is_the_same_in_the_target(job: Job, tmp_path: Path) -> None:
    table = alter.add_column(
        alter.add_column(EVERY_TYPE, "direction", "vector(2)"), "choices", "set('a','b')"
    )
    source = SourceModel(table)
    source.churn(random.Random(3), commits=30)
    source.commit({**EVERY_CELL, "direction": [0.1, -0.5], "single": 0.1, "choices": "a,b"})
    source.commit(dict.fromkeys(EVERY_CELL) | {"id": 1000, "direction": None, "choices": None})
    data = source.retriever(0, source.ts)
    job.consume(data)
    assert compared(job, data, tmp_path)[0] == Counts()


def compared(job: Job, data: Any, folder: Path) -> tuple[Counts, pa.Table, pa.Table]:
    """How a target differs from a snapshot; the rows it should get, and the keys that have to go first."""
    consumer = KvTable(job.context)
    shape = consumer.expected(pa.RecordBatch.from_pylist([], data.columns)).schema
    batches = [inserts.select(data.columns.names) for inserts, _ in data.batches]
    counts, put, removed = Counts(), [], []
    with Comparison(shape, len(data.keys), folder / "files") as comparison:
        removed.append(comparison.key_schema.empty_table())
        comparison.find(consumer.present(data.to_ts))
        comparison.expect(map(consumer.expected, batches))
        for part in comparison.differences():
            counts += part.counts
            removed.append(part.removed)
            put += [each.filter(pa.array(np.isin(comparison.key_hashes(each), part.put))) for each in batches]
    return counts, pa.Table.from_batches(put, data.columns), pa.concat_tables(removed)


DATES = ["2024-02-31", "2024-00-00", "0000-00-00", "2024-02-29"]
CLOCKS = {"d": "", "at": " 01:02:03.500", "utc": " 01:02:03"}


@pytest.mark.parametrize("key", [["id"], ["d"]], ids=["id", "date"])
def test_dates_that_no_calendar_has_are_carried_over(
    job: Job, db: Catalog, copies: str, key: list[str]
) -> None:
    columns = [("id", "bigint"), ("d", "date"), ("at", "datetime(3)"), ("utc", "timestamp")]
    source = SourceModel(replace(define_table("items", columns, primary_key=key), id=1))
    source.commit(*({**dict.fromkeys([name for name, _ in columns]), "id": n, "d": None} for n in range(4)))
    data = source.retriever(0, source.ts)
    table = source.table
    texts = {name: [day + rest for day in DATES] for name, rest in CLOCKS.items()}
    arrays = {name: parsed(table.column(name), texts[name]) for name in texts}
    arrays |= {"id": pa.array(range(4)), "_commit_ts": pa.array([source.ts] * 4)}
    inserts = data.batches[0][0].schema.empty_table()
    whole = pa.RecordBatch.from_arrays([arrays[name] for name in inserts.schema.names], schema=inserts.schema)
    data.batches[:] = [(whole, data.batches[0][1].slice(0, 0))]
    job.consume(data)
    target = db.table(f"{copies}.items")
    keys = DATES if key == ["d"] else range(4)
    shown = [target.get(one) for one in keys]
    assert [(row["d"], row["at"]) for row in shown if row is not None][:3] == [
        (day, f"{day} 01:02:03.500") for day in DATES[:3]
    ]
    assert shown[3]["d"] == date(2024, 2, 29)
    assert str(shown[3]["utc"]) == "2024-02-29 01:02:03+00:00"
    tail = source.retriever(source.ts, source.ts)
    gone = whole.slice(0, 2).select([*key, "_commit_ts"])
    tail.batches[:] = [(whole.slice(0, 0), gone)]
    job.consume(tail)
    assert [target.get(one) is None for one in keys] == [True, True, False, False]


def parsed(column: ColumnInfo, texts: list[str]) -> pa.Array:
    kind = arrow_type(column.type)

    def read(values: pa.Array) -> pa.Array:
        return values.cast(pa.timestamp("us")).cast(kind)

    return impossible_dates.parse(column.type, pa.array(texts), read)


@pytest.mark.parametrize("key", ["id bigint", "no key"])
def test_a_target_is_compared_and_mended(
    job: Job, db: Catalog, copies: str, tmp_path: Path, key: str
) -> None:
    table = ITEMS if key != "no key" else replace(define_table("items", [("name", "varchar(20)")]), id=1)
    source = SourceModel(table)
    source.churn(random.Random(3), commits=30)
    data = source.retriever(0, source.ts)
    job.consume(data)
    assert compared(job, data, tmp_path)[0] == Counts()
    target = db.table(f"{copies}.items")
    there = target.to_arrow().to_pylist()
    keys = [column.name for column in target.info.primary_key]
    target.delete([{name: there[0][name] for name in keys}])
    target.upsert(
        [{**there[1], "name": "damaged"}, {**there[2], keys[0]: b"\0" * 9 if key == "no key" else 10_000}]
    )
    counts, put, removed = compared(job, data, tmp_path)
    assert counts == Counts(missing=1, different=1, extra=1)
    consumer = KvTable(job.context)
    with pytest.raises(Fenced):
        consumer.repair(put, removed, source.ts - 1)
    with pytest.raises(Fenced):
        list(consumer.present(source.ts - 1))
    consumer.repair(data.columns.empty_table(), removed, source.ts)
    consumer.repair(put, removed.slice(0, 0), source.ts)
    assert compared(job, data, tmp_path)[0] == Counts()
    assert job.committed_ts() == source.ts


def test_a_first_sync_that_fails_begins_from_scratch(job: Job, db: Catalog, copies: str) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(*(item(number) for number in range(40)))
    data = source.retriever(0, first, batch_rows=10)

    def fault(_: str) -> None:
        if data.given == 2:
            raise Unavailable("the source is away")

    data.fault = fault
    with pytest.raises(Unavailable, match="source is away"):
        job.consume(data)
    assert len(rows(db, copies)) == 20
    assert job.committed_ts() == 0
    source.commit(delete=[(number,) for number in range(30)])
    job.consume(source.retriever(0, source.ts))
    assert rows(db, copies, "id") == sorted(((number,) for number in range(30, 40)), key=repr)


def test_only_the_newest_first_sync_writes(job: Job, db: Catalog, copies: str) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(*(item(number) for number in range(20)))
    old = source.retriever(0, first, batch_rows=5)
    source.commit(item(1, "b"), delete=[(number,) for number in range(2, 20)])
    newest = source.retriever(0, source.ts)

    def overtaken(_: str) -> None:
        if old.given == 2:
            old.fault = lambda _: None
            job.consume(newest)

    old.fault = overtaken
    with pytest.raises(Fenced):
        job.consume(old)
    assert rows(db, copies, "id", "name") == [(0, "a"), (1, "b")]
    assert job.committed_ts() == source.ts


def test_a_first_sync_that_was_given_up_before_it_began_does_not_begin(
    job: Job, db: Catalog, copies: str
) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    given_up = KvTable(job.context)
    assert given_up.committed_ts() == 0
    job.consume(source.retriever(0, first))
    job.consume(source.retriever(first, source.commit(item(1, "b"))))
    with pytest.raises(Fenced):
        given_up.consume(source.retriever(0, first))
    given_up.close()
    assert rows(db, copies, "name") == [("b",)]
    assert job.committed_ts() == source.ts


def test_a_table_that_is_not_ours_is_refused_unless_it_may_go(
    tmp_path: Path, settings: Settings, db: Catalog, copies: str
) -> None:
    name = f"{copies}.items"
    db.create_table(
        name,
        [("id", "bigint primary key"), ("name", "varchar(99)"), ("extra", "int default 7")],
        indexes=[Index("by_name", ["name"])],
    )
    db.table(name).insert([{"id": number} for number in range(500)])
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    with pytest.raises(Invalid, match=r"copies\d+\.items was not made by this job; drop it"):
        Job(tmp_path, settings, name).consume(source.retriever(0, first))
    taking = Job(tmp_path, settings, name, create="false")
    with pytest.raises(Invalid, match="has no column price; add it"):
        taking.consume(source.retriever(0, first))
    assert len(rows(db, copies)) == 500
    taking.consume(source.retriever(0, first, columns=["name"]))
    assert rows(db, copies) == [(1, "a", 7)]
    source.commit(item(2, "b"), delete=[(1,)])
    taking.consume(source.retriever(first, source.ts, columns=["name"]))
    assert rows(db, copies) == [(2, "b", 7)]
    assert [row["id"] for row in db.table(name).find("by_name", "b")] == [2]
    assert db.table(name).find("by_name", "a") == []


def test_a_table_with_another_key_is_refused(
    tmp_path: Path, settings: Settings, db: Catalog, copies: str
) -> None:
    db.create_table(
        f"{copies}.items", [("name", "varchar(9) primary key"), ("id", "bigint"), ("price", "int")]
    )
    source = SourceModel(ITEMS)
    with pytest.raises(Invalid, match=r"make it \(id\)"):
        Job(tmp_path, settings, f"{copies}.items", create="false").consume(
            source.retriever(0, source.commit(item(1)))
        )


def test_a_target_of_another_job_is_refused_and_one_of_the_same_name_taken_over(
    tmp_path: Path, settings: Settings, db: Catalog, copies: str
) -> None:
    name = f"{copies}.items"
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    earlier = Job(tmp_path, settings, name)
    earlier.consume(source.retriever(0, first))
    with pytest.raises(Invalid, match=r"is kept by job shop\.items/job; give shop\.items/other a target"):
        Job(tmp_path, settings, name, job="other").consume(source.retriever(0, first))
    again = Job(tmp_path, settings, name, job_id=2)
    assert again.committed_ts() == 0
    again.consume(source.retriever(0, source.commit(item(2))))
    assert rows(db, copies, "id") == [(1,), (2,)]
    with pytest.raises(Fenced):
        earlier.consume(source.retriever(first, source.ts))


@pytest.mark.parametrize("there", ["table", "mark alone"])
def test_a_job_that_was_unregistered_does_not_replace_the_table_of_its_successor(
    tmp_path: Path, settings: Settings, db: Catalog, copies: str, there: str
) -> None:
    name = f"{copies}.items"
    source = SourceModel(ITEMS)
    old = source.retriever(0, source.commit(item(1)))
    stopped, successor = Job(tmp_path, settings, name), Job(tmp_path, settings, name, job_id=2)
    successor.consume(source.retriever(0, source.commit(item(2))))
    if there == "mark alone":
        db.drop_table(name)  # as a successor does that makes the table anew
    with pytest.raises(TargetDiffers, match=r"kept by a newer job shop\.items/job"):
        stopped.consume(old)
    if there == "table":
        assert rows(db, copies, "id") == [(1,), (2,)]
        assert successor.committed_ts() == source.ts


def test_a_job_whose_source_was_renamed_keeps_its_target(job: Job, db: Catalog, copies: str) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    job.consume(source.retriever(0, first))
    job.context = replace(job.context, id=JobId("shop", "things", "job"))
    job.consume(source.retriever(0, source.commit(item(2))))
    assert rows(db, copies, "id") == [(1,), (2,)]


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("shop.Items", "is the source itself"),
        ("penstock.iscp_log", "is Penstock's own"),
        ("items", "must be written database.table"),
        ("", "needs the option table"),
    ],
)
def test_wrong_targets_are_refused_at_once(tmp_path: Path, settings: Settings, table: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        Job(tmp_path, settings, table).committed_ts()


def test_the_source_under_another_name_is_refused(
    tmp_path: Path, settings: Settings, db: Catalog, copies: str
) -> None:
    made = db.create_table(f"{copies}.renamed", [("id", "bigint primary key")])
    source = SourceModel(ITEMS)
    job = Job(tmp_path, settings, f"{copies}.renamed", table_id=made.id, create="false")
    with pytest.raises(Invalid, match="is the source itself"):
        job.consume(source.retriever(0, source.commit(item(1))))


def test_databases_of_other_accounts_are_refused(tmp_path: Path, settings: Settings, db: Catalog) -> None:
    db.create_account("tenant")
    db.create_database("theirs", account="tenant")
    source = SourceModel(ITEMS)
    with pytest.raises(Invalid, match="database theirs belongs to account tenant"):
        Job(tmp_path, settings, "theirs.items").consume(source.retriever(0, source.commit(item(1))))


def test_a_target_that_was_dropped_or_truncated_has_no_watermark(job: Job, db: Catalog, copies: str) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    job.consume(source.retriever(0, first))
    db.truncate_table(f"{copies}.items")
    assert job.committed_ts() == 0
    with pytest.raises(Fenced):
        job.consume(source.retriever(first, source.commit(item(2))))
    db.drop_table(f"{copies}.items")
    assert job.committed_ts() == 0
    job.consume(source.retriever(0, source.ts))
    assert rows(db, copies, "id") == [(1,), (2,)]


def test_a_target_that_is_dropped_meanwhile_takes_no_rows(job: Job, db: Catalog, copies: str) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    job.consume(source.retriever(0, first))
    data = source.retriever(first, source.commit(item(2)))

    def fault(name: str) -> None:
        if name == "update_watermark":
            db.truncate_table(f"{copies}.items")

    data.fault = fault
    with pytest.raises(Conflict):
        job.consume(data)
    assert rows(db, copies) == []


def test_columns_that_are_added_dropped_and_widened_follow(job: Job, db: Catalog, copies: str) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1), item(2))
    job.consume(source.retriever(0, first))
    table = alter.add_column(ITEMS, "stock", "varchar(9) not null default 'five'")
    table = alter.add_column(table, "count", "int not null")
    table = alter.modify_column(alter.drop_column(table, "name"), "price", "decimal(12,4)")
    source.alter(table)
    second = source.commit({"id": 2, "price": Decimal("2.1234"), "stock": "seven", "count": 3})
    job.consume(source.retriever(first, second))
    assert rows(db, copies, "id", "name", "price", "stock", "count") == [
        (1, "a", Decimal("1.0000"), "five", 0),
        (2, None, Decimal("2.1234"), "seven", 3),
    ]
    source.alter(alter.add_column(table, "name", "varchar(20) default 'again'"))
    job.consume(source.retriever(second, source.ts))
    assert rows(db, copies, "id", "name") == [(1, "again"), (2, "again")]


def test_an_incompatible_column_is_refused_until_the_target_is_rebuilt(
    job: Job, db: Catalog, copies: str
) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    job.consume(source.retriever(0, first))
    other = SourceModel(replace(define_table("items", [("id", "bigint primary key"), ("name", "int")]), id=1))
    other.ts = first
    second = other.commit({"id": 1, "name": 9})
    with pytest.raises(
        Invalid, match=r"column name is varchar\(20\) in the target and needs int now; rebuild"
    ):
        job.consume(other.retriever(first, second))
    assert job.committed_ts() == first
    job.consume(other.retriever(0, second))
    assert rows(db, copies) == [(1, 9)]
    assert job.committed_ts() == second


def test_a_renamed_column_needs_a_rebuild(job: Job, db: Catalog, copies: str) -> None:
    source = SourceModel(ITEMS)
    first = source.commit(item(1))
    job.consume(source.retriever(0, first))
    number, name, price = ITEMS.columns
    renamed = SourceModel(replace(ITEMS, columns=(number, replace(name, name="title"), price)))
    renamed.ts = first
    second = renamed.commit({"id": 1, "title": "t", "price": Decimal(1)})
    with pytest.raises(Invalid, match="cannot follow by itself; rebuild"):
        job.consume(renamed.retriever(first, second))
    job.consume(renamed.retriever(0, second))
    assert rows(db, copies, "id", "title") == [(1, "t")]


def test_values_that_do_not_fit_name_the_column_alone(
    tmp_path: Path, settings: Settings, db: Catalog, copies: str
) -> None:
    name = f"{copies}.items"
    db.create_table(name, [("id", "bigint primary key"), ("name", "varchar(3)")])
    source = SourceModel(ITEMS)
    first = source.commit(item(1, "hush"))
    with pytest.raises(Invalid, match="column name: a value of 4 characters does not fit") as caught:
        Job(tmp_path, settings, name, create="false").consume(source.retriever(0, first, columns=["name"]))
    assert "hush" not in str(caught.value)
