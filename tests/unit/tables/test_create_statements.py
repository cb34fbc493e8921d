"""CREATE TABLE as text makes the table that column lists make."""

import pytest

from penstock.errors import Invalid
from penstock.tables import statements
from penstock.tables.create_statement import parse_create_table
from penstock.tables.define import Index, define_table
from penstock.tables.partitions import PartitionBy
from penstock.tables.schema import TableInfo

COLUMNS = [
    ("id", "bigint not null"),
    ("k", "varchar(20) not null default 'a,(b)' comment 'it''s'"),
    ("n", "decimal(12,2)"),
    ("e", "enum('x','y)')"),
    ("at", "datetime(3) default current_timestamp(3)"),
    ("day", "date not null"),
]
TABLES = {
    "clustered": define_table("t", COLUMNS, primary_key=["id"], comment="a 'table'"),
    "common": define_table("t", COLUMNS, primary_key=["k", "id"], indexes=[Index("i", ["n", "k(3)"])]),
    "nonclustered": define_table("t", COLUMNS, primary_key=["id"], clustered=False),
    "no key": define_table("t", COLUMNS, indexes=[Index("u", ["k"], unique=True)]),
    "hash": define_table("t", COLUMNS, primary_key=["id"], partition_by=PartitionBy.hash("id", 4)),
    "key": define_table("t", COLUMNS, primary_key=["id"], partition_by=PartitionBy.key(["id"], 3)),
    "range": define_table(
        "t", COLUMNS, primary_key=["id"], partition_by=PartitionBy.range("id", {"low": 10, "rest": None})
    ),
    "range columns": define_table(
        "t", COLUMNS, partition_by=PartitionBy.range(["day"], {"a": "2024-01-01", "b": "2025-01-01"})
    ),
    "list": define_table("t", COLUMNS, partition_by=PartitionBy.list(["k"], {"a": ["x", "y"], "b": ["z"]})),
}


def define(statement: str) -> TableInfo:
    parts = parse_create_table(statement)
    return define_table(
        parts.name,
        parts.columns,
        primary_key=parts.primary_key,
        indexes=parts.indexes,
        clustered=parts.clustered,
        comment=parts.comment,
        partition_by=parts.partition_by,
    )


@pytest.mark.parametrize("name", TABLES)
def test_the_statement_that_tidb_shows_makes_the_same_table(name: str) -> None:
    table = TABLES[name]
    assert define(statements.create_table(table)).to_json() == table.to_json()


def test_a_statement_as_people_write_it() -> None:
    parts = parse_create_table(
        """create table if not exists shop.`orders` (
             id bigint primary key auto_increment, -- the number
             customer varchar(64) not null, /* who, (why) */
             unique key by_customer (customer), index (id, customer(3))
           ) engine=innodb charset utf8mb4 comment 'sold';"""
    )
    assert (parts.name, parts.if_not_exists, parts.comment) == ("shop.orders", True, "sold")
    assert parts.columns == [
        ("id", "bigint primary key auto_increment"),
        ("customer", "varchar(64) not null"),
    ]
    assert parts.indexes == [
        Index("by_customer", ["customer"], unique=True),
        Index("id", ["id", "customer(3)"]),
    ]


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("shop.orders", "columns in parentheses"),
        ("create table a.b", "columns in parentheses"),
        ("create table a.b (id int", "close it"),
        ("create table a.b (id int, check (id > 1))", "CHECK"),
        ("create table a.b (id int, constraint f foreign key (id) references c (id))", "foreign keys"),
        ("create table a.b (id int, n int generated always as (id + 1))", "GENERATED|AS"),
        ("create table a.b (id int, key ((id + 1)))", "expression"),
        ("create table a.b (id varchar(9)) collate utf8mb4_general_ci", "each column"),
        ("create table a.b (id int) partition by hash (id)", "PARTITIONS n"),
    ],
)
def test_what_would_not_be_created_as_written_is_refused(statement: str, what: str) -> None:
    with pytest.raises(Invalid, match=what):
        parse_create_table(statement)
