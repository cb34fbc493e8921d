"""Taking changes of one row in a hundred into an index, against making it anew; upkeep is part of both."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changes import Ints, show
from penstock.changes.columns import choose_columns, with_commit_ts
from penstock.eventstore.schema_version import SchemaVersion
from penstock.jobs.consumer import DataType
from penstock.tables.define import define_table
from penstock.testing.consumers import START, ListRetriever
from support.indexworld import IndexWorld

DOCS = [("id", "bigint primary key"), ("body", "text")]
DIMENSION, LATENT = 64, 12
POINTS = [("id", "bigint primary key"), ("place", f"vector({DIMENSION})")]
WORDS, VOCABULARY = 20, 20_000  # of a text, and of all
SHARE = 100  # one row in so many changes


class Texts:
    """Texts of words that are as frequent as words are. Each version of a row has a word of its own."""

    kind, columns, recall = "fulltext", DOCS, 1.0
    options: ClassVar[dict[str, str]] = {"text_columns": "body"}

    def __init__(self, rows: int) -> None:
        del rows
        ranks = 1 / np.arange(1, VOCABULARY + 1)
        self._shares = np.cumsum(ranks / ranks.sum())
        self._words = pa.array([f"w{each:x}" for each in range(VOCABULARY)])

    def column(self, ids: Ints, version: int) -> pa.Array:
        drawn = np.random.default_rng((version, int(ids[0]))).random(len(ids) * WORDS)
        places = np.minimum(np.searchsorted(self._shares, drawn), VOCABULARY - 1)
        words = self._words.take(pa.array(places))
        offsets = pa.array(np.arange(0, len(ids) * WORDS + 1, WORDS, dtype=np.int32))
        texts = pc.binary_join(pa.ListArray.from_arrays(offsets, words), " ")
        own = pa.array([self.word(each, version) for each in ids.tolist()])
        return pc.binary_join_element_wise(own, texts, " ")

    @staticmethod
    def word(row: int, version: int) -> str:
        return f"r{row}v{version}"

    def found(self, index: IndexWorld, row: int, version: int) -> bool:
        """Whether the index finds a row as of a version."""
        hits = index.search(self.word(row, version), columns=["id"], k=3).rows
        return bool(hits.column("id").to_pylist() == [row])


class Points:
    """Vectors of which neighbours have something in common: made of fewer numbers than they have."""

    kind, columns, recall = "vector", POINTS, 0.9
    options: ClassVar[dict[str, str]] = {"vector_column": "place", "metric": "l2"}

    def __init__(self, rows: int) -> None:
        drawn = np.random.default_rng(3)
        self._latent = drawn.standard_normal((2 * rows, LATENT), np.float32)
        self._spread = drawn.standard_normal((LATENT, DIMENSION), np.float32)

    def column(self, ids: Ints, version: int) -> pa.Array:
        offsets = pa.array(np.arange(0, len(ids) * DIMENSION + 1, DIMENSION, dtype=np.int32))
        return pa.ListArray.from_arrays(offsets, pa.array(self._places(ids, version).ravel()))

    def _places(self, ids: Ints, version: int) -> npt.NDArray[np.float32]:
        return np.roll(self._latent[ids], version, axis=1) @ self._spread

    def found(self, index: IndexWorld, row: int, version: int) -> bool:
        """Whether the index finds a row as of a version: nearest to where it is, and exactly there."""
        place = self._places(np.array([row]), version)[0].tolist()
        hit = index.search(vector=place, columns=["id"], k=10).rows.to_pylist()[0]
        return bool(hit["id"] == row and hit["_distance"] < 1e-3)


class Kept:
    """An index that follows changes, and what its rows should be: the version of each, -1: there is none."""

    def __init__(self, folder: Path, content: Texts | Points, rows: int, rounds: int) -> None:
        table = replace(define_table("items", content.columns), id=1)
        self.index = IndexWorld(folder, content.kind, table, content.options)
        self.content = content
        self.versions = np.full(rows + rounds * rows // SHARE, -1)
        self.versions[:rows] = 0
        self.changed: list[int] = []
        self._rows = rows
        self._schema = SchemaVersion(0, 1, table, "shop")
        self._columns = choose_columns(table, None)
        self._ts = START + 1

    def build(self) -> float:
        """Make the index of all rows as they are; how long that takes."""
        self._ts += 1
        there = np.flatnonzero(self.versions >= 0)
        parts = np.array_split(there, max(1, len(there) // 8192))
        return self._consume(DataType.SNAPSHOT, [(part, np.empty(0, np.int64)) for part in parts])

    def follow(self, number: int) -> float:
        """Take in another round of changes: 7 in 10 rows get new values, 1.5 go and as many come."""
        changes = self._rows // SHARE
        there = np.flatnonzero(self.versions >= 0)
        drawn = np.random.default_rng(number).permutation(there)
        updated, gone = drawn[: changes * 70 // 100], drawn[changes * 70 // 100 : changes * 85 // 100]
        first = self._rows + (number - 1) * changes
        come = np.arange(first, first + changes - changes * 85 // 100)
        written = np.concatenate((updated, come))
        self.versions[written] = number
        self.versions[gone] = -1
        self.changed += [*updated[:3].tolist(), *gone[:3].tolist(), *come[:3].tolist()]
        self._ts += 1
        return self._consume(DataType.TAIL, [(written, gone)])

    def _consume(self, kind: DataType, parts: Sequence[tuple[Ints, Ints]]) -> float:
        batches = [(self._rows_of(written), self._keys_of(gone)) for written, gone in parts]
        from_ts = 0 if kind is DataType.SNAPSHOT else self._ts - 1
        data = ListRetriever(kind, from_ts, self._ts, self._schema, self._columns, batches)
        started = time.perf_counter()
        self.index.consumer().consume(data)
        return time.perf_counter() - started

    def _rows_of(self, ids: Ints) -> pa.RecordBatch:
        versions = self.versions[ids]
        parts = [(each, np.flatnonzero(versions == each)) for each in np.unique(versions)]
        made = pa.concat_arrays([self.content.column(ids[places], int(each)) for each, places in parts])
        back = np.argsort(np.concatenate([places for _, places in parts]))
        arrays = [pa.array(ids), made.take(pa.array(back)), pa.array(np.full(len(ids), self._ts))]
        return pa.RecordBatch.from_arrays(arrays, schema=with_commit_ts(self._columns))

    def _keys_of(self, ids: Ints) -> pa.RecordBatch:
        schema = with_commit_ts(pa.schema([self._columns.field("id")]))
        return pa.RecordBatch.from_arrays(
            [pa.array(ids), pa.array(np.full(len(ids), self._ts))], schema=schema
        )

    def check(self) -> None:
        """Rows that changed are found as they are now, and not as they were."""
        assert self.index.standing().rows == int((self.versions >= 0).sum()), "rows are missing, or too many"
        now = [(row, int(self.versions[row])) for row in self.changed if self.versions[row] >= 0]
        found = sum(self.content.found(self.index, *each) for each in now)
        assert found >= self.content.recall * len(now), f"{found} of {len(now)} rows are found"
        for row in self.changed:
            if row < self._rows:
                assert not self.content.found(self.index, row, 0), f"row {row} is found as it was"


def measure_indexes(folder: Path, rows: int, rounds: int) -> None:
    for content in (Texts(rows), Points(rows)):
        kept = Kept(folder / content.kind, content, rows, rounds)
        kept.build()
        took = [kept.follow(number) for number in range(1, rounds + 1)]
        kept.check()
        built = kept.build()
        kept.check()
        detail = (
            f"{built:.2f} s for {rows:,} rows against {mean(took):.2f} s"
            f" ({min(took):.2f} to {max(took):.2f}) for {rows // SHARE:,} changes"
        )
        show(f"{content.kind} index, rebuild / changes of 1%", built / mean(took), ">= 5.00", detail)
