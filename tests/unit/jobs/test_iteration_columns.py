"""What consumers get of a table whose schema changes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.changes.columns import own_columns
from penstock.consumers.webhook.bodies import iter_bodies
from penstock.errors import Invalid
from penstock.jobs.consumer import DataRetriever, JobContext, read_net_changes
from penstock.jobs.job import ErrorCode, JobState
from penstock.tables.define import define_table
from support.itemtables import item, item_table
from support.iterationbench import Bench
from support.jobdoubles import Copy, WorldSource, consumer_of, job_row
from support.tableworld import TableWorld


def test_each_job_gets_its_own_columns_and_the_scan_reads_their_union(tmp_path: Path) -> None:
    columns = [("id", "bigint primary key"), ("a", "int"), ("b", "int"), ("c", "int"), ("d", "int")]
    with TableWorld(tmp_path / "world", replace(define_table("items", columns), id=1)) as world:
        world.commit({"id": 1, "a": 10, "b": 20, "c": 30, "d": 40})
        world.resolve()
        left, right = Copy(), Copy()
        bench = Bench(
            world,
            WorldSource(world),
            tmp_path,
            consumers={"left": left.consumer(), "right": right.consumer()},
        )
        bench.run(
            job_row("l", detail={"consumer": {"consumer": "left", "columns": ["B", "a"]}}),
            job_row("r", detail={"consumer": {"consumer": "right", "columns": ["c", "missing"]}}),
        )
        assert [sorted(names or ()) for _, names in bench.source.opens] == [["a", "b", "c"]]
        assert left.columns == ["id", "a", "b"]
        assert left.rows == {(1,): {"id": 1, "a": 10, "b": 20}}
        assert right.rows == {(1,): {"id": 1, "c": 30}}


def test_changes_under_several_schemas_come_in_the_last(tmp_path: Path) -> None:
    columns = [("id", "bigint primary key"), ("name", "varchar(9)"), ("old", "int")]
    with TableWorld(tmp_path / "world", replace(define_table("items", columns), id=1)) as world:
        copy = Copy()
        bench = Bench(world, WorldSource(world), tmp_path, consumers={"copy": copy.consumer()})
        world.commit({"id": 1, "name": "one", "old": 1})
        bench.run(job_row("j"))
        world.commit({"id": 2, "name": "two", "old": 2})
        table = world.versions.table
        (new,) = define_table("items", [("new", "int")]).columns
        new = replace(new, id=9, offset=2, origin_default=7)
        renamed = replace(table.columns[1], name="title")
        world.alter(replace(table, columns=(table.columns[0], renamed, new)))
        world.commit({"id": 3, "title": "three", "new": 3})
        bench.run(bench.end("j"), from_ts=copy.ts)
        assert copy.columns == ["id", "title", "new"]
        changed = {key: row for key, row in copy.rows.items() if key != (1,)}
        assert changed == {
            (2,): {"id": 2, "title": "two", "new": 7},
            (3,): {"id": 3, "title": "three", "new": 3},
        }


def test_renamed_columns_are_read_by_both_names_where_jobs_choose_columns(tmp_path: Path) -> None:
    with TableWorld(tmp_path / "world", item_table()) as world:
        copy = Copy()
        bench = Bench(world, WorldSource(world), tmp_path, consumers={"copy": copy.consumer()})
        job = job_row("j", detail={"consumer": {"consumer": "copy", "columns": ["title"]}})
        world.commit(item("integer", 1, "one"))
        bench.run(job)
        world.commit(item("integer", 2, "two"))
        table = world.versions.table
        world.alter(replace(table, columns=(table.columns[0], replace(table.columns[1], name="title"))))
        world.commit({"id": 3, "title": "three"})
        bench.run(bench.end("j"), from_ts=copy.ts)
        assert [copy.rows[key] for key in ((2,), (3,))] == [
            {"id": 2, "title": "two"},
            {"id": 3, "title": "three"},
        ]


def test_a_job_stops_when_a_column_that_it_chose_gets_another_name(tmp_path: Path) -> None:
    with TableWorld(tmp_path / "world", item_table()) as world:
        copy, other = Copy(), Copy()
        consumers = {"copy": copy.consumer(), "other": other.consumer()}
        bench = Bench(world, WorldSource(world), tmp_path, consumers=consumers)
        chosen = job_row("j", detail={"consumer": {"consumer": "copy", "columns": ["Name"]}})
        everything = job_row("k", detail={"consumer": {"consumer": "other"}})
        world.commit(item("integer", 1, "one"))
        bench.run(chosen, everything)
        done_ts = copy.ts
        table = world.versions.table
        world.alter(replace(table, columns=(table.columns[0], replace(table.columns[1], name="title"))))
        world.commit({"id": 2, "title": "two"})
        bench.run(bench.end("j"), bench.end("k"), from_ts=done_ts)
        stopped = bench.end("j")
        assert (stopped.state, stopped.status.error_code) == (JobState.ERROR, ErrorCode.SCHEMA)
        assert "is called title now" in stopped.status.error_msg
        assert copy.ts == done_ts
        assert other.rows[2,] == {"id": 2, "title": "two"}


def test_a_job_gets_columns_with_names_of_changes_by_their_own_names(tmp_path: Path) -> None:
    columns = [("_Handle", "bigint"), ("_old", "int"), ("_commit_ts", "int"), ("_deleted", "int")]
    table = define_table("items", columns, primary_key=["_Handle", "_commit_ts"])
    row = {"_Handle": 1, "_old": 2, "_commit_ts": 3, "_deleted": 4}
    with TableWorld(tmp_path / "world", replace(table, id=1)) as world:
        commit_ts = world.commit(row)
        world.commit({**row, "_Handle": 9})
        seen: list[Any] = []

        def consume(job: JobContext, data: DataRetriever) -> None:
            net = read_net_changes(data, job.scratch)
            seen.append((data.keys, data.columns.names, net.upserts.to_pylist(), net.deletes.to_pylist()))

        def send(_: JobContext, data: DataRetriever) -> None:
            sent.extend(body.content for body in iter_bodies(data, "json", 999))

        sent: list[bytes] = []
        consumers = {"net": consumer_of(consume), "webhook": consumer_of(send)}
        bench = Bench(world, WorldSource(world), tmp_path, consumers=consumers)
        jobs = [job_row(name, name) for name in consumers]
        bench.run(*jobs)
        names = ["_Handle", "_commit_ts", "_old", "_deleted"]
        ((keys, found, upserts, deletes),) = seen
        assert (list(keys), found, deletes) == (names[:2], names, [])
        assert {**row, "_commit_ts ": commit_ts} in upserts
        assert b'"row":{"_Handle":"1","_commit_ts":3,"_old":2,"_deleted":4}' in b"".join(sent)
        world.commit(delete=[(1, 3)])
        from_ts = bench.end("net").watermark
        bench.run(*(bench.end(name) for name in consumers), from_ts=from_ts)
        assert seen[1][3] == [{"_Handle": 1, "_commit_ts": 3, "_commit_ts ": world.ts}]
        assert b'"key":{"_Handle":"1","_commit_ts":3}' in sent[-1]


def test_only_a_table_without_a_key_cannot_have_a_column_with_the_name_of_its_handle() -> None:
    table = define_table("items", [("_HANDLE", "int"), ("name", "int")])
    assert own_columns(table, ["name"]).names == ["_handle", "name"]
    with pytest.raises(Invalid, match=r"no primary key and a column _handle.* --column"):
        own_columns(table, None)
