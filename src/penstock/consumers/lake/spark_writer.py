"""Files written on executors: a large first copy, in the order of its keys."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.consumers.lake.files import FileStore, FileWriter, WrittenFile
from penstock.consumers.schema_evolution import shape_rows
from penstock.errors import Invalid
from penstock.jobs.iteration.spark_frame import quote_name
from penstock.spark.errors import NOT_SHARED, hide_worker_traceback, translate_spark_errors
from penstock.spark.tasks import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DESCRIPTIONS = pa.schema([("path", pa.string()), ("nbytes", pa.int64()), ("footer", pa.binary())])


@dataclass(frozen=True, slots=True)
class WriteTask:
    """What an executor does with its part of the rows; pickled."""

    open_store: Callable[[], FileStore] = field(repr=False)
    columns: pa.Schema
    file_schema: pa.Schema
    folder: str
    name: str
    probe: str = ""
    """A file that the driver wrote: an executor that does not see it would write elsewhere."""

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write files of sorted rows; yield a description of each.

        An abandoned attempt of a task leaves files that belong to nothing: their names have its number.
        """
        from pyspark import TaskContext

        store = self.open_store()
        if self.probe not in store.names(self.folder):
            with hide_worker_traceback():
                raise Invalid(NOT_SHARED)
        task = TaskContext.get()
        assert task is not None, "tasks run on executors"
        name = f"{self.name}-{task.partitionId():05}-{task.taskAttemptId()}"
        writer = FileWriter(store, self.file_schema, folder=self.folder, name=name)
        for batch in batches:
            writer.write([shape_rows(batch, self.columns)])
        writer.cut()
        files = writer.written
        yield pa.record_batch(
            [
                [file.path for file in files],
                [file.nbytes for file in files],
                [_footer_bytes(file.footer) for file in files],
            ],
            schema=_DESCRIPTIONS,
        )


def write_on_executors(rows: "DataFrame", keys: Sequence[str], task: WriteTask) -> list[WrittenFile]:
    """Write rows in files that cover ranges of the key; the driver gets no row.

    Raises Invalid when an executor does not see what the driver writes, as in a local folder.
    """
    from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

    task = replace(task, probe=f"{task.folder}/{task.name}-0.parquet")
    task.open_store().write(task.probe, b"")  # removed with the attempt's other files that belong to nothing
    columns = [F.col(quote_name(name)) for name in keys]
    by_key = rows.repartitionByRange(*columns).sortWithinPartitions(*columns)
    with translate_spark_errors():
        made = map_in_arrow(by_key, task.write, "path string, nbytes long, footer binary").toArrow()
    return [
        WrittenFile(path, nbytes, pq.read_metadata(io.BytesIO(footer)))
        for path, nbytes, footer in zip(*(column.to_pylist() for column in made.columns), strict=True)
    ]


def _footer_bytes(footer: pq.FileMetaData) -> bytes:
    sink = io.BytesIO()
    footer.write_metadata_file(sink)
    return sink.getvalue()
