"""What one account may take of the API: reads, jobs and changefeeds; and that it is charged for reads."""

import fcntl
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import pytest

from penstock.api.errors import ProblemError
from penstock.api.middleware import Readers
from penstock.clock import SYSTEM
from penstock.jobs.usage import Usage, read_usage
from support.apiworld import TOKENS, ApiWorld, api_world

COLUMNS = [("id", "bigint primary key"), ("name", "varchar(256)")]
JOBS = "/api/v1/jobs"
FEEDS = "/api/v1/changefeeds"
QUOTA = 3


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    folder = tmp_path_factory.mktemp("shares")
    tenant = {"targets": [f"file://{folder}/out"], "jobs_max": QUOTA, "changefeeds_max": QUOTA}
    accounts = {
        "root": {"token": TOKENS["root"], "admin": True},
        "ann": {"token": TOKENS["ann"], **tenant},
        "bob": {"token": TOKENS["bob"], **tenant},
    }
    api = {"accounts": accounts, "requests_burst": 100_000, "readers": 2, "reader_stall_s": 1}
    api |= {"client_timeout_s": 300}  # so that no connection is ended before its reader is
    with api_world(folder, api) as made:
        db = made.world.db
        for account in ("ann", "bob"):
            db.create_account(account)
            db.create_database(f"of_{account}", account=account)
            db.create_table(f"of_{account}.items", COLUMNS)
            rows = [{"id": number, "name": "x" * 250} for number in range(20_000)]
            ts = made.run(made.world.insert(f"of_{account}.items", *rows))
            made.run(made.world.readable(f"of_{account}.items", ts))
        yield made


def test_reads_of_others_never_shut_an_account_out() -> None:
    readers = Readers(2, accounts=3)
    with ExitStack() as held:
        for account in ("ann", "bob"):
            held.enter_context(readers.reading(account))
            with pytest.raises(ProblemError), readers.reading(account), readers.reading(account):
                pass
        with readers.reading("eve"):
            pass
    assert readers.most == 4


def test_every_read_is_charged_to_its_account() -> None:
    charged: list[tuple[str, Usage]] = []
    readers = Readers(1, charge=lambda account, usage: charged.append((account, usage)))
    with readers.reading("ann") as cost:
        cost.rows, cost.nbytes = 3, 100
    ((account, usage),) = charged
    assert (account, usage.rows, usage.nbytes) == ("ann", 3, 100)
    assert usage.task_seconds >= 0


def _read_nothing(shared: ApiWorld, account: str) -> socket.socket:
    """Ask for a large answer over a small socket, and take nothing but the first bytes of it."""
    address = urlsplit(shared.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(30)
    connection.connect((address.hostname, address.port))
    path = f"/api/v1/tables/of_{account}.items/changes?from_ts=0&format=arrow"
    head = f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {TOKENS[account]}\r\n\r\n"
    connection.sendall(head.encode())
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def test_a_reader_that_takes_nothing_is_cut_off_and_delays_nobody(shared: ApiWorld) -> None:
    slow = _read_nothing(shared, "ann")
    path = "/api/v1/tables/of_{}.items/changes"
    with slow:
        refused = shared.client("ann").get(path.format("ann"), params={"limit": 1})
        assert refused.status_code == 503, "the account holds what it may"
        assert shared.client("bob").get(path.format("bob"), params={"limit": 1}).status_code == 200
        shared.until(
            lambda: shared.client("ann").get(path.format("ann"), params={"limit": 1}).status_code == 200,
            "the reader that takes nothing holds its place",
        )


def _job(name: str, folder: Any) -> dict[str, Any]:
    options = {"uri": f"file://{folder}/out/{name}", "text_columns": "name"}
    return {
        "job": f"of_ann.items/{name}",
        "spec": {"detail": {"consumer": {"consumer": "fulltext", "options": options}}},
    }


def test_an_account_has_no_more_jobs_than_its_quota_however_it_asks(shared: ApiWorld) -> None:
    client = shared.client("ann")
    with ThreadPoolExecutor(8) as threads:
        answers = list(
            threads.map(lambda number: client.post(JOBS, json=_job(f"job{number}", shared.folder)), range(12))
        )
    assert sorted(answer.status_code for answer in answers) == [201] * QUOTA + [403] * (12 - QUOTA)
    refused = next(answer for answer in answers if answer.status_code == 403)
    assert "api.accounts.ann.jobs_max" in refused.json()["detail"]
    assert "\n" not in refused.json()["detail"]
    made = [row["job"] for row in client.get(JOBS).json()]
    assert len(made) == QUOTA
    root = shared.client("root").post(JOBS, json=_job("by-admin", shared.folder))
    assert root.status_code == 201, "an admin may"
    for name in (*made, "of_ann.items/by-admin"):
        assert client.delete(f"{JOBS}/{name}").status_code == 204
    for number in range(2 * QUOTA):
        path = f"{JOBS}/of_ann.items/loop{number}"
        assert client.post(JOBS, json=_job(f"loop{number}", shared.folder)).status_code == 201
        assert client.delete(path).status_code == 204
    dropped = shared.deployment.jobs("ann").get_jobs(dropped=True)
    assert len(dropped) <= QUOTA + 1, "names that come and go leave no pile of rows"


def test_an_account_has_no_more_changefeeds_than_its_quota(shared: ApiWorld) -> None:
    client = shared.client("bob")

    def create(number: int) -> int:
        uri = f"file://{shared.folder}/out/feed{number}?protocol=csv"
        wish = {"id": f"feed{number}", "sink_uri": uri, "tables": ["of_bob.*"]}
        while (status := client.post(FEEDS, json=wish).status_code) == 503:
            pass  # others of the account are being created: so many at a time, as for reads
        return status

    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(create, range(8))) == [201] * QUOTA + [403] * (8 - QUOTA)
    for feed in client.get(FEEDS).json():
        assert client.delete(f"{FEEDS}/{feed['id']}").status_code == 204
    assert create(9) == 201


@pytest.mark.parametrize(
    "hostile",
    [
        {"tables": [f"of_ann.*a?b{number}*" for number in range(20_000)]},
        {"tables": ["of_ann." + "*a" * 20_000]},
        {"row_filters": [{"tables": ["*.*"], "where": f"id IN ({', '.join(['1'] * 100_000)})"}]},
        {"row_filters": [{"tables": ["*.*"], "where": "id = 1 OR id = 2"}] * 2000},
        {"row_filters": [{"tables": ["*.*"] * 30_000, "where": "id = 1"}]},
        {"column_selectors": [{"tables": ["*.*"], "columns": ["c*" * 9] * 20_000}]},
        {"sink": {"file-cleanup-cron-spec": f"{','.join(['0-59'] * 20_000)} * * * * *"}},
    ],
    ids=["patterns", "a pattern", "a filter", "filters", "tables", "selectors", "a schedule"],
)
def test_a_changefeed_that_takes_seconds_to_parse_is_refused_unparsed(
    shared: ApiWorld, hostile: dict[str, Any]
) -> None:
    """Parsing holds Python's lock: nobody else gets an answer meanwhile, nor in the process that runs it."""
    client = shared.client("ann")
    uri = f"file://{shared.folder}/out/long?protocol=csv"
    made = client.post(FEEDS, json={"id": "long", "sink_uri": uri, "tables": ["of_ann.*"], **hostile})
    assert made.status_code == 400, made.text[:300]
    assert "more than" in made.json()["detail"]
    assert client.patch(f"{FEEDS}/long", json=hostile).status_code == 400


def test_a_changefeed_may_name_a_thousand_tables(shared: ApiWorld) -> None:
    client = shared.client("ann")
    wish = {
        "id": "thousand",
        "sink_uri": f"file://{shared.folder}/out/thousand?protocol=csv",
        "tables": [f"of_ann.table_of_some_length_{number}" for number in range(1000)],
        "row_filters": [{"tables": ["of_ann.items"], "where": f"id IN ({', '.join(['1'] * 1000)})"}],
    }
    assert client.post(FEEDS, json=wish).status_code == 201
    assert client.delete(f"{FEEDS}/thousand").status_code == 204


def test_reads_are_in_the_usage_of_their_account(shared: ApiWorld) -> None:
    before = read_usage(shared.deployment.blocking_client).get("bob", Usage())
    with shared.beside() as url:
        answer = shared.client("bob", url).get(
            "/api/v1/tables/of_bob.items/changes", params={"from_ts": 0, "format": "arrow"}
        )
        assert answer.status_code == 200
    after = read_usage(shared.deployment.blocking_client)["bob"]
    assert after.nbytes - before.nbytes == len(answer.content)
    assert after.task_seconds > before.task_seconds


def test_sinks_that_never_answer_hold_few_threads_of_the_api(shared: ApiWorld) -> None:
    root, bob = shared.client("root"), shared.client("bob")
    with socket.create_server(("127.0.0.1", 0), backlog=128) as silent, ThreadPoolExecutor(60) as threads:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        keys = {"access_key_id": "a", "secret_access_key": "b", "region": "c", "allow_http": "true"}

        def create(number: int) -> int:
            wish = {
                "id": f"silent{number}",
                "sink_uri": f"s3://lake/out{number}?protocol=csv",
                "storage_options": {"endpoint": endpoint, **keys},
                "tables": ["of_bob.*"],
            }
            return root.post(FEEDS, json=wish).status_code

        waiting = [threads.submit(create, number) for number in range(60)]
        shared.until(lambda: sum(made.done() for made in waiting) >= 55, "they hold threads of the API")
        refused = [made.result() for made in waiting if made.done()]
        assert set(refused) == {503}, "one account holds no more than its share"
        assert bob.get(JOBS, timeout=5).status_code == 200
        silent.close()
    for feed in root.get(FEEDS).json():
        if feed["id"].startswith("silent"):
            root.delete(f"{FEEDS}/{feed['id']}")


@contextmanager
def _slow_storage(shared: ApiWorld, table: str) -> Iterator[None]:
    """Let reads of a table's manifest wait until the end of the block, or for Linux's `lease-break-time`.

    Whoever opens a file of which another has a lease waits until that is given back, as on a server of files
    that does not answer.
    """
    table_id = shared.run(shared.world.table_id(table))
    folder = Path(shared.deployment.settings.capture.storage.removeprefix("file://"))
    manifest = folder / "tables" / str(table_id) / "manifest"
    shared.until(lambda: any(manifest.glob("*.json")), "the table is not flushed")
    with max(manifest.glob("*.json")).open("rb+") as entry:
        fcntl.fcntl(entry, fcntl.F_SETSIG, signal.SIGURG)  # the holder is told by a signal that ends nothing
        shared.until(lambda: _lease(entry), "others have the manifest open")
        yield  # closing the file gives the lease back


def _lease(file: IO[bytes]) -> bool:
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize("path", ["/api/v1/tables/of_ann.items", f"{JOBS}/of_ann.items/slow"])
def test_requests_of_an_account_that_hang_leave_threads_to_others(shared: ApiWorld, path: str) -> None:
    ann, bob = shared.client("ann"), shared.client("bob")
    assert ann.post(JOBS, json=_job("slow", shared.folder)).status_code == 201
    try:
        with ThreadPoolExecutor(60) as threads:
            with _slow_storage(shared, "of_ann.items"):
                hanging = [threads.submit(ann.get, path, timeout=300) for _ in range(60)]
                shared.until(lambda: sum(asked.done() for asked in hanging) >= 20, "nothing is refused")
                began = SYSTEM.monotonic()
                for known in (JOBS, "/api/v1/tables/of_bob.items", "/api/v1/overview", FEEDS):
                    assert bob.get(known, timeout=30).status_code == 200
                assert SYSTEM.monotonic() - began < 30
                assert sum(not asked.done() for asked in hanging) >= 1, "they hang no more"
            assert {asked.result().status_code for asked in hanging} <= {200, 500, 503}
        assert ann.get(path, timeout=30).status_code == 200
    finally:
        ann.delete(f"{JOBS}/of_ann.items/slow")
