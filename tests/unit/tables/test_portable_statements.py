"""Statements that TiDB, MySQL and MariaDB run alike: recorded texts, and CREATE TABLE from a description."""

import re
from dataclasses import replace

import pytest

from penstock.eventstore.schema_history import TableDescription, read_description
from penstock.tables.columns import ColumnFlag
from penstock.tables.define import define_table
from penstock.tables.portable_sql import (
    ANSI_QUOTES,
    NO_BACKSLASH_ESCAPES,
    Charset,
    portable_statement,
    split_statements,
)
from penstock.tables.schema import IndexColumn, IndexInfo, TableInfo
from penstock.tables.statements import create_table
from support.tidb_history import is_golden, load_record


@pytest.mark.parametrize(
    ("recorded", "portable"),
    [
        (
            "create table t (id bigint auto_random(5) primary key clustered)",
            "create table t (id bigint /*T![auto_rand] auto_random(5) */ primary key"
            " /*T![clustered_index] clustered */)",
        ),
        ("CREATE TABLE t (id INT KEY NONCLUSTERED)",
         "CREATE TABLE t (id INT KEY /*T![clustered_index] NONCLUSTERED */)"),
        (
            "CREATE TABLE t (a INT) SHARD_ROW_ID_BITS=4 PRE_SPLIT_REGIONS = 2 AUTO_ID_CACHE 1 COMMENT='x'",
            "CREATE TABLE t (a INT) /*T! SHARD_ROW_ID_BITS=4 */ /*T! PRE_SPLIT_REGIONS = 2 */"
            " /*T![auto_id_cache] AUTO_ID_CACHE 1 */ COMMENT='x'",
        ),
        (
            "CREATE TABLE t (at DATETIME) TTL = at + INTERVAL 90 DAY TTL_ENABLE='ON' TTL_JOB_INTERVAL='1h'",
            "CREATE TABLE t (at DATETIME) /*T![ttl] TTL = at + INTERVAL 90 DAY */"
            " /*T![ttl] TTL_ENABLE='OFF' */ /*T![ttl] TTL_JOB_INTERVAL='1h' */",
        ),
        (
            "CREATE TABLE t (ttl DATETIME) TTL=`ttl` + INTERVAL '1' MONTH",
            "CREATE TABLE t (ttl DATETIME) /*T![ttl] TTL=`ttl` + INTERVAL '1' MONTH */"
            " /*T![ttl] TTL_ENABLE='OFF' */",
        ),
        ("CREATE TABLE t (a INT) PLACEMENT POLICY=p1",
         "CREATE TABLE t (a INT) /*T![placement] PLACEMENT POLICY=p1 */"),
        (
            "CREATE TABLE t (a INT) PARTITION BY RANGE (a)"
            " (PARTITION p VALUES LESS THAN (9) PLACEMENT POLICY `x`)",
            "CREATE TABLE t (a INT) PARTITION BY RANGE (a) (PARTITION p VALUES LESS THAN (9)"
            " /*T![placement] PLACEMENT POLICY `x` */)",
        ),
        ("CREATE DATABASE d PLACEMENT POLICY = p",
         "CREATE DATABASE d /*T![placement] PLACEMENT POLICY = p */"),
        ("ALTER TABLE t REMOVE TTL;", "ALTER TABLE t /*T![ttl] REMOVE TTL */"),
        ("ALTER TABLE t FORCE AUTO_INCREMENT = 5",
         "ALTER TABLE t /*T![force_inc] FORCE */ AUTO_INCREMENT = 5"),
        (
            "ALTER TABLE d.t TTL_ENABLE='ON', COMMENT='x', REMOVE TTL",
            "ALTER TABLE d.t /*T![ttl] TTL_ENABLE='OFF', */ COMMENT='x' /*T![ttl] , REMOVE TTL */",
        ),
        (
            "ALTER TABLE t ADD PRIMARY KEY (a) NONCLUSTERED, ADD COLUMN IF NOT EXISTS c INT",
            "ALTER TABLE t ADD PRIMARY KEY (a) /*T![clustered_index] NONCLUSTERED */,"
            " ADD COLUMN /*T! IF NOT EXISTS */ c INT",
        ),
        (
            "ALTER TABLE t ADD COLUMN (a BIGINT AUTO_RANDOM, b INT)",
            "ALTER TABLE t ADD COLUMN (a BIGINT /*T![auto_rand] AUTO_RANDOM */, b INT)",
        ),
        (
            "ALTER TABLE t PARTITION BY HASH (a) PARTITIONS 4 UPDATE INDEXES (i GLOBAL, j LOCAL)",
            "ALTER TABLE t PARTITION BY HASH (a) PARTITIONS 4"
            " /*T![global_index] UPDATE INDEXES (i GLOBAL, j LOCAL) */",
        ),
        ("CREATE TABLE t (a INT) STATS_SAMPLE_RATE=0.5, COMMENT='x'",
         "CREATE TABLE t (a INT) /*T! STATS_SAMPLE_RATE=0.5, */ COMMENT='x'"),
        ("ALTER TABLE t ADD COLUMN c INT, STATS_SAMPLE_RATE = .5",
         "ALTER TABLE t ADD COLUMN c INT /*T! , STATS_SAMPLE_RATE = .5 */"),
        (
            "ALTER TABLE d.1e5 TTL = d + INTERVAL 1.5 DAY, AUTO_RANDOM_BASE=-1",
            "ALTER TABLE d.1e5 /*T![ttl] TTL = d + INTERVAL 1.5 DAY */ /*T![ttl] TTL_ENABLE='OFF', */"
            " /*T![auto_rand_base] AUTO_RANDOM_BASE=-1 */",
        ),
        ("CREATE DATABASE d DEFAULT ENCRYPTION 'N' DEFAULT PLACEMENT POLICY DEFAULT",
         "CREATE DATABASE d /*T! DEFAULT ENCRYPTION 'N' */"
         " /*T![placement] DEFAULT PLACEMENT POLICY DEFAULT */"),
        ("CREATE INDEX i ON t (a) LOCAL", "CREATE INDEX i ON t (a) /*T![global_index] LOCAL */"),
        ("DROP INDEX IF EXISTS i ON t", "DROP INDEX /*T! IF EXISTS */ i ON t"),
    ],
)  # fmt: skip
def test_what_only_tidb_knows_stands_in_its_special_comments(recorded: str, portable: str):
    assert portable_statement(recorded) == portable


@pytest.mark.parametrize(
    ("recorded", "portable"),
    [
        (
            "CREATE TABLE t (a INT, u INT, UNIQUE KEY g (u) GLOBAL, KEY k (a)) PARTITION BY HASH (a)",
            "CREATE TABLE t (a INT, u INT /*T![global_index] , UNIQUE KEY g (u) GLOBAL */, KEY k (a))"
            " PARTITION BY HASH (a)",
        ),
        (
            "CREATE TABLE t (KEY e ((LOWER(a))), a CHAR(3), KEY f (a, (a + 1)))",
            "CREATE TABLE t (/*!80013 KEY e ((LOWER(a))), */ a CHAR(3) /*!80013 , KEY f (a, (a + 1)) */)",
        ),
        ("CREATE UNIQUE INDEX i ON d.t (a) GLOBAL",
         "ALTER TABLE d.t /*T![global_index] ADD UNIQUE INDEX i (a) GLOBAL */"),
        ("CREATE INDEX i ON t ((a + 1)) COMMENT 'x'",
         "ALTER TABLE t /*!80013 ADD INDEX i ((a + 1)) COMMENT 'x' */"),
        ("CREATE INDEX i ON t (a) WHERE a > 1", "ALTER TABLE t /*T! ADD INDEX i (a) WHERE a > 1 */"),
        ("ALTER TABLE t ALTER INDEX i INVISIBLE", "ALTER TABLE t /*!80000 ALTER INDEX i INVISIBLE */"),
        (
            "CREATE TABLE t (a CHAR(3) COLLATE utf8mb4_0900_ai_ci)",
            "CREATE TABLE t (a CHAR(3) /*!80000 COLLATE utf8mb4_0900_ai_ci */ /*M! COLLATE utf8mb4_bin */)",
        ),
    ],
)  # fmt: skip
def test_what_one_of_the_databases_lacks_is_left_out_there(recorded: str, portable: str):
    assert portable_statement(recorded) == portable


@pytest.mark.parametrize(
    ("recorded", "portable"),
    [
        ("ALTER TABLE t DROP INDEX E, ADD c INT", "ALTER TABLE t /*!80013 DROP INDEX E, */ ADD c INT"),
        ("ALTER TABLE t ADD c INT, RENAME KEY `e` TO f",
         "ALTER TABLE t ADD c INT /*!80013 , RENAME KEY `e` TO f */"),
        ("DROP INDEX IF EXISTS e ON d.t", "ALTER TABLE d.t /*!80013 DROP INDEX IF EXISTS e */"),
        ("ALTER TABLE t DROP INDEX other", "ALTER TABLE t DROP INDEX other"),
    ],
)  # fmt: skip
def test_an_index_that_was_left_out_somewhere_is_not_changed_there(recorded: str, portable: str):
    assert portable_statement(recorded, foreign_indexes={"e": "/*!80013"}) == portable


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE t (clustered INT, ttl INT, auto_random INT, `global` INT, KEY clustered (clustered))",
        "CREATE TABLE ttl (a INT COMMENT 'CLUSTERED AUTO_RANDOM(5)', CHECK ((a) > 1))",
        "ALTER TABLE t DROP COLUMN clustered, ADD COLUMN auto_random INT AFTER ttl, RENAME COLUMN a TO ttl",
        "ALTER TABLE t ADD COLUMN c INT /* CLUSTERED */ -- TTL\n",
        "ALTER TABLE t DROP PARTITION ttl",
        "CREATE TABLE t (id INT PRIMARY KEY /*T![clustered_index] CLUSTERED */) /*T! SHARD_ROW_ID_BITS=4 */",
        "CREATE VIEW clustered AS SELECT ttl FROM t",
        "TRUNCATE TABLE t",
    ],
)
def test_names_texts_and_comments_stay_as_they_are(statement: str):
    assert portable_statement(statement) == statement.strip()


def test_comments_inside_a_special_comment_go_because_comments_do_not_nest():
    statement = portable_statement("ALTER TABLE t TTL = a + /* keep */ INTERVAL 1 -- long\n DAY")
    assert re.sub(r"\s+", " ", statement) == (
        "ALTER TABLE t /*T![ttl] TTL = a + INTERVAL 1 DAY */ /*T![ttl] TTL_ENABLE='OFF' */"
    )


def test_quotes_mean_what_the_sql_mode_of_the_job_says():
    text = 'CREATE TABLE "a`b" ("c""d" CHAR(3) DEFAULT \'\\\')'
    assert portable_statement(text, sql_mode=ANSI_QUOTES | NO_BACKSLASH_ESCAPES) == (
        "CREATE TABLE `a``b` (`c\"d` CHAR(3) DEFAULT '\\\\')"
    )
    assert portable_statement('ALTER TABLE t COMMENT="it\'s \\"so\\""') == (
        "ALTER TABLE t COMMENT='it''s \\\"so\\\"'"
    )


def test_a_copy_gets_the_character_set_that_the_source_took_by_default():
    default = Charset("utf8mb4", "utf8mb4_bin")
    assert portable_statement("CREATE DATABASE d", charset=default) == (
        "CREATE DATABASE d CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
    )
    assert portable_statement("CREATE TABLE t (a INT) COMMENT='x'", charset=default) == (
        "CREATE TABLE t (a INT) DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='x'"
    )
    assert portable_statement("CREATE TABLE t (a INT) COLLATE utf8mb4_general_ci", charset=default) == (
        "CREATE TABLE t (a INT) COLLATE utf8mb4_general_ci"
    )
    assert portable_statement("ALTER TABLE t ADD a CHAR(3) CHARACTER SET latin1 NOT NULL") == (
        "ALTER TABLE t ADD a CHAR(3) CHARACTER SET latin1 COLLATE latin1_bin NOT NULL"
    )


def test_statements_of_one_text_are_split_at_semicolons_outside_of_quotes():
    text = "CREATE TABLE a (b CHAR(1) DEFAULT ';');\nCREATE TABLE c (d INT) -- ;\n;"
    assert split_statements(text) == [
        "CREATE TABLE a (b CHAR(1) DEFAULT ';')",
        "CREATE TABLE c (d INT) -- ;",
    ]


def test_a_table_is_shown_as_tidb_shows_it():
    record = load_record()
    for point in record.points:
        described = _tables_at(point.ts)
        for name, table in point.tables.items():
            if not table.is_temporary:
                found, shown = create_table(described[name]), table.create
                assert _essence(found, name) == _essence(shown, name), name


def test_a_table_with_rare_options_is_shown_as_tidb_shows_it():
    table = define_table(
        "t", [("id", "int"), ("d", "decimal(20,2) unsigned"), ("b", "binary(3) default 'a\\0'"), ("v", "int")]
    )
    id_, d, b, v = table.columns
    filled = replace(d, type=replace(d.type, flag=d.type.flag | ColumnFlag.ZEROFILL))
    key = IndexInfo(1, "PRIMARY", (IndexColumn("id", 0),), unique=True, primary=True, is_global=True)
    keys = {"type": 4, "enable": True, "is_empty_columns": True, "columns": [{"O": "id", "L": "id"}]}
    partition = keys | {"definitions": [{"name": {"O": f"p{at}", "L": f"p{at}"}} for at in range(2)]}
    described = replace(table, columns=(id_, filled, b, v), indexes=(key,), extra={"partition": partition})
    statement = create_table(described)
    assert "`d` decimal(20,2) unsigned zerofill DEFAULT NULL" in statement
    assert "`b` binary(3) DEFAULT 'a\\0'" in statement
    assert "/*T![global_index] , PRIMARY KEY (`id`) NONCLUSTERED GLOBAL */" in statement
    assert statement.endswith("PARTITION BY KEY () PARTITIONS 2")


def test_texts_of_a_table_stay_on_their_lines():
    table = define_table("t", [("id", "int"), ("v", r"varchar(9) default 'it''s a\\b'")])
    id_, v = table.columns
    described = replace(table, columns=(id_, replace(v, default="a\r\n'\\\0", comment="one\ntwo")))
    assert r"`v` varchar(9) DEFAULT 'a\r\n''\\\0' COMMENT 'one\ntwo'" in create_table(described)


def _tables_at(ts: int) -> dict[str, TableInfo]:
    """Return the last description of every table at a moment of the record."""
    found: dict[tuple[int, int], TableInfo] = {}
    names: dict[int, str] = {}
    for txn in load_record().txns:
        for mutation in txn.mutations if txn.commit_ts <= ts else ():
            if mutation.op == "lock" or mutation.key[:1] != b"m":
                continue
            description = read_description(mutation.key, mutation.value if mutation.op == "put" else None)
            if isinstance(description, TableDescription):
                key = (description.database_id, description.table_id)
                if description.table is None:
                    found.pop(key, None)
                else:
                    found[key] = description.table
            elif description is not None and description.database is not None:
                names[description.database_id] = description.database.name
    return {f"{names.get(database)}.{table.name}": table for (database, _), table in found.items()}


def _essence(statement: str, name: str) -> str:
    """Return a statement without the next row id, the comments for other databases, and TTL's switch.

    TiDB names the table's own database before a sequence, and not before a table that a foreign key is of. It
    prints the elements of ENUM and SET without escapes, so that its own statement would lose a backslash.
    """
    text = re.sub(r" AUTO_INCREMENT=\d+| /\*T!\[auto_rand_base\].*?\*/| /\* CACHED ON \*/", "", statement)
    text = re.sub(r"/\*(?:T!(?:\[\w+\])?|!\d+) ?(.*?) ?\*/", r"\1", text).replace(
        "/*M! COLLATE utf8mb4_bin */", ""
    )
    text = text.replace("\\\\", "\\")
    text = text.replace("TTL_ENABLE='ON'", "TTL_ENABLE='OFF'").replace(f"`{name.partition('.')[0]}`.", "")
    return re.sub(r"\s+", " ", text.replace(" ,", ",").replace("(, ", "(")).replace(" ,", ",").rstrip()


@pytest.mark.parametrize(
    ("recorded", "portable"),
    [
        (
            "CREATE TABLE t (a INT, b INT, UNIQUE KEY u (a) /*T![global_index] GLOBAL */) PARTITION BY KEY()",
            "CREATE TABLE t (a INT, b INT /*T![global_index] , UNIQUE KEY u (a) GLOBAL */)"
            " PARTITION BY KEY()",
        ),
        (
            "CREATE TABLE t (a INT UNIQUE GLOBAL, b INT PRIMARY KEY /*T![clustered_index] NONCLUSTERED */"
            " /*T![global_index] GLOBAL */) PARTITION BY KEY() PARTITIONS 2",
            "CREATE TABLE t (a INT /*T![global_index] UNIQUE GLOBAL */, b INT"
            " /*T![global_index] PRIMARY KEY NONCLUSTERED GLOBAL */) PARTITION BY KEY() PARTITIONS 2",
        ),
        ("CREATE UNIQUE INDEX i ON t (a) /*T![global_index] GLOBAL */",
         "ALTER TABLE t /*T![global_index] ADD UNIQUE INDEX i (a) GLOBAL */"),
        (
            "CREATE TABLE t (d DATETIME) /*T![ttl] TTL=`d` + INTERVAL 1 DAY TTL_ENABLE='ON' */",
            "CREATE TABLE t (d DATETIME) /*T![ttl] TTL=`d` + INTERVAL 1 DAY */ /*T![ttl] TTL_ENABLE='OFF' */",
        ),
        (
            "CREATE TABLE t (d DATETIME) /*T![ttl] TTL=`d` + INTERVAL 1 DAY */",
            "CREATE TABLE t (d DATETIME) /*T![ttl] TTL=`d` + INTERVAL 1 DAY */ /*T![ttl] TTL_ENABLE='OFF' */",
        ),
        ("ALTER TABLE t /*T! REMOVE TTL */, COMMENT='x'",
         "ALTER TABLE t /*T![ttl] REMOVE TTL, */ COMMENT='x'"),
        ("ALTER TABLE t /*T! SOMETHING (1) */ COMMENT='x'",
         "ALTER TABLE t /*T! SOMETHING (1) */ COMMENT='x'"),
        ("CREATE TABLE t (a INT PRIMARY KEY /*T![later] GLOBAL */)",
         "CREATE TABLE t (a INT PRIMARY KEY /*T![later] GLOBAL */)"),
        ("CREATE TABLE t (a INT) /*!80000 COMMENT='TTL' */",
         "CREATE TABLE t (a INT) /*!80000 COMMENT='TTL' */"),
    ],
)  # fmt: skip
def test_words_that_stand_in_tidbs_comments_already_are_rewritten_too(recorded: str, portable: str):
    assert portable_statement(recorded) == portable
    assert portable_statement(portable) == portable


@pytest.mark.parametrize(
    ("recorded", "portable"),
    [
        (
            "ALTER TABLE t ADD UNIQUE KEY g (a) COMMENT '*/ DROP TABLE y; /*' GLOBAL",
            r"ALTER TABLE t /*T![global_index]"
            r" ADD UNIQUE KEY g (a) COMMENT '*\/ DROP TABLE y; /\*' GLOBAL */",
        ),
        (
            "CREATE UNIQUE INDEX g ON t (a) COMMENT 'x */ y' /* seen */ GLOBAL",
            r"ALTER TABLE t /*T![global_index] ADD UNIQUE INDEX g (a) COMMENT 'x *\/ y'   GLOBAL */",
        ),
        ("CREATE TABLE t (a INT, KEY ((a + 1)) COMMENT \"/*/\")",
         r"CREATE TABLE t (a INT /*!80013 , KEY ((a + 1)) COMMENT '/\*\/' */)"),
        (
            "CREATE TABLE t (d DATETIME) TTL = d + INTERVAL 1 DAY TTL_JOB_INTERVAL='*/' COMMENT='*/'",
            r"CREATE TABLE t (d DATETIME) /*T![ttl] TTL = d + INTERVAL 1 DAY */ /*T![ttl] TTL_ENABLE='OFF' */"
            r" /*T![ttl] TTL_JOB_INTERVAL='*\/' */ COMMENT='*/'",
        ),
        ("CREATE TABLE t (a INT /*T! , KEY `k` (a) COMMENT 'a */ b' */)",
         r"CREATE TABLE t (a INT /*T! , KEY `k` (a) COMMENT 'a *\/ b' */)"),
    ],
)  # fmt: skip
def test_a_text_does_not_end_the_comment_that_it_stands_in(recorded: str, portable: str):
    assert portable_statement(recorded) == portable
    assert portable_statement(portable).split() == portable.split()


@pytest.mark.parametrize(
    ("recorded", "portable"),
    [
        ("CREATE UNIQUE INDEX `*/ x` ON t (a) GLOBAL", "ALTER TABLE t"),
        ("CREATE TABLE t (a INT, UNIQUE KEY `*/ x` (a) GLOBAL)", "CREATE TABLE t (a INT )"),
        ("CREATE TABLE t (a INT) PLACEMENT POLICY=`*/`", "CREATE TABLE t (a INT)"),
    ],
)
def test_what_a_name_makes_impossible_to_write_in_a_comment_is_left_out(recorded: str, portable: str):
    assert portable_statement(recorded).split() == portable.split()


def test_statements_of_a_recorded_history_do_not_change_again():
    record = load_record()
    creates = {table.create for point in record.points for table in point.tables.values()}
    statements = {portable_statement(text, charset=Charset("utf8mb4", "utf8mb4_bin")) for text in creates}
    assert len(statements) > 50 or not is_golden()
    for statement in statements:
        assert portable_statement(statement) == statement
