"""What a directory holds, by its paths alone: schema files and sequences of data files. Pure.

`old_name` finds in a RENAME statement what a table was called before.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.changefeeds.sinks.storage import layout
from penstock.changefeeds.sinks.storage.layout import DateSeparator, Folder, SchemaPath
from penstock.errors import Invalid

Root = str
"""A table's part of the directory: `<schema>/<table>` or its id; a database's: `<schema>`."""


@dataclass(frozen=True, slots=True)
class SchemaEntry:
    """A schema file, by its path."""

    path: str
    root: Root
    version: int
    checksum: int


@dataclass(frozen=True, slots=True)
class FileSequence:
    """The files of one dispatcher in one folder, by number; their order is the order of their changes."""

    index_path: str
    folder: Folder
    dispatcher_id: str
    files: dict[int, str] = field(default_factory=dict)

    @property
    def root(self) -> Root:
        """The root of the table that the files belong to."""
        return table_root(self.folder)


@dataclass(frozen=True, slots=True)
class Listing:
    """Everything that a directory holds of a changefeed."""

    schemas: tuple[SchemaEntry, ...]
    sequences: tuple[FileSequence, ...]


@dataclass(frozen=True, slots=True)
class DirectoryLayout:
    """The options by which a directory is laid out; it sorts the paths of such directories."""

    date_separator: DateSeparator = "day"
    table_id_as_path: bool = False

    def sort_paths(self, paths: Iterable[str]) -> Listing:
        """Sort a directory's paths; raise Invalid when the directory is laid out with other options."""
        schemas: list[SchemaEntry] = []
        files: dict[tuple[str, str], dict[int, str]] = {}
        indexes: list[str] = []
        for path in paths:
            if path.endswith(".index"):
                indexes.append(path)
            elif schema := layout.parse_schema_path(path, table_id_as_path=self.table_id_as_path):
                schemas.append(SchemaEntry(path, schema_root(schema), schema.version, schema.checksum))
            elif found := layout.parse_file_name(path.rpartition("/")[2]):
                folder = path.rpartition("/")[0]
                files.setdefault((folder, found.dispatcher_id), {})[found.number] = path
        return Listing(tuple(schemas), tuple(self._sequence(path, files) for path in indexes))

    def _sequence(self, path: str, files: dict[tuple[str, str], dict[int, str]]) -> FileSequence:
        found = layout.parse_index_path(
            path, date_separator=self.date_separator, table_id_as_path=self.table_id_as_path
        )
        if found is None:
            raise Invalid(
                f"index file {path} is in an unexpected folder; give date-separator and use-table-id-as-path"
                " as the sink had them, and the URI of the sink's own directory"
            )
        folder = path.removesuffix(f"/meta/{path.rpartition('/')[2]}")
        own = files.get((folder, found.dispatcher_id), {})
        return FileSequence(path, found.folder, found.dispatcher_id, own)


def table_root(folder: Folder) -> Root:
    """Return the root of the table that a folder belongs to."""
    return str(folder.table_id) if folder.table_id else name_root(folder.schema, folder.table)


def schema_root(path: SchemaPath) -> Root:
    """Return the root of the table, or the database, of a schema file."""
    if path.table_id:
        return str(path.table_id)
    return name_root(path.schema, path.table) if path.table else layout.escape(path.schema)


def name_root(database: str, table: str) -> Root:
    """Return the root of a table of this name."""
    return f"{layout.escape(database)}/{layout.escape(table)}"


Name = tuple[str, str]
"""Database and table."""

_PART = r"(?:`(?:[^`]|``)+`|[\w$]+)"
_TABLE = rf"(?P<{{0}}>{_PART}(?:\s*\.\s*{_PART})?)"
_PAIR = re.compile(rf"{_TABLE.format('old')}\s+TO\s+{_TABLE.format('new')}", re.IGNORECASE)
_RENAME = re.compile(r"^\s*RENAME\s+TABLES?\s+(?P<pairs>.+)$", re.IGNORECASE | re.DOTALL)
_ALTER = re.compile(
    rf"^\s*ALTER\s+TABLE\s+{_TABLE.format('old')}\s+RENAME\s+(?:(?:TO|AS)\s+)?{_TABLE.format('new')}\s*;?\s*$",
    re.IGNORECASE,
)


def old_name(query: str, database: str, table: str) -> Name | None:
    """Return what `database.table` was called before a RENAME; None when the statement does not say it.

    Names without a database are in `database`.
    """
    altered = _ALTER.match(query)
    if altered:
        pairs = [altered]
    elif renamed := _RENAME.match(query):
        pairs = list(_PAIR.finditer(renamed["pairs"]))
    else:
        return None
    wanted = database.lower(), table.lower()
    for pair in pairs:
        new = _name(pair["new"], database)
        if (new[0].lower(), new[1].lower()) == wanted:
            return _name(pair["old"], database)
    return None


def _name(text: str, database: str) -> Name:
    parts = [part.strip("`").replace("``", "`") for part in re.findall(_PART, text)]
    return (parts[0], parts[1]) if len(parts) == 2 else (database, parts[0])
