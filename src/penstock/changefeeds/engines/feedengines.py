"""The engines of changefeeds: small work in this process, large work on Spark."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from penstock.changefeeds.engines.local import LocalEngine
from penstock.changefeeds.engines.sized import SizedEngine
from penstock.changefeeds.sinks.storage.options import SinkOptions
from penstock.spark.options import shared_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.changefeeds.engines.spark import SparkEngine


def spark_engines(session: "Callable[[], SparkSession]") -> Callable[[str, SinkOptions], SizedEngine]:
    """What makes the engine of a changefeed, by its name and its sink's options.

    It raises Invalid when executors could not reach the target. The session is asked for with the first work
    that is worth a job.
    """

    def engine(feed_id: str, options: SinkOptions) -> SizedEngine:
        target = replace(options.target, url=shared_url(options.target.url))
        numbers, threads = count(1), options.worker_count

        def on_spark() -> "SparkEngine":
            from penstock.changefeeds.engines.spark import SparkEngine  # which takes a while

            return SparkEngine(session(), target, account=feed_id, threads=threads, numbers=numbers)

        near = LocalEngine(target, threads=threads, numbers=numbers)
        return SizedEngine(near, on_spark, far_rows=options.spark_rows)

    return engine
