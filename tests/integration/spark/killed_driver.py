"""A driver that loads half of a table's ranges on its executors, says so, and waits to be killed."""

import sys
from collections.abc import Sequence
from pathlib import Path

from penstock import settings as penstock_settings
from penstock.eventstore.upkeep.load import RangeTask
from penstock.spark.bulk import load_table
from penstock.spark.tasks import run_on_executors
from support.spark import local_settings, shared_session


def main(config: str, table: str) -> None:
    settings = local_settings(penstock_settings.load(Path(config)))
    spark = shared_session(settings)

    def half(tasks: Sequence[RangeTask]) -> None:
        run_on_executors(spark, tasks[: len(tasks) // 2])
        sys.stdout.write("half\n")
        sys.stdout.flush()
        sys.stdin.read()

    load_table(settings, table, half)


if __name__ == "__main__":
    main(*sys.argv[1:])
