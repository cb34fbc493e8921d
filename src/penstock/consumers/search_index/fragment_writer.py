"""Rows of the source into rows of an index, as fragments that are committed later; here or on executors."""

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

from penstock.consumers.schema_evolution import shaped
from penstock.consumers.search_index.lance_table import Earlier, written
from penstock.errors import Invalid
from penstock.spark.errors import NOT_SHARED, one_line, spark_errors
from penstock.spark.tasks import task_begins

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FragmentTask", "RowMaker", "write_on_executors"]

MADE_ROWS = 16_384
"""Rows that are made at once."""
FRAGMENT_BYTES = 128 << 20
"""Bytes that are gathered before they are written."""
_FRAGMENT = "fragment"


class RowMaker(Protocol):
    """Makes rows of an index of rows of the source. Pure, and pickled to executors."""

    @property
    def recipe(self) -> str:
        """What rows are made of and how: rows of another recipe are not comparable."""

    @property
    def derived(self) -> pa.Schema:
        """The columns that it makes."""

    @property
    def replaced(self) -> tuple[str, ...]:
        """Columns of the source that are not kept: their values are in what is made of them."""

    def made(self, rows: pa.RecordBatch, earlier: Earlier | None) -> pa.RecordBatch:
        """Rows with the columns that it makes; those that the index is not to have are left out.

        What `earlier` has of the same rows may be taken from there. Raises Invalid when nothing can be made
        of a row.
        """


@dataclass(frozen=True, slots=True)
class FragmentTask:
    """How batches of the source's rows become fragments; what an executor does is pickled."""

    maker: RowMaker
    columns: pa.Schema
    """Of the source."""
    schema: pa.Schema
    """Of the dataset."""
    uri: str
    mode: str
    storage: Mapping[str, str] = field(repr=False)
    earlier: Earlier | None = None
    probe: Path | None = None
    """A file that the driver has written: an executor that does not see it writes elsewhere."""

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[FragmentMetadata]:
        """Make rows and write them, in memory of a fragment."""
        found: list[FragmentMetadata] = []
        waiting: list[pa.RecordBatch] = []
        for rows in _regrouped(batches, self.columns):
            waiting.append(shaped(self.maker.made(rows, self.earlier), self.schema))
            if sum(each.nbytes for each in waiting) >= FRAGMENT_BYTES:
                found += self._written(waiting)
                waiting = []
        return found + self._written(waiting)

    def _written(self, rows: list[pa.RecordBatch]) -> list[FragmentMetadata]:
        return written(pa.Table.from_batches(rows, self.schema), self.uri, self.storage, mode=self.mode)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same on an executor: a description of each fragment.

        Files of a try that is given up stay unknown, until Lance removes them.
        """
        task_begins()
        with one_line():
            if self.probe is not None and not self.probe.exists():
                raise Invalid(NOT_SHARED)
            texts = [json.dumps(each.to_json()) for each in self.write(batches)]
        yield pa.record_batch({_FRAGMENT: pa.array(texts, pa.string())})


def write_on_executors(rows: "DataFrame", task: FragmentTask) -> list[FragmentMetadata]:
    """Let executors write rows; the driver gets descriptions of fragments only.

    Raises Invalid when the dataset is in a local folder, and an executor does not see what the driver sees.
    """
    with _probe(task.uri) as probe, spark_errors():
        work = replace(task, probe=probe)
        made = rows.select(*task.columns.names).mapInArrow(work, f"{_FRAGMENT} string").toArrow()
    return [FragmentMetadata.from_json(text) for text in made.column(_FRAGMENT).to_pylist()]


@contextmanager
def _probe(uri: str) -> Iterator[Path | None]:
    """A file in the dataset's folder, for as long as the context lasts; None where that is no local one."""
    parts = urlsplit(uri)
    if "://" in uri and parts.scheme != "file":
        yield None
        return
    folder = Path(unquote(parts.path) if parts.scheme == "file" else uri)
    folder.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(prefix="_penstock-probe-", dir=folder) as file:
        yield Path(file.name)


def _regrouped(batches: Iterable[pa.RecordBatch], columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about MADE_ROWS, with the columns' own types; nothing for no rows."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        for begin in range(0, batch.num_rows, MADE_ROWS):
            waiting.append(shaped(batch.slice(begin, MADE_ROWS), columns))
            count += waiting[-1].num_rows
            if count >= MADE_ROWS:
                yield _joined(waiting)
                waiting, count = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.concat_batches(batches)
