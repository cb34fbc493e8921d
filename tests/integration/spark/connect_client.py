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
    return found


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
    from penstock.changefeeds.engines.engine import FileWork
    from penstock.changefeeds.engines.spark import SparkEngine
    from penstock.jobs.iteration import spark_frame

    # The test has written it.
    encode, target, scan = pickle.loads(path.read_bytes())

    async def write() -> list[str]:
        engine = SparkEngine(session.get(), target, account="billing")
        ((chunks, _),) = await engine.encode([encode])
        names = {"data_path": "1.json", "index_path": "1.index"}
        results = await engine.write([FileWork(dispatcher_id="1", chunks=tuple(chunks), **names)])
        await engine.release(chunks[0].segment)
        await engine.close()
        return [result.error for result in results]

    frame = spark_frame.SparkFrames(session.get).open(scan, None)
    found = {
        "set": spark.conf.get("spark.sql.shuffle.partitions"),
        "errors": asyncio.run(write()),
        "changed": numbers(frame.dataframe),
    }
    frame.release()
    return found


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
