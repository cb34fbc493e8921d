"""Tables defined in Python, their JSON and their SQL."""

import json
from dataclasses import replace
from datetime import date, datetime

import pytest

from penstock.clock import compose_ts
from penstock.errors import Corrupt, Invalid
from penstock.tables import alter, statements
from penstock.tables.arrow import arrow_schema, arrow_type
from penstock.tables.columns import ColumnFlag, FieldType, Tp
from penstock.tables.ddl_jobs import DdlJob, SchemaDiff
from penstock.tables.define import Index, define_column, define_table, parse_definition, with_origin_default
from penstock.tables.records import default_value, key_follows_handle, origin_cell
from penstock.tables.schema import DatabaseInfo, HandleKind, TableInfo
from penstock.tables.values import from_cell, to_cell

TEXTS = [
    "tinyint",
    "int unsigned NOT NULL",
    "bigint NOT NULL AUTO_INCREMENT",
    "decimal(12,2) DEFAULT '1.50'",
    "float",
    "double",
    "char(5)",
    "varchar(10) COLLATE utf8mb4_general_ci",
    "varchar(10) NOT NULL DEFAULT 'it''s' COMMENT 'a \\\\ b'",
    "binary(4)",
    "varbinary(9)",
    "mediumtext",
    "longblob",
    "bit(7)",
    "date",
    "datetime(6) DEFAULT CURRENT_TIMESTAMP(6)",
    "timestamp",
    "time(3)",
    "year",
    "enum('a','b,c')",
    "set('x','y')",
    "json",
    "vector(3)",
    "vector",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_definition_is_read_and_written_alike(text: str):
    column, _, _ = define_column("c", text, column_id=1)
    assert statements.column_text(column) == text
    assert parse_definition(statements.column_text(column)).type == column.type


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ends too early"),
        ("integr", "unknown"),
        ("varchar", "length"),
        ("decimal(70,2)", "1 to 65"),
        ("decimal(5,6)", "0 to 5"),
        ("int sideways", "sideways"),
        ("enum()", "elements"),
        ("int default 'x'", "int"),
        ("int collate utf8mb4_bin", "collation"),
        ("text auto_increment", "integer"),
        ("int @", "not understood"),
        ("datetime(7)", "0 to 6"),
    ],
)
def test_what_is_not_understood_is_said(text: str, message: str):
    with pytest.raises(Invalid, match=message):
        define_column("c", text, column_id=1)


def test_the_primary_key_decides_the_handle():
    int_key = define_table("t", [("id", "int primary key")])
    assert int_key.handle_kind is HandleKind.INT
    assert int_key.indexes == ()
    common = define_table("t", [("a", "int"), ("b", "varchar(5)")], primary_key=["b", "a"])
    assert common.handle_kind is HandleKind.COMMON
    assert [column.name for column in common.primary_key] == ["b", "a"]
    assert all(column.type.not_null for column in common.columns)
    loose = define_table("t", [("a", "int")], primary_key=["a"], clustered=False)
    assert loose.handle_kind is HandleKind.ROWID
    assert [column.name for column in loose.primary_key] == ["a"]
    assert define_table("t", [("a", "int")]).primary_key == ()


@pytest.mark.parametrize(
    ("definition", "follows"),
    [
        ("bigint primary key", True),
        ("decimal(9,2) primary key", True),
        ("varbinary(9) primary key", True),
        ("char(9) primary key", True),  # its trailing spaces are never stored
        ("varchar(9) collate utf8mb4_0900_bin primary key", True),
        ("varchar(9) primary key", False),
        ("bigint", True),
    ],
)
def test_a_key_changes_only_with_its_handle_where_the_handle_holds_all_of_it(
    definition: str, follows: bool
) -> None:
    table = define_table("t", [("id", definition)])
    assert key_follows_handle(table) == follows
    if "primary" in definition:
        moving = define_table(
            "t", [("id", definition.removesuffix(" primary key"))], primary_key=["id"], clustered=False
        )
        assert not key_follows_handle(moving)
    if table.is_common_handle:
        (index,) = table.indexes
        cut = replace(index, columns=tuple(replace(part, length=2) for part in index.columns))
        assert not key_follows_handle(replace(table, indexes=(cut,)))


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ([], {}),
        ([("a", "int"), ("A", "int")], {}),
        ([("a ", "int")], {}),
        ([("a", "int")], {"primary_key": ["b"]}),
        ([("a", "int")], {"indexes": [Index("i", ["b"])]}),
        ([("a", "int")], {"indexes": [Index("i", [])]}),
        ([("a", "int")], {"indexes": [Index("i", ["a(3)"])]}),
        ([("a", "int")], {"indexes": [Index("i", ["a"]), Index("I", ["a"])]}),
        ([("a", "int auto_increment"), ("b", "int auto_increment")], {}),
    ],
)
def test_a_table_that_cannot_be_is_refused(columns: list[tuple[str, str]], options: dict[str, object]):
    with pytest.raises(Invalid):
        define_table("t", columns, **options)


def test_columns_and_indexes_may_have_dots_in_their_names_and_tables_may_not():
    table = define_table("t", [("c.1", "int"), ("c", "int")], indexes=[Index("by.c.1", ["c.1"])])
    assert [column.name for column in table.columns] == ["c.1", "c"]
    assert statements.create_table(table).count("`c.1`") == 2
    with pytest.raises(Invalid, match="has a dot"):
        define_table("shop.t", [("a", "int")])


def test_a_table_survives_its_json():
    table = define_table(
        "Orders",
        [("id", "bigint primary key"), ("b", "bit(9) default 5"), ("n", "varchar(5) default 'x'")],
        indexes=[Index("by_n", ["n(3)"], unique=True)],
    )
    tree = json.loads(json.dumps(table.to_json()))
    again = TableInfo.from_json(tree)
    assert again.to_json() == tree
    assert statements.create_table(again) == statements.create_table(table)
    assert [column.type for column in again.columns] == [column.type for column in table.columns]
    assert [column.default for column in again.columns] == [None, 5, "x"]
    assert (again.handle_kind, again.max_column_id, again.max_index_id) == (HandleKind.INT, 3, 1)
    assert tree["name"] == {"O": "Orders", "L": "orders"}
    assert tree["cols"][1]["default_bit"] == "AAU="


TIDB_TABLE = """{"id":112,"name":{"O":"t","L":"t"},"charset":"utf8mb4","collate":"utf8mb4_bin","cols":[{
"id":1,"name":{"O":"id","L":"id"},"offset":0,"origin_default":null,"origin_default_bit":null,"default":null,
"default_bit":null,"default_is_expr":false,"generated_expr_string":"","generated_stored":false,"dependences":null,
"type":{"Tp":8,"Flag":4099,"Flen":20,"Decimal":0,"Charset":"binary","Collate":"binary","Elems":null,
"ElemsIsBinaryLit":null,"Array":false},"state":5,"comment":"","hidden":false,"change_state_info":null,"version":2},
{"id":2,"name":{"O":"v","L":"v"},"offset":1,"origin_default":null,"default":null,"default_is_expr":false,
"generated_expr_string":"`id` + 1","generated_stored":false,"dependences":{"id":{}},"type":{"Tp":3,"Flag":0,
"Flen":11,"Decimal":0,"Charset":"binary","Collate":"binary","Elems":null},"state":5,"comment":"","hidden":false,
"change_state_info":null,"version":2}],"index_info":null,"constraint_info":null,"fk_info":null,"state":5,
"pk_is_handle":true,"is_common_handle":false,"common_handle_version":0,"comment":"","auto_inc_id":0,
"max_col_id":2,"max_idx_id":0,"update_timestamp":445688,"ShardRowIDBits":0,"partition":null,"view":null,
"sequence":null,"Lock":null,"version":5,"ttl_info":null,"revision":3}"""


def test_what_we_do_not_know_of_a_schema_is_written_back():
    tree = json.loads(TIDB_TABLE)
    table = TableInfo.from_json(tree)
    written = table.to_json()
    assert written["revision"] == 3
    assert written["cols"][1]["dependences"] == {"id": {}}
    assert written["cols"][0]["type"]["ElemsIsBinaryLit"] is None
    assert [column.name for column in table.stored_columns] == ["id"]
    assert arrow_schema(table).names == ["id"]


def test_damaged_schemas_are_corrupt():
    with pytest.raises(Corrupt):
        TableInfo.from_json({"id": 1, "name": {"O": "t"}, "cols": [{}]})
    with pytest.raises(Corrupt, match="unknown"):
        FieldType.from_json({"Tp": 77})
    with pytest.raises(Corrupt):
        DatabaseInfo.from_json({"id": 1})
    with pytest.raises(Corrupt):
        DdlJob.from_json({"id": 1})


def test_databases_jobs_and_diffs_survive_their_json():
    database = DatabaseInfo(3, "Shop", extra={"archived": True, "policy_ref_info": None})
    assert DatabaseInfo.from_json(database.to_json()) == database
    table = TableInfo.from_json(json.loads(TIDB_TABLE))
    job = DdlJob(7, 3, 3, 112, "Shop", "t", "CREATE TABLE t", 10, 4, table=table, finished_ts=11)
    again = DdlJob.from_json(json.loads(json.dumps(job.to_json())))
    assert replace(again, extra={}, table=None) == replace(job, table=None)
    assert again.table == TableInfo.from_json(table.to_json())
    diff = SchemaDiff(4, 11, 3, 113, old_table_id=112)
    assert SchemaDiff.from_json(diff.to_json()) == diff


def test_arrow_types_are_types_that_spark_has():
    unsigned = ColumnFlag.UNSIGNED
    assert str(arrow_type(FieldType(Tp.TINY, unsigned))) == "int16"
    assert str(arrow_type(FieldType(Tp.LONG, unsigned))) == "int64"
    assert str(arrow_type(FieldType(Tp.LONGLONG, unsigned))) == "decimal128(20, 0)"
    assert str(arrow_type(FieldType(Tp.NEW_DECIMAL, flen=65, decimal=30))) == "string"
    assert str(arrow_type(FieldType(Tp.BIT, flen=64))) == "decimal128(20, 0)"
    with pytest.raises(Invalid):
        arrow_type(FieldType(Tp.GEOMETRY))


WIDE = define_table(
    "t",
    [
        ("id", "bigint primary key"),
        ("a", "int"),
        ("b", "varchar(5)"),
        ("c", "decimal(5,2) not null"),
        ("d", "text"),
    ],
    indexes=[Index("by_c", ["c"]), Index("by_b", ["b"])],
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a", "bigint"),
        ("b", "varchar(9)"),
        ("b", "varchar(5) default 'x'"),
        ("d", "longtext"),
        ("id", "bigint"),
    ],
)
def test_a_column_may_grow(name: str, text: str):
    changed = alter.modify_column(WIDE, name, text)
    assert changed.column(name).id == WIDE.column(name).id
    assert [column.offset for column in changed.columns] == list(range(5))
    assert changed.handle_kind is HandleKind.INT
    assert changed.column("id").type.not_null


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a", "smallint"),
        ("a", "int unsigned"),
        ("a", "int not null"),
        ("a", "varchar(9)"),
        ("b", "varchar(4)"),
        ("b", "varchar(9) collate binary"),
        ("c", "decimal(9,2) not null"),
        ("d", "tinytext"),
        ("a", "int unique"),
        ("nope", "int"),
    ],
)
def test_a_change_that_old_rows_do_not_fit_is_refused(name: str, text: str):
    with pytest.raises(Invalid):
        alter.modify_column(WIDE, name, text)


def test_dropping_a_column_moves_the_others_and_their_indexes():
    changed = alter.drop_column(WIDE, "a")
    assert [(column.name, column.offset) for column in changed.columns] == [
        *(("id", 0), ("b", 1), ("c", 2), ("d", 3)),
    ]
    assert [index.columns[0].offset for index in changed.indexes] == [2, 1]
    for name in ("id", "b"):
        with pytest.raises(Invalid, match="part of"):
            alter.drop_column(WIDE, name)
    added = alter.add_column(changed, "e", "int not null", after="id")
    assert added.column("e").id == 6
    assert added.column("e").origin_default == 0
    assert [index.columns[0].offset for index in added.indexes] == [3, 2]
    with pytest.raises(Invalid, match="already"):
        alter.add_column(added, "E", "int")


def test_a_table_as_sql():
    assert statements.create_table(WIDE) == (
        "CREATE TABLE `t` (\n  `id` bigint(20) NOT NULL,\n  `a` int(11) DEFAULT NULL,\n"
        "  `b` varchar(5) DEFAULT NULL,\n  `c` decimal(5,2) NOT NULL,\n  `d` text DEFAULT NULL,\n"
        "  PRIMARY KEY (`id`) /*T![clustered_index] CLUSTERED */,\n  KEY `by_c` (`c`),\n  KEY `by_b` (`b`)\n"
        ") ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
    )


@pytest.mark.parametrize(
    ("digits", "seconds"), [(0, "39.000000"), (1, "39.900000"), (3, "39.987000"), (6, "39.987000")]
)
def test_a_default_of_now_is_cut_to_the_digits_of_its_column(digits: int, seconds: str) -> None:
    text = f"datetime({digits}) default current_timestamp({digits})"
    column, _, _ = define_column("at", text, column_id=2)
    assert default_value(column, compose_ts(1_794_961_059_987)).strftime("%S.%f") == seconds


@pytest.mark.parametrize(
    ("text", "value", "before", "shown"),
    [
        ("date default (current_date)", date(2024, 2, 29), "2024-02-29", "DEFAULT (CURRENT_DATE)"),
        ("datetime default (current_date)", datetime(2024, 2, 29), "2024-02-29", "DEFAULT (CURRENT_DATE)"),
        (
            "timestamp(3) default current_timestamp(3)",
            datetime(2024, 2, 29, 1, 2, 3, 456000),
            "2024-02-29 01:02:03.456",
            "DEFAULT CURRENT_TIMESTAMP(3)",
        ),
        (
            "varchar(30) default 'CURRENT_TIMESTAMP'",
            *["CURRENT_TIMESTAMP"] * 2,
            "DEFAULT 'CURRENT_TIMESTAMP'",
        ),
        ("varchar(30) default 'CURRENT_DATE'", *["CURRENT_DATE"] * 2, "DEFAULT 'CURRENT_DATE'"),
    ],
)
def test_only_columns_of_times_have_defaults_of_the_clock(
    text: str, value: object, before: str, shown: str
) -> None:
    column, _, _ = define_column("c", text, column_id=2)
    start_ts = compose_ts(1_709_168_523_456)  # 2024-02-29 01:02:03.456
    assert default_value(column, start_ts) == value
    added = with_origin_default(column, start_ts=start_ts)
    assert added.origin_default == before
    assert origin_cell(added) == to_cell(column.type, value)
    assert statements.create_table(define_table("t", [("c", text)])).splitlines()[1].endswith(shown)
    again, _, _ = define_column("c", statements.column_text(column), column_id=2)
    assert again == column


def test_rows_of_before_have_the_day_of_the_last_ddl_where_tidb_keeps_current_date() -> None:
    table = define_table("t", [("d", "date default (current_date)"), ("v", "varchar(20)")])
    kept = tuple(replace(column, origin_default="CURRENT_DATE") for column in table.columns)
    last_ddl_ts = compose_ts(1_709_164_800_000)  # 2024-02-29 00:00:00
    read = TableInfo.from_json(replace(table, columns=kept, update_ts=last_ddl_ts).to_json())
    assert [from_cell(column.type, origin_cell(column)) for column in read.columns] == [
        date(2024, 2, 29),
        "CURRENT_DATE",
    ]
