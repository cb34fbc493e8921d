"""Jobs as a person has them: a store, a capture and a runner as processes, targets of every kind."""

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import psycopg
import pytest
import yaml

from penstock.kv import Client
from penstock.tables import Catalog
from support.capture import CaptureProcess
from support.command import ServiceProcess
from support.postgres import PostgresServer
from support.spark import QUICK_SPARK
from support.warmstore import WarmStore

pytestmark = pytest.mark.timeout(600)

COLUMNS = [
    ("id", "bigint primary key"),
    ("title", "varchar(99)"),
    ("body", "text"),
    ("price", "decimal(9,2)"),
    ("place", "vector(4)"),
    ("note", "varchar(20) default 'none'"),
]
WORDS = ("river", "dam", "turbine", "valve", "gate", "water")

Run = Callable[..., tuple[int, str, str]]


def item(number: int, title: str | None = None) -> dict[str, Any]:
    return {
        "id": number,
        "title": title or f"{WORDS[number % 6]} number {number}",
        "body": f"about the {WORDS[number // 6 % 6]}",
        "price": Decimal(number) / 4,
        "place": [float(number % 7), float(number % 5), float(number % 3), 1.0],
    }


OWN = '''
import json
from penstock.jobs import Consumer
from penstock.jobs import DataType


class Lines(Consumer):
    """A line for each iteration."""

    def consume(self, data):
        upserts, deletes, done = [], [], False
        while not done:
            inserts, gone, done = data.next()
            assert inserts.schema.names == ["id", "title", "_commit_ts"]
            upserts += inserts.column("id").to_pylist()
            deletes += gone.column("id").to_pylist()
        with open(self.job.info.options["path"], "w" if data.data_type is DataType.SNAPSHOT else "a") as file:
            print(json.dumps({"upserts": upserts, "deletes": deletes}), file=file)


def whenever(context):
    return context.changed is not False
'''


class World:
    """A store with a table, and where the targets are."""

    def __init__(self, folder: Path, store: WarmStore, client: Client, dsn: str) -> None:
        self.folder = folder
        self.config = folder / "penstock.yaml"
        self.dsn = dsn
        self.client = client
        self.db = Catalog(client)
        self.db.create_database("shop")
        self.db.create_table("shop.items", COLUMNS)
        self.db.create_database("copies")
        self.items.insert([item(number) for number in range(200)])
        self.settings: dict[str, Any] = {
            "pd_addrs": [store.pd_addr],
            "engine": "local",
            "secrets_dir": str(folder / "secrets"),
            "capture": {
                "tables": ["shop.*"],
                "data": str(folder / "capture"),
                "storage": f"file://{folder}/events",
                "flight_addr": "127.0.0.1:0",
            },
            "jobs": {
                "data": str(folder / "jobs"),
                "interval_s": 0.5,
                "lease_ttl_s": 2,
                "allowed_code": ["ownjobs"],
            },
        }

        self.runner = self.service("jobs.log", self.config)

    def service(self, log: str, config: Path) -> ServiceProcess:
        return ServiceProcess(self.folder / log, "job", "run", "--config", str(config))

    @property
    def items(self) -> Any:
        return self.db.table("shop.items")

    def target(self, kind: str) -> str:
        return str(self.folder / "targets" / kind)

    @property
    def jobs(self) -> dict[str, list[str]]:
        """Options of one job of each kind."""
        return {
            "fulltext": [f"uri={self.target('fulltext')}", "text_columns=title,body"],
            "vector": [f"uri={self.target('vector')}", "vector_column=place", "metric=l2"],
            "delta": [f"uri={self.target('delta')}"],
            "iceberg": [
                f"catalog.uri=sqlite:///{self.folder}/iceberg.db",
                f"catalog.warehouse=file://{self.target('iceberg')}",
                "catalog.type=sql",
                "table=shop.items",
            ],
            "parquet": [f"uri={self.target('parquet')}"],
            "postgres": [f"dsn={self.dsn}", "table=items_copy"],
            "kv": ["table=copies.items"],
        }

    def with_spark(self) -> Path:
        """Settings with which executors do the work."""
        config = self.folder / "spark.yaml"
        config.write_text(yaml.safe_dump({**self.settings, "engine": "spark", "spark": QUICK_SPARK}))
        return config


@pytest.fixture(scope="module")
def own_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module of the user's, for commands in this process and for the runner's."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "ownjobs.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        patched.setenv("PYTHONPATH", str(folder))
        yield


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, own_code: None) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("jobs")
    with (
        WarmStore.start(folder / "store", stores=1) as store,
        Client.connect([store.pd_addr]) as client,
        PostgresServer() as server,
    ):
        made = World(folder, store, client, server.new_database())
        with CaptureProcess(folder, made.settings), made.runner:
            assert made.runner.ready["jobs"] == 0
            yield made


@pytest.fixture
def ask(run: Run, world: World) -> Callable[..., Any]:
    """What commands answer, and how they end."""

    def answer(*arguments: str, code: int = 0) -> Any:
        ended, out, err = run(*arguments, "--config", str(world.config))
        assert (ended, err) == (code, ""), (arguments, out)
        return json.loads(out)

    return answer


def name(kind: str) -> str:
    return f"shop.items/{kind}"


def wait(ask: Callable[..., Any], kind: str) -> dict[str, Any]:
    status: dict[str, Any] = ask("job", "status", name(kind), "--wait-for", "now", "--timeout", "180s")
    return status


def same(ask: Callable[..., Any], kind: str, rows: int) -> None:
    report = ask("job", "verify", name(kind))
    assert (report["same"], report["source_rows"], report["target_rows"]) == (True, rows, rows), kind


def test_a_job_of_every_kind_follows_its_table(world: World, ask: Callable[..., Any]) -> None:
    for kind, options in world.jobs.items():
        given = [part for option in options for part in ("--option", option)]
        made = ask("job", "register", name(kind), "--consumer", kind, *given)
        assert (made["job"], made["watermark"], made["captured"]) == (name(kind), 0, True)
    for kind in world.jobs:
        status = wait(ask, kind)
        assert (status["state"], status["error_code"], status["coverage"]) == ("completed", 0, 1.0), kind
        assert status["lag_s"] < 60
        same(ask, kind, 200)

    found = ask("search", name("fulltext"), "turbine", "--all", "-k", "3")
    assert (len(found["rows"]), found["complete"]) == (3, True)
    assert all("turbine" in row["title"] + row["body"] for row in found["rows"])
    assert found["watermark"] > 0
    assert found["lag_s"] < 60
    near = ask("search", name("vector"), "--vector", "6,4,2,1", "-k", "1", "--column", "id")
    assert near["rows"][0]["id"] % 105 == 104, "the only numbers whose vector is that one"

    world.items.insert([item(number, "a very green penstock") for number in (1000, 1001)])
    world.items.update([{"id": 2, "title": "no longer"}])
    world.items.delete([8])
    for kind in world.jobs:
        wait(ask, kind)
        same(ask, kind, 201)
    found = ask("search", name("fulltext"), "green penstock", "--all", "--filter", "id > 1000")
    assert [row["id"] for row in found["rows"]] == [1001]
    listed = {each["job"]: each for each in ask("job", "list")}
    assert {each["error_code"] for each in listed.values()} == {0}
    assert listed.keys() == set(map(name, world.jobs))


def test_damage_is_found_and_repaired(world: World, ask: Callable[..., Any]) -> None:
    dataset = lance.dataset(world.target("fulltext"))
    dataset.delete("id >= 10 AND id < 15")
    with psycopg.connect(world.dsn, autocommit=True) as copy:
        copy.execute("UPDATE items_copy SET title = 'changed by hand' WHERE id IN (20, 21)")
        copy.execute("DELETE FROM items_copy WHERE id = 22")
        copy.execute("INSERT INTO items_copy (id, title) VALUES (-1, 'made up')")
    wrong = {
        "fulltext": {"missing": 5, "different": 0, "extra": 0, "duplicates": 0},
        "postgres": {"missing": 1, "different": 2, "extra": 1, "duplicates": 0},
    }
    for kind, counts in wrong.items():
        report = ask("job", "verify", name(kind), code=1)
        assert {way: report[way] for way in counts} == counts
        assert sum(map(len, report["digests_of_keys"].values())) == sum(counts.values())
        repaired = ask("job", "repair", name(kind))
        assert repaired["action"] == "mended"
        assert {way: repaired[way] for way in counts} == counts
        same(ask, kind, 201)
        assert ask("job", "repair", name(kind))["action"] == "nothing"
    found = ask("search", name("fulltext"), "number", "--filter", "id >= 10 AND id < 15", "-k", "100")
    assert len(found["rows"]) == 5, "they are found again"


def test_a_rebuild_fills_a_target_anew(world: World, ask: Callable[..., Any]) -> None:
    before = ask("job", "status", name("delta"))
    assert ask("job", "repair", "--rebuild", name("delta"))["action"] == "rebuild"
    status = wait(ask, "delta")
    assert (status["error_code"], status["job_id"]) == (0, before["job_id"])
    same(ask, "delta", 201)


def test_a_truncated_table_is_told_and_rebuilt_with_one_command(
    world: World, ask: Callable[..., Any], run: Run
) -> None:
    world.db.truncate_table("shop.items")
    world.items.insert([item(number, "after the flood") for number in range(7)])
    for kind in world.jobs:
        code, out, err = run("job", "status", name(kind), "--wait-for", "now", "--config", str(world.config))
        assert (code, out, err.count("\n")) == (2, "", 1), kind
        assert "truncated" in err
        assert "penstock job repair" in err
    for kind in world.jobs:
        assert ask("job", "repair", name(kind))["action"] == "rebuild"
    for kind in world.jobs:
        status = wait(ask, kind)
        assert (status["state"], status["error_code"]) == ("completed", 0)
        same(ask, kind, 7)
    found = ask("search", name("fulltext"), "flood river", "-k", "100")
    assert sorted(row["id"] for row in found["rows"]) == list(range(7)), "nothing of before is left"


def test_columns_come_and_go_and_change_their_types(world: World, ask: Callable[..., Any], run: Run) -> None:
    world.db.add_column("shop.items", "stock", "int default 5")
    world.items.insert([{**item(100), "stock": 9}])
    world.db.drop_column("shop.items", "note")
    world.items.update([{"id": 1, "title": "without its note"}])
    for kind in world.jobs:
        assert wait(ask, kind)["error"] == "", kind
        same(ask, kind, 8)
    world.db.drop_column("shop.items", "stock")
    world.db.add_column("shop.items", "stock", "varchar(20)")
    world.items.update([{"id": 2, "stock": "many"}])
    for kind in world.jobs:
        code, _, err = run("job", "status", name(kind), "--wait-for", "now", "--config", str(world.config))
        if code:
            assert "column stock" in err, kind
            assert "penstock job repair" in err
            assert ask("job", "repair", name(kind))["action"] == "rebuild"
    for kind in world.jobs:
        assert wait(ask, kind)["error"] == "", kind
        same(ask, kind, 8)


def test_consumers_and_triggers_of_ones_own_are_named_by_their_modules(
    world: World, ask: Callable[..., Any], run: Run
) -> None:
    lines = world.folder / "lines.json"
    given = ["--option", f"path={lines}", "--trigger", "ownjobs:whenever", "--column", "title"]
    made = ask("job", "register", name("own"), "--consumer", "ownjobs:Lines", *given)
    assert made["spec"]["detail"]["consumer"]["options"] == {"path": "***"}, "who knows what it is"
    wait(ask, "own")
    world.items.delete([0])
    wait(ask, "own")
    said = [json.loads(line) for line in lines.read_text().splitlines()]
    assert sorted(said[0]["upserts"]) == [*range(7), 100]
    assert [key for each in said[1:] for key in each["deletes"]] == [0]
    report = run("job", "verify", name("own"), "--config", str(world.config))
    assert (report[0], "a target of consumer ownjobs:Lines cannot be compared" in report[2]) == (2, True)


def test_another_runner_takes_over_and_works_on_executors(world: World, ask: Callable[..., Any]) -> None:
    on_executors = ("delta", "fulltext")
    for kind in [*world.jobs, "own"]:
        if kind not in on_executors:
            assert ask("job", "unregister", name(kind))["state"] == "unregistered"
    with world.service("spark.log", world.with_spark()) as second:
        world.runner.kill()
        world.items.insert([item(number) for number in range(200, 260)])
        for kind in on_executors:
            assert wait(ask, kind)["error"] == "", kind
            same(ask, kind, 67)
        assert ask("job", "repair", "--rebuild", name("fulltext"))["action"] == "rebuild"
        wait(ask, "fulltext")
        same(ask, "fulltext", 67)
        assert second.log.count("starting Spark") == 1
        assert second.terminate() == 0
        assert "Traceback" not in second.log


def test_what_was_used_is_counted_and_jobs_end(world: World, ask: Callable[..., Any]) -> None:
    for job in ask("job", "list"):
        assert ask("job", "unregister", job["job"])["state"] == "unregistered"
    assert ask("job", "list") == []
    (used,) = ask("job", "usage")
    assert used["account"] == "sys"
    assert used["rows"] >= 7 * 200
    assert used["bytes"] > 0
    assert used["task_seconds"] > 0
