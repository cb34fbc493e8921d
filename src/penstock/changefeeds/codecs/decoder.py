"""Data files of every format as changes, by their names' ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.changefeeds.codecs import canal_json, debezium, parquet
from penstock.changefeeds.codecs import csv as csvfiles
from penstock.changefeeds.codecs.decoded_changes import DecodedChanges
from penstock.changefeeds.codecs.options import CsvOptions, Protocol
from penstock.changefeeds.codecs.text_cells import BLOCK_BYTES
from penstock.errors import Corrupt, Invalid
from penstock.object_storage import ObjectStorage
from penstock.tables.schema import TableInfo

_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
_LOOK_BYTES = 64 * 1024
_BLOCK_BYTES_MIN = 64 * 1024
_BATCH_ROWS_MIN = 1024
_COMPRESSED_BYTES = 1024 * 1024  # one request to storage


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """What files do not say themselves. Without a protocol, JSON files are looked into."""

    protocol: Protocol | None = None
    terminator: str = "\r\n"
    csv: CsvOptions = field(default_factory=CsvOptions)
    time_zone: str = "UTC"  # of TIMESTAMP columns in text


class DataFiles:
    """Reads data files of one directory, in bounded memory, a batch at a time."""

    def __init__(self, storage: ObjectStorage, options: FileOptions) -> None:
        self._storage = storage
        self._options = options
        self._json: Protocol | None = None

    def changes(self, path: str, table: TableInfo, *, share: int = 1) -> Iterator[DecodedChanges]:
        """The changes of a file in order; with `share`, so many files are read at once in the same memory.

        Raises Corrupt or Invalid, which name the file, when it is not as its schema file and the options say.
        """
        with _naming(path):
            protocol = self._protocol(path)
            if protocol is None:
                return
            with self._open(path) as stream:
                yield from decoded(stream, protocol, table, self._options, share=share)

    def _open(self, path: str) -> pa.NativeFile:
        raw = self._storage.open(path)
        compression = next((kind for end, kind in _COMPRESSED.items() if path.endswith(end)), None)
        if compression is None:
            return raw
        return pa.CompressedInputStream(pa.BufferedInputStream(raw, _COMPRESSED_BYTES), compression)

    def _protocol(self, path: str) -> Protocol | None:
        """How a file is written; None when it is empty and does not tell."""
        name = path.rpartition("/")[2]
        if ".csv" in name:
            return "csv"
        if ".parquet" in name:
            return "parquet"
        if self._options.protocol in {"canal-json", "debezium"}:
            return self._options.protocol
        if self._json is None:
            self._json = self._look(path)
        return self._json

    def _look(self, path: str) -> Protocol | None:
        with self._open(path) as stream:
            head = stream.read(_LOOK_BYTES)
        if b'"isDdl"' in head:
            return "canal-json"
        if b'"op"' in head and b'"source"' in head:
            return "debezium"
        if head:
            raise Invalid("it is neither canal-json nor debezium; add protocol=... to the URI")
        return None


def decoded(
    stream: pa.NativeFile, protocol: Protocol, table: TableInfo, options: FileOptions, *, share: int = 1
) -> Iterator[DecodedChanges]:
    """The changes of a file that is open, and not compressed (any more), in order; raise as `changes`."""
    zone, line_end = options.time_zone, options.terminator
    size = max(_BLOCK_BYTES_MIN, BLOCK_BYTES // share)
    if protocol == "parquet":
        rows = max(_BATCH_ROWS_MIN, parquet.BATCH_ROWS // share)
        return parquet.decode(stream, table, batch_rows=rows)
    if protocol == "csv":
        return csvfiles.decode(
            stream, table, options.csv, terminator=line_end, time_zone=zone, block_bytes=size
        )
    if protocol == "debezium":
        return debezium.decode(stream, table, terminator=line_end, block_bytes=size)
    return canal_json.decode(stream, table, terminator=line_end, time_zone=zone, block_bytes=size)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except (Corrupt, Invalid) as error:
        raise type(error)(f"data file {path}: {error}") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise Corrupt(f"data file {path} is cut off or damaged; keep it") from error
