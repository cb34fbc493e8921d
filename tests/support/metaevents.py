"""Changes of meta keys, as a subscription of them delivers: tables, databases, finished jobs."""

import json
from dataclasses import replace
from typing import Any

from penstock.tables.accounts import Account, account_field, owner_field
from penstock.tables.codec.ordered import encode_uint
from penstock.tables.columns import name_to_json
from penstock.tables.ddl_jobs import DdlJob
from penstock.tables.define import define_table
from penstock.tables.keys import meta_hash_key, meta_string_key
from penstock.tables.meta import ACCOUNTS, DATABASES, JOB_HISTORY, database_field, table_field
from penstock.tables.schema import DatabaseInfo, TableInfo
from support.rawbatches import Change, put

__all__ = [
    "a_table",
    "finish_job",
    "flashback_diff",
    "flashback_job",
    "partitioned_table",
    "put_account",
    "put_database",
    "put_owner",
    "put_table",
    "remove_database",
    "remove_table",
]


def a_table(table_id: int, *columns: str, name: str = "t", **rest: Any) -> TableInfo:
    """Return a table with a number as its key, and columns."""
    defined = define_table(name, [("id", "bigint primary key"), *((column, "int") for column in columns)])
    return replace(defined, id=table_id, **rest)


def partitioned_table(
    table_id: int, *parts: int, columns: tuple[str, ...] = (), name: str = "t"
) -> TableInfo:
    """Return a table whose rows are in its partitions, each with the keys below its id."""
    definitions = [{"id": part, "name": name_to_json(f"p{part}"), "less_than": [str(part)]} for part in parts]
    partition = {"enable": True, "type": 1, "expr": "`id`", "definitions": definitions}
    return a_table(table_id, *columns, name=name, extra={"partition": partition})


def put_table(ts: int, table: TableInfo, database_id: int = 1) -> Change:
    """Return the change of the meta keys that makes or changes a table."""
    key = meta_hash_key(database_field(database_id), table_field(table.id))
    return put(ts, key, json.dumps(table.to_json()).encode())


def remove_table(ts: int, table_id: int, database_id: int = 1) -> Change:
    """Return the change of the meta keys that removes a table from its database."""
    return put(ts, meta_hash_key(database_field(database_id), table_field(table_id)), None)


def put_database(ts: int, database_id: int, name: str, **rest: Any) -> Change:
    """Return the change of the meta keys that makes or changes a database."""
    info = DatabaseInfo(id=database_id, name=name, **rest)
    return put(ts, meta_hash_key(DATABASES, database_field(database_id)), json.dumps(info.to_json()).encode())


def remove_database(ts: int, database_id: int) -> Change:
    """Return the change of the meta keys that drops a database."""
    return put(ts, meta_hash_key(DATABASES, database_field(database_id)), None)


def put_account(ts: int, account_id: int, name: str) -> Change:
    """Return the change of the meta keys that makes an account."""
    value = json.dumps(Account(account_id, name).to_json()).encode()
    return put(ts, meta_hash_key(ACCOUNTS, account_field(account_id)), value)


def put_owner(ts: int, database_id: int, account_id: int | None) -> Change:
    """Return the change of the meta keys that gives a database to an account; None: to nobody."""
    value = None if account_id is None else str(account_id).encode()
    return put(ts, meta_hash_key(ACCOUNTS, owner_field(database_id)), value)


def finish_job(ts: int, job_id: int, action: int, table_id: int, query: str, **rest: Any) -> Change:
    """Return the change of the meta keys that finishes a job; by default it began a tick before."""
    given: dict[str, Any] = {"database_id": 1, "start_ts": ts - 1, "schema_version": job_id}
    given |= {"database_name": "", "table_name": "", **rest}
    job = DdlJob(id=job_id, type=action, table_id=table_id, query=query, **given)
    return put(ts, meta_hash_key(JOB_HISTORY, encode_uint(job_id)), json.dumps(job.to_json()).encode())


def flashback_diff(version: int, *, ends: bool = False) -> tuple[bytes, bytes]:
    """Return the schema diff that TiDB writes before FLASHBACK CLUSTER locks the cluster, or at its end.

    As in updateSchemaVersion and SetSchemaDiffForFlashbackCluster of TiDB 8.5.
    """
    tree = {"version": version, "type": 62, "schema_id": 0, "table_id": -1, "old_table_id": 0}
    rest = {"old_schema_id": 0, "regenerate_schema_map": ends, "affected_options": None}
    return meta_string_key(b"Diff:%d" % version), _as_go(tree | rest)


def flashback_job(job_id: int, start_ts: int, *, state: int) -> tuple[bytes, bytes]:
    """Return the record of a finished job of FLASHBACK CLUSTER: state 6 is synced, 5 cancelled."""
    arguments = [start_ts - 5, {}, True, "ON", "OFF", 3, start_ts + 1, start_ts + 2, "ON", []]
    info = {"DBInfo": None, "TableInfo": None, "FinishedTS": 0, "MultipleTableInfos": None}
    tree = {"id": job_id, "type": 62, "schema_id": 0, "table_id": 0, "schema_name": "", "table_name": ""}
    tree |= {"state": state, "err": None, "raw_args": arguments, "schema_state": 5, "start_ts": start_ts}
    tree |= {"query": "FLASHBACK CLUSTER TO TIMESTAMP '2026-01-02 03:04:05'", "version": 1}
    tree |= {"binlog": {"SchemaVersion": 0, **info}, "reorg_meta": None}
    tree |= {"involving_schema_info": [{"database": "*", "table": "*"}]}
    return meta_hash_key(JOB_HISTORY, encode_uint(job_id)), _as_go(tree)


def _as_go(tree: dict[str, Any]) -> bytes:
    return json.dumps(tree, separators=(",", ":")).encode()
