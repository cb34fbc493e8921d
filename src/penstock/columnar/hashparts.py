"""Many rows divided by the hashes of their keys, in memory while they are few and else on disk."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from penstock.columnar.row_hash import Hashes

__all__ = ["PARTS", "HashParts"]

PARTS = 64
_SHIFT = np.uint64(64 - PARTS.bit_length() + 1)
_BUFFER_BYTES = 64 << 20


class HashParts:
    """Rows go in in any order, and come out part by part: rows whose hashes are equal are in one part.

    A context: leaving it closes and removes the file.
    """

    def __init__(self, schema: pa.Schema, path: Path, *, buffer_bytes: int = _BUFFER_BYTES) -> None:
        self.schema = schema
        self.rows = 0
        self._path = path
        self._buffer_bytes = buffer_bytes
        self._waiting: list[tuple[pa.RecordBatch, Hashes]] = []
        self._waiting_bytes = 0
        self._writer: pa.RecordBatchFileWriter | None = None
        self._written = 0
        self._in_file: list[list[int]] = [[] for _ in range(PARTS)]
        self._in_memory: list[list[pa.RecordBatch]] = [[] for _ in range(PARTS)]
        self._file: pa.MemoryMappedFile | None = None

    def add(self, batch: pa.RecordBatch, hashes: Hashes) -> None:
        """Rows with the hashes of their keys."""
        if not batch.num_rows:
            return
        self._waiting.append((batch, hashes))
        self._waiting_bytes += batch.nbytes + hashes.nbytes
        self.rows += batch.num_rows
        if self._waiting_bytes >= self._buffer_bytes:
            for number, part in self._divided():
                self._write(number, part)

    def parts(self) -> Iterator[Sequence[pa.RecordBatch]]:
        """All rows, part by part, always in the same order of parts; after the last was added."""
        for number, part in self._divided():
            self._in_memory[number].append(part)
        reader = self._reader()
        for in_file, in_memory in zip(self._in_file, self._in_memory, strict=True):
            yield [*(reader.get_batch(at) for at in in_file if reader is not None), *in_memory]

    def _divided(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        if not self._waiting:
            return
        table = pa.Table.from_batches([batch for batch, _ in self._waiting], self.schema)
        numbers = np.concatenate([hashes for _, hashes in self._waiting]) >> _SHIFT
        self._waiting, self._waiting_bytes = [], 0
        order = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers[order], np.arange(PARTS + 1, dtype=np.uint64))
        (batch,) = table.take(pa.array(order)).combine_chunks().to_batches()
        for number in range(PARTS):
            start, end = int(bounds[number]), int(bounds[number + 1])
            if end > start:
                yield number, batch.slice(start, end - start)

    def _write(self, number: int, part: pa.RecordBatch) -> None:
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._writer = pa.ipc.new_file(self._path, self.schema, options=options)
        self._writer.write_batch(part)
        self._in_file[number].append(self._written)
        self._written += 1

    def _reader(self) -> "pa.RecordBatchFileReader | None":
        if self._writer is None:
            return None
        self._writer.close()
        self._file = self._file or pa.memory_map(str(self._path))
        return pa.ipc.open_file(self._file)

    def close(self) -> None:
        """Remove the file."""
        if self._writer is not None:
            self._writer.close()
        if self._file is not None:
            self._file.close()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()
