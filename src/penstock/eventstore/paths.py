"""Paths of all files of the event store, on storage and on the local disk. No other module makes them."""

from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import quote, unquote

Side = Literal["data", "tombstone"]

_CHECKPOINT = "checkpoint-"


def table_root(table_id: int) -> str:
    """Return the folder of one table's manifest and objects."""
    return f"tables/{table_id}"


SCHEMA_ROOT = "schema"
"""The folder of the schema history's manifest."""


def manifest_folder(root: str) -> str:
    """Return the folder of a manifest log."""
    return f"{root}/manifest/"


def manifest_entry(root: str, seq: int) -> str:
    """Return the path of entry `seq` of a manifest log; names sort by number."""
    return f"{root}/manifest/{seq:020d}.json"


def manifest_checkpoint(root: str, seq: int) -> str:
    """Return the path of the fold of every entry up to and including `seq`; names sort after all entries."""
    return f"{root}/manifest/{_CHECKPOINT}{seq:020d}.json"


def checkpoint_seq(path: str) -> int | None:
    """Return the number in the name of a checkpoint; None when the name is not that of a checkpoint."""
    stem = PurePosixPath(path).stem
    return _number(stem.removeprefix(_CHECKPOINT)) if stem.startswith(_CHECKPOINT) else None


def entry_seq(path: str) -> int | None:
    """Return the number in the name of an entry; None when the name is not that of an entry."""
    return _number(PurePosixPath(path).stem)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def object_path(root: str, side: Side, object_id: str) -> str:
    """Return the path of a Parquet object of one side."""
    return f"{root}/{side}/{object_id}.parquet"


def object_folder(root: str, side: Side) -> str:
    """Return the folder of one side's objects."""
    return f"{root}/{side}/"


def archive(root: str, archive_id: str) -> str:
    """Return the path of the list of removed objects that an archive names."""
    return f"{root}/archive/{archive_id}.json"


def archive_folder(root: str) -> str:
    """Return the folder of a table's archives."""
    return f"{root}/archive/"


def object_id(path: str) -> str:
    """Return the id in the name of an object or of an archive."""
    return PurePosixPath(path).stem


def history_hold_folder(root: str) -> str:
    """Return the folder of the history holds of a table, which hold back collection."""
    return f"{root}/watermarks/"


def history_hold(root: str, holder: str) -> str:
    """Return the path of one holder's hold on a table's history."""
    return f"{root}/watermarks/{quote(holder, safe='')}.json"


def load_folder(root: str) -> str:
    """Return the folder of all that a load of the table's first snapshot keeps until it is committed."""
    return f"{root}/load/"


def load_plan(root: str) -> str:
    """Return the path of the plan of a load; no capture takes the table while it exists."""
    return f"{root}/load/plan.json"


def load_ranges(root: str, load_id: str) -> str:
    """Return the folder of the ranges that a load has read."""
    return f"{root}/load/{load_id}/"


def load_range(root: str, load_id: str, number: int) -> str:
    """Return the path of the list of objects that hold one range of a load."""
    return f"{load_ranges(root, load_id)}{number:08d}.json"


def load_range_number(path: str) -> int | None:
    """Return the number in the name of a range's file; None when the name is not that of a range."""
    return _number(PurePosixPath(path).stem)


NAMES = "names/"
"""The folder of all names that tables have or had."""


def name_folder(database: str, table: str) -> str:
    """Return the folder of the ids that have or had a name."""
    return f"{NAMES}{_segment(database)}/{_segment(table)}/"


def name_mark(database: str, table: str, table_id: int) -> str:
    """Return the path of the mark which says that a physical table has or had a name."""
    return f"{name_folder(database, table)}{table_id}"


def parse_name_mark(path: str) -> tuple[str, str, int] | None:
    """Return database, table and physical id in the path of a mark; None when it is no such path."""
    parts = path.removeprefix(NAMES).split("/")
    table_id = _number(parts[-1])
    return (
        (unquote(parts[0]), unquote(parts[1]), table_id) if len(parts) == 3 and table_id is not None else None
    )


def _segment(name: str) -> str:
    return quote(name, safe="").replace(".", "%2E")  # a name of dots must not mean the folder above


def wal_segment(folder: Path, number: int) -> Path:
    """Return the path of segment `number` of the local log."""
    return folder / f"{number:020d}.wal"


def wal_segments(folder: Path) -> list[tuple[int, Path]]:
    """Return the number and the path of every segment in the folder, oldest first."""
    found = ((_number(path.stem), path) for path in folder.glob("*.wal"))
    return sorted((number, path) for number, path in found if number is not None)
