"""Descriptions of tables that Penstock cannot read, or that are no tables: TiDB's own, and changed ones."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock.kv import Client
from penstock.kv.transact import transact
from penstock.tables.ddl_jobs import DdlAction, DdlJob, SchemaDiff
from penstock.tables.meta import MetaWriter, table_key
from penstock.tables.schema_snapshot import SchemaSnapshot, split_name
from support.rawbatches import Change, put

GOLDEN = Path(__file__).parent.parent / "golden" / "tidb-history" / "txns.jsonl.gz"
UNKNOWN_TYPE = 200
"""A type code that neither MySQL nor TiDB has."""


def tidb_meta_changes() -> Iterator[Change]:
    """Yield every change of meta keys in the record of TiDB, from its bootstrap on."""
    with gzip.open(GOLDEN, "rt") as lines:
        for txn in map(json.loads, lines):
            for change in txn["muts"]:
                key = bytes.fromhex(change["key"])
                if key.startswith(b"m") and change["op"] != "lock":
                    value = bytes.fromhex(change["value"]) if change["op"] == "put" else None
                    yield put(txn["commit_ts"], key, value)


def with_type(tree: dict[str, Any], column: str, code: int = UNKNOWN_TYPE) -> dict[str, Any]:
    """Return the description of a table with another type of a column."""
    changed: dict[str, Any] = json.loads(json.dumps(tree))
    (found,) = [each for each in changed["cols"] if each["name"]["L"] == column]
    found["type"]["Tp"] = code
    return changed


def put_description(
    client: Client, name: str, change: Callable[[dict[str, Any]], dict[str, Any] | bytes]
) -> int:
    """Write another description of a table, with a finished job, as a DDL of TiDB does; return its id."""

    def write(txn: Any) -> int:
        meta = MetaWriter(txn)
        database, table = SchemaSnapshot.load(meta).place(name, unreadable=True)
        described = change(table.to_json())
        value = described if isinstance(described, bytes) else json.dumps(described).encode()
        txn.put(table_key(database.id, table.id), value)
        version, query = meta.next_schema_version(), f"ALTER TABLE {table.name} MODIFY COLUMN"
        action = DdlAction.MODIFY_COLUMN
        job = DdlJob(
            meta.next_id(),
            action,
            database.id,
            table.id,
            database.name,
            table.name,
            query,
            txn.start_ts,
            version,
        )
        meta.put_job(job, SchemaDiff(version, action, database.id, table.id))
        return table.id

    return transact(client.begin, write)


def add_description(client: Client, name: str, make: Callable[[int, str], dict[str, Any]]) -> int:
    """Write the description of a new table, view or sequence, with a finished job; return its id."""

    def write(txn: Any) -> int:
        meta = MetaWriter(txn)
        database_name, table_name = split_name(name)
        database = SchemaSnapshot.load(meta).database(database_name)
        table_id = meta.next_id()
        txn.put(table_key(database.id, table_id), json.dumps(make(table_id, table_name)).encode())
        version, query = meta.next_schema_version(), f"CREATE {table_name}"
        action = DdlAction.CREATE_TABLE
        job = DdlJob(
            meta.next_id(),
            action,
            database.id,
            table_id,
            database.name,
            table_name,
            query,
            txn.start_ts,
            version,
        )
        meta.put_job(job, SchemaDiff(version, action, database.id, table_id))
        return table_id

    return transact(client.begin, write)


def tidb_tree(kind: str) -> dict[str, Any]:
    """Return TiDB's own description of the first `view`, `sequence` or temporary table in the record."""
    member = "temp_table_type" if kind == "temporary table" else kind
    for _, _, key, value, _ in tidb_meta_changes():
        if key.startswith(b"mDB:") and b"Table:" in key and value is not None:
            tree: dict[str, Any] = json.loads(value)
            if tree.get(member):
                return tree
    raise AssertionError(f"the record has no {kind}")


def tidb_like(kind: str) -> Callable[[int, str], dict[str, Any]]:
    """Return what makes a description like TiDB's own of a kind, with another id and name."""
    tree = tidb_tree(kind)
    return lambda table_id, name: {**tree, "id": table_id, "name": {"O": name, "L": name.lower()}}
