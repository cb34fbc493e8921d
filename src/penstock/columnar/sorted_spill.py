"""Sorts and groups Arrow rows in bounded memory: in memory if they fit, else through scratch files.

`sort_rows` and `SortedSpill` give rows in the order of their keys. `HashedSpill` divides rows into parts by
the hashes of their keys. Vectorised; the only I/O is on scratch files.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.row_hash import Hashes
from penstock.durable_files import create_private, make_private_folder

__all__ = ["PARTS", "SLICE_BYTES", "SLICE_ROWS", "HashedSpill", "SortOrder", "SortedSpill", "order_by"]


Place = tuple[Any, ...]
"""The values of a row's keys."""

SLICE_BYTES = 8 * 1024 * 1024
SLICE_ROWS = 32 * 1024
_SAMPLES_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class SortOrder:
    """The ascending order of a schema's rows by their `keys`, none of which is null.

    `in_order` sorts rows that fit in memory. It releases the batches before it yields its first slice.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    in_order: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def order_by(schema: pa.Schema, *keys: str) -> SortOrder:
    """Return the order of a schema's rows by some of its columns."""

    def in_order(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches(list(batches), schema).combine_chunks()
        del batches
        if not table.num_rows:
            return
        (whole,) = table.to_batches()
        order = pc.sort_indices(table, sort_keys=[(key, "ascending") for key in keys])
        rows = max(1, min(SLICE_ROWS, SLICE_BYTES * table.num_rows // max(1, table.nbytes)))
        del table
        for start in range(0, len(order), rows):
            yield whole.take(order[start : start + rows])

    return SortOrder(schema, keys, in_order)


def sort_rows(
    load: Callable[[], Iterable[pa.RecordBatch]],
    nbytes: int,
    order: SortOrder,
    *,
    memory_bytes: int,
    scratch: Path,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of all batches in order, in slices, with about `memory_bytes` of memory.

    `load` is called once when `nbytes` fits in memory. Else it is called twice: to choose where to divide the
    rows, and to divide them into scratch files, which are then sorted one by one. It is released before the
    first slice. Close the generator when you do not read it to its end: that removes the files.
    """
    if nbytes <= memory_bytes:
        rows = order.in_order(load())
        del load
        yield from rows
        return
    cuts = choose_cuts(load(), order.keys, parts=-(-2 * nbytes // memory_bytes))
    make_private_folder(scratch)
    with TemporaryDirectory(dir=scratch) as folder:
        files = [Path(folder) / f"{index}.arrow" for index in range(len(cuts) + 1)]
        _divide(_sort_chunks(load(), order, memory_bytes // 2), order, cuts, files)
        del load
        for file in files:
            with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as part:
                yield from order.in_order(part)
            file.unlink()


def choose_cuts(batches: Iterable[pa.RecordBatch], keys: Sequence[str], *, parts: int) -> list[Place]:
    """Return places that divide a sample of the rows evenly; none when there are no rows."""
    sample: list[Place] = []
    # One row of every `step` is sampled. When the sample is full, every other row leaves it and the step
    # doubles.
    step, seen = 1, 0
    for batch in batches:
        rows = batch.select(keys).take(pa.array(np.arange(-seen % step, batch.num_rows, step)))
        seen += batch.num_rows
        sample.extend(zip(*(rows.column(name).to_pylist() for name in keys), strict=True))
        while len(sample) > _SAMPLES_MAX:
            del sample[1::2]
            step *= 2
    sample.sort()
    return sorted({sample[len(sample) * part // parts] for part in range(1, parts)}) if sample else []


def _sort_chunks(
    batches: Iterable[pa.RecordBatch], order: SortOrder, nbytes: int
) -> Iterator[pa.RecordBatch]:
    """Sort chunks of about `nbytes`; yield slices, each in order."""
    pending: list[pa.RecordBatch] = []
    weight = 0
    for batch in batches:
        pending.append(batch)
        weight += batch.nbytes
        if weight >= nbytes:
            yield from order.in_order(pending)
            pending, weight = [], 0
    yield from order.in_order(pending)


def _divide(
    chunks: Iterable[pa.RecordBatch], order: SortOrder, cuts: Sequence[Place], files: Sequence[Path]
) -> None:
    with ExitStack() as stack:
        for file in files:
            create_private(file)
        writers = [stack.enter_context(pa.ipc.new_stream(str(file), order.schema)) for file in files]
        for chunk in chunks:
            bounds = [0, *(position(chunk, order.keys, cut) for cut in cuts), chunk.num_rows]
            for writer, start, end in zip(writers, bounds, bounds[1:], strict=False):
                if end > start:
                    writer.write_batch(chunk.slice(start, end - start))


def position(batch: pa.RecordBatch, keys: Sequence[str], place: Place) -> int:
    """Return how many rows of an ordered batch come before a place."""
    low, high = 0, batch.num_rows
    for name, value in zip(keys, place, strict=True):
        low, high = _equal(batch.column(name), value, low, high)
    return low


def _equal(column: pa.Array, value: Any, low: int, high: int) -> tuple[int, int]:
    """Return the range within [low, high), where the column is in order, that has or would have a value."""
    if pa.types.is_integer(column.type):
        part = column.to_numpy()[low:high]
        # A plain int would make numpy compare floats, which cannot tell neighbouring timestamps apart.
        number = part.dtype.type(value)
        return low + int(np.searchsorted(part, number)), low + int(np.searchsorted(part, number, "right"))
    rows = range(low, high)

    def cell(row: int) -> Any:
        return column[row].as_py()

    return low + bisect_left(rows, value, key=cell), low + bisect_right(rows, value, key=cell)


class SortedSpill:
    """Collects rows of unknown size for a sort: in memory until they are too many, then in a file.

    Write all rows, then read `sort`. It is a context: its end removes the file.
    """

    def __init__(self, order: SortOrder, *, memory_bytes: int, scratch: Path) -> None:
        self._order = order
        self._memory_bytes = memory_bytes
        self._scratch = scratch
        self._stack = ExitStack()
        self._held: list[pa.RecordBatch] = []
        self._file: Path | None = None
        self._writer: pa.RecordBatchWriter | None = None
        self.nbytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held = []
        self._stack.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows, in any order."""
        if not batch.num_rows:
            return
        self.nbytes += batch.nbytes
        self._held.append(batch)
        if self.nbytes > self._memory_bytes:
            self._spill()

    def _spill(self) -> None:
        if self._writer is None:
            make_private_folder(self._scratch)
            folder = self._stack.enter_context(TemporaryDirectory(dir=self._scratch))
            self._file = Path(folder) / "spool.arrow"
            create_private(self._file)
            self._writer = self._stack.enter_context(pa.ipc.new_stream(str(self._file), self._order.schema))
        for batch in self._held:
            self._writer.write_batch(batch)
        self._held = []

    def sort(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield everything that was written, in order. It can be read once."""
        if self._writer is not None:
            self._writer.close()
        return sort_rows(
            self._load,
            self.nbytes,
            self._order,
            memory_bytes=self._memory_bytes,
            scratch=self._scratch,
        )

    def _load(self) -> Iterator[pa.RecordBatch]:
        if self._file is None:
            held, self._held = self._held, []
            yield from held
            return
        with pa.memory_map(str(self._file)) as source, pa.ipc.open_stream(source) as rows:
            yield from rows


PARTS = 64
"""Parts of a `HashedSpill`, a power of two."""

_SHIFT = np.uint64(64 - PARTS.bit_length() + 1)  # leaves the high bits of a hash, the number of its part
_BUFFER_BYTES = 64 << 20


class HashedSpill:
    """Takes rows in any order and gives them part by part. Rows with equal hashes are in the same part.

    It is a context: its end closes and removes the file.
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
        """Add rows with the hashes of their keys."""
        if not batch.num_rows:
            return
        self._waiting.append((batch, hashes))
        self._waiting_bytes += batch.nbytes + hashes.nbytes
        self.rows += batch.num_rows
        if self._waiting_bytes >= self._buffer_bytes:
            for number, part in self._divide_waiting():
                self._write(number, part)

    def parts(self) -> Iterator[Sequence[pa.RecordBatch]]:
        """Yield all rows, part by part, always in the same order of parts. Call it after the last `add`."""
        for number, part in self._divide_waiting():
            self._in_memory[number].append(part)
        reader = self._reader()
        for in_file, in_memory in zip(self._in_file, self._in_memory, strict=True):
            yield [*(reader.get_batch(at) for at in in_file if reader is not None), *in_memory]

    def _divide_waiting(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the waiting rows by part, with the part's number; none wait afterwards."""
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
            create_private(self._path)
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
        """Close and remove the file."""
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
