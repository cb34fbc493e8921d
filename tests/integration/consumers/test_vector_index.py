"""Vector indexes: from columns and from texts, exact and approximate, and when embeddings are asked."""

import json
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from prometheus_client import REGISTRY

from penstock.consumers.search_index.search import SearchResult
from penstock.consumers.search_index.upkeep import Limits
from penstock.consumers.search_index.vector import NearestIndex, Vector
from penstock.errors import Invalid, Unavailable
from penstock.tables import alter
from penstock.tables.define import define_table
from penstock.testing.consumers import job_context
from support import indexfunctions
from support.indexworld import IndexWorld

ITEMS = define_table(
    "items",
    [
        ("id", "int primary key"),
        ("name", "varchar(99)"),
        ("note", "text"),
        ("direction", "vector(4)"),
        ("free", "vector"),
        ("doc", "json"),
        ("raw", "varbinary(64)"),
    ],
)
EMBEDDED = {
    "text_columns": "name,note",
    "embedding": "support.indexfunctions:embedded",
    "dimension": "2",
}


def item(number: int, name: str | None = None, note: str | None = None, vector: Any = None) -> dict[str, Any]:
    return {
        "id": number,
        "name": name,
        "note": note,
        "direction": vector,
        "free": vector,
        "doc": None if vector is None else json.dumps(vector),
        "raw": None if vector is None else np.array(vector, "<f4").tobytes(),
    }


@pytest.fixture(autouse=True)
def asked() -> list[str]:
    indexfunctions.asked.clear()
    return indexfunctions.asked


def ids(found: SearchResult) -> list[int]:
    listed: list[int] = found.rows.column("id").to_pylist()
    return listed


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
@pytest.mark.parametrize(
    "options",
    [
        {"vector_column": "direction"},
        {"vector_column": "free", "dimension": "4"},
        {"vector_column": "doc", "dimension": "4"},
        {"vector_column": "raw", "dimension": "4"},
    ],
    ids=lambda options: options["vector_column"],
)
def test_the_nearest_rows_of_few_are_exact(tmp_path: Path, metric: str, options: dict[str, str]) -> None:
    world = IndexWorld(tmp_path, "vector", ITEMS, {"metric": metric, **options})
    numbers = np.random.default_rng(7).normal(size=(60, 4)).astype(np.float32)
    world.source.commit(*(item(at, vector=row.tolist()) for at, row in enumerate(numbers[:50])), item(99))
    world.catch_up()
    rest = [item(at + 50, vector=row.tolist()) for at, row in enumerate(numbers[50:])]
    world.source.commit(*rest, item(3), delete=[(4,)])
    world.catch_up()
    assert world.rows().num_rows == 58, "rows without a vector have no entry"
    query = np.array([1, -1, 0.5, 2], np.float32)
    alive = np.array([at for at in range(60) if at not in {3, 4}])
    distances = {
        "l2": ((numbers - query) ** 2).sum(axis=1),
        "cosine": 1 - numbers @ query / np.linalg.norm(numbers, axis=1) / np.linalg.norm(query),
        "dot": 1 - numbers @ query,
    }[metric]
    found = world.search(vector=query.tolist(), k=10)
    assert ids(found) == alive[np.argsort(distances[alive])[:10]].tolist()
    assert found.rows.column_names[-1] == "_distance"
    assert options["vector_column"] not in found.rows.column_names, "it is kept once, as the vector"
    assert world.verifier().verify().same


def test_words_find_texts_that_say_the_like(tmp_path: Path) -> None:
    world = IndexWorld(tmp_path, "vector", ITEMS, {"text_columns": "name,note"})
    world.source.commit(
        item(1, "green shoes", "for rain and mud"),
        item(2, "red wine"),
        item(3, "shoes"),
        item(4),
        item(5, "", "  "),
    )
    world.catch_up()
    assert ids(world.search("green rain shoes", k=2)) == [1, 3]
    assert sorted(world.rows().column("id").to_pylist()) == [1, 2, 3]
    with pytest.raises(Invalid, match="have no vector"):
        world.search("...")


def test_only_rows_whose_texts_changed_are_embedded_again(tmp_path: Path, asked: list[str]) -> None:
    world = IndexWorld(tmp_path, "vector", ITEMS, EMBEDDED)
    world.source.commit(*(item(number, f"name {number}", "note") for number in range(50)), item(60))
    world.catch_up()
    assert len(asked) == 50
    asked.clear()
    world.source.commit(*(item(number, f"name {number}", "note", [number, 0, 0, 0]) for number in range(40)))
    world.source.commit(item(7, "another"), item(8, None, None), item(70, "new"), delete=[(9,)])
    world.catch_up()
    assert sorted(asked) == ["another", "new"]
    rows = {row["id"]: row for row in world.rows().to_pylist()}
    assert rows[5]["direction"] == [5, 0, 0, 0]
    assert rows[5]["_vector"] == [len("name 5\nnote"), 3]
    assert rows[7]["_vector"] == [7, 1]
    assert sorted(rows) == sorted({*range(50), 70} - {8, 9})
    assert world.verifier().verify().same


@pytest.mark.parametrize("column", ["id", "part"])
def test_earlier_vectors_are_found_by_any_key(tmp_path: Path, asked: list[str], column: str) -> None:
    table = define_table(
        "items",
        [("part", "varchar(9)"), ("id", "bigint"), ("name", "text"), ("n", "int")],
        primary_key=[column, "n"],
    )
    world = IndexWorld(tmp_path, "vector", table, {**EMBEDDED, "text_columns": "name"})
    rows = [{"part": f"p{n % 3}", "id": n % 3, "name": f"text {n}", "n": n} for n in range(20)]
    world.source.commit(*rows)
    world.catch_up()
    asked.clear()
    other = "part" if column == "id" else "id"
    world.source.commit(*({**row, other: None} for row in rows))
    world.catch_up()
    assert not asked
    assert world.verifier().verify().same


def test_a_rebuild_embeds_everything_again(tmp_path: Path, asked: list[str]) -> None:
    world = IndexWorld(tmp_path, "vector", ITEMS, EMBEDDED)
    world.source.commit(item(1, "one"), item(2, "two"))
    world.catch_up()
    world.catch_up(resync=True)
    assert sorted(asked) == ["one", "one", "two", "two"]


def test_damaged_vectors_are_found_and_mended(tmp_path: Path) -> None:
    world = IndexWorld(tmp_path, "vector", ITEMS, EMBEDDED)
    world.source.commit(*(item(number, f"name {number}") for number in range(9)))
    world.catch_up()
    dataset = lance.dataset(world.options["uri"])
    wrong = dataset.to_table(filter="id = 3")
    wrong = wrong.set_column(
        wrong.column_names.index("_vector"),
        wrong.schema.field("_vector"),
        pa.array([[0, 0]], pa.list_(pa.float32(), 2)),
    )
    dataset.merge_insert("id").when_matched_update_all().execute(wrong)
    assert world.verifier().repair().counts.different == 1
    assert world.verifier().verify().same
    assert world.rows().filter(pa.compute.field("id") == 3).column("_vector").to_pylist() == [[6, 2]]


@pytest.mark.parametrize(
    ("options", "row", "message"),
    [
        (
            {"vector_column": "free", "dimension": "3"},
            item(1, vector=[1, 2]),
            "column free has a vector of other than 3",
        ),
        (
            {"vector_column": "doc", "dimension": "2"},
            {**item(1), "doc": '{"secret": 1}'},
            "column doc has a text that is no",
        ),
        (
            {"vector_column": "raw", "dimension": "2"},
            {**item(1), "raw": b"secret"},
            "column raw has a vector of other than 2",
        ),
        (
            {**EMBEDDED, "embedding": "support.indexfunctions:wrong"},
            item(1, "secret"),
            "embedding support.indexfunctions:wrong has a vector of other than 2",
        ),
    ],
)
def test_a_wrong_vector_stops_the_job_and_is_not_shown(
    tmp_path: Path, options: dict[str, str], row: dict[str, Any], message: str
) -> None:
    world = IndexWorld(tmp_path, "vector", ITEMS, options)
    world.source.commit(row)
    with pytest.raises(Invalid, match=message) as refused:
        world.catch_up()
    assert "secret" not in str(refused.value)
    assert world.consumer().committed_ts() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vector_column": "free"}, "needs the option dimension"),
        ({"vector_column": "direction", "dimension": "5"}, "has 4 dimensions; fix option dimension"),
        ({"vector_column": "id", "dimension": "5"}, "cannot be read as a vector"),
        ({"vector_column": "nowhere"}, "no column nowhere"),
        ({"text_columns": "id"}, "column id of table items has no text"),
        ({"text_columns": "name", "embedding": "support.nowhere:f", "dimension": "3"}, "cannot be imported"),
        (
            {"text_columns": "name", "embedding": "best", "dimension": "3"},
            "is no embedding; there is hashing",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_when_the_job_is_registered(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    world = IndexWorld(tmp_path, "vector", ITEMS, options)
    with pytest.raises(Invalid, match=message):
        world.consumer().check(world.changes().schema)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give one of vector_column and text_columns"),
        ({"vector_column": "free", "text_columns": "name"}, "give one of vector_column and text_columns"),
        ({"vector_column": "free", "metric": "near"}, "option metric"),
        ({"vector_column": "free", "index": "magic"}, "option index"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        Vector(job_context(tmp_path, "vector", {"uri": str(tmp_path), **options}))


def test_questions_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    world = IndexWorld(tmp_path, "vector", ITEMS, {"vector_column": "direction"})
    with pytest.raises(Unavailable):
        world.search(vector=[1, 2, 3, 4])
    world.source.commit(item(1, vector=[1, 2, 3, 4]))
    world.catch_up()
    for question, message in (
        ({"vector": [1, 2]}, "the vector has a vector of other than 4 dimensions"),
        ({"words": "green"}, "ask with a vector"),
        ({}, "either words or a vector"),
        ({"words": "green", "vector": [1]}, "either words or a vector"),
        ({"vector": [1, 2, 3, 4], "k": 0}, "k must be 1"),
    ):
        with pytest.raises(Invalid, match=message):
            world.search(**question)


class Small(Vector):
    """With an index for so few rows as a test has."""

    @property
    def limits(self) -> Limits:
        return Limits(
            rows_min=300, unindexed_rows=50, unindexed_share=0, segments=2, fragments=4, measured_share=0.1
        )


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IndexWorld:
    monkeypatch.setattr("penstock.consumers.search_index.vector.Vector", Small)
    options = {"vector_column": "direction", "metric": "l2", "partitions": "4", "sub_vectors": "2"}
    return IndexWorld(tmp_path, "vector", ITEMS, options)


def clustered(seed: int, count: int, centre: float) -> np.ndarray[Any, Any]:
    mix = np.random.default_rng(seed)
    return (centre + mix.normal(size=(count, 4))).astype(np.float32)


def put(world: IndexWorld, numbers: np.ndarray[Any, Any], begin: int = 0) -> None:
    world.source.commit(*(item(begin + at, vector=row.tolist()) for at, row in enumerate(numbers)))


def recall(world: IndexWorld, numbers: np.ndarray[Any, Any], k: int = 5) -> float:
    hits = 0
    for query in numbers[:20]:
        exact = np.argsort(((numbers - query) ** 2).sum(axis=1))[:k]
        hits += len(set(exact.tolist()) & set(ids(world.search(vector=query.tolist(), k=k))))
    return hits / (20 * k)


@pytest.mark.parametrize("kind", ["ivf_pq", "hnsw", "ivf_hnsw_pq"])
def test_an_index_finds_nearly_all_and_takes_changes_in(small: IndexWorld, kind: str) -> None:
    small.options["index"] = kind
    numbers = clustered(1, 400, 0)
    put(small, numbers[:290])
    small.catch_up()
    assert not small.standing().dataset.describe_indices(), "so few rows are all compared"
    put(small, numbers[290:], 290)
    small.catch_up()
    assert small.standing().marker.trained_rows == 400
    assert recall(small, numbers) > 0.9
    numbers = np.concatenate([numbers, clustered(2, 60, 0)])
    put(small, numbers[400:], 400)
    small.catch_up()
    statistics = small.standing().dataset.stats.index_stats("penstock")
    assert (statistics["num_segments"], statistics["num_unindexed_rows"]) == (2, 0)
    assert recall(small, numbers) > 0.9
    numbers[:100] = clustered(3, 100, 0)
    put(small, numbers[:100])
    small.source.commit(delete=[(459,)])
    small.catch_up()
    assert small.standing().dataset.stats.index_stats("penstock")["num_segments"] <= 2
    assert recall(small, numbers[:459]) > 0.9


def test_an_index_is_trained_anew_when_it_finds_less_than_it_did(
    small: IndexWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = [0.95, 0.9, 0.7, 0.93]  # trained; still good; too bad; trained anew
    monkeypatch.setattr(NearestIndex, "recall", lambda *_: measured.pop(0))
    put(small, clustered(1, 400, 0))
    small.catch_up()
    assert small.standing().marker.recall == 0.95
    put(small, clustered(2, 45, 0))
    small.catch_up()
    assert (small.standing().marker.measured_rows, small.standing().marker.changed_rows) == (45, 45)
    put(small, clustered(3, 30, 0), 500)
    small.catch_up()
    assert small.standing().marker.measured_rows == 45, "too few changes to measure again"
    put(small, clustered(4, 30, 40), 600)
    small.catch_up()
    found = small.standing().marker
    assert (found.trained_rows, found.changed_rows, found.recall) == (460, 0, 0.93)
    assert not measured


def trainings() -> float:
    return REGISTRY.get_sample_value("penstock_jobs_index_upkeep_seconds_count", {"step": "train"}) or 0.0


def test_an_index_is_trained_anew_when_half_of_its_rows_are_others(small: IndexWorld) -> None:
    put(small, clustered(1, 400, 0))
    small.catch_up()
    before = trainings()
    put(small, clustered(3, 400, 40))
    small.catch_up()
    found = small.standing().marker
    assert (found.trained_rows, found.changed_rows) == (400, 0)
    assert trainings() == before + 1


def test_another_kind_of_index_takes_the_place_of_one_that_is_there(small: IndexWorld) -> None:
    numbers = clustered(1, 320, 0)
    put(small, numbers)
    small.catch_up()
    small.options["index"] = "hnsw"
    put(small, numbers[:1])
    small.catch_up()
    [index] = small.standing().dataset.describe_indices()
    assert index.index_type == "IVF_HNSW_SQ"
    assert recall(small, numbers) > 0.9


def test_the_vector_column_can_be_dropped_only_with_the_job(tmp_path: Path) -> None:
    world = IndexWorld(tmp_path, "vector", ITEMS, {"vector_column": "direction"})
    world.source.commit(item(1, vector=[1, 2, 3, 4]))
    world.catch_up()
    world.source.alter(alter.drop_column(ITEMS, "direction"))
    with pytest.raises(Invalid, match="gives the job no column direction"):
        world.catch_up()
