"""A program for spark-submit: reads with a session that Penstock has never seen, then prints what its session
is after `build_session`, without and with its own.
"""

import json
import logging
import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

if __name__ == "__main__":  # before anything of Penstock is imported
    plain = SparkSession.builder.getOrCreate()
    try:
        plain.read.format("penstock").load("shop.orders")
    except PySparkException as error:
        sys.stdout.write(f"{json.dumps(str(error))}\n")
    plain.stop()

from penstock.settings import Settings, SparkSettings
from penstock.spark.session import build_session

OURS = Settings(
    spark=SparkSettings(
        master="local[1]",
        driver_memory="3g",
        connectors=("iceberg",),
        conf={
            "spark.sql.shuffle.partitions": "7",
            "spark.ui.enabled": "true",
            "spark.penstock.storage": "memory://",
        },
    )
)
KEYS = (
    "spark.master",
    "spark.app.name",
    "spark.driver.memory",
    "spark.sql.session.timeZone",
    "spark.sql.shuffle.partitions",
    "spark.ui.enabled",
    "spark.penstock.storage",
)
EXTENSIONS = "spark.sql.extensions"


def describe(spark: SparkSession) -> None:
    again = build_session(OURS).sparkContext is spark.sparkContext
    facts = {
        **{key: spark.conf.get(key) for key in KEYS},
        EXTENSIONS: spark.conf.get(EXTENSIONS, ""),
        "again": again,
        "count": spark.range(5).count(),
    }
    sys.stdout.write(f"{json.dumps(facts)}\n")


def main() -> None:
    logging.basicConfig()
    submitted = build_session(OURS, app_name="ours")
    describe(submitted)
    submitted.stop()
    first = SparkSession.builder.getOrCreate()
    theirs = first.newSession()  # as a notebook has one for each user
    theirs.createDataFrame([(1,)], "id long")
    adopted = build_session(OURS, app_name="ours")
    assert adopted is theirs
    assert first.conf.get("spark.sql.shuffle.partitions") != "7"
    describe(adopted)
    theirs.stop()


if __name__ == "__main__":
    main()
