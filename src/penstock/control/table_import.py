"""Imports files into a table: csv, JSON lines and Parquet, each row exactly once.

Rows go in by transactions of many rows. Each transaction also writes how far the import has come, under a key
that the table and the files determine. So the same call continues after a kill where the last commit ended,
and does nothing when all is imported.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.errors import Conflict, Invalid, KeyExists
from penstock.kv import Client, Transaction
from penstock.kv.transact import transact
from penstock.tables import Catalog, TableInfo
from penstock.tables.columns import INTEGER_BITS, Tp
from penstock.tables.keys import meta_hash_key

__all__ = ["ImportOptions", "ImportReport", "import_files"]

_IMPORTS = b"PenstockImports"
_FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
_SAMPLE_ROWS = 10_000

OnProgress = Callable[[Path, int], None]
"""Called after each commit with the file and how many of its rows are imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """How to read the files and to write their rows."""

    format: str | None = None  # by default as the name of each file ends
    types: Mapping[str, str] = field(default_factory=dict)  # MySQL definitions by column, for a new table
    primary_key: Sequence[str] = ()  # of a new table
    upsert: bool = False
    again: bool = False
    batch_rows: int = 10_000


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did: rows of this call, rows that earlier calls had imported already."""

    table: str
    files: int
    rows: int
    resumed_rows: int
    created: bool


def import_files(
    client: Client,
    catalog: Catalog,
    table: str,
    files: Sequence[Path],
    options: ImportOptions,
    *,
    on_progress: OnProgress = lambda _file, _rows: None,
) -> ImportReport:
    """Import files into a table, which is created from the first file when there is none.

    Raise Invalid for a file that cannot be read and a row that does not fit or whose key is taken, Conflict
    when another process imports the same files now. What was committed before stays, and the same call
    continues after it.
    """
    if options.batch_rows < 1 or not files:
        raise Invalid("an import needs at least one file, and batches of at least one row")
    formats = [_format_of(file, options.format) for file in files]
    created = not catalog.schema().has_table(table)
    if created:
        _create(catalog, table, files[0], formats[0], options)
    info = catalog.table_info(table)
    progress = _ImportProgress(_key(info, files), client, catalog)
    if options.again:
        progress.forget()
    done = progress.read()
    resumed = sum(done.values())
    rows = 0
    for file, kind in zip(files, formats, strict=True):
        at = start = done.get(str(file.resolve()), 0)
        for batch in _batches(info, file, kind, start, options.batch_rows):
            rows += progress.commit(table, file, at, batch, upsert=options.upsert)
            at += len(batch)
            on_progress(file, at)
    return ImportReport(table, len(files), rows, resumed, created)


class _ImportProgress:
    """How many rows of each file are in the table, in the same commits as the rows."""

    def __init__(self, key: bytes, client: Client, catalog: Catalog) -> None:
        self._key = key
        self._client = client
        self._catalog = catalog

    def read(self) -> dict[str, int]:
        """Return the rows of each file that are imported."""
        return _parse(self._client.snapshot(self._client.timestamp()).get(self._key))

    def forget(self) -> None:
        """Let an import begin at the first row again."""
        transact(self._client.begin, lambda txn: txn.delete(self._key), repeatable=True)

    def commit(self, table: str, file: Path, at: int, rows: Any, *, upsert: bool) -> int:
        """Write rows that begin at a place of a file, and the place after them; return how many are new."""
        name, end = str(file.resolve()), at + len(rows)
        access = self._catalog.table(table)

        def write(txn: Transaction) -> int:
            done = _parse(txn.get(self._key))
            if done.get(name, 0) == end:
                return 0  # an earlier try, whose answer was lost, committed them
            if done.get(name, 0) != at:
                raise Conflict(f"another process imports {file} now; let it finish, or stop it")
            (access.upsert if upsert else access.insert)(rows, txn=txn)
            txn.put(self._key, json.dumps({**done, name: end}).encode())
            return len(rows)

        try:
            return transact(self._catalog.begin, write, repeatable=True)
        except KeyExists as error:
            raise Invalid(
                f"{file}, rows {at + 1} to {end}: a row has the key of another one; remove it or use --upsert"
            ) from error
        except Invalid as error:
            raise Invalid(f"{file}, rows {at + 1} to {end}: {error}") from error


def _parse(value: bytes | None) -> dict[str, int]:
    return {} if value is None else json.loads(value)


def _key(info: TableInfo, files: Sequence[Path]) -> bytes:
    """Return the key of an import: another table, other files or changed files are another import."""
    facts = [str(info.id)]
    for file in files:
        try:
            found = file.stat()
        except OSError as error:
            raise Invalid(f"{file} cannot be read: {error.strerror}; check the path") from error
        facts.append(f"{file.resolve()} {found.st_size} {found.st_mtime_ns}")
    return meta_hash_key(_IMPORTS, hashlib.sha256("\n".join(facts).encode()).digest())


def _format_of(file: Path, given: str | None) -> str:
    name = given or _FORMATS.get(file.suffix.lower())
    if name not in set(_FORMATS.values()):
        raise Invalid(f"the format of {file} is not known by its name; pass --format csv, jsonl or parquet")
    return name


def _batches(info: TableInfo | None, file: Path, kind: str, start: int, rows: int) -> Iterator[Any]:
    """Yield batches of a file's rows from a place on; the same rows in the same order at each call."""
    try:
        yield from {"csv": _csv, "jsonl": _json_lines, "parquet": _parquet}[kind](info, file, start, rows)
    except (pa.ArrowException, json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise Invalid(f"{file} is not readable as {kind}: {error}") from error


def _csv(info: TableInfo | None, file: Path, start: int, rows: int) -> Iterator[pa.Table]:
    from pyarrow import csv

    types = {} if info is None else {column.name: _csv_type(column.type) for column in info.stored_columns}
    convert = csv.ConvertOptions(
        column_types=types,
        null_values=["", "NULL", r"\N"],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    parse = csv.ParseOptions(newlines_in_values=True)  # else a block may end inside quotes
    with csv.open_csv(file, parse_options=parse, convert_options=convert) as reader:
        yield from _regroup(reader, start, rows)


def _csv_type(kind: Any) -> pa.DataType:
    """Return how to read a column: numbers as such; all else as text, which tables take in MySQL's form."""
    if kind.tp in INTEGER_BITS and not kind.unsigned:
        return pa.int64()
    if kind.tp in {Tp.FLOAT, Tp.DOUBLE}:
        return pa.float64()
    return pa.binary() if kind.is_string and kind.is_binary else pa.string()


def _parquet(_: TableInfo | None, file: Path, start: int, rows: int) -> Iterator[pa.Table]:
    from pyarrow import parquet

    with parquet.ParquetFile(file) as opened:
        yield from _regroup(opened.iter_batches(batch_size=rows), start, rows)


def _regroup(batches: Any, start: int, rows: int) -> Iterator[pa.Table]:
    """Yield rows from a place on, in tables of `rows`."""
    held: list[pa.RecordBatch] = []
    count, skip = 0, start
    for batch in batches:
        left = batch.slice(min(skip, len(batch)))
        skip -= len(batch) - len(left)
        while len(left):
            part = left.slice(0, rows - count)
            held.append(part)
            count, left = count + len(part), left.slice(len(part))
            if count == rows:
                yield pa.Table.from_batches(held)
                held, count = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _json_lines(info: TableInfo | None, file: Path, start: int, rows: int) -> Iterator[list[dict[str, Any]]]:
    columns = () if info is None else info.stored_columns
    exact = {column.name for column in columns if column.type.tp is Tp.NEW_DECIMAL}
    # A float has 17 digits, a DECIMAL column up to 65.
    parse = json.JSONDecoder(parse_float=Decimal if exact else None).decode
    with file.open(encoding="utf-8") as lines:
        parsed = islice((parse(line) for line in lines if line.strip()), start, None)
        while batch := list(islice(parsed, rows)):
            if not all(isinstance(row, dict) for row in batch):
                raise Invalid(f"{file} has a line that is no JSON object; write an object in each line")
            if exact:
                batch = [
                    {name: value if name in exact else _as_floats(value) for name, value in row.items()}
                    for row in batch
                ]
            yield batch


def _as_floats(value: Any) -> Any:
    """Return a JSON value with floats in place of decimals, also inside lists and objects."""
    match value:
        case Decimal():
            return float(value)
        case list():
            return [_as_floats(item) for item in value]
        case dict():
            return {name: _as_floats(item) for name, item in value.items()}
    return value


def _create(catalog: Catalog, table: str, file: Path, kind: str, options: ImportOptions) -> None:
    """Create the table with the columns of a file, whose types are given or those of its first rows."""
    sample = next(_batches(None, file, kind, 0, _SAMPLE_ROWS), None)
    if sample is None:
        raise Invalid(f"{file} has no rows, so {table} cannot be created from it; create the table first")
    rows = sample if isinstance(sample, pa.Table) else _infer_columns(file, sample, options.types)
    unknown = [name for name in (*options.types, *options.primary_key) if name not in rows.schema.names]
    if unknown:
        raise Invalid(f"{file} has no column {unknown[0]}; it has {', '.join(rows.schema.names)}")
    keys = set(options.primary_key)
    columns = [
        (one.name, options.types.get(one.name) or _definition(one, is_key=one.name in keys))
        for one in rows.schema
    ]
    catalog.create_database(table.partition(".")[0], if_not_exists=True)
    catalog.create_table(table, columns, primary_key=options.primary_key)


def _infer_columns(file: Path, rows: Sequence[Mapping[str, Any]], given: Mapping[str, str]) -> pa.Table:
    """Return rows as a table with the columns of all of them, in the order in which they first appear.

    Columns whose type is given are without values.
    """
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        try:
            columns[name] = pa.array([None if name in given else row.get(name) for row in rows])
        except pa.ArrowException as error:
            raise Invalid(
                f"column {name} of {file} has values of several types; give its type with --type"
            ) from error
    return pa.table(columns)


def _definition(column: pa.Field, *, is_key: bool) -> str:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "bigint unsigned" if kind == pa.uint64() else "tinyint" if kind == pa.bool_() else "bigint"
    if pa.types.is_floating(kind):
        return "double"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_date(kind):
        return "date"
    if pa.types.is_timestamp(kind):
        return "datetime(6)" if kind.tz is None else "timestamp(6)"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "varbinary(255)" if is_key else "longblob"
    if pa.types.is_nested(kind):
        return "json"
    return "varchar(255)" if is_key else "longtext"
