"""Descriptions that cannot be read cost their own table alone, and say why."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Invalid
from penstock.tables.arrow import arrow_schema
from penstock.tables.columns import Tp
from penstock.tables.ddl_jobs import DdlJob
from penstock.tables.meta import read_job_record, read_table
from penstock.tables.schema import DatabaseInfo, TableInfo
from penstock.tables.schema_snapshot import SchemaSnapshot
from support.metaevents import a_table, partitioned_table
from support.oddtables import UNKNOWN_TYPE, tidb_tree, with_type

TREE = a_table(7, "a").to_json()


def test_an_unknown_type_names_its_column_and_the_table_keeps_its_name_and_partitions() -> None:
    tree = with_type(partitioned_table(7, 71, 72, columns=("a",)).to_json(), "a")
    table = TableInfo.describe(7, tree)
    assert (
        table.unreadable == f"column a: type {UNKNOWN_TYPE} is unknown; upgrade Penstock to read this table"
    )
    assert (table.id, table.name, table.physical_ids, table.columns) == (7, "t", (71, 72), ())
    assert table.to_json() == tree


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(b"{", "not JSON", id="cut off"),
        pytest.param(b"[1]", "no JSON object", id="another structure"),
        pytest.param(b"\xff", "not JSON", id="no text"),
        pytest.param(json.dumps({**TREE, "id": 8}).encode(), "is not valid", id="of another table"),
        pytest.param(json.dumps({**TREE, "cols": [3]}).encode(), "damaged", id="no columns"),
        pytest.param(json.dumps({**TREE, "state": 99}).encode(), "damaged", id="an unknown state"),
        pytest.param(
            json.dumps({**TREE, "partition": {"enable": True, "definitions": [{}]}}).encode(),
            "damaged", id="a partition without an id",
        ),
    ],
)  # fmt: skip
def test_damage_is_a_reason_and_no_error(value: bytes, reason: str) -> None:
    table = read_table(7, value)
    assert table.id == 7
    assert reason in table.unreadable
    assert table.physical_ids == (7,)


MEMBERS = ["id", "name", "cols", "index_info", "partition", "enable", "definitions", "O", "view"]
TREES = st.recursive(
    st.none() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=6),
    max_leaves=20,
)


@given(TREES)
def test_no_json_at_all_raises(tree: Any) -> None:
    table = TableInfo.describe(7, tree)
    assert table.id == 7
    assert table.unreadable or tree["id"] == 7
    assert all(isinstance(physical_id, int) for physical_id in table.physical_ids)


@pytest.mark.parametrize("kind", ["view", "sequence", "temporary table"])
def test_what_tidb_makes_beside_tables_is_read_and_has_no_rows(kind: str) -> None:
    tree = tidb_tree(kind)
    table = TableInfo.describe(tree["id"], tree)
    assert (table.unreadable, table.kind, table.is_base_table) == ("", kind, False)
    assert TableInfo.from_json(table.to_json()) == table


def test_columns_of_tidbs_views_have_no_type_and_those_of_tables_must_have_one() -> None:
    view = TableInfo.from_json(tidb_tree("view"))
    assert {column.type.tp for column in view.columns} == {Tp.UNSPECIFIED}
    assert view.extra["view"]["view_select"].startswith("(SELECT")
    with pytest.raises(Invalid, match="UNSPECIFIED"):
        arrow_schema(view)
    table = TableInfo.describe(7, with_type(TREE, "a", 0))
    assert table.unreadable == "column a: type 0 is unknown; upgrade Penstock to read this table"


def test_a_job_of_an_unreadable_table_keeps_its_statement() -> None:
    job = DdlJob(1, 5, 1, 7, "shop", "t", "ALTER TABLE t ADD a", 9, 3, table=a_table(7, "a"))
    tree = job.to_json()
    tree["binlog"]["TableInfo"] = with_type(tree["binlog"]["TableInfo"], "a")
    tree["binlog"]["MultipleTableInfos"] = [with_type(TREE, "a")]
    read = read_job_record(json.dumps(tree).encode())
    assert read is not None
    assert (read.query, read.table_id, read.table and read.table.id) == ("ALTER TABLE t ADD a", 7, 7)
    assert [table.unreadable for table in read.tables] == [read.table and read.table.unreadable] != [""]


@pytest.mark.parametrize("value", [b"{", b"[]", b"{}", b'{"id": 1, "type": 3, "binlog": 4}'])
def test_a_damaged_job_is_passed_over_with_a_line(value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    assert read_job_record(value) is None
    assert [record.getMessage() for record in caplog.records] == [
        "a DDL job cannot be read; its statement is lost"
    ]


def test_an_unreadable_table_is_found_and_the_error_says_why() -> None:
    table = TableInfo.describe(7, with_type(TREE, "a"))
    schema = SchemaSnapshot(1, {"shop": DatabaseInfo(1, "shop")}, {1: {"t": table}})
    with pytest.raises(Invalid, match=rf"table shop\.t cannot be read: column a: type {UNKNOWN_TYPE}"):
        schema.place("shop.t")
    assert schema.place("shop.t", unreadable=True).table == table
