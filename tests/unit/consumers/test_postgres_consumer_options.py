"""What a job with a target in PostgreSQL is refused for before anything is done."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.consumers.postgres import Postgres
from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.tables.define import define_table
from penstock.testing.consumers import job_context
from support.everytype import EVERY_TYPE


def consumer(folder: Path, **options: str) -> Postgres:
    return Postgres(job_context(folder, "postgres", {"dsn": "host=nowhere", **options}))


def test_options_are_checked_without_connecting(tmp_path: Path) -> None:
    consumer(tmp_path, table="orders", schema="app", nul="replace").close()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dsn": ""}, "needs the option dsn"),
        ({"dsn": "hush hush"}, "option dsn of consumer postgres is not a connection string"),
        ({"dsn": "postgresql://u:hush@[h"}, "option dsn of consumer postgres is not a connection string"),
        ({"table": "penstock_watermarks"}, "where watermarks are kept"),
        ({"table": "ü" * 32}, "1 to 63 bytes"),
        ({"schema": "x" * 64}, "1 to 63 bytes"),
        ({"nul": "keep"}, "Input should be 'refuse' or 'replace'"),
        ({"tables": "x"}, r"has no option tables; did you mean table\? there are dsn, table, schema, nul"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, str], why: str) -> None:
    with pytest.raises(Invalid, match=why) as caught:
        consumer(tmp_path, **options)
    assert "hush" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_table_of_every_type_can_be_carried(tmp_path: Path) -> None:
    consumer(tmp_path).check(SchemaVersion(0, 1, EVERY_TYPE, "shop"))


@pytest.mark.parametrize(
    ("name", "why"), [("ctid", "a column ctid of its own"), ("日" * 22, "1 to 63 bytes")]
)
def test_names_that_postgres_cannot_have_are_refused(tmp_path: Path, name: str, why: str) -> None:
    table = replace(define_table("items", [("id", "bigint primary key"), (name, "int")]), id=1)
    with pytest.raises(Invalid, match=why):
        consumer(tmp_path).check(SchemaVersion(0, 1, table, "shop"))
