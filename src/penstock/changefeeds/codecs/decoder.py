"""Reads data files of every format as changes, by how their names end."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.changefeeds.codecs import canal_json, csv, debezium, parquet
from penstock.changefeeds.codecs.decoded_changes import DecodedChanges
from penstock.changefeeds.codecs.options import COMPRESSED_SUFFIXES, CsvOptions, Protocol
from penstock.changefeeds.codecs.text_cells import BLOCK_BYTES
from penstock.errors import Corrupt, Invalid
from penstock.object_storage import ObjectStorage
from penstock.tables.schema import TableInfo

_HEAD_BYTES = 64 * 1024
_BLOCK_BYTES_MIN = 64 * 1024
_BATCH_ROWS_MIN = 1024
_COMPRESSED_BYTES = 1024 * 1024  # one request to storage


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """What files do not say themselves. Without a protocol, the first JSON file decides it."""

    protocol: Protocol | None = None
    terminator: str = "\r\n"
    csv: CsvOptions = field(default_factory=CsvOptions)
    time_zone: str = "UTC"  # of TIMESTAMP columns that are text


class DataFiles:
    """Reads the data files of one directory, a batch at a time, in bounded memory."""

    def __init__(self, storage: ObjectStorage, options: FileOptions) -> None:
        self._storage = storage
        self._options = options
        self._json: Protocol | None = None

    def changes(self, path: str, table: TableInfo, *, share: int = 1) -> Iterator[DecodedChanges]:
        """Yield the changes of a file in order; `share` files are read at once in the same memory.

        Raises Corrupt or Invalid, which name the file, when it does not fit its schema file and the options.
        """
        with _name_file(path):
            protocol = self._protocol(path)
            if protocol is None:
                return
            with self._open(path) as stream:
                yield from decode_stream(stream, protocol, table, self._options, share=share)

    def _open(self, path: str) -> pa.NativeFile:
        raw = self._storage.open(path)
        suffixes = COMPRESSED_SUFFIXES.items()
        compression = next((name for name, suffix in suffixes if suffix and path.endswith(suffix)), None)
        if compression is None:
            return raw
        return pa.CompressedInputStream(pa.BufferedInputStream(raw, _COMPRESSED_BYTES), compression)

    def _protocol(self, path: str) -> Protocol | None:
        """Return the format of a file; None when it is empty and its name does not say it."""
        name = path.rpartition("/")[2]
        if ".csv" in name:
            return "csv"
        if ".parquet" in name:
            return "parquet"
        if self._options.protocol in {"canal-json", "debezium"}:
            return self._options.protocol
        if self._json is None:
            self._json = self._detect_json(path)
        return self._json

    def _detect_json(self, path: str) -> Protocol | None:
        with self._open(path) as stream:
            head = stream.read(_HEAD_BYTES)
        if b'"isDdl"' in head:
            return "canal-json"
        if b'"op"' in head and b'"source"' in head:
            return "debezium"
        if head:
            raise Invalid("it is neither canal-json nor debezium; add protocol=... to the URI")
        return None


def decode_stream(
    stream: pa.NativeFile, protocol: Protocol, table: TableInfo, options: FileOptions, *, share: int = 1
) -> Iterator[DecodedChanges]:
    """Yield the changes of an open, uncompressed file in order.

    Raises Corrupt or Invalid when the file does not fit the table and the options.
    """
    zone, line_end = options.time_zone, options.terminator
    size = max(_BLOCK_BYTES_MIN, BLOCK_BYTES // share)
    if protocol == "parquet":
        rows = max(_BATCH_ROWS_MIN, parquet.BATCH_ROWS // share)
        return parquet.decode(stream, table, batch_rows=rows)
    if protocol == "csv":
        return csv.decode(stream, table, options.csv, terminator=line_end, time_zone=zone, block_bytes=size)
    if protocol == "debezium":
        return debezium.decode(stream, table, terminator=line_end, block_bytes=size)
    return canal_json.decode(stream, table, terminator=line_end, time_zone=zone, block_bytes=size)


@contextmanager
def _name_file(path: str) -> Iterator[None]:
    """Put the file's path into what the block raises."""
    try:
        yield
    except (Corrupt, Invalid) as error:
        raise type(error)(f"data file {path}: {error}") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise Corrupt(f"data file {path} is cut off or damaged; keep it") from error
