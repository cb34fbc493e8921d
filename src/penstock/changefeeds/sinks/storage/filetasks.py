"""A file that is to be written: which chunks, why now, and who is told afterwards. Pure."""

from dataclasses import dataclass
from enum import Enum

from penstock.changefeeds.engines.engine import Chunk
from penstock.changefeeds.sinks.drain import DrainMarker
from penstock.changefeeds.sinks.work import DmlEvent
from penstock.eventstore.schema_version import SchemaVersion
from penstock.follow.slices import TableSpan

Waiting = DmlEvent | DrainMarker


class FlushReason(Enum):
    """Why a file was closed. ERROR is counted for one that could not be written."""

    SIZE = "size"
    INTERVAL = "interval"
    DDL = "ddl"  # a drain, or rows of another schema version came next
    QUOTA = "quota"  # the spool is full of files that are not
    CLOSE = "close"
    ERROR = "error"


@dataclass(slots=True, eq=False)
class FileTask:
    """Chunks of one dispatcher and schema version, in order. `waiting` is told, in order, afterwards."""

    dispatcher: TableSpan
    schema: SchemaVersion
    chunks: tuple[Chunk, ...]
    waiting: list[Waiting]
    reason: FlushReason

    @property
    def nbytes(self) -> int:
        """Bytes of its chunks in the spool."""
        return sum(chunk.nbytes for chunk in self.chunks)

    @property
    def rows(self) -> int:
        """Rows of its chunks."""
        return sum(chunk.rows for chunk in self.chunks)
