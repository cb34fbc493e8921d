"""A program on Spark Connect, with a server of its own: reads what the options in its argument name.

It runs in a process of its own, because a process has either a Java of its own or the client of a server.
"""

import asyncio
import json
import os
import pickle
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from penstock.clock import SYSTEM
from penstock.process import configure_logs

if TYPE_CHECKING:
    from penstock.spark.supervised import SupervisedSession


def main() -> dict[str, Any]:
    configure_logs(style="text", level="WARNING")
    asked = json.loads(sys.argv[1])
    builder = SparkSession.builder.remote("local[2]")
    for name, value in asked["conf"].items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what only a starting server takes is told again as a failure
        spark = builder.getOrCreate()
    try:
        found = read(spark, asked["options"], asked["checkpoint"])
        session = supervise(spark)
        return {**found, **work(spark, session, Path(asked["work"])), **lose_server(spark, session)}
    finally:
        spark.stop()


def read(spark: SparkSession, options: dict[str, str], checkpoint: str) -> dict[str, Any]:
    from penstock.spark import changes_view, register  # the import registers with the active session
    from penstock.spark.tasks import run_on_executors

    reader = spark.read.format("penstock").options(**options)
    found: dict[str, Any] = {"rows": numbers(reader.load())}
    for name in ("storage", "flightAddr"):
        spark.conf.set(f"spark.penstock.{name}", options[name])
    register(spark)
    found["configured"] = numbers(spark.read.format("penstock").load(options["table"]))
    found["feed"] = numbers(reader.option("readChangeFeed", "true").option("startingVersion", "2").load())
    found["function"] = numbers(spark.sql(f"select * from penstock_changes('{options['table']}', 2)"))
    found["view"] = numbers(changes_view(spark, options["table"], 2))
    stream = spark.readStream.format("penstock").options(**options, readChangeFeed="true").load()
    query = (
        stream.writeStream.format("memory")
        .queryName("taken")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    found["stream"] = numbers(spark.table("taken"))
    found["pieces"] = run_on_executors(spark, [Piece(number) for number in range(5)])
    return found | read_many_tables(spark, options, Path(checkpoint))


def read_many_tables(spark: SparkSession, options: dict[str, str], checkpoint: Path) -> dict[str, Any]:
    """Read a stream over many tables, split on the server, and a range of them, split here."""
    from penstock.spark import by_table

    given = {name: value for name, value in options.items() if name != "table"} | {"tables": "shop.*"}
    folder = str(checkpoint.with_name("by_table"))
    query = (
        spark.readStream.format("penstock")
        .options(**given)
        .load()
        .writeStream.foreachBatch(save_tables(folder))
        .option("checkpointLocation", str(checkpoint.with_name("many_tables")))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    tables = spark.read.parquet(f"{folder}/shop.items")
    changes = spark.read.format("penstock").options(**given, startingVersion="2").load()
    return {"tables": numbers(tables), "range of tables": numbers(by_table(changes)["shop.items"])}


def save_tables(folder: str) -> Any:
    def save(batch: Any, _number: int) -> None:  # runs beside the server
        from penstock.spark import by_table

        for table, changes in by_table(batch).items():
            changes.write.mode("append").parquet(f"{folder}/{table}")

    return save


def supervise(spark: SparkSession) -> "SupervisedSession":
    """Return what services have: their settings name the server, which took a free port here."""
    from pyspark.sql.connect.client import DefaultChannelBuilder

    from penstock.settings import Settings, SparkSettings
    from penstock.spark.supervised import SupervisedSession

    master = f"sc://localhost:{DefaultChannelBuilder.default_port()}"
    conf = {"spark.sql.shuffle.partitions": "3"}
    session = SupervisedSession(Settings(spark=SparkSettings(master=master, conf=conf)), app_name="unused")
    session.check()
    assert session("billing") is spark
    return session


def work(spark: SparkSession, session: "SupervisedSession", path: Path) -> dict[str, Any]:
    """Do what changefeeds and jobs do: encode and write files, and read the changes of an iteration."""
    from penstock.changefeeds.engines.engine import DirectFile, FileWork
    from penstock.changefeeds.engines.spark import SparkEngine
    from penstock.jobs.iteration import spark_frame

    # The test has written it.
    encode, target, scan = pickle.loads(path.read_bytes())

    async def write() -> tuple[list[str], Any]:
        engine = SparkEngine(session.get(), target, account="billing")
        ((chunks, _),) = await engine.encode([encode])
        names = {"data_path": "1.json", "index_path": "1.index"}
        results = await engine.write([FileWork(dispatcher_id="1", chunks=tuple(chunks), **names)])
        await engine.release(chunks[0].segment)
        file = FileWork(dispatcher_id="1", chunks=(), data_path="2.json", index_path="2.index")
        made = await engine.make_file(DirectFile(file, (encode,)))
        await engine.close()
        return [result.error for result in results], made.failure

    errors, failure = asyncio.run(write())
    frame = spark_frame.SparkFrames(session.get).open(scan, None)
    found = {
        "set": spark.conf.get("spark.sql.shuffle.partitions"),
        "errors": errors,
        "failure": failure,
        "changed": numbers(frame.dataframe),
        "read in a round": read_in_round(session, scan),
    }
    frame.release()
    return found


def read_in_round(session: "SupervisedSession", scan: Any) -> list[int]:
    """Read the changes of an iteration as the jobs of several tables do, which share Spark jobs."""
    from contextlib import closing

    from penstock.jobs.iteration.range_read import RoundReader
    from penstock.jobs.iteration.rounds import ReadRounds, SparkReadJobs

    with closing(ReadRounds(SparkReadJobs(session.get))) as rounds:
        batches = list(RoundReader(rounds).begin(scan, None, "billing").batches())
    return sorted(row["id"] for batch in batches for row in batch.inserts.to_pylist())


def lose_server(spark: SparkSession, session: "SupervisedSession") -> dict[str, Any]:
    """Kill the server under a service that has work on it; the service notices, and gives the work back."""
    from penstock.errors import Unavailable
    from penstock.spark.errors import translate_spark_errors
    from penstock.spark.parallelism import default_parallelism
    from support.sparkcluster import java_of

    tasks = default_parallelism(spark)
    given_back: list[str] = []

    def run_job() -> None:
        try:
            with translate_spark_errors():
                spark.range(1).mapInArrow(work_forever, "id long").count()
        except Unavailable as error:
            given_back.append(str(error))

    job = threading.Thread(target=run_job, daemon=True)
    job.start()
    java = java_of(os.getpid())
    assert java is not None
    os.kill(java, signal.SIGKILL)
    job.join(120)
    deadline = SYSTEM.monotonic() + 120
    refused = ""
    while not refused and SYSTEM.monotonic() < deadline:
        try:
            session.get()
        except Unavailable as error:
            refused = str(error).split(" (")[0]
        SYSTEM.pause(0.1)
    began = SYSTEM.monotonic()
    session.stop()
    return {
        "tasks": tasks,
        "given back": given_back,
        "refused": refused,
        "stopped": SYSTEM.monotonic() - began < 60,
    }


def work_forever(batches: Any) -> Any:
    from penstock.clock import SYSTEM

    for batch in batches:
        SYSTEM.pause(3600.0)
        yield batch


class Piece:
    """What bulk jobs run on executors."""

    def __init__(self, number: int) -> None:
        self.number = number

    def run(self) -> int:
        return 2 * self.number


def numbers(frame: Any) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main()))
