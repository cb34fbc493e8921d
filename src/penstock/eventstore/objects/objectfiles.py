"""Opening an object's Parquet file, and what its footer says of each row group."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import Corrupt
from penstock.eventstore import paths
from penstock.eventstore.manifest import ObjectInfo
from penstock.object_storage import ObjectStorage


@contextmanager
def opened(
    storage: ObjectStorage,
    table_id: int,
    info: ObjectInfo,
    *,
    footer: pq.FileMetaData | None = None,
    dictionaries: Sequence[str] = (),
) -> Iterator[pq.ParquetFile]:
    """An object's file; give its `footer` when it has been read before.

    Columns named in `dictionaries` are read as numbers into their distinct values, which is quick for few.
    Raises Unavailable when the object is not there or storage does not answer, Corrupt when it is damaged.
    """
    path = paths.object_path(paths.table_root(table_id), info.side, info.id)
    try:
        with (
            storage.open(path) as source,
            pq.ParquetFile(
                source, metadata=footer, read_dictionary=list(dictionaries), pre_buffer=True
            ) as file,
        ):
            yield file
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"object {path} is damaged; keep it for inspection") from error


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """The lowest and the highest value of a column in a row group that has any."""

    low: Any
    high: Any


def column_bounds(
    footer: pq.FileMetaData, column: str, *, missing: ColumnBounds | None = None
) -> list[ColumnBounds | None]:
    """The bounds of a column in each row group; None where it holds only nulls.

    Parquet keeps none of very long values: `missing` stands for them. Without it, pa.ArrowInvalid is raised.
    """
    leaves = [footer.schema.column(each).path for each in range(footer.num_columns)]
    at = leaves.index(column)
    return [_bounds(footer.row_group(group).column(at), missing) for group in range(footer.num_row_groups)]


def _bounds(chunk: pq.ColumnChunkMetaData, missing: ColumnBounds | None) -> ColumnBounds | None:
    found = chunk.statistics
    if found is not None and found.has_min_max:
        return ColumnBounds(found.min, found.max)
    if found is not None and found.has_null_count and found.null_count == chunk.num_values:
        return None
    if missing is None:
        raise pa.ArrowInvalid(f"no statistics of {chunk.path_in_schema}")
    return missing
