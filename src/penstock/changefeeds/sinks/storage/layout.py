"""Paths of everything a storage sink writes, as TiCDC lays it out, and how to parse them. Pure.

    metadata                                                          the checkpoint
    <schema>/meta/schema_<version>_<checksum>.json                    a database
    <schema>/<table>/meta/schema_<version>_<checksum>.json            a table
    <schema>/<table>/<version>[/<partition>][/<date>]/CDC<number>.<extension>
    <schema>/<table>/<version>[/<partition>][/<date>]/meta/CDC.index  the newest file's name

Where several dispatchers write into one folder: CDC_<dispatcher>_<number> and CDC_<dispatcher>.index. With
table ids as paths, <table id> replaces <schema>/<table>, and partitions have folders by their own ids.

It also finds the next number in a folder that a crash may have left at any moment, and has the content of
`metadata`.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Literal

from penstock.errors import Corrupt

DateSeparator = Literal["none", "year", "month", "day"]

METADATA_PATH = "metadata"
NUMBER_DIGITS_MIN = 6
_NUMBER_DIGITS_MAX = 20
_DATE_FORMATS = {"none": "", "year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d"}
_DATE_PATTERNS = {
    "none": "(?P<date>)",
    "year": r"/(?P<date>\d{4})",  # required: an optional one could not be told from a partition's id
    "month": r"(?:/(?P<date>\d{4}-\d{2}))?",
    "day": r"(?:/(?P<date>\d{4}-\d{2}-\d{2}))?",
}
_NAMES_PATTERN = r"(?P<schema>[^/]+)/(?P<table>[^/]+)/(?P<version>\d+)(?:/(?P<partition>\d+))?"
_IDS_PATTERN = r"(?P<table_id>\d+)/(?P<version>\d+)"
_NUMBER_PATTERN = rf"(?P<number>\d{{{NUMBER_DIGITS_MIN},{_NUMBER_DIGITS_MAX}}})"
_FILE = re.compile(
    rf"CDC(?:_(?P<dispatcher>[0-9A-Za-z-]+)_)?{_NUMBER_PATTERN}(?P<extension>\.[a-z.]+)", re.ASCII
)
_FILE_PATTERN = rf"/(?P<file>{re.sub(r'[?]P<[a-z]+>', '?:', _FILE.pattern)})"
_INDEX_PATTERN = r"/meta/CDC(?:_(?P<dispatcher>[0-9A-Za-z-]+))?\.index"
_SCHEMA_FILE = r"meta/schema_(?P<version>\d+)_(?P<checksum>\d{10})\.json"
_SCHEMA_BY_NAME = re.compile(rf"(?P<schema>[^/]+)/(?:(?P<table>[^/]+)/)?{_SCHEMA_FILE}", re.ASCII)
_SCHEMA_BY_ID = re.compile(rf"(?P<table_id>\d+)/{_SCHEMA_FILE}", re.ASCII)
_META = re.compile(rf"(?:^|/)(?:{_SCHEMA_FILE}|meta/CDC(?:_[0-9A-Za-z-]+)?\.index)$", re.ASCII)
_CHECKPOINT_MEMBER = "checkpoint-ts"
_UNSAFE = re.compile(r"[\x00-\x1f\x7f/%]|^\.{1,2}$")
_ESCAPED = re.compile(r"%([01][0-9A-F]|7F|2F|25|2E)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """The folder of the data files of one version of a table.

    `table_id` replaces the names where table ids are the paths of tables.
    """

    schema: str = ""
    table: str = ""
    table_id: int = 0
    version: int
    partition: int = 0
    date: str = ""

    @property
    def path(self) -> str:
        """The folder's path."""
        parts = [str(self.table_id)] if self.table_id else [escape(self.schema), escape(self.table)]
        parts.append(str(self.version))
        if self.partition:
            parts.append(str(self.partition))
        return "/".join([*parts, self.date] if self.date else parts)

    @property
    def order(self) -> tuple[int, int, str]:
        """The order in which a table's folders are read."""
        return self.version, self.partition, self.date


@dataclass(frozen=True, slots=True)
class DataPath:
    """The parsed path of a data file. `dispatcher_id` is empty where the folder has one dispatcher."""

    folder: Folder
    dispatcher_id: str
    number: int
    extension: str


@dataclass(frozen=True, slots=True)
class IndexPath:
    """The parsed path of an index file, whose content is the name of the newest data file and a line end."""

    folder: Folder
    dispatcher_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaPath:
    """The parsed path of a schema file; without a table and an id it is a database's."""

    schema: str = ""
    table: str = ""
    table_id: int = 0
    version: int
    checksum: int


@dataclass(frozen=True, slots=True)
class FileName:
    """The last part of a data file's path."""

    dispatcher_id: str
    number: int
    extension: str

    def text(self, digits: int) -> str:
        """Return the name with the number padded to so many digits; a wider number is not cut."""
        owner = f"_{self.dispatcher_id}_" if self.dispatcher_id else ""
        return f"CDC{owner}{self.number:0{digits}d}{self.extension}"


def escape(name: str) -> str:
    """Return a database's or table's name as one part of a path. Only characters unfit for paths change."""
    return _UNSAFE.sub(lambda found: "".join(f"%{ord(char):02X}" for char in found[0]), name)


def unescape(part: str) -> str:
    """Return the name that `escape` was given."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), part)


def date_text(separator: DateSeparator, at_ms: int) -> str:
    """Return the date part of a folder for a time, in UTC; empty without a separator."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(_DATE_FORMATS[separator])


def is_date(separator: DateSeparator, name: str) -> bool:
    """Return whether a folder has the name of a date."""
    return re.fullmatch(_DATE_PATTERNS[separator], f"/{name}", re.ASCII) is not None


def data_path(folder: Folder, name: FileName, digits: int) -> str:
    """Return the path of a data file."""
    return f"{folder.path}/{name.text(digits)}"


def index_path(folder: Folder, dispatcher_id: str = "") -> str:
    """Return the path of the index of a folder, or of one dispatcher's files in it."""
    return f"{folder.path}/meta/CDC{f'_{dispatcher_id}' if dispatcher_id else ''}.index"


def meta_folder(of: Folder | SchemaPath) -> str:
    """Return the folder of the schema files of a table or a database."""
    if of.table_id:
        return f"{of.table_id}/meta/"
    return f"{escape(of.schema)}/{escape(of.table)}/meta/" if of.table else f"{escape(of.schema)}/meta/"


def schema_path(of: SchemaPath) -> str:
    """Return the path of a schema file."""
    return f"{meta_folder(of)}schema_{of.version}_{of.checksum:010d}.json"


def parse_file_name(name: str) -> FileName | None:
    """Parse the name of a data file; return None for another name."""
    found = _FILE.fullmatch(name)
    return FileName(found["dispatcher"] or "", int(found["number"]), found["extension"]) if found else None


def is_changefeed_path(path: str) -> bool:
    """Return whether a reader of this directory, or of one above it, takes a path for a changefeed's."""
    name = path.rpartition("/")[2]
    return path == METADATA_PATH or parse_file_name(name) is not None or _META.search(path) is not None


def number_digits(name: str) -> int:
    """Return how many digits the number in a data file's name has; 0 when it is no such name."""
    found = _FILE.fullmatch(name)
    return len(found["number"]) if found else 0


def parse_data_path(
    path: str, *, date_separator: DateSeparator = "day", table_id_as_path: bool = False
) -> DataPath | None:
    """Parse the path of a data file; return None for another path."""
    found = _folder_pattern(date_separator, table_id_as_path, _FILE_PATTERN).fullmatch(path)
    name = parse_file_name(found["file"]) if found else None
    if found is None or name is None:
        return None
    return DataPath(_folder(found), name.dispatcher_id, name.number, name.extension)


def parse_index_path(
    path: str, *, date_separator: DateSeparator = "day", table_id_as_path: bool = False
) -> IndexPath | None:
    """Parse the path of an index file; return None for another path."""
    found = _folder_pattern(date_separator, table_id_as_path, _INDEX_PATTERN).fullmatch(path)
    return IndexPath(_folder(found), found["dispatcher"] or "") if found else None


def parse_schema_path(path: str, *, table_id_as_path: bool = False) -> SchemaPath | None:
    """Parse the path of a schema file; return None for another path, also of a file that is being written."""
    found = (_SCHEMA_BY_ID if table_id_as_path else _SCHEMA_BY_NAME).fullmatch(path)
    if found is None:
        return None
    version, checksum = int(found["version"]), int(found["checksum"])
    if table_id_as_path:
        return SchemaPath(table_id=int(found["table_id"]), version=version, checksum=checksum)
    schema, table = unescape(found["schema"]), unescape(found["table"] or "")
    return SchemaPath(schema=schema, table=table, version=version, checksum=checksum)


@cache
def _folder_pattern(separator: DateSeparator, by_id: bool, rest: str) -> re.Pattern[str]:  # noqa: FBT001 - cached
    return re.compile(
        (_IDS_PATTERN if by_id else _NAMES_PATTERN) + _DATE_PATTERNS[separator] + rest, re.ASCII
    )


def _folder(found: re.Match[str]) -> Folder:
    parts = found.groupdict()
    return Folder(
        schema=unescape(parts.get("schema") or ""),
        table=unescape(parts.get("table") or ""),
        table_id=int(parts.get("table_id") or 0),
        version=int(parts["version"]),
        partition=int(parts.get("partition") or 0),
        date=parts["date"] or "",
    )


def number_in_index(content: bytes | None, path: str) -> int:
    """Return the number that an index names; 0 without one. Raises Corrupt when it names no data file."""
    if content is None:
        return 0
    name = parse_file_name(content.decode("utf-8", "replace").removesuffix("\n"))
    if name is None:
        raise Corrupt(f"index {path} names no data file; look at it, and remove it to have it written again")
    return name.number


def last_number(indexed: int, exists: Callable[[int], bool]) -> int:
    """Return the last number in use, at or after the one in the index: a crash may leave unindexed files.

    Numbers have no holes. So the search doubles its step while numbers are in use, then halves the rest: few
    requests, however many files there are.
    """
    low, step = indexed, 1
    while exists(low + step):
        low, step = low + step, step * 2
    high = low + step  # in use: low; free: high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if exists(middle) else (low, middle)
    return low


def encode_checkpoint(ts: int) -> bytes:
    """Return the content of the metadata file: up to this timestamp everything is on the remote."""
    return json.dumps({_CHECKPOINT_MEMBER: ts}, separators=(",", ":")).encode()


def decode_checkpoint(data: bytes) -> int:
    """Return the checkpoint of a metadata file; raise Corrupt when there is none."""
    try:
        ts = json.loads(data)[_CHECKPOINT_MEMBER]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt("the metadata file holds no checkpoint; ask the writer to write it again") from error
    if not isinstance(ts, int) or ts < 0:
        raise Corrupt("the metadata file holds a damaged checkpoint; ask the writer to write it again")
    return ts
