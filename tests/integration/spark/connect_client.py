"""A program on Spark Connect, with a server of its own: reads what the options in its argument name.

It runs in a process of its own, because a process has either a Java of its own or the client of a server.
"""

import json
import sys
import warnings
from typing import Any

from pyspark.sql import SparkSession


def main() -> dict[str, Any]:
    asked = json.loads(sys.argv[1])
    builder = SparkSession.builder.remote("local[2]")
    for name, value in asked["conf"].items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what only a starting server takes is told again as a failure
        spark = builder.getOrCreate()
    try:
        return read(spark, asked["options"], asked["checkpoint"])
    finally:
        spark.stop()


def read(spark: SparkSession, options: dict[str, str], checkpoint: str) -> dict[str, Any]:
    from penstock.errors import Invalid
    from penstock.spark import changes_view, register  # the import registers with the active session
    from penstock.spark.session import enter_pool
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
    assert query.awaitTermination(60)
    found["stream"] = numbers(spark.table("taken"))
    found["pieces"] = run_on_executors(spark, [Piece(number) for number in range(5)])
    try:
        enter_pool(spark, "billing")
    except Invalid as error:
        found["refused"] = str(error)
    return found


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
