"""Options of tables, in every order and with every separator of TiDB's grammar, for MySQL and MariaDB.

Each database is stood in for by what it reads: MySQL and MariaDB skip `/*T! */`, TiDB reads what is in it.
"""

import re
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.tables.portable_sql import portable_statement
from support.campaign import examples


class Option(NamedTuple):
    """An option as a user writes it, as all databases read it (empty for none), and as TiDB reads it."""

    typed: str
    shared: str
    tidb: str


def shared(text: str) -> Option:
    return Option(text, text, text)


def own(text: str) -> Option:
    return Option(text, "", text)


TEXTS = st.sampled_from(["''", "'x'", "'a, b'", "'it''s'", "'TTL=1, 2'"])
INTEGERS = st.sampled_from(["0", "4", "123456789012345678901"])
NUMBERS = INTEGERS | st.sampled_from(["0.5", ".5", "1.", "1e-3", "2.5E+1", "-1", "- 0.5", "+1"])
EQUALS = st.sampled_from(["=", " = ", " "])
UNITS = st.sampled_from(["DAY", "hour", "MONTH", "DAY_MICROSECOND", "YEAR_MONTH", "SQL_TSI_DAY"])
LITERALS = st.sampled_from(["90", "1.5", ".5", "'1'", "x'01'", "0x1F", "_utf8mb4'1'", "TRUE", "1e1", "-1"])


def written(names: list[str], values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds("{}{}{}".format, st.sampled_from(names), EQUALS, values)


LENGTHS = [
    "SHARD_ROW_ID_BITS",
    "PRE_SPLIT_REGIONS",
    "AUTO_ID_CACHE",
    "AUTO_RANDOM_BASE",
    "FORCE AUTO_RANDOM_BASE",
    "STATS_BUCKETS",
    "STATS_TOPN",
    "STATS_SAMPLE_RATE",
]
NAMED = [
    "STATS_COL_CHOICE",
    "STATS_COL_LIST",
    "COMPRESSION",
    "ENCRYPTION",
    "SECONDARY_ENGINE",
    "TTL_JOB_INTERVAL",
]
OPTIONS = st.one_of(
    written(LENGTHS, NUMBERS).map(own),
    written(NAMED, TEXTS).map(own),
    written(
        ["PLACEMENT POLICY", "SECONDARY_ENGINE"], st.sampled_from(["p1", "`p, 2`", "DEFAULT", "NULL"])
    ).map(own),
    st.just(own("PLACEMENT POLICY SET DEFAULT")),
    st.builds("TTL{}`at` + INTERVAL {} {}".format, EQUALS, LITERALS, UNITS).map(
        lambda text: Option(text, "", f"{text} TTL_ENABLE='OFF'")
    ),
    written(["AUTO_INCREMENT"], INTEGERS).map(lambda text: Option(f"FORCE {text}", text, f"FORCE {text}")),
    written(["AVG_ROW_LENGTH", "MAX_ROWS", "AUTO_INCREMENT", "KEY_BLOCK_SIZE"], INTEGERS).map(shared),
    written(["COMMENT", "CONNECTION", "PASSWORD"], TEXTS).map(shared),
    st.sampled_from(["ENGINE=InnoDB", "ROW_FORMAT DYNAMIC", "UNION=(a, b)", "STATS_PERSISTENT=DEFAULT"]).map(
        shared
    ),
)
GROUPS = st.lists(st.lists(OPTIONS, min_size=1, max_size=3), min_size=1, max_size=4)
SPECS = st.sampled_from(
    [
        shared("ADD COLUMN c INT"),
        shared("DROP COLUMN `ttl_enable`"),
        own("REMOVE TTL"),
        shared("ADD KEY k (a, b)"),
    ]
)


def joined(groups: list[list[str]]) -> str:
    """Write options that belong together with spaces, and the groups with commas; leave out empty ones."""
    texts = (" ".join(filter(None, group)) for group in groups)
    return essence(",".join(filter(None, texts)))


def essence(text: str) -> str:
    return re.sub(r" ?, ?", ",", re.sub(r"\s+", " ", text)).strip()


def read_by_others(statement: str) -> str:
    return essence(re.sub(r"/\*T!.*?\*/", "", statement))


def read_by_tidb(statement: str) -> str:
    return essence(re.sub(r"/\*T!(?:\[\w+\])?(.*?)\*/", r"\1", statement))


@settings(max_examples=examples(60), deadline=None)
@given(GROUPS, st.lists(SPECS, max_size=2), st.booleans())
def test_every_database_reads_the_options_that_it_knows_with_the_commas_between_them(
    groups: list[list[Option]], specs: list[Option], creates: bool
) -> None:
    head = "CREATE TABLE t (a INT, `at` DATETIME)" if creates else "ALTER TABLE t"
    parts = groups if creates else [*groups, *([spec] for spec in specs)]
    typed = ", ".join(" ".join(option.typed for option in group) for group in parts)
    statement = portable_statement(f"{head} {typed}")
    assert read_by_others(statement) == essence(f"{head} " + joined([[o.shared for o in g] for g in parts]))
    assert read_by_tidb(statement) == essence(f"{head} " + joined([[o.tidb for o in g] for g in parts]))
    assert portable_statement(statement).split() == statement.split()
