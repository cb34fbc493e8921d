"""`penstock consume` as a person uses it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.kv import Client
from penstock.object_storage import open_storage
from penstock.tables import Catalog
from support.ticdcfiles import TicdcDirectory, canal_line, column
from support.warmstore import WarmStore

PENSTOCK = [sys.executable, "-m", "penstock.cli.main", "--log-level", "error"]
ORDERS = [column("id", "BIGINT", pk=True), column("note", "VARCHAR", ColumnPrecision="20")]


def insert(key: int, commit_ts: int) -> bytes:
    return canal_line("INSERT", {"id": str(key), "note": "n"}, commit_ts=commit_ts)


def consume(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*PENSTOCK, "consume", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def printed(*arguments: str) -> list[dict[str, Any]]:
    done = consume(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def directory(tmp_path: Path) -> TicdcDirectory:
    made = TicdcDirectory(open_storage(f"file://{tmp_path}/out"))
    made.schema("shop/orders", 100, ORDERS, query="CREATE TABLE orders ...", type=3)
    made.data("shop/orders/100", 1, insert(1, 110) + insert(2, 120))
    made.checkpoint(150)
    return made


def test_changes_are_lines_of_json_and_a_state_file_goes_on_from_them(
    directory: TicdcDirectory, tmp_path: Path
) -> None:
    uri, state = directory.storage.url, str(tmp_path / "state.json")
    first = printed(uri, "--state", state)
    assert [line["op"] for line in first] == ["ddl", "insert", "insert"]
    assert first[1] == {
        "table": "shop.orders",
        "op": "insert",
        "commit_ts": 110,
        "row": {"id": 1, "note": "n"},
    }
    directory.data("shop/orders/100", 2, insert(3, 160))
    directory.checkpoint(170)
    assert [line["row"]["id"] for line in printed(uri, "--state", state)] == [3]


def test_following_goes_on_until_it_is_interrupted(directory: TicdcDirectory, tmp_path: Path) -> None:
    command = [*PENSTOCK, "consume", directory.storage.url, "--follow", "--interval", "0.1"]
    command += ["--state", str(tmp_path / "state.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert [json.loads(child.stdout.readline())["op"] for _ in range(3)] == ["ddl", "insert", "insert"]
        directory.data("shop/orders/100", 2, insert(3, 160))
        directory.checkpoint(170)
        assert json.loads(child.stdout.readline())["row"]["id"] == 3
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 0
    kept = json.loads((tmp_path / "state.json").read_text())
    assert kept["marks"] == {"shop/orders/100/2026-02-04/meta/CDC.index": [2, 0]}


def test_a_reader_that_has_seen_enough_ends_it_quietly(tmp_path: Path) -> None:
    made = TicdcDirectory(open_storage(f"file://{tmp_path}/out"))
    made.schema("shop/orders", 100, ORDERS)
    made.data("shop/orders/100", 1, b"".join(insert(key, 110) for key in range(20_000)))
    made.checkpoint(150)
    reading, writing = os.pipe()
    with subprocess.Popen(
        [*PENSTOCK, "consume", made.storage.url], stdout=writing, stderr=subprocess.PIPE, text=True
    ) as child:
        os.close(writing)
        os.read(reading, 100)
        os.close(reading)
        _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (0, "")


def test_a_replay_fills_tables_of_the_database(directory: TicdcDirectory, tmp_path: Path) -> None:
    with WarmStore.start(tmp_path / "store", stores=1) as store:
        to = ("--into", "database", "--pd-addrs", store.pd_addr)
        assert printed(directory.storage.url, *to) == []
        (tmp_path / "penstock.yaml").write_text(f"pd_addrs: ['{store.pd_addr}']\n")
        directory.data("shop/orders/100", 2, insert(3, 160))
        directory.checkpoint(170)
        assert (
            printed(directory.storage.url, "--into", "database", "--config", str(tmp_path / "penstock.yaml"))
            == []
        )
        with Client.connect([store.pd_addr]) as client:
            rows = Catalog(client).table("shop.orders").to_arrow().to_pylist()
    assert [row["id"] for row in rows] == [1, 2, 3]


def test_what_cannot_work_is_said_in_one_line(tmp_path: Path) -> None:
    done = consume(f"file://{tmp_path}/nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"penstock: file://{tmp_path}/nowhere does not exist; give the directory that the sink writes to\n"
    )
