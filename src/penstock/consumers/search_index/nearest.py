"""Indexes of vectors, and what is asked of them."""

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from lance.dataset import LanceDataset

from penstock.consumers.search_index.keeper import INDEX

__all__ = ["VECTOR", "NearestIndex"]

VECTOR = "_vector"
_LANCE_TYPES = {"ivf_pq": "IVF_PQ", "ivf_hnsw_sq": "IVF_HNSW_SQ", "ivf_hnsw_pq": "IVF_HNSW_PQ"}
_SAMPLE, _SAMPLE_K = 20, 10
_PROBES, _REFINED, _EF_MIN = 20, 4, 64
"""How thorough a search is: partitions, candidates that are compared exactly, and breadth in a graph."""


@dataclass(frozen=True, slots=True)
class NearestIndex:
    """Lance's index of vectors; an index of type `none` compares them all."""

    type: str
    metric: str
    dimension: int
    partitions: int | None
    sub_vectors: int | None

    @property
    def signature(self) -> str:
        """See IndexKind."""
        return json.dumps(asdict(self))

    def create(self, dataset: LanceDataset) -> None:
        """See IndexKind."""
        dataset.create_index(
            VECTOR,
            _LANCE_TYPES[self.type],
            name=INDEX,
            metric=self.metric,
            replace=True,
            num_partitions=self.partitions,
            num_sub_vectors=self._sub_vectors() if self.type.endswith("pq") else None,
        )

    def _sub_vectors(self) -> int:
        if self.sub_vectors:
            return self.sub_vectors
        wanted = max(1, self.dimension // 8)
        return next(each for each in range(wanted, 0, -1) if self.dimension % each == 0)

    def nearest(self, vector: Any, k: int, *, exact: bool = False) -> dict[str, Any]:
        """The question for the rows nearest to a vector, as Lance takes it."""
        query: dict[str, Any] = {"column": VECTOR, "q": vector, "k": k, "metric": self.metric}
        if exact or self.type == "none":
            return query | {"use_index": False}
        if "hnsw" in self.type:
            query["ef"] = max(_EF_MIN, _REFINED * k)
        return query | {"nprobes": _PROBES, "refine_factor": _REFINED}

    def recall(self, dataset: LanceDataset) -> float:
        """See IndexKind: for rows spread over the dataset, how many of their nearest ones it finds."""
        rows = dataset.count_rows()
        places = np.unique(np.linspace(0, rows - 1, _SAMPLE).astype(np.int64))
        sample = dataset.take(places.tolist(), columns=[VECTOR]).column(VECTOR).drop_null()
        found = wanted = 0
        for vector in sample.to_pylist():
            exact, ours = (self._ids(dataset, vector, exact=exact) for exact in (True, False))
            found += len(exact & ours)
            wanted += len(exact)
        return found / wanted if wanted else 0.0

    def _ids(self, dataset: LanceDataset, vector: list[float], *, exact: bool) -> set[int]:
        query = self.nearest(np.array(vector, np.float32), _SAMPLE_K, exact=exact)
        rows = dataset.to_table(columns=["_distance"], nearest=query, with_row_id=True)
        return set(rows.column("_rowid").to_pylist())
