"""Jobs: what sharing saves, what idle tables cost, keeping indexes, and lag: `python bench/jobs.py`.

One run measures, each against something of the same run:

* sharing  eight copies of a table in one iteration against one copy, and against reading alone. Rows are wide
           and each copy has two of their columns. Reading is most of the work where changes are still rows in
           the memory of a capture, as those of the last minute are; from objects it is so cheap that writing
           eight copies is what is seen. Both are shown.
* ticks    one look of the runner at all its tables, of which few change, against a look at these few.
* indexes  taking changes of one row in a hundred into an index against making it anew, upkeep included.
* lag      from when a commit is answered until a search finds its row; store, capture and runner are
           processes with the settings they have by default.

What comes out is compared with what was put in: rows of targets, iterations, hits of searches.
"""

import argparse
import tempfile
from pathlib import Path

from jobparts.indexes import measure_indexes
from jobparts.lag import measure_lag
from jobparts.processes import cluster
from jobparts.sharing import measure_sharing
from jobparts.ticks import measure_ticks
from penstock import eventloop, process

PARTS = ("sharing", "ticks", "indexes", "lag")


def main() -> None:
    process.prepare_libraries()  # as in every process of ours
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--runs", type=int, default=3, help="of which the best counts, for sharing")
    parser.add_argument("--rows", type=int, default=100_000, help="of the table that consumers share")
    parser.add_argument("--consumers", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--changing", type=int, default=10, help="of these tables")
    parser.add_argument("--rounds", type=int, default=8, help="of changes, for ticks")
    parser.add_argument("--index-rows", type=int, default=100_000)
    parser.add_argument("--index-rounds", type=int, default=5, help="of changes of one row in a hundred")
    parser.add_argument("--lag-rows", type=int, default=20_000, help="that are there before")
    parser.add_argument("--commits", type=int, default=300, help="whose lag is measured")
    parser.add_argument("--gap-ms", type=float, default=50, help="from one of them to the next, on average")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        if "sharing" in chosen.only:
            measure_sharing(folder, chosen.rows, chosen.consumers, chosen.runs)
        if "ticks" in chosen.only:
            with cluster(folder / "ticks", interval_s=0.5) as (settings, _):
                eventloop.run(
                    measure_ticks(settings, chosen.tables, chosen.jobs, chosen.changing, chosen.rounds)
                )
        if "indexes" in chosen.only:
            measure_indexes(folder, chosen.index_rows, chosen.index_rounds)
        if "lag" in chosen.only:
            with cluster(folder / "lag") as (settings, config):
                measure_lag(
                    folder / "lag", settings, config, chosen.lag_rows, chosen.commits, chosen.gap_ms / 1000
                )


if __name__ == "__main__":
    main()
