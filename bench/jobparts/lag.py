"""From when a commit is answered until a search finds its row.

Store, capture and runner are processes, with the settings that they have by default; the job is greedy.
"""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from changes import show
from jobparts.indexes import DOCS, Texts
from jobparts.watching import wait
from penstock.consumers.search_index.search import search
from penstock.jobs.api import Jobs
from penstock.jobs.job import Job, JobId
from penstock.jobs.spec import JobSpec
from penstock.kv import Client
from penstock.secret_keys import Keyring
from penstock.settings import Settings
from penstock.tables import Catalog
from support.command import ServiceProcess

SEARCHED = "shop.docs/words"
FRESH = "freshly"  # in every text that is committed while lag is measured


@dataclass
class Searcher:
    """Asks for fresh rows all the time; `seen` says when each was first found."""

    job: Job
    seen: dict[int, float] = field(default_factory=dict)
    searches: int = 0
    first: int = 0
    """Ids below it are not asked for any more."""

    def look(self) -> None:
        found = search(self.job, FRESH, k=10_000, filter=f"id >= {self.first}", columns=["id"])
        now = time.perf_counter()
        self.searches += 1
        for each in found.rows.column("id").to_pylist():
            self.seen.setdefault(each, now)
        while self.first in self.seen:
            self.first += 1


def measure_lag(
    folder: Path, settings: Settings, config: Path, rows: int, commits: int, gap_s: float
) -> None:
    client = Client.connect(settings.pd_addrs)
    db, jobs = Catalog(client), Jobs(client, keys=Keyring(settings.secrets_dir))
    db.create_database("shop")
    db.create_table("shop.docs", DOCS)
    docs, texts = db.table("shop.docs"), Texts(rows)
    for first in range(0, rows, 2_000):
        ids = np.arange(first, min(rows, first + 2_000))
        bodies = texts.column(ids, 0).to_pylist()
        docs.insert([{"id": each, "body": body} for each, body in zip(ids.tolist(), bodies, strict=True)])
    info = {"consumer": "fulltext", "options": {"uri": str(folder / "words"), "text_columns": "body"}}
    spec = JobSpec.parse({"trigger": {"job_type": "greedy"}, "detail": {"consumer": info}})
    job_id = JobId.parse(SEARCHED)
    jobs.log.ensure()
    with client.begin() as txn:
        assert jobs.register_job(txn, job_id, spec)
    with ServiceProcess(folder / "runner.log", "job", "run", "--config", str(config)):
        wait(lambda: jobs.get_job(job_id).watermark > 0, "the index is not built")
        searcher = Searcher(jobs.get_job(job_id), first=rows)
        committed = _write_and_search(docs, texts, searcher, range(rows, rows + commits), gap_s)
        assert not jobs.get_job(job_id).status.failures, "iterations have failed"
    client.close()
    lags = np.array([searcher.seen[each] - at for each, at in committed.items()])
    took = committed[rows + commits - 1] - committed[rows]
    print(
        f"lag: {commits} commits in {took:.1f} s beside {rows:,} rows,"
        f" a search every {took / searcher.searches * 1000:.0f} ms"
    )
    for share, target in ((50, "<= 1.00"), (99, "")):
        detail = f"s from the answer of a commit to the first hit; the longest {lags.max():.2f} s"
        show(f"lag from commit to searchable, p{share}", float(np.percentile(lags, share)), target, detail)


def _write_and_search(
    docs: Any, texts: Texts, searcher: Searcher, ids: range, gap_s: float
) -> dict[int, float]:
    """Commit rows at moments of chance while a thread searches for them; when each was committed."""
    committed: dict[int, float] = {}
    done, failures = threading.Event(), []

    def searching() -> None:
        try:
            while not done.is_set():
                searcher.look()
                time.sleep(0.005)
        except Exception as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=searching, name="searching")
    thread.start()
    drawn = np.random.default_rng(5)
    try:
        for each in ids:
            body = f"{FRESH} {texts.column(np.array([each]), 0)[0]}"
            docs.insert([{"id": each, "body": body}])
            committed[each] = time.perf_counter()
            time.sleep(gap_s * 2 * float(drawn.random()))
        wait(lambda: failures or searcher.first == ids.stop, "rows are not found")
    finally:
        done.set()
        thread.join()
    if failures:
        raise failures[0]
    return committed
