"""Makes index rows of source rows and writes them as uncommitted fragments, here or on executors."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from lance.fragment import FragmentMetadata

from penstock.consumers.schema_evolution import shape_rows
from penstock.consumers.search_index.lance_table import Earlier, write_rows
from penstock.errors import Invalid
from penstock.jobs.iteration.spark_frame import quote_name
from penstock.spark.errors import NOT_SHARED, hide_worker_traceback, translate_spark_errors
from penstock.spark.tasks import begin_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FragmentTask", "RowMaker", "write_on_executors"]

MADE_ROWS = 16_384
"""Rows that are made at once."""
FRAGMENT_BYTES = 128 << 20
"""Bytes that are collected before they are written."""
_FRAGMENT = "fragment"


class RowMaker(Protocol):
    """Makes index rows of source rows. Pure, and pickled to executors."""

    @property
    def recipe(self) -> str:
        """What rows are made of, and how: rows of different recipes are not comparable."""

    @property
    def derived(self) -> pa.Schema:
        """The columns that it makes."""

    @property
    def replaced(self) -> tuple[str, ...]:
        """Columns of the source that the index does not keep: the derived columns have their values."""

    def make(self, rows: pa.RecordBatch, earlier: Earlier | None) -> pa.RecordBatch:
        """Return the rows with the derived columns, without rows that the index does not have.

        Values that `earlier` has of the same rows may be reused. Raises Invalid when a row cannot be made.
        """


@dataclass(frozen=True, slots=True)
class FragmentTask:
    """How batches of source rows become fragments; pickled for executors."""

    maker: RowMaker
    columns: pa.Schema
    """Columns of the source."""
    schema: pa.Schema
    """Schema of the dataset."""
    uri: str
    mode: str
    storage: Mapping[str, str] = field(repr=False)
    earlier: Earlier | None = None
    probe: Path | None = None
    """A file that the driver wrote: an executor that does not see it would write elsewhere."""

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[FragmentMetadata]:
        """Make rows and write them; uses the memory of one fragment."""
        found: list[FragmentMetadata] = []
        waiting: list[pa.RecordBatch] = []
        for rows in _regroup(batches, self.columns):
            waiting.append(shape_rows(self.maker.make(rows, self.earlier), self.schema))
            if sum(made.nbytes for made in waiting) >= FRAGMENT_BYTES:
                found += self._write_fragments(waiting)
                waiting = []
        return found + self._write_fragments(waiting)

    def _write_fragments(self, rows: list[pa.RecordBatch]) -> list[FragmentMetadata]:
        return write_rows(pa.Table.from_batches(rows, self.schema), self.uri, self.storage, mode=self.mode)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write on an executor, and yield a description of each fragment.

        Files of an abandoned attempt stay uncommitted until Lance removes them.
        """
        begin_task()
        with hide_worker_traceback():
            if self.probe is not None and not self.probe.exists():
                raise Invalid(NOT_SHARED)
            texts = [json.dumps(fragment.to_json()) for fragment in self.write(batches)]
        yield pa.record_batch({_FRAGMENT: pa.array(texts, pa.string())})


def write_on_executors(rows: "DataFrame", task: FragmentTask) -> list[FragmentMetadata]:
    """Write rows on executors; the driver only gets descriptions of fragments.

    Raises Invalid when the dataset is in a local folder that an executor does not share with the driver.
    """
    with _probe(task.uri) as probe, translate_spark_errors():
        work = replace(task, probe=probe)
        made = (
            rows.select(*map(quote_name, task.columns.names))
            .mapInArrow(work, f"{_FRAGMENT} string")
            .toArrow()
        )
    return [FragmentMetadata.from_json(text) for text in made.column(_FRAGMENT).to_pylist()]


@contextmanager
def _probe(uri: str) -> Iterator[Path | None]:
    """Create a file in the dataset's folder while the context lasts; yield None if it is not local."""
    parts = urlsplit(uri)
    if "://" in uri and parts.scheme != "file":
        yield None
        return
    folder = Path(unquote(parts.path) if parts.scheme == "file" else uri)
    folder.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(prefix="_penstock-probe-", dir=folder) as file:
        yield Path(file.name)


def _regroup(batches: Iterable[pa.RecordBatch], columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of about MADE_ROWS, with the columns' own types; nothing for no rows."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        for begin in range(0, batch.num_rows, MADE_ROWS):
            waiting.append(shape_rows(batch.slice(begin, MADE_ROWS), columns))
            count += waiting[-1].num_rows
            if count >= MADE_ROWS:
                yield _join_batches(waiting)
                waiting, count = [], 0
    if waiting:
        yield _join_batches(waiting)


def _join_batches(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.concat_batches(batches)
