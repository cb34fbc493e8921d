"""What a change of a meta key says: that a table, a database or a DDL job is there, or is gone. No I/O."""

from typing import NamedTuple

from penstock.tables.ddl_jobs import DdlJob
from penstock.tables.keys import META_HASH, META_PREFIX, decode_meta_key, meta_hash_prefix, prefix_end
from penstock.tables.meta import DATABASES, JOB_HISTORY, database_field, parse_json
from penstock.tables.schema import DatabaseInfo, TableInfo

META_RANGE = (META_PREFIX, prefix_end(META_PREFIX))
"""The span to subscribe."""

_DATABASE_HASHES = META_PREFIX + b"DB:"  # a memcomparable name begins with its own bytes
_DATABASE_LIST = meta_hash_prefix(DATABASES)
_JOB_LIST = meta_hash_prefix(JOB_HISTORY)
_DATABASE_FIELD = database_field(0)[:-1]
_TABLE_FIELD = b"Table:"


class TableDescribed(NamedTuple):
    """A table of a database; None: it is not there any more, or has gone to another database."""

    database_id: int
    table_id: int
    table: TableInfo | None


class DatabaseDescribed(NamedTuple):
    """A database; None: it is gone."""

    database_id: int
    database: DatabaseInfo | None


def read_description(key: bytes, value: bytes | None) -> TableDescribed | DatabaseDescribed | None:
    """What a key's new value says of a table or a database; None when it is about something else."""
    if key.startswith(_DATABASE_HASHES):
        name, kind, field, _ = decode_meta_key(key)
        if kind != META_HASH or field is None or not field.startswith(_TABLE_FIELD):
            return None
        table = None if value is None else TableInfo.from_json(parse_json(value))
        return TableDescribed(_number(name, _DATABASE_FIELD), _number(field, _TABLE_FIELD), table)
    if key.startswith(_DATABASE_LIST):
        field = decode_meta_key(key).field
        assert field is not None, "a field of a hash has a name"
        database = None if value is None else DatabaseInfo.from_json(parse_json(value))
        return DatabaseDescribed(_number(field, _DATABASE_FIELD), database)
    return None


def read_job(key: bytes, value: bytes | None) -> DdlJob | None:
    """The finished DDL job that a key's new value describes; None when it describes none."""
    if value is None or not key.startswith(_JOB_LIST):
        return None
    return DdlJob.from_json(parse_json(value))


def _number(name: bytes, prefix: bytes) -> int:
    return int(name.removeprefix(prefix))
