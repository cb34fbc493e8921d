"""`penstock changes` and `penstock table` as people and scripts use them."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from penstock.clock import physical_ms
from penstock.control.display import format_ms
from support.jobworld import JobWorld, job_world

Run = Callable[..., tuple[int, str, str]]

COLUMNS = [("id", "bigint primary key"), ("title", "varchar(99)"), ("price", "decimal(8,2)")]


def config_of(folder: Path, world: JobWorld) -> list[str]:
    path = folder / "penstock.yaml"
    capture = world.settings.capture
    tree: dict[str, Any] = {
        "engine": "local",
        "pd_addrs": list(world.settings.pd_addrs),
        "capture": {"storage": capture.storage, "data": str(folder / "unused")},
    }
    path.write_text(yaml.safe_dump(tree))
    return ["--config", str(path)]


def lines_of(out: str) -> list[tuple[str, int, dict[str, Any]]]:
    found = [json.loads(line) for line in out.splitlines()]
    assert {line["table"] for line in found} <= {"shop.items"}
    return [(line["op"], line["commit_ts"], line["row"]) for line in found]


async def test_changes_of_a_range_are_lines_a_table_or_an_arrow_stream(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with job_world(tmp_path) as world:
        config = config_of(tmp_path, world)
        await world.create("shop.items", COLUMNS)
        first = await world.insert("shop.items", {"id": 1, "title": "a\nb", "price": "1.50"})
        second = await world.upsert("shop.items", {"id": 1, "title": "c", "price": None}, {"id": 2})
        last = await world.delete("shop.items", 2)
        await world.readable("shop.items", last)
        one = {"id": 1, "title": "a\nb", "price": "1.50"}
        changed = {"id": 1, "title": "c", "price": None}
        two = {"id": 2, "title": None, "price": None}

        code, out, err = await world.do(run, "changes", "shop.items", *config)
        assert (code, err) == (0, "")
        assert sorted(lines_of(out), key=lambda line: (line[1], line[2]["id"])) == [
            ("insert", first, one),
            ("update", second, changed),
            ("insert", second, two),
            ("delete", last, two),
        ]
        told = ("changes", "shop.items", "--from", str(first), "--to", str(second), *config)
        code, out, _ = await world.do(run, *told, "--column", "title")
        assert {(op, row["title"], len(row)) for op, _, row in lines_of(out)} == {
            ("update", "c", 2),
            ("insert", None, 2),
        }
        code, out, _ = await world.do(run, *told, "--limit", "1")
        assert len(lines_of(out)) == 1
        code, out, _ = await world.do(
            run, "changes", "shop.items", "--from", "0", "--to", str(first), *config
        )
        assert lines_of(out) == [("insert", first, one)]
        hour_ago = format_ms(physical_ms(first) - 3_600_000)
        code, out, _ = await world.do(
            run, "changes", "shop.items", "--from", hour_ago, "--limit", "1", *config
        )
        assert lines_of(out) == [("insert", first, one)]

        code, out, _ = await world.do(run, *told, "--format", "table", "--limit", "1")
        assert code == 0
        assert "committed" in out
        assert "these are the first 1" in out
        code, out, _ = await world.do(
            run, "changes", "shop.items", "--from", str(last), "--to", str(last), "--format", "table", *config
        )
        assert out == "no changes\n"

        binary = io.BytesIO()
        out_stream = io.TextIOWrapper(binary)
        monkeypatch.setattr(sys, "stdout", out_stream)
        await world.do(run, *told, "--format", "arrow")
        monkeypatch.undo()
        table = pa.ipc.open_stream(binary.getvalue()).read_all()
        assert table.schema.names == ["_op", "_commit_ts", "id", "title", "price"]
        assert sorted(table.column("id").to_pylist()) == [1, 2]


async def test_wrong_ranges_and_formats_are_one_line(tmp_path: Path, run: Run) -> None:
    async with job_world(tmp_path, capture={"tables": ["shop.*"]}) as world:
        config = config_of(tmp_path, world)
        await world.create("shop.items", COLUMNS)
        await world.create("cold.items", COLUMNS)
        before = await world.insert("shop.items", {"id": 1})
        await world.do(world.db.truncate_table, "shop.items")
        after = await world.insert("shop.items", {"id": 2})
        await world.readable("shop.items", after)
        for arguments, said in (
            (("shop.nothing",), "there is no table shop.nothing"),
            (("cold.items",), "table cold.items is not captured"),
            (("shop.items", "--from", str(before)), "read a snapshot"),
            (("shop.items", "--from", "9", "--to", "8"), "is not a range"),
            (("shop.items", "--to", str(after << 1)), "ask again later"),
            (("shop.items", "--from", "yesterday"), "is not a date and time"),
            (("shop.items", "--format", "xml"), "use json, arrow or table"),
            (("shop.items", "--column", "colour"), "colour"),
        ):
            code, out, err = await world.do(run, "changes", *arguments, *config)
            assert (code, out, err.count("\n")) == (2, "", 1), err
            assert said in err


async def test_a_table_is_loaded_and_compared_and_listed_without_spark(tmp_path: Path, run: Run) -> None:
    async with job_world(tmp_path, capture={"tables": ["shop.*"]}) as world:
        config = config_of(tmp_path, world)
        await world.create("shop.items", COLUMNS)
        await world.create("cold.items", COLUMNS)
        await world.insert("cold.items", *({"id": n, "title": f"n{n}"} for n in range(100)))
        await world.flushed("shop.items", await world.insert("shop.items", {"id": 1}))

        code, out, err = await world.do(run, "table", "load", "cold.items", *config)
        assert (code, err) == (0, "")
        report = json.loads(out)
        assert (report["rows"], report["resumed"]) == (100, False)
        code, out, _ = await world.do(run, "table", "verify", "cold.items", *config)
        assert code == 0
        assert (json.loads(out)["same"], json.loads(out)["store_rows"]) == (True, 100)
        at = await world.delete("cold.items", 7)
        code, out, err = await world.do(run, "table", "verify", "cold.items", "--ts", str(at), *config)
        assert code == 2, "without a capture the event store ends at the load"

        code, out, _ = await world.do(run, "table", "merge", "shop.items", *config)
        assert (code, json.loads(out)["table"]) == (0, "shop.items")
        code, out, _ = await world.do(run, "table", "list", *config)
        listed = {row["table"]: row["readable_ts"] for row in json.loads(out)}
        assert listed.keys() == {"cold.items", "shop.items"}
        assert listed["cold.items"] == report["ts"]
        for command in ("load", "merge", "verify"):
            code, _, err = await world.do(run, "table", command, "shop", *config)
            assert (code, err.count("\n")) == (2, 1)
        code, _, err = await world.do(run, "table", "load", "shop.items", *config)
        assert (code, err.count("\n")) == (2, 1)
        assert "captured already" in err
