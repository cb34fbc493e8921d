"""Tables that databases and Penstock keep for themselves: no wildcard matches them, no tenant has them. Pure.

Their rows may hold secrets: accounts of TiDB, the options of every tenant's jobs. An admin may name one of
them exactly, as in `penstock.iscp_log`.
"""

from collections.abc import Iterable

TIDB_DATABASES = frozenset(
    {"mysql", "sys", "information_schema", "performance_schema", "metrics_schema", "inspection_schema"}
    | {"workload_schema", "dm_heartbeat", "tidb_cdc", "lightning_task_info"}
)
"""Databases, in lower case, that TiDB and its tools keep for themselves."""

PENSTOCK_DATABASE = "penstock"
JOB_LOG = "iscp_log"
"""The table of the job log, in Penstock's own database."""

_SYSTEM_DATABASES = TIDB_DATABASES | {PENSTOCK_DATABASE}


def is_system(database: str) -> bool:
    """Return whether a database is TiDB's or Penstock's own; names are compared without case."""
    return database.lower() in _SYSTEM_DATABASES


def is_job_log(database: str, table: str) -> bool:
    """Return whether a name is that of the job log; names are compared without case."""
    return (database.lower(), table.lower()) == (PENSTOCK_DATABASE, JOB_LOG)


def is_named(database: str, table: str, patterns: Iterable[str]) -> bool:
    """Return whether one of the patterns is the very name of a table: a wildcard names none."""
    name = f"{database}.{table}".lower()
    return any(pattern.strip().lower() == name for pattern in patterns)
