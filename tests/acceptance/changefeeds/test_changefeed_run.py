"""`penstock changefeed run`: every format, from a snapshot to a target, by one process."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock import eventloop
from penstock.changefeeds.codecs.decoder import FileOptions
from penstock.changefeeds.commands import create_changefeed
from penstock.changefeeds.sinks.storage.options import SinkOptions, sink_options
from penstock.changefeeds.store import ChangefeedStore
from penstock.kv import AsyncClient, Client
from penstock.secret_keys import Keyring
from penstock.settings import parse_changefeed
from penstock.tables import Catalog
from penstock.testing.directory import Replica
from support.capture import CaptureProcess
from support.command import penstock
from support.spark import QUICK_SPARK
from support.tablesat import TablesAt, tables_with_rows
from support.warmstore import WarmStore

pytestmark = pytest.mark.timeout(600)

ITEMS = [
    ("id", "bigint primary key"),
    ("name", "varchar(64)"),
    ("price", "decimal(12,2)"),
    ("sold", "timestamp(3)"),
    ("doc", "json"),
    ("raw", "varbinary(20)"),
    ("choice", "enum('a','b')"),
]
FORMATS: dict[str, dict[str, Any]] = {
    "canal": {"sink": {"protocol": "canal-json", "enable-tidb-extension": True}},
    "csv": {
        "sink": {
            "protocol": "csv",
            "delimiter": "|@|",
            "include-commit-ts": True,
            "output-old-value": True,
            "output-field-header": True,
            "compression": "gzip",
        }
    },
    "parquet": {"sink": {"protocol": "parquet", "file-size": "10KiB"}},
    "debezium": {"sink": {"protocol": "debezium", "compression": "zstd"}, "split_rows": 40},
}
SLIM = {
    "sink": {"protocol": "canal-json"},
    "tables": ["shop.items"],
    "column_selectors": [{"tables": ["shop.*"], "columns": ["name"]}],
    "row_filters": [{"tables": ["shop.items"], "where": "id < 50"}],
}
WRONG = {"sink": {"protocol": "csv"}, "row_filters": [{"tables": ["*.*"], "where": "nothing = 1"}]}


def item(number: int, name: str) -> dict[str, Any]:
    return {
        "id": number,
        "name": name,
        "price": Decimal(number) / 4,
        "sold": datetime(2026, 2, 28, 1, 2, 3, number * 1000, tzinfo=UTC),
        "doc": {"number": number},
        "raw": bytes([number]),
        "choice": "ab"[number % 2] if number % 3 else None,
    }


class World:
    """A store with tables that a capture follows, and the changes between two moments."""

    def __init__(self, folder: Path, store: WarmStore, client: Client) -> None:
        self.folder = folder
        self.config = folder / "penstock.yaml"
        self.pd_addr = store.pd_addr
        self.client = client
        self.db = Catalog(client)
        self.db.create_database("shop")
        self.tables = TablesAt(self.db, "shop")
        self.db.create_table("shop.items", ITEMS)
        self.db.create_table("shop.notes", [("text", "varchar(64)")])
        self.tables.table("items").insert([item(number, f"n{number}") for number in range(100)])
        self.tables.table("notes").insert([{"text": text} for text in ('a, "b"', "c|@|d", "e\r\nf", "\\N")])

    def settings(self) -> dict[str, Any]:
        return {
            "pd_addrs": [self.pd_addr],
            "secrets_dir": str(self.folder / "secrets"),
            "capture": {
                "data": str(self.folder / "capture"),
                "storage": f"file://{self.folder}/events",
                "flight_addr": "127.0.0.1:0",
            },
            "spark": QUICK_SPARK,
        }

    def change(self) -> None:
        """Rows before, between and after changes of the schema."""
        items = self.tables.table("items")
        items.update([item(number, 'quo"ted, and\nbroken') for number in range(10, 20)])
        items.delete([3, 4])
        self.db.add_column("shop.items", "stock", "int default 5")
        items.update([{"id": 20, "stock": None}, {"id": 60, "name": "renamed"}])
        self.db.rename_table("shop.notes", "shop.papers")
        self.tables.table("papers").insert([{"text": "after"}])
        self.db.create_table("shop.late", [("a", "int"), ("b", "int")])
        self.tables.table("late").insert([{"a": 1, "b": 2}, {"a": 1, "b": 2}])

    def create(self, name: str, section: dict[str, Any], start_ts: int, target_ts: int) -> SinkOptions:
        """A changefeed as if it had been created at `start_ts`."""
        given = {"sink_uri": f"file://{self.folder}/{name}", "start": "snapshot", "target_ts": target_ts}
        wanted = parse_changefeed({**given, **section}, origin=name)

        async def create() -> None:
            async with await AsyncClient.connect([self.pd_addr]) as client:
                await create_changefeed(
                    ChangefeedStore(client, keys=Keyring(self.folder / "secrets")),
                    name,
                    wanted,
                    now_ts=start_ts,
                )

        eventloop.run(create())
        return sink_options(wanted)

    def answer(self, *arguments: str) -> Any:
        done = penstock("changefeed", *arguments, "--config", str(self.config))
        assert (done.returncode, done.stderr) == (0, ""), arguments
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("run")
    with (
        WarmStore.start(folder / "store", stores=1) as store,
        Client.connect([store.pd_addr]) as client,
    ):
        yield World(folder, store, client)


def consumed(options: SinkOptions) -> Replica:
    files = FileOptions(protocol=options.protocol, terminator=options.terminator, csv=options.csv)
    small = options.file_size < 100_000  # than the snapshot, which is one commit
    replica = Replica(options.target.open(), files=files, cut_commits=small)
    replica.catch_up()
    replica.check()
    return replica


def rows_of(replica: Replica) -> dict[str, list[dict[str, Any]]]:
    return tables_with_rows({name: rows.values() for name, rows in replica.tables.items()})


def test_one_process_writes_every_format_to_the_same_rows_and_ends(world: World) -> None:
    with CaptureProcess(world.folder, world.settings()):
        start_ts = world.client.timestamp()
        world.change()
        target_ts = world.client.timestamp()
        feeds = {
            name: world.create(name, section, start_ts, target_ts)
            for name, section in {**FORMATS, "slim": SLIM, "wrong": WRONG}.items()
        }
        done = penstock("changefeed", "run", "--config", str(world.config), "--until-idle", timeout_s=300)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout) == {"changefeeds": sorted(feeds)}

    states = {each["id"]: each for each in world.answer("list")}
    wrong = states.pop("wrong")
    assert (wrong["state"], "nothing" in wrong["error"], "\n" in wrong["error"]) == ("failed", True, False)
    assert {(each["state"], each["error"], each["checkpoint_ts"]) for each in states.values()} == {
        ("finished", "", target_ts)
    }
    source = world.tables.rows(target_ts)
    assert source.keys() == {"shop.items", "shop.late", "shop.papers"}
    for name in FORMATS:
        replica = consumed(feeds[name])
        assert (name, replica.checkpoint_ts) == (name, target_ts)
        assert rows_of(replica) == source, name
    slim = [{"id": row["id"], "name": row["name"]} for row in source["shop.items"] if row["id"] < 50]
    assert rows_of(consumed(feeds["slim"])) == tables_with_rows({"shop.items": slim})
