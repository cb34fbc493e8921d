"""Changes of meta keys, as a subscription of them delivers: tables, databases, finished jobs."""

import json
from dataclasses import replace
from typing import Any

from penstock.tables.codec.ordered import encode_uint
from penstock.tables.ddl_jobs import DdlJob
from penstock.tables.define import define_table
from penstock.tables.keys import meta_hash_key
from penstock.tables.meta import DATABASES, JOB_HISTORY, database_field, table_field
from penstock.tables.schema import DatabaseInfo, TableInfo
from support.rawbatches import Change, put

__all__ = ["a_table", "database", "database_gone", "described", "gone", "partitioned", "recorded"]


def a_table(table_id: int, *columns: str, name: str = "t", **rest: Any) -> TableInfo:
    """A table with a number as its key, and columns."""
    defined = define_table(name, [("id", "bigint primary key"), *((each, "int") for each in columns)])
    return replace(defined, id=table_id, **rest)


def partitioned(table_id: int, *parts: int, columns: tuple[str, ...] = (), name: str = "t") -> TableInfo:
    """A table whose rows are in its partitions."""
    partition = {"enable": True, "definitions": [{"id": each} for each in parts]}
    return a_table(table_id, *columns, name=name, extra={"partition": partition})


def described(ts: int, table: TableInfo, database_id: int = 1) -> Change:
    """A table is made, or changed."""
    key = meta_hash_key(database_field(database_id), table_field(table.id))
    return put(ts, key, json.dumps(table.to_json()).encode())


def gone(ts: int, table_id: int, database_id: int = 1) -> Change:
    """A table is dropped, or has left its database."""
    return put(ts, meta_hash_key(database_field(database_id), table_field(table_id)), None)


def database(ts: int, database_id: int, name: str, **rest: Any) -> Change:
    """A database is made, or changed."""
    info = DatabaseInfo(id=database_id, name=name, **rest)
    return put(ts, meta_hash_key(DATABASES, database_field(database_id)), json.dumps(info.to_json()).encode())


def database_gone(ts: int, database_id: int) -> Change:
    """A database is dropped."""
    return put(ts, meta_hash_key(DATABASES, database_field(database_id)), None)


def recorded(ts: int, job_id: int, action: int, table_id: int, query: str, **rest: Any) -> Change:
    """A job is finished; by default it began a tick before."""
    given: dict[str, Any] = {"database_id": 1, "start_ts": ts - 1, "schema_version": job_id, **rest}
    job = DdlJob(
        id=job_id, type=action, table_id=table_id, query=query, database_name="", table_name="", **given
    )
    return put(ts, meta_hash_key(JOB_HISTORY, encode_uint(job_id)), json.dumps(job.to_json()).encode())
