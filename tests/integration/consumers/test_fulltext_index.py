"""Fulltext indexes: what is found, by which parser, and how fresh an answer is."""

import os
import random  # noqa: TID251 - seeded
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.dataset import LanceDataset

from penstock.changes.columns import key_names
from penstock.clock import physical_ms
from penstock.consumers.search_index.fulltext import Fulltext
from penstock.consumers.search_index.lance_table import IndexRows
from penstock.consumers.search_index.search import search
from penstock.consumers.search_index.upkeep import IndexKeeper, Limits
from penstock.errors import Corrupt, Fenced, Invalid, Unavailable
from penstock.jobs.error_codes import SchemaRefused, TargetDiffers
from penstock.tables import alter
from penstock.tables.define import define_table
from penstock.tables.schema import TableInfo
from penstock.testing.clock import ManualClock
from penstock.testing.consumers import START, job_context, rows_by_key
from support.everytype import EVERY_TYPE
from support.indexworld import IndexWorld

DOCS = define_table(
    "docs", [("id", "int primary key"), ("title", "varchar(99)"), ("body", "text"), ("stars", "int")]
)


def doc(number: int, title: str | None, body: str | None = None, stars: int = 0) -> dict[str, Any]:
    return {"id": number, "title": title, "body": body, "stars": stars}


@pytest.fixture
def world(tmp_path: Path) -> IndexWorld:
    return IndexWorld(tmp_path, "fulltext", DOCS, {"text_columns": "title,body"})


def ids(found: Any) -> list[int]:
    return sorted(found.rows.column("id").to_pylist())


def test_words_of_all_text_columns_are_found_and_ranked(world: IndexWorld) -> None:
    world.source.commit(
        doc(1, "Green shoes", "for the rain"),
        doc(2, "Red shoes", None),
        doc(3, None, "green green, GREEN grass"),
        doc(4, None, None),
    )
    world.catch_up()
    found = world.search("green")
    assert found.rows.column("id").to_pylist() == [3, 1]
    assert found.rows.column_names == ["id", "title", "body", "stars", "_score"]
    assert ids(world.search("green shoes")) == [1, 2, 3]
    assert ids(world.search("green shoes", every=True)) == [1]
    assert ids(world.search("rain!")) == [1]
    assert ids(world.search("blue")) == []
    assert ids(world.search("green shoes", k=1)) == [1]


def test_changes_are_found_at_once_and_what_they_replaced_is_not(world: IndexWorld) -> None:
    world.source.commit(*(doc(number, f"word{number}") for number in range(20)))
    world.catch_up()
    world.source.commit(doc(3, "other"), doc(30, "other"), delete=[(4,)])
    world.catch_up()
    assert ids(world.search("other")) == [3, 30]
    assert ids(world.search("word3 word4 word5")) == [5]


def test_a_filter_and_columns_are_of_the_source(world: IndexWorld) -> None:
    world.source.commit(*(doc(number, "same", stars=number) for number in range(9)))
    world.catch_up()
    found = world.search("same", filter="stars >= 4 OR id = 1", columns=["stars"], k=3)
    assert found.rows.column_names == ["stars", "_score"]
    assert set(found.rows.column("stars").to_pylist()) <= {1, 4, 5, 6, 7, 8}
    assert found.rows.num_rows == 3
    with pytest.raises(Invalid, match="no column colour; it has id, title, body, stars"):
        world.search("same", columns=["colour"])
    with pytest.raises(Invalid, match="the filter is no SQL predicate"):
        world.search("same", filter="stars >")
    with pytest.raises(Invalid, match="does not understand the filter"):
        world.search("same", filter="title > 4")


@pytest.mark.parametrize(
    ("options", "query", "found"),
    [
        ({"parser": "words"}, "mail", [1]),
        ({"parser": "words"}, "a.b@mail.com", [1]),
        ({"parser": "whitespace"}, "mail", []),
        ({"parser": "whitespace"}, "A.B@mail.com", [1]),
        ({"parser": "whitespace", "lower": "false"}, "A.B@mail.com", []),
        ({"parser": "ngram"}, "世界", [2]),
        ({"parser": "ngram"}, "界世", []),
        ({"parser": "ngram", "ngram": "3"}, "unnin", [3]),
        ({"parser": "words"}, "世界", []),
        ({"parser": "support.indexfunctions:shouted", "lower": "false"}, "NOW", [4]),
        ({"parser": "support.indexfunctions:shouted", "lower": "false"}, "now", []),
        ({"stem": "true"}, "runs", [3]),
        ({}, "runs", []),
        ({"stop_words": "true"}, "the", []),
        ({}, "the", [3]),
        ({"fold_ascii": "true"}, "cafe", [5]),
        ({}, "cafe", []),
        ({}, "café", [5]),
    ],
)
def test_the_parser_and_its_filters_are_what_the_job_says(
    tmp_path: Path, options: dict[str, str], query: str, found: list[int]
) -> None:
    world = IndexWorld(tmp_path, "fulltext", DOCS, {"text_columns": "title", **options})
    world.source.commit(
        doc(1, "write to a.b@mail.com"),
        doc(2, "你好世界"),
        doc(3, "the running man"),
        doc(4, "come NOW or not"),
        doc(5, "cafe\u0301"),
    )
    world.catch_up()
    assert ids(world.search(query)) == found
    world.source.commit(*world.source.at(world.source.ts).values())
    world.catch_up()  # the same rows again, not in the index yet
    assert ids(world.search(query)) == found


def test_an_index_is_not_searched_before_its_first_build_has_ended(
    world: IndexWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unavailable, match="has not been built yet"):
        world.search("green")
    world.source.commit(doc(1, "green"))
    with monkeypatch.context() as patch:
        patch.setattr(LanceDataset, "create_scalar_index", killed)
        with pytest.raises(KeyboardInterrupt):
            world.catch_up()
    assert world.standing().rows == 1, "the rows are there, their index is not"
    with pytest.raises(Unavailable):
        world.search("green")
    assert world.consumer().committed_ts() == 0
    world.catch_up()
    assert ids(world.search("green")) == [1]


def killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_the_old_index_serves_while_the_next_one_is_built(
    world: IndexWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.source.commit(doc(1, "green"))
    world.catch_up()
    before = world.search("green")
    assert before.complete
    world.source.commit(doc(1, "red"), doc(2, "green"))
    with monkeypatch.context() as patch:
        patch.setattr(LanceDataset, "create_scalar_index", killed)
        with pytest.raises(KeyboardInterrupt):
            world.catch_up(resync=True)
    during = world.search("green")
    assert (ids(during), during.watermark, during.complete) == ([1], before.watermark, False)
    lance.dataset(world.options["uri"]).cleanup_old_versions(
        retain_versions=1, error_if_tagged_old_versions=False
    )
    assert ids(world.search("green")) == [1], "it is not removed while it serves"
    world.catch_up()
    after = world.search("green")
    assert (ids(after), after.watermark, after.complete) == ([2], world.source.ts, True)
    assert not world.standing().dataset.tags.list()


def test_an_answer_says_how_fresh_it_is(tmp_path: Path) -> None:
    clock = ManualClock(wall_ms=physical_ms(START) + 2500)
    world = IndexWorld(tmp_path, "fulltext", DOCS, {"text_columns": "title"}, clock=clock)
    world.source.commit(doc(1, "green"))
    world.catch_up()
    found = world.search("green")
    assert (found.watermark, found.lag_s) == (world.source.ts, 2.5)
    later = world.source.ts + (2000 << 18)
    quiet = search(world.job(watermark=later, committed_ts=world.source.ts), "green", clock=clock)
    assert (quiet.watermark, quiet.lag_s) == (later, 0.5), "nothing has changed since"
    ahead = search(world.job(watermark=later, committed_ts=later), "green", clock=clock)
    assert ahead.watermark == world.source.ts, "the log knows of changes that this version has not"


def test_a_job_of_the_same_name_begins_anew_and_its_predecessor_is_fenced(world: IndexWorld) -> None:
    world.source.commit(doc(1, "green"))
    world.catch_up()
    world.source.commit(doc(2, "green"))
    old = world.changes()
    world.job_id = 2
    assert world.consumer().committed_ts() == 0
    with pytest.raises(Unavailable):
        world.search("green")
    world.catch_up()
    assert ids(world.search("green")) == [1, 2]
    world.job_id = 1
    with pytest.raises(Fenced):
        world.consumer().consume(old)


def test_a_job_that_was_unregistered_does_not_replace_the_index_of_its_successor(world: IndexWorld) -> None:
    world.source.commit(doc(1, "green"))
    old = world.changes()
    early = world.consumer()
    early.committed_ts()
    world.job_id = 2
    world.source.commit(doc(2, "green"))
    world.catch_up()
    with pytest.raises(Fenced):
        early.consume(old.again())  # it looked before its successor wrote
    world.job_id = 1
    late = world.consumer()
    assert late.committed_ts() == 0
    with pytest.raises(TargetDiffers, match=r"a newer job shop\.items/job"):
        late.consume(old)
    world.job_id = 2
    assert ids(world.search("green")) == [1, 2]


@pytest.mark.parametrize("name", ["shop.items/job", ""], ids=["named", "of an older version"])
def test_the_index_of_another_job_is_not_replaced(world: IndexWorld, name: str) -> None:
    world.source.commit(doc(1, "green"))
    world.catch_up()
    standing = world.standing()
    world.consumer().table.change(standing, None, lambda marker, _: replace(marker, job=name))
    other = Fulltext(job_context(world.folder, "fulltext", world.options, job="other"))
    assert other.committed_ts() == 0
    with pytest.raises(Invalid, match=r"is kept by job .*job; give shop.items/other a target of its own"):
        other.consume(world.source.retriever(0, world.source.ts))
    assert ids(world.search("green")) == [1]


def test_somebody_elses_dataset_is_left_alone(world: IndexWorld) -> None:
    lance.write_dataset(pa.table({"id": [1]}), world.options["uri"])
    world.source.commit(doc(1, "green"))
    with pytest.raises(Corrupt, match="so Penstock did not write it"):
        world.catch_up()
    assert lance.dataset(world.options["uri"]).count_rows() == 1


def test_other_options_need_a_rebuild_but_another_index_does_not(world: IndexWorld) -> None:
    world.source.commit(doc(1, "runs"))
    world.catch_up()
    world.source.commit(doc(2, "runs"))
    for options in ({"parser": "whitespace"}, {"text_columns": "title"}):
        with pytest.raises(Invalid, match="repair --rebuild"):
            world.catch_up(**options)
    world.options["stem"] = "true"
    world.catch_up()
    assert ids(world.search("run")) == [1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option text_columns"),
        ({"text_columns": "title", "parser": "best"}, "words, whitespace, ngram or module:function"),
        ({"text_columns": "title", "colour": "red"}, "has no option colour"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        Fulltext(job_context(tmp_path, "fulltext", {"uri": str(tmp_path), **options}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_columns": "colour"}, "no column colour"),
        ({"text_columns": "stars"}, "column stars of table docs has no text"),
        ({"text_columns": "title", "parser": "support.nowhere:parse"}, "cannot be imported"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_when_the_job_is_registered(
    world: IndexWorld, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Invalid, match=message):
        world.consumer(**options).check(world.changes().schema)


def test_columns_follow_those_of_the_source(world: IndexWorld) -> None:
    world.source.commit(doc(1, "green"), doc(2, "green"))
    world.catch_up()
    table = alter.add_column(world.source.table, "colour", "varchar(9) not null default 'none'")
    table = alter.add_column(table, "size", "int")
    world.source.alter(alter.modify_column(table, "stars", "bigint"))
    world.source.commit({**doc(2, "green", stars=1 << 40), "colour": "red", "size": 4})
    world.catch_up()
    world.source.alter(alter.drop_column(world.source.table, "size"))
    world.source.commit({**doc(3, "green"), "colour": "blue"})
    world.catch_up()
    found = {row["id"]: row for row in world.search("green").rows.to_pylist()}
    assert [found[number]["colour"] for number in (1, 2, 3)] == ["none", "red", "blue"]
    assert [found[number]["size"] for number in (1, 2, 3)] == [None, 4, None]
    assert found[2]["stars"] == 1 << 40
    assert world.verifier().verify().same


def test_a_renamed_column_keeps_its_values(world: IndexWorld) -> None:
    world.source.commit(doc(1, "green", stars=5))
    world.catch_up()
    columns = [replace(each, name="points") if each.name == "stars" else each for each in DOCS.columns]
    world.source.alter(replace(DOCS, columns=tuple(columns)))
    row = doc(2, "green")
    row["points"] = row.pop("stars")
    world.source.commit(row)
    world.catch_up()
    assert sorted(world.search("green").rows.column("points").to_pylist()) == [0, 5]


def test_a_column_that_became_something_else_stops_the_job(world: IndexWorld) -> None:
    world.source.commit(doc(1, "green"))
    world.catch_up()
    wider = define_table("t", [("stars", "decimal(20,3)")]).columns[0]
    stars = replace(wider, id=DOCS.column("stars").id, offset=DOCS.column("stars").offset)
    world.source.alter(replace(DOCS, columns=(*DOCS.columns[:-1], stars)))
    with pytest.raises(SchemaRefused, match=r"column stars .* repair --rebuild"):
        world.catch_up()
    world.catch_up(resync=True)
    assert world.verifier().verify().same


def test_every_type_can_stand_beside_the_text(tmp_path: Path) -> None:
    world = IndexWorld(tmp_path, "fulltext", EVERY_TYPE, {"text_columns": "text_,doc"})
    world.source.churn(random.Random(5), commits=20)
    world.catch_up()
    world.source.churn(random.Random(6), commits=20)
    world.catch_up()
    shown = world.rows().drop_columns(["_terms"])
    assert rows_by_key(shown, ("id",)) == world.source.at(world.source.ts)
    assert world.verifier().verify().same


def damaged(change: Callable[[LanceDataset], object]) -> Callable[[IndexWorld], None]:
    def damage(world: IndexWorld) -> None:
        change(lance.dataset(world.options["uri"]))

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        damaged(lambda dataset: dataset.delete("id = 3")),
        damaged(lambda dataset: dataset.update({"_terms": "'nonsense'"}, where="id < 3")),
        damaged(lambda dataset: dataset.update({"stars": "stars + 1"}, where="id = 4")),
        damaged(lambda dataset: dataset.insert(dataset.to_table(filter="id = 5"))),
    ],
    ids=["lost", "other terms", "other values", "twice"],
)
def test_damage_is_found_and_mended(world: IndexWorld, damage: Callable[[IndexWorld], None]) -> None:
    world.source.commit(*(doc(number, f"word{number}") for number in range(9)))
    world.catch_up()
    ts = world.source.ts
    assert world.verifier().verify().same
    damage(world)
    assert not world.verifier().verify().same
    world.source.commit(doc(1, "later"))
    assert world.verifier().repair().at_ts == ts
    assert world.verifier().verify().same
    assert world.consumer().committed_ts() == ts
    assert [ids(world.search(f"word{number}")) for number in range(9)] == [[number] for number in range(9)]
    world.catch_up()
    assert ids(world.search("later")) == [1]


def test_a_comparison_is_of_one_version_and_mending_another_one_is_fenced(world: IndexWorld) -> None:
    first = world.source.commit(doc(1, "green"))
    world.catch_up()
    world.source.commit(doc(1, "red"))
    world.catch_up()
    consumer = world.consumer()
    assert pa.Table.from_batches(consumer.present(first)).column("title").to_pylist() == ["green"]
    nothing = world.rows().slice(0, 0)
    with pytest.raises(Fenced):
        consumer.repair(nothing, nothing, first)
    with pytest.raises(Fenced):
        list(consumer.present(first + 1))


# keys


KEYED: dict[str, tuple[TableInfo, list[Any]]] = {
    "zero dates": (
        define_table("items", [("id", "date primary key"), ("name", "text")]),
        [None, date(2020, 1, 1), date(2020, 1, 2)],
    ),
    "numbers": (
        define_table("items", [("id", "double primary key"), ("name", "text")]),
        [-0.0, 1.5, -1e300, 5e-324],
    ),
    "texts": (
        define_table("items", [("id", "varchar(9999)"), ("name", "text")], primary_key=["id"]),
        ["", "'", "''; --", '"`\\', "a\x00b", "a", "ü" * 3000, "NULL", "_penstock IS NULL"],
    ),
    "bytes": (
        define_table("items", [("id", "varbinary(99)"), ("name", "text")], primary_key=["id"]),
        [b"", b"\x00", b"\x00\xff", b"'", b"\xff" * 99],
    ),
    "pairs": (
        define_table("items", [("id", "date"), ("n", "int"), ("name", "text")], primary_key=["id", "n"]),
        [None, date(2020, 1, 1)],
    ),
}


@pytest.mark.parametrize("kind", KEYED)
def test_rows_are_replaced_and_removed_by_any_key(tmp_path: Path, kind: str) -> None:
    table, keys = KEYED[kind]
    world = IndexWorld(tmp_path, "fulltext", table, {"text_columns": "name"})
    more = [{"n": number} for number in (1, 2)] if kind == "pairs" else [{}]
    rows = [{"id": key, "name": f"old {place}", **each} for place, key in enumerate(keys) for each in more]
    world.source.commit(*rows)
    world.catch_up()
    world.source.commit(*({**row, "name": "new"} for row in rows[::2]))
    world.catch_up()
    names = key_names(table)
    shown = world.rows().drop_columns(["_terms", "_penstock"])
    assert rows_by_key(shown, names) == world.source.at(world.source.ts)
    assert world.search("new", k=99).rows.num_rows == len(rows[::2])
    world.source.commit(delete=[tuple(row[name] for name in names) for row in rows])
    world.catch_up()
    assert world.rows().num_rows == 0
    assert world.search("old new").rows.num_rows == 0


def test_a_key_of_zero_removes_a_zero_of_either_sign(tmp_path: Path) -> None:
    world = IndexWorld(tmp_path, "fulltext", KEYED["numbers"][0], {"text_columns": "name"})
    world.source.commit({"id": -0.0, "name": "old"}, {"id": 2.0, "name": "old"}, {"id": 3.0, "name": "old"})
    world.catch_up()
    gone = IndexRows([], pa.table({"id": [0.0, 2.0]}))
    world.consumer().table.change(world.standing(), gone, lambda marker, _: marker)
    assert world.rows().column("id").to_pylist() == [3.0]


# writers that stood still

STOPPING = """
import os, signal, sys
from pathlib import Path
from penstock.consumers.search_index.fulltext import Fulltext
from penstock.errors import Fenced
from penstock.testing.consumers import SourceModel, job_context
from penstock.tables.define import define_table

folder, resync = Path(sys.argv[1]), sys.argv[2] == "rebuild"
source = SourceModel(define_table("docs", [("id", "int primary key"), ("title", "varchar(99)")]))
source.commit({"id": 1, "title": "old"})
options = {"uri": str(folder / "index"), "text_columns": "title"}
runner = Fulltext(job_context(folder / "stopped", "fulltext", options))
assert bool(runner.committed_ts()) == resync
os.kill(os.getpid(), signal.SIGSTOP)
try:
    runner.consume(source.retriever(0, source.ts))
except Fenced:
    sys.exit(42)
"""


@pytest.mark.parametrize("build", ["first", "rebuild"])
def test_a_runner_that_stood_still_after_it_looked_replaces_nothing(tmp_path: Path, build: str) -> None:
    table = define_table("docs", [("id", "int primary key"), ("title", "varchar(99)")])
    world = IndexWorld(tmp_path, "fulltext", table, {"text_columns": "title"})
    world.source.commit({"id": 1, "title": "new"})
    if build == "rebuild":
        world.catch_up()
    command = [sys.executable, "-c", STOPPING, str(tmp_path), build]
    with subprocess.Popen(command) as stopped:
        try:
            _, status = os.waitpid(stopped.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), "it did not come to look"
            world.source.commit({"id": 2, "title": "new"})
            world.catch_up(resync=build == "rebuild")
            world.source.commit({"id": 3, "title": "new"})
            world.catch_up()
            os.kill(stopped.pid, signal.SIGCONT)
            assert stopped.wait(60) == 42, "it was not fenced"
        finally:
            stopped.kill()
    assert ids(world.search("new")) == [1, 2, 3]
    assert world.consumer().committed_ts() == world.source.ts


def test_a_compaction_that_stood_still_brings_no_row_back(world: IndexWorld) -> None:
    for number in range(6):
        world.source.commit(doc(number, "green"), doc(10 + number, "green"))
        world.catch_up()
    consumer, stale = world.consumer(), world.standing()
    world.source.commit(delete=[(1,), (4,)])
    world.catch_up()
    world.source.commit(doc(9, "green"))
    world.catch_up()
    world.standing().dataset.cleanup_old_versions(timedelta(0))
    IndexKeeper(consumer.table, consumer.kind(stale.dataset), Limits(fragments=3), 900).keep(stale)
    assert ids(world.search("green", k=99)) == [0, 2, 3, 5, 9, 10, 11, 12, 13, 14, 15]
    keeper = IndexKeeper(consumer.table, consumer.kind(stale.dataset), Limits(fragments=3), 900)
    keeper.keep(world.standing())
    assert len(world.standing().dataset.get_fragments()) < 7, "one that did not stand still is done"
    assert ids(world.search("green", k=99)) == [0, 2, 3, 5, 9, 10, 11, 12, 13, 14, 15]
