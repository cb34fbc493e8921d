"""How many files the rows pass on their way from flushed objects: to changefeeds' files, to targets of jobs.

A runner works in a process of its own and every call there is seen. The functions that Spark's tasks run are
run there as well, because calls in executors are not seen. The walk has the files of Penstock in which a call
takes or gives

- rows: Arrow's batches, tables and arrays, if they are not empty;
- or a payload: 2 KiB of bytes or more. What decides and keeps count has less: positions, leases, tickets,
  rows of the job log. Manifests and descriptions of tables have more, and so their files are counted.

They may also be items of a tuple or a list, or fields of a dataclass, two levels deep at most. A generator
gives what it yields. The object of a method is not looked at, nor is a comprehension, which is a call in some
versions of Python only.

Not of the walk are the ground (tables, kv, metrics, clock, errors) and what it calls, what a compiler made,
and what comes from a subscription of keys: that is the job log and the descriptions of tables, not the
table's rows.
"""

import inspect
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Self, cast

import pyarrow as pa
import pyarrow.compute as pc
import yaml

import penstock
from penstock.changefeeds.engines.engine import DirectFile, DirectResult
from penstock.changefeeds.engines.files import make_file
from penstock.changefeeds.engines.local import LocalEngine
from penstock.changefeeds.engines.rounds import FileRound, FileRounds, RoundTask, rules_of
from penstock.changefeeds.runner import ChangefeedRunner, EngineOrder, create_configured_changefeeds
from penstock.changefeeds.store import ChangefeedStore
from penstock.changes import plan_changes
from penstock.changes.columns import choose_columns, with_deleted
from penstock.cli.services import jobs as jobs_service
from penstock.clock import Clock
from penstock.consumers.kv.consumer import KvTable
from penstock.consumers.search_index.fragment_writer import write_on_executors
from penstock.consumers.search_index.fulltext import Fulltext
from penstock.consumers.search_index.search import search
from penstock.errors import Invalid
from penstock.eventloop import run
from penstock.follow.scans import change_options
from penstock.follow.source import TableScan
from penstock.jobs.iteration.range_read import RangeRead
from penstock.jobs.iteration.rounds import ReadRound, ReadTask
from penstock.jobs.iteration.spark_frame import (
    FrameColumns,
    FrameWork,
    SharedFrame,
    SparkFrame,
    read_parts,
)
from penstock.kv import AsyncClient
from penstock.metrics import CountedHistogram
from penstock.proto.kvrpcpb_pb2 import GetRequest
from penstock.settings import Settings, load
from penstock.sources import SubscriptionClient
from penstock.spark.arrow_types import spark_schema
from penstock.spark.rounds import TaskResult
from penstock.tables import Catalog
from support.jobdoubles import TaggedSession
from support.jobworld import JobWorld, job_world

if TYPE_CHECKING:
    from penstock.jobs.iteration.spark_frame import DataFrame

ArrowWork = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]

FEED_FILES_MAX = 16
INDEX_FILES_MAX = 21
COPY_FILES_MAX = 21
PAYLOAD_BYTES = 2048
_DEPTH = 2
_ROWS = (pa.RecordBatch, pa.Table, pa.ChunkedArray, pa.Array)
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>"})
_CHILD_S = 120.0


# The traced process.


def _package(named: type) -> str:
    """The package, or the module beside packages, that something is defined in."""
    return named.__module__.split(".")[1]


HOME = Path(penstock.__file__).parent
LEFT_OUT = frozenset(map(_package, (Catalog, AsyncClient, CountedHistogram, Clock, Invalid, GetRequest)))
SUBSCRIPTIONS = _package(SubscriptionClient)


class Walk:
    """Gathers the files that rows pass, while its calls are `seen`."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self._places: dict[str, tuple[str, str]] = {}

    @contextmanager
    def seen(self) -> Iterator[None]:
        """See calls of this thread, and of those that are started meanwhile."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _see(self, frame: FrameType, event: str, given: object) -> None:
        code = frame.f_code
        package, file = self._place(code)
        if not file or file in self.files or package in LEFT_OUT or code.co_name in _COMPREHENSIONS:
            return
        if event == "call":
            found = any(_passes(each) for each in _arguments(frame, code))
        else:
            found = event == "return" and _passes(given)
        if found and not self._is_of_the_ground(frame) and not self._is_of_a_subscription(frame):
            self.files.add(file)

    def _is_of_the_ground(self, frame: FrameType) -> bool:
        """Whether the ground calls it: the client runs its requests on the event loop."""
        caller = frame.f_back
        return caller is not None and self._place(caller.f_code)[0] in LEFT_OUT

    def _is_of_a_subscription(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if self._place(frame.f_code)[0] == SUBSCRIPTIONS:
                return True
            frame = frame.f_back
        return False

    def _place(self, code: CodeType) -> tuple[str, str]:
        """The package and the file of Penstock that code is in; empty for everybody else's."""
        known = self._places.get(code.co_filename)
        if known is None:
            path = Path(code.co_filename)
            known = "", ""
            if path.is_relative_to(HOME):
                inside = path.relative_to(HOME)
                known = inside.parts[0].removesuffix(".py"), inside.as_posix()
            self._places[code.co_filename] = known
        return known


def _arguments(frame: FrameType, code: CodeType) -> Iterator[object]:
    named = code.co_argcount + code.co_kwonlyargcount
    count = named + bool(code.co_flags & inspect.CO_VARARGS)
    for name in code.co_varnames[:count]:
        if name not in {"self", "cls"}:
            yield frame.f_locals.get(name)


def _passes(value: object, depth: int = _DEPTH) -> bool:
    """Whether it is, or has, rows or a payload."""
    if isinstance(value, _ROWS):
        return len(value) > 0
    if isinstance(value, bytes | bytearray):
        return len(value) >= PAYLOAD_BYTES
    if isinstance(value, pa.Buffer):
        return bool(value.size >= PAYLOAD_BYTES)
    if not depth:
        return False
    if isinstance(value, tuple | list):
        return any(_passes(each, depth - 1) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return any(_passes(getattr(value, each.name, None), depth - 1) for each in fields(value))
    return False


# Spark's tasks, in this process: calls in executors are not seen.


class HereRounds:
    """Implements RoundJobs: runs the tasks of files as executors do."""

    cores = 1

    def run(self, round_: FileRound, tag: str) -> list[TaskResult[Any]]:
        del tag
        files = tuple((number, file.target, file.direct) for number, file in enumerate(round_.pieces))
        rules = rules_of(round_)
        return RoundTask(files, rules.patience_s, rules.threads).run()

    def interrupt(self, tag: str) -> None:
        del tag


class HereEngine(LocalEngine):
    """Makes the files of a changefeed in rounds, as the engine on Spark does."""

    def __init__(self, order: EngineOrder, rounds: FileRounds) -> None:
        super().__init__(order.options.target)
        self._here = order.options.target, order.changefeed_id, order.account
        self._rounds = rounds

    async def make_file(self, file: DirectFile) -> DirectResult:
        target, changefeed, account = self._here
        return await self._rounds.make_file(target, file, changefeed=changefeed, account=account)


class HereReads:
    """Implements RoundJobs: runs the tasks of ranges as executors do."""

    cores = 1

    def run(self, round_: ReadRound, tag: str) -> list[TaskResult[Any]]:
        del tag
        works = tuple((number, part.work) for number, part in enumerate(round_.pieces))
        return list(ReadTask(works, _CHILD_S, threads=1).run())

    def interrupt(self, tag: str) -> None:
        del tag


class HereFrame:
    """What consumers use of a DataFrame, with rows that are there."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    @property
    def columns(self) -> list[str]:
        return self._rows.column_names

    def toDF(self, *names: str) -> "HereFrame":
        return HereFrame(self._rows.rename_columns(list(names)))

    def where(self, condition: str) -> "HereFrame":
        name = condition.removeprefix("NOT ").strip("`")
        return HereFrame(self._rows.filter(pc.invert(self._rows.column(name))))

    def select(self, *names: str) -> "HereFrame":
        return HereFrame(self._rows.select([name.strip("`") for name in names]))

    def mapInArrow(self, work: ArrowWork, schema: object) -> "HereFrame":
        del schema
        return HereFrame(pa.Table.from_batches(work(iter(self._rows.to_batches()))))

    def toArrow(self) -> pa.Table:
        return self._rows


class HereFrames:
    """Implements Frames: runs the tasks of a DataFrame as executors do."""

    def __init__(self, session: object) -> None:
        del session

    def open(self, scan: TableScan, columns: Collection[str] | None) -> SharedFrame:
        options = change_options(scan.view, scan, columns)
        parts = plan_changes(scan.view, scan.from_ts, scan.to_ts, partition_rows=1 << 20, **options)
        chosen = FrameColumns(scan.schema, choose_columns(scan.schema.table, columns))
        declared = spark_schema(with_deleted(chosen.columns), own_names=False)
        works = [FrameWork(part, chosen, declared, scan.snapshot) for part in parts]
        rows = pa.record_batch({"work": pa.array([pickle.dumps(work) for work in works], pa.binary())})
        frame = HereFrame(pa.Table.from_batches(read_parts(iter([rows]))))
        return SparkFrame(cast("DataFrame", frame), frame.toArrow().num_rows)


class HereSession(TaggedSession):
    """A session of a service without Java."""

    def __init__(self, settings: Settings, **how: object) -> None:
        super().__init__()

    def __call__(self, account: str) -> Self:
        return self

    def get(self) -> Self:
        return self

    def check(self) -> None: ...

    start = interrupt = stop = check


async def _run_changefeeds(settings: Settings) -> None:
    """As `penstock changefeed run --until-idle` does."""
    async with await AsyncClient.connect(settings.pd_addrs, settings=settings.kv) as client:
        feeds = ChangefeedStore(client)
        await create_configured_changefeeds(feeds, settings, now_ts=await client.timestamp())
        rounds = FileRounds(HereRounds())
        runner = ChangefeedRunner(settings, feeds, lambda order: HereEngine(order, rounds), owner="walk")
        await runner.run(until_idle=True)


def _run_jobs(settings: Settings) -> None:
    """As `penstock job run` does."""
    jobs_service.SupervisedSession = HereSession  # type: ignore[assignment, misc]
    jobs_service.SparkReadJobs = lambda session: HereReads()  # type: ignore[assignment, misc]
    jobs_service.SparkFrames = HereFrames  # type: ignore[assignment, misc]
    jobs_service.serve(settings)


def _main(which: str, config: Path, result: Path) -> None:
    settings = load(config)
    walk = Walk()
    with walk.seen():
        if which == "changefeed":
            run(_run_changefeeds(settings))
        else:
            _run_jobs(settings)
    result.write_text(json.dumps(sorted(walk.files)))


# The tests.

ITEMS = "shop.items"
ORDERS = "shop.orders"
COLUMNS = [
    ("id", "bigint primary key"),
    ("name", "varchar(64)"),
    ("body", "text"),
    ("price", "decimal(10,2)"),
    *((f"c{number}", "varchar(16)") for number in range(24)),  # so that descriptions are surely payloads
]
NO_OTHER_FLUSH = {"flush_interval_s": 3600.0, "idle_flush_interval_s": 3600.0}


def _rows(first: int, end: int, word: str) -> list[dict[str, Any]]:
    texts = {name: word for name, kind in COLUMNS if "varchar" in kind}
    return [
        {**texts, "id": number, "body": f"about {number}", "price": number} for number in range(first, end)
    ]


async def _flush(world: JobWorld, table: str, ts: int) -> None:
    """Have all that was committed up to `ts` in one more object."""
    await world.readable(table, ts)
    table_id = await world.table_id(table)
    await world.do(world.capture.store.flush, table_id)
    assert world.capture.store.tables()[table_id].flushed_ts >= ts


class Traced:
    """A runner in a process of its own, whose calls are seen. A context that ends it."""

    def __init__(self, folder: Path, which: str, world: JobWorld, **settings: Any) -> None:
        self._result = folder / "walk.json"
        self._log = folder / "walk.log"
        config = folder / "penstock.yaml"
        tree = {
            "pd_addrs": list(world.settings.pd_addrs),
            "capture": {"storage": world.settings.capture.storage},
            **settings,
        }
        config.write_text(yaml.safe_dump(tree))
        self._command = [sys.executable, __file__, which, str(config), str(self._result)]

    def __enter__(self) -> Self:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        if failed is not None:
            sys.stdout.write(self._log.read_text())

    def end(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def walk(self) -> list[str]:
        """Wait for its end; return the files that the rows passed."""
        code = self._process.wait(_CHILD_S)
        assert code == 0, self._log.read_text()
        found: list[str] = json.loads(self._result.read_text())
        return found


def _check(walk: list[str], count_max: int, *passed: Callable[..., object]) -> None:
    """Fail when rows pass more files; and when some are not seen that they surely pass."""
    assert {Path(inspect.getfile(each)).relative_to(HOME).as_posix() for each in passed} <= set(walk)
    assert len(walk) <= count_max, "\n".join(["rows pass more files than they did:", *walk])


async def test_rows_pass_few_files_from_an_object_to_a_changefeeds_file(tmp_path: Path) -> None:
    files = tmp_path / "files"
    async with job_world(tmp_path, capture=NO_OTHER_FLUSH) as world:
        await world.create(ITEMS, COLUMNS)
        start_ts = await world.now_ts()
        await world.insert(ITEMS, *_rows(0, 300, "first"))
        await world.upsert(ITEMS, *_rows(50, 100, "second"))
        ts = await world.delete(ITEMS, *range(10, 20))
        await _flush(world, ITEMS, ts)
        feed = {
            "sink_uri": f"file://{files}?protocol=canal-json&flush-interval=2s",
            "tables": [ITEMS],
            "start": start_ts,
            "target_ts": ts,
        }
        with Traced(tmp_path, "changefeed", world, changefeeds={"all": feed}) as traced:
            walk = await world.do(traced.walk)
    lines = [line for path in files.rglob("CDC*.json") for line in path.read_text().splitlines()]
    assert len(lines) == 300 + 50 + 10
    _check(walk, FEED_FILES_MAX, make_file)


async def test_rows_pass_few_files_from_an_object_to_the_targets_of_jobs(tmp_path: Path) -> None:
    """An index takes its changes as a DataFrame; another table takes batches, which a round has read."""
    index, copy = f"{ITEMS}/words", f"{ORDERS}/copy"
    async with job_world(tmp_path, capture=NO_OTHER_FLUSH) as world:
        for table in (ITEMS, ORDERS):
            await world.create(table, COLUMNS)
            ts = await world.insert(table, *_rows(0, 300, "first"))
        await world.register(
            index, consumer="fulltext", options={"uri": str(tmp_path / "words"), "text_columns": "name,body"}
        )
        await world.register(copy, consumer="kv", options={"table": "shop.copy"})
        async with world.running():
            await world.caught_up(index, ts)
            await world.caught_up(copy, ts)
        jobs = {"data": str(tmp_path / "traced"), "interval_s": 0.3, "greedy_interval_s": 0.05}
        walks: dict[str, list[str]] = {}
        for job, table in ((index, ITEMS), (copy, ORDERS)):
            await world.upsert(table, *_rows(200, 350, "second"))
            ts = await world.delete(table, *range(30, 40))
            await _flush(world, table, ts)
            with Traced(tmp_path, "jobs", world, jobs=jobs) as traced:
                await world.caught_up(job, ts)
                traced.end()
                walks[job] = await world.do(traced.walk)
        found = await world.do(search, await world.job(index), "second", k=1000)
        assert found.rows.num_rows == 150
        assert (await world.rows("shop.copy")).num_rows == 340
    _check(walks[index], INDEX_FILES_MAX, Fulltext, read_parts, write_on_executors)
    _check(walks[copy], COPY_FILES_MAX, KvTable, ReadTask, RangeRead)


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
